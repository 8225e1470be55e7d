"""What the command line raises when SIGINT or SIGTERM arrives."""


class Interrupted(BaseException):  # no error: somebody asked for it
    """SIGINT or SIGTERM arrived: close what is open, then end.

    Not a `KeyboardInterrupt`, which typer would answer by itself.
    """


__all__ = ["Interrupted"]
