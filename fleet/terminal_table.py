"""Tables for a terminal, without borders. Imports rich when one is printed: help must be instant."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.terminal_text import visible

#: Characters of a name that stay on one line in a narrow terminal.
_NAME_CHARS = 24


def print_rows(
    columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], narrow: tuple[str, ...] | None = None
) -> None:
    """Print a table without borders; long values wrap.

    Args:
        columns: Heading of each column.
        rows: A cell for each column.
        narrow: Headings of the same columns for a terminal that is too narrow for the table. It is then set
            closer, and the first column keeps `_NAME_CHARS` whatever else must give way.
    """
    from rich.table import Table

    from fleet.terminal_console import TerminalConsole

    console = TerminalConsole()
    rows = [tuple(map(visible, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    is_tight = narrow is not None and sum(widths) + 2 * (len(widths) - 1) > console.width
    table = Table(box=None, pad_edge=False, collapse_padding=is_tight, header_style="bold")
    for place, column in enumerate(narrow if narrow is not None and is_tight else columns):
        kept = min(widths[0], _NAME_CHARS) if is_tight and place == 0 else None
        table.add_column(column, overflow="fold", width=kept)
    for row in rows:
        table.add_row(*row)
    console.print(table)
