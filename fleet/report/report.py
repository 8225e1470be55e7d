"""The report of the main job: one JSON value, and both of its files.

`fleet.report.demo_report` makes the value. `complete` adds the sentences, `write` puts `report.json` and
`report.html` in a folder. The page is drawn from the value alone.

Layout, version 1. Scripts of users read the first three keys; there are more:

- `devices`: by id `records`, `ok`, `failed`, `records_per_s`, `remeasure_median_change`.
- `model`: `version`, `heads`, and by device `top1` and `top5`.
- `onboarding`: `device`, `samples`, `strategy`, `seconds`, `top1`, `top5`, `scratch_top1`, `scratch_top5`,
  `full_top1`. `top1` and `top5` are of the head that serves in the end (`served_by`), `warm_top1` of the head
  that `strategy` made.

Every key that ends in `_interval` is [low, high] at `interval_level`, or None. Scores are in (0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleet.json_types import Json, JsonDict
from fleet.report import words

#: Version of the layout of `report.json`.
REPORT_VERSION = 1


def complete(findings: Json) -> JsonDict:
    """Complete a report: the sentences are added.

    Returns:
        JSON-ready values only; a number that is NaN or infinite is `None`.
    """
    report: JsonDict = _finite(
        {"version": REPORT_VERSION, **findings, "interval_level": words.INTERVAL_LEVEL}
    )
    onboarding = report["onboarding"]
    onboarding["verdict"] = words.rivals(onboarding)[0].verdict.value
    onboarding["verdict_text"] = words.verdict_text(onboarding)
    return {**report, "headline": list(words.headline(report))}


def write(report: Json, folder: Path) -> tuple[Path, Path]:
    """Write `report.html` and `report.json`; see `fleet.page_template.write_report`."""
    from fleet.page_template import write_report
    from fleet.report import page

    return write_report(report, page.render(report), folder)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        clean = {str(key): _finite(item) for key, item in value.items()}
        # An interval with an unknown end is left out.
        return {
            key: None if key.endswith("_interval") and isinstance(item, list) and None in item else item
            for key, item in clean.items()
        }
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    number = float(value)
    return number if math.isfinite(number) else None
