"""What the terminal says at the end of the main job: one table and three short lines.

The demo calls `print_summary`. It reads well at 80 columns and without colour (pipes, CI, `NO_COLOR`); the
sentences are those of the page and of `report.json`. Nothing here judges or measures.
"""

from __future__ import annotations

from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleet.report.values import DeviceSummary, HeadScore, Report
from fleet.report.words import headline, known, label, labels, percent
from fleet.terminal_console import TerminalConsole

#: Shown in a cell where there is no number: the words would not fit at 80 columns.
ABSENT = "-"

#: Most characters of a device name, so that every number fits beside it at 80 columns.
NAME_CHARS = 14


LEGEND = (
    "again: median change when measured again. top-1, top-5: score on held-out workloads, "
    "1 = best. chance: top-1 of random choice. tau: Kendall's."
)


def print_summary(report: Report, page: Path | None = None, console: Console | None = None) -> None:
    """Print a row for each device, then what was measured, what was learned, and the verdict.

    Args:
        report: The finished run.
        page: Where `report.html` lies, named last; left out where it was not written.
        console: Where to print; standard output by default.
    """
    console = console or TerminalConsole()
    if report.devices:
        console.print(_table(report))
        console.print(Text(_legend(report)))
        console.print()
    for title, sentence in zip(("Measured", "Learned", "New device"), headline(report), strict=True):
        line = Text(f"{title}: ", style="bold")
        line.append(sentence, style="not bold")
        console.print(line)
    if page is not None:
        console.print(Text(f"Report: {page}"), soft_wrap=True)


def _legend(report: Report) -> str:
    new = report.onboarding
    if new is None:
        return LEGEND
    return f"{LEGEND} {label(new.device, NAME_CHARS)}: scores of the warm start."


def _table(report: Report) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("device", no_wrap=True)
    for name in ("records", "failed", "per s", "again", "top-1", "chance", "top-5", "tau"):
        table.add_column(name, justify="right", no_wrap=True)
    scores = _scores(report)
    names = labels([device.device_id for device in report.devices], NAME_CHARS)
    for device, name in zip(report.devices, names, strict=True):
        table.add_row(Text(name), *_cells(device, scores.get(device.device_id)))
    return table


def _scores(report: Report) -> dict[str, HeadScore]:
    """One score a device; the onboarded device has its own from onboarding."""
    scores = {score.device_id: score for score in (report.model.scores if report.model else ())}
    new = report.onboarding
    if new is not None and new.device not in scores:
        scores[new.device] = HeadScore(
            device_id=new.device, top1=new.top1, top5=new.top5, random_top1=new.random_top1
        )
    return scores


def _cells(device: DeviceSummary, score: HeadScore | None) -> tuple[str, ...]:
    score = score or HeadScore(device_id=device.device_id)
    change = device.remeasure_median_change
    return (
        f"{device.records:,}",
        f"{device.failed:,}",
        _number(device.records_per_s),
        percent(change) if known(change) else ABSENT,
        _number(score.top1.value),
        _number(score.random_top1),
        _number(score.top5.value),
        _number(score.kendall_tau),
    )


def _number(value: float | None) -> str:
    return f"{value:.2f}" if known(value) else ABSENT
