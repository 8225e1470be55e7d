"""What every verb of the command line shares: common options, a JSON printer, the end by a signal."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fleet.errors import FleetError

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="Fleet file (configs/fleet.yaml).")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a value, as a flag would.")
]


class Interrupted(BaseException):  # no error: somebody asked for it
    """SIGINT or SIGTERM arrived: close what is open, then end.

    Not a `KeyboardInterrupt`, which typer would answer by itself.
    """


def print_json(value: Any) -> None:
    """Print one JSON value."""
    typer.echo(json.dumps(value, indent=2, sort_keys=True))


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


def value_text(value: Any) -> str:
    """A value for people: short numbers, lists with commas, mappings as pairs."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {value_text(item)}" for key, item in value.items())
    return "not known" if value is None else str(value)
