"""Printout at the end of the main job: one table and three short lines.

The demo calls `print_summary`. It reads well at 80 columns and without colour (pipes, CI, `NO_COLOR`); the
sentences are those of the page and of `report.json`. Nothing here judges or measures.
"""

from __future__ import annotations

from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleet.json_types import Json
from fleet.report.words import is_finite, label, labels, percent
from fleet.terminal_text import TerminalConsole

#: Shown in a cell where there is no number: the words would not fit at 80 columns.
ABSENT = "-"

#: Most characters of a device name, so that every number fits beside it at 80 columns.
NAME_CHARS = 14


LEGEND = (
    "again: median change when measured again. top-1, top-5: score on held-out workloads, "
    "1 = best. chance: top-1 of random choice. tau: Kendall's."
)


def print_summary(report: Json, page: Path | None = None, console: Console | None = None) -> None:
    """Print a row for each device, then what was measured, what was learned, and the verdict.

    The path of `report.html` comes last, if it was written. By default all goes to standard output.
    """
    console = console or TerminalConsole()
    console.print(_table(report))
    new = label(report["onboarding"]["device"], NAME_CHARS)
    console.print(Text(f"{LEGEND} {new}: scores of the warm start."))
    console.print()
    for title, sentence in zip(("Measured", "Learned", "New device"), report["headline"], strict=True):
        line = Text(f"{title}: ", style="bold")
        line.append(sentence, style="not bold")
        console.print(line)
    if page is not None:
        console.print(Text(f"Report: {page}"), soft_wrap=True)


def _table(report: Json) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("device", no_wrap=True)
    for name in ("records", "failed", "per s", "again", "top-1", "chance", "top-5", "tau"):
        table.add_column(name, justify="right", no_wrap=True)
    for (device, summary), name in zip(
        report["devices"].items(), labels(list(report["devices"]), NAME_CHARS), strict=True
    ):
        change = summary["remeasure_median_change"]
        table.add_row(
            Text(name),
            f"{summary['records']:,}",
            f"{summary['failed']:,}",
            _number(summary["records_per_s"]),
            percent(change) if is_finite(change) else ABSENT,
            *(_number(report["model"][key][device]) for key in ("top1", "random_top1", "top5", "tau")),
        )
    return table


def _number(value: float | None) -> str:
    return f"{value:.2f}" if is_finite(value) else ABSENT
