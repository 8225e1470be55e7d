"""What pages of reports share: plots as plain values, and the templates with their filters.

A page is one HTML file that needs no network and no other file. Every foreign text is escaped by the template
engine. Called by `fleet.report.page` and `fleet.tuning.report`; how plots and tables look is in
`fleet/templates/parts.html`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from agents.files import write_durably
from fleet.errors import FleetError

#: Characters of an error text that a page shows.
ERROR_CHARS = 600
_SCORES = tuple((score * 100, f"{score:g}") for score in (0, 0.25, 0.5, 0.75, 1))


@dataclass(frozen=True, slots=True)
class Mark:
    """One shape of a plot; places are in percent of its row."""

    #: `dot`, `ring`, `square`, `tick`; `span` (thin), `bar` (thick) and `trend` have an end.
    shape: str
    x: float
    y: float = 50
    series: int = 0
    end: float = 0
    end_y: float = 50


@dataclass(frozen=True, slots=True)
class Plot:
    """Rows of marks over one axis, with what people read beside it."""

    key: str
    title: str
    #: How to read the chart, in one or two sentences.
    caption: str
    #: Name of a row, its marks, and its numbers in words.
    rows: Sequence[tuple[str, Sequence[Mark], str]]
    #: Places in percent and the texts of the axis.
    ticks: Sequence[tuple[float, str]] = _SCORES
    axis: str = ""
    legend: Sequence[tuple[str, int, str]] = ()


def write_report(report: Mapping[str, Any], html: str, folder: Path) -> tuple[Path, Path]:
    """Write `report.html` and `report.json`; each file is the old one or the new one, never a part.

    `report.json` is put in place last, so a reader who finds a new one also finds its page.

    Returns:
        The paths of the JSON file and of the page.

    Raises:
        FleetError: The folder cannot be written (no space, no permission).
    """
    text = json.dumps(report, indent=2, allow_nan=False) + "\n"
    json_path, html_path = folder / "report.json", folder / "report.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(html_path, html.encode())
        write_durably(json_path, text.encode())
    except OSError as error:
        reason = error.strerror or error
        raise FleetError(
            f"cannot write the report to {folder}: {reason}; free space or choose another folder"
        ) from error
    return json_path, html_path


def template_engine(*, is_html: bool, finalize: Callable[[Any], Any] | None = None) -> Environment:
    """The engine of all templates; `finalize` sees every value before it is written."""
    return Environment(
        loader=PackageLoader("fleet", "templates"),
        autoescape=is_html,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def page_environment() -> Environment:
    """The template engine with the templates of pages and their filters."""
    environment = template_engine(is_html=True, finalize=printable)
    environment.filters |= {"code": _with_code, "tail": _tail, "moment": _moment}
    return environment


def printable(value: Any) -> Any:
    """Keep foreign control characters and lone surrogates out of the page, and numbers with their units."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    clean = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in value)
    return re.sub(r"(?<=\d) (?=(%|s|ms|µs|ns|min|h)\b|%)", "\N{NO-BREAK SPACE}", clean)


def _with_code(text: str) -> Markup:
    """Set what stands between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(printable(text)))))


def _tail(text: str) -> str:
    """The end of an error text: the cause of a compiler's error is there."""
    text = text.strip()
    return f"…{text[-ERROR_CHARS:]}" if len(text) > ERROR_CHARS else text or "no message"


def _moment(at_secs: float | None) -> str:
    return (
        datetime.fromtimestamp(at_secs, UTC).strftime(" · %Y-%m-%d %H:%M UTC") if at_secs is not None else ""
    )
