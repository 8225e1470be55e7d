"""What every verb of the command line shares: common options, a JSON printer, the end by a signal.

A standard stream that was closed is `/dev/null`. If standard output cannot be written, because its disk is
full or its reader is gone, the command fails with one line (decision 63).
"""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fleet.errors import FleetError, UsageError

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="Fleet file (configs/fleet.yaml).")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as protocol.repeat=5."),
]


class Interrupted(BaseException):  # not an error: the user asked for it
    """SIGINT or SIGTERM arrived: close what is open, then end.

    Not a `KeyboardInterrupt`, which typer would answer by itself.
    """


class OutputError(FleetError):
    """Standard output cannot be written."""


class _StreamFile(io.FileIO):
    """The file of a standard stream, which drops all that comes after its first fault.

    Neither click nor rich sees the `OSError`: both end a program whose reader is gone without a message. Only
    the main thread gets an exception: it would end a thread that draws progress with a traceback.
    """

    def __init__(self, number: int, *, is_vital: bool) -> None:
        super().__init__(number, "w", closefd=False)
        self._is_vital = is_vital
        self.fault: OSError | None = None
        self.is_reported = False

    def write(self, data: Any, /) -> int:
        """Write bytes, or drop them.

        Raises:
            OutputError: This is standard output, and its first fault.
        """
        if self.fault is None:
            try:
                return super().write(data)
            except OSError as error:
                self.fault = error
                if self._is_vital and threading.current_thread() is threading.main_thread():
                    self.report()
        return memoryview(data).nbytes

    def report(self) -> None:
        """Raise the fault, the first time.

        Raises:
            OutputError: There was one.
        """
        if self.fault is not None and not self.is_reported:
            self.is_reported = True
            raise OutputError(
                f"standard output cannot be written ({self.fault.strerror}): what was done before is kept"
            )


def open_standard_streams() -> Callable[[], None]:
    """Give the process its three standard streams, whatever it was started with.

    Must come before anything is opened: a file of the store would get the number of a closed stream, and
    all that is printed. Child processes inherit the streams.

    Returns:
        A function to be called at the end, which writes what waits; it raises `OutputError` for all that
        could not be written and was not reported.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - open as long as the process
    output = _StreamFile(1, is_vital=True)
    sys.stdout = _text_stream(output, sys.stdout)
    sys.stderr = _text_stream(_StreamFile(2, is_vital=False), sys.stderr)

    def finish() -> None:
        sys.stdout.flush()
        output.report()

    return finish


def _text_stream(raw: _StreamFile, old: Any) -> io.TextIOWrapper:
    """A stream of text with the settings of Python's own, which is None for a closed one."""
    if old is None:
        return io.TextIOWrapper(io.BufferedWriter(raw), errors="backslashreplace")
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=old.encoding,
        errors=old.errors,
        line_buffering=old.line_buffering,
        write_through=old.write_through,
    )


def print_json(value: Any) -> None:
    """Print one JSON value; paths are texts."""
    typer.echo(json.dumps(value, indent=2, sort_keys=True, default=str))


def short_moment(at_secs: float | None, now_secs: float | None = None) -> str:
    """Write a moment for a table, in local time; its date if it was not this year.

    Args:
        at_secs: Unix seconds; None or 0 if there was none.
        now_secs: The present in Unix seconds; that of the clock if None.
    """
    if not at_secs:
        return "never"
    at, now = time.localtime(at_secs), time.localtime(now_secs)
    return time.strftime("%m-%d %H:%M" if at.tm_year == now.tm_year else "%Y-%m-%d", at)


def parse_changes(changes: list[str]) -> dict[str, Any]:
    """Read `KEY=VALUE` texts of `--set` into overrides for `fleet.config.settings.load_fleet`.

    Raises:
        UsageError: A text has no `=`, or its value is not YAML.
    """
    from fleet.config.settings import ConfigError, parse_setting

    overrides: dict[str, Any] = {}
    for change in changes:
        key, separator, text = change.partition("=")
        if not separator or "." not in key:
            raise UsageError(f"--set {key}: expected SECTION.KEY=VALUE, such as protocol.repeat=5")
        try:
            overrides[key] = parse_setting(key, text)
        except ConfigError as error:
            raise UsageError(f"--set {key}: {error}") from error
    return overrides


def value_text(value: Any) -> str:
    """A value for people: short numbers, lists with commas, mappings as pairs."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {value_text(item)}" for key, item in value.items())
    return "not known" if value is None else str(value)
