"""What every verb of the command line shares: common options, a JSON printer, a table printer."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fleet.errors import FleetError
from fleet.terminal_text import visible

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="Fleet file (configs/fleet.yaml).")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a value, as a flag would.")
]

#: Characters of a name that stay on one line in a narrow terminal.
_NAME_CHARS = 24


def print_json(value: Any) -> None:
    """Print one JSON value."""
    typer.echo(json.dumps(value, indent=2, sort_keys=True))


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


def short_moment(at_secs: float | None, now_secs: float | None = None) -> str:
    """Write a moment for a table, in local time; its date where it was not this year.

    Args:
        at_secs: Unix seconds; None or 0 where there was none.
        now_secs: The present in Unix seconds; that of the clock if None.
    """
    if not at_secs:
        return "never"
    at, now = time.localtime(at_secs), time.localtime(now_secs)
    return time.strftime("%m-%d %H:%M" if at.tm_year == now.tm_year else "%Y-%m-%d", at)


def parse_changes(changes: list[str]) -> dict[str, Any]:
    """Read `KEY=VALUE` texts of `--set` into overrides for `fleet.config.settings.load_fleet`.

    Raises:
        FleetError: A text has no `=` or its value is no YAML.
    """
    from fleet.config.settings import ConfigError, parse_setting

    overrides: dict[str, Any] = {}
    for change in changes:
        key, separator, text = change.partition("=")
        if not separator or "." not in key:
            raise FleetError(f"--set {key}: expected SECTION.KEY=VALUE, such as protocol.repeat=5")
        try:
            overrides[key] = parse_setting(key, text)
        except ConfigError as error:
            raise FleetError(f"--set {key}: {error}") from error
    return overrides
