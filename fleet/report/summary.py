"""Printout at the end of the main job: one table and three short lines.

The demo calls `print_summary`. The sentences are those of the page and of `report.json`. Nothing here judges
or measures.
"""

from __future__ import annotations

from pathlib import Path

from fleet.json_types import Json
from fleet.report.words import is_finite, label, labels, percent
from fleet.terminal_text import print_rows, print_text

#: Most characters of a device name, so that every number fits beside it at 80 columns.
NAME_CHARS = 14
#: Headings, and the keys of a head's figures among them.
_COLUMNS = ("device", "records", "failed", "per s", "again", "top-1", "chance", "top-5", "tau")
_FIGURES = ("top1", "random_top1", "top5", "tau")
LEGEND = (
    "again: median change when measured again. top-1, top-5: score on held-out workloads, "
    "1 = best. chance: top-1 of random choice. tau: Kendall's."
)


def print_summary(report: Json, page: Path) -> None:
    """Print a row for each device, then what was measured, what was learned, the verdict, and the page."""
    devices, model = report["devices"], report["model"]
    rows = []
    for (device, summary), name in zip(devices.items(), labels(list(devices), NAME_CHARS), strict=True):
        change = summary["remeasure_median_change"]
        again = percent(change) if is_finite(change) else "-"
        counts = (f"{summary[key]:,}" for key in ("records", "failed"))
        numbers = [summary["records_per_s"], *(model[key][device] for key in _FIGURES)]
        speed, *figures = (f"{number:.2f}" if is_finite(number) else "-" for number in numbers)
        rows.append((name, *counts, speed, again, *figures))
    print_rows(_COLUMNS, rows)
    new = label(report["onboarding"]["device"], NAME_CHARS)
    print_text(f"{LEGEND} {new}: scores of the warm start.")
    for title, sentence in zip(("Measured", "Learned", "New device"), report["headline"], strict=True):
        print_text(f"{title}: {sentence}")
    print_text(f"Report: {page}")
