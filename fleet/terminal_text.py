"""Text for a terminal: what came from outside may not command it.

Names of files, lines of logs and errors of other programs may hold escape sequences, marks that turn the
direction of writing, and line ends that feign a line of ours. `visible` shows them instead. Every line of the
command line goes through it: by `print_text`, by `fleet.terminal_text.TerminalConsole`, or by the log
handler.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

#: Characters of a name that stay on one line in a narrow terminal.
_NAME_CHARS = 24


def visible(text: str, kept: str = "") -> str:
    r"""Write out characters that cannot be printed, as `\x1b` or `\u202e`.

    Args:
        text: Anything; bytes of a file name that are no text (surrogates) come out as `\xff`.
        kept: Characters that stay as they are, such as line ends.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in kept else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # how Python keeps a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


def in_utf8(text: str) -> str:
    r"""Write out what no file or message can carry, such as `\udcff` of a file name that is no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def print_text(line: str, *, error: bool = False) -> None:
    """Print one line on standard output, or on standard error."""
    typer.echo(visible(line), err=error)


class _VisibleFormatter(logging.Formatter):
    """Messages with their line ends, all else that cannot be printed written out."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record), kept="\n\t")


def make_logs_visible() -> None:
    """Let warnings that no handler takes up go to standard error as `visible` gives them."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_VisibleFormatter())


def say_text(text: str, *, error: bool = False) -> None:
    """Print several lines, such as a script or a traceback, on standard output or on standard error."""
    print(visible(text, kept="\n\t"), end="", file=sys.stderr if error else sys.stdout)


def print_rows(
    columns: tuple[str, ...], rows: Iterable[Iterable[object]], narrow: tuple[str, ...] | None = None
) -> None:
    """Print a table without borders; long values wrap. Loads rich: help must be instant.

    Args:
        columns: Heading of each column.
        rows: A cell for each column; it is printed as its text.
        narrow: Headings of the same columns for a terminal that is too narrow for the table. It is then set
            closer, and the first column keeps `_NAME_CHARS` whatever else must give way.
    """
    from rich.table import Table

    console = TerminalConsole()
    texts = [[visible(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    is_tight = narrow is not None and sum(widths) + 2 * (len(widths) - 1) > console.width
    table = Table(box=None, pad_edge=False, collapse_padding=is_tight, header_style="bold")
    for place, column in enumerate(narrow if narrow is not None and is_tight else columns):
        kept = min(widths[0], _NAME_CHARS) if is_tight and place == 0 else None
        table.add_column(column, overflow="fold", width=kept)
    for row in texts:
        table.add_row(*row)
    console.print(table)


# Rich's console for text that may come from outside.


class TerminalConsole(Console):
    """A console that writes out what cannot be printed, and takes no text for markup or pictures.

    Colours and cursor movements are rich's own: they are no text to it.
    """

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        super().__init__(stderr=stderr, quiet=quiet, markup=False, emoji=False, highlight=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, text made visible."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(visible(segment.text, kept="\n\t"), segment.style)
