"""The page of a report: one HTML file that needs no network and no other file.

`fleet.report.page.write` calls `render`. The page is a pure function of the report: the same report gives
the same bytes. Every foreign text (device names, errors, host facts) is escaped by the template engine. How
plots and tables look is in `fleet/templates/parts.html`; here is which numbers they show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from fleet.json_types import Json, JsonDict
from fleet.page_template import Mark, Plot, page_environment
from fleet.report import words
from fleet.report.words import (
    TIMES,
    duration,
    is_finite,
    label,
    labels,
    percent,
    score_text,
    signed,
)

# The report of the main job: one JSON value, and both of its files.
#
# `fleet.report.demo_report` makes the value. `complete` adds the sentences, `write` puts `report.json` and
# `report.html` in a folder. The page is drawn from the value alone.
#
# Layout, version 1. Scripts of users read the first three keys; there are more:
#
# - `devices`: by id `records`, `ok`, `failed`, `records_per_s`, `remeasure_median_change`.
# - `model`: `version`, `heads`, and by device `top1` and `top5`.
# - `onboarding`: `device`, `samples`, `strategy`, `seconds`, `top1`, `top5`, `scratch_top1`, `scratch_top5`,
#   `full_top1`. `top1` and `top5` are of the head that serves in the end (`served_by`), `warm_top1` of the
#   head that `strategy` made.
#
# Every key that ends in `_interval` is [low, high] at `interval_level`, or None. Scores are in (0, 1].

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


_LEGEND = (("dot", 0, "top-1"), ("square", 1, "top-5"), ("tick", 2, "random choice of as many"))
_CHOICES = "speed of the first 1 or 5 choices, divided by the best speed"
_LINES = f"Lines are {percent(words.INTERVAL_LEVEL)} intervals."
_SHARES = tuple((share, f"{share:.0f} %") for share in (0, 50, 100))


def render(report: Json) -> str:
    """Give the page as text: a whole HTML document that loads nothing from anywhere."""
    template = page_environment().get_template("report.html")
    return template.render(
        report=report,
        title=words.title(report["onboarding"]),
        tiles=_tiles(report),
        plots=[plot for plot in _plots(report) if plot.rows],
        starts=_starts(report["onboarding"]),
        words=words,
    )


def _tiles(report: Json) -> list[tuple[str, str]]:
    devices, onboarding = report["devices"], report["onboarding"]
    tiles = [
        ("devices", f"{len(devices):,}"),
        ("measurements", f"{sum(device['records'] for device in devices.values()):,}"),
        ("workloads", f"{len(report['workloads']):,}"),
    ]
    if "shipped_top1" in onboarding:
        tiles.append(("top-1, shipped model", score_text(onboarding["shipped_top1"])))
    return [
        *tiles,
        (f"top-1, warm, {onboarding['samples']:,} samples", score_text(onboarding["warm_top1"])),
        *(
            (f"top-1, {rival.name.removeprefix('training from ')}", score_text(rival.top1))
            for rival in words.rivals(onboarding)
        ),
        ("wall time", duration(report["timing"]["wall_seconds"])),
    ]


def _plots(report: Json) -> list[Plot]:
    onboarding = report["onboarding"]
    return [
        _levels(onboarding),
        _pairs(onboarding),
        _heads(report["model"]),
        _points(report["predicted"]),
        _spread(report["devices"]),
        _timing(report["timing"]),
    ]


def _heads(model: Json) -> Plot:
    rows = [
        _score_row(name, {key: model[key][device] for key in _SCORE_KEYS})
        for device, name in zip(model["top1"], labels(list(model["top1"])), strict=True)
        if is_finite(model["top1"][device]) or is_finite(model["top5"][device])
    ]
    caption = (
        "Each mark: best measured latency, divided by the best latency among the head's first 1 or 5 "
        f"choices, on workloads that it never saw. {_LINES} The further right of the grey mark, the "
        "more the head learned."
    )
    title = "How well each head picks programs"
    return Plot("scores", title, caption, rows, axis=_CHOICES, legend=_LEGEND)


_SCORE_KEYS = ("top1", "top5", "top1_interval", "top5_interval", "random_top1", "random_top5")


def _score_row(name: str, scores: Json) -> tuple[str, list[Mark], str]:
    marks = []
    for key, shape, series, y in (("top1", "dot", 0, 32), ("top5", "square", 1, 68)):
        if is_finite(scores[f"random_{key}"]):
            marks.append(Mark("tick", scores[f"random_{key}"] * 100, y, 2))
        if interval := scores[f"{key}_interval"]:
            marks.append(Mark("span", interval[0] * 100, y, series, interval[1] * 100))
        if is_finite(scores[key]):
            marks.append(Mark(shape, scores[key] * 100, y, series))
    said = (f"{scores[key]:.2f}" if is_finite(scores[key]) else "-" for key in ("top1", "top5"))
    return name, marks, " · ".join(said)


def _levels(onboarding: Json) -> Plot:
    rows = []
    for start, name in _starts(onboarding):
        scores = {key: onboarding[key if key.startswith("random") else start + key] for key in _SCORE_KEYS}
        if is_finite(scores["top1"]) or is_finite(scores["top5"]):
            rows.append(_score_row(name, scores))
    return Plot(
        "onboarding",
        "A new device from few samples",
        "Warm starts from the other devices' model, scratch from nothing; both saw the same samples. The "
        "nearest known head is another device's, unchanged. The shipped model comes with the program and saw "
        "none of these measurements. Full saw every training record of the device. "
        f"{_LINES}",
        rows,
        axis=_CHOICES,
        legend=_LEGEND,
    )


def _starts(onboarding: Json) -> list[tuple[str, str]]:
    """Prefix of the keys of each way to get a head, and its name."""
    few = f"{onboarding['samples']:,} samples"
    # There is one of some families only.
    shipped = [("shipped_", "shipped model, no sample")] if "shipped_top1" in onboarding else []
    return [
        ("warm_", f"warm, {few}"),
        ("scratch_", f"scratch, {few}"),
        ("nearest_", "nearest known head"),
        *shipped,
        ("full_", f"full, {onboarding['full_samples']:,} samples"),
    ]


def _pairs(onboarding: Json) -> Plot:
    pairs = [p for p in onboarding["workloads"] if is_finite(p["warm_top1"]) and is_finite(p["scratch_top1"])]
    pairs.sort(key=lambda pair: (pair["scratch_top1"] - pair["warm_top1"], pair["workload"]))
    rows = []
    for pair, name in zip(pairs, labels([pair["workload"] for pair in pairs], 34), strict=True):
        warm, scratch = pair["warm_top1"] * 100, pair["scratch_top1"] * 100
        line = Mark("span", min(warm, scratch), series=0 if warm >= scratch else 1, end=max(warm, scratch))
        marks = [line, Mark("ring", scratch, series=1), Mark("dot", warm)]
        rows.append((name, marks, signed((warm - scratch) / 100, 2)))
    return Plot(
        "pairs",
        "Warm against scratch, workload by workload",
        "Each row is one held-out workload; the number is warm minus scratch, in top-1. "
        f"Mean difference: {signed(onboarding['difference'])}.",
        rows,
        axis="top-1",
        legend=(("dot", 0, "warm"), ("ring", 1, "scratch")),
    )


def _points(predicted: Mapping[str, Sequence[Sequence[float]]]) -> Plot:
    rows = []
    for points, name in zip(predicted.values(), labels(list(predicted)), strict=True):
        marks = [Mark("point", ahead * 100, 100 - speed * 100) for ahead, speed in points]
        bins = [[speed for ahead, speed in points if min(7, int(ahead * 8)) == place] for place in range(8)]
        trend = [(12.5 * place + 6.25, 100 - 100 * median(bin)) for place, bin in enumerate(bins) if bin]
        for (x, y), (end, end_y) in pairwise(trend):
            marks.append(Mark("trend", x, y, 1, end, end_y))
        rows.append((name, marks, f"{len(points):,} points"))
    return Plot(
        "points",
        "What the model predicted, and what the device did",
        "One point per held-out candidate, its speed upwards (top: the best measured). The line is the "
        "median. A head that ranks well falls from top left (put first, fast) to bottom right (put last, "
        "slow). A flat line means that the head guesses.",
        rows,
        _SHARES,
        "candidates of the workload that the model puts ahead; upwards: speed",
        is_tall=True,
    )


def _spread(devices: Mapping[str, Any]) -> Plot:
    quantiles_by_device = {
        name: device["slowdown_quantiles"] for name, device in devices.items() if device["slowdown_quantiles"]
    }
    top = max([2.0, *(quantiles[-1] for quantiles in quantiles_by_device.values())])

    def place(slowdown: float) -> float:
        return 100 * math.log(slowdown) / math.log(top)

    rows = []
    for (lowest, low, middle, high, highest), name in zip(
        quantiles_by_device.values(), labels(list(quantiles_by_device)), strict=True
    ):
        marks = [Mark("span", place(lowest), end=place(highest)), Mark("bar", place(low), end=place(high))]
        rows.append((name, [*marks, Mark("tick", place(middle), series=2)], f"{middle:.3g}{TIMES}"))
    steps = [m * 10**e for e in range(6) for m in (1, 2, 5) if m * 10**e <= top]
    return Plot(
        "spread",
        "How much a schedule matters on each device",
        "Latency divided by the best latency of the workload, on a log scale. The mark is the median "
        "candidate, the bar holds the middle half, the line 90 %. A wide bar means that choosing well pays.",
        rows,
        [(place(step), f"{step:g}{TIMES}") for step in steps],
        "latency, divided by the best latency",
    )


def _timing(timing: Json) -> Plot:
    parts, total = timing["seconds_by_part"], timing["wall_seconds"]
    longest = max(parts.values())
    rows = []
    for name, secs in parts.items():
        # Agents run in parallel, and the time of an earlier run counts too.
        share = "" if name.startswith("agents") else f" · {percent(secs / total)}"
        bar = Mark("bar", 0, end=100 * secs / longest)
        rows.append((label(name.replace("_", " "), 34), [bar], duration(secs) + share))
    caption = f"Parts of {duration(total)} wall time."
    if sum(parts.values()) > total * 1.01:
        caption += " Agents work at once: their rows are sums over all agents, longer than the clock ran."
    ticks = [(0, "0"), (100, duration(longest))]
    return Plot("timing", "Where the time went", caption, rows, ticks, "time")
