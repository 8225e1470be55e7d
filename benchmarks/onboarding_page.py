"""The onboarding curve as a page for `docs/results/`: text from tables, no figure that was not measured.

Called by `benchmarks.onboarding`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.harness import cell, markdown_table
from benchmarks.onboarding_parts import DeviceSet, measured_mean
from benchmarks.onboarding_table import MEASURES, RANDOM, SCRATCH, CurveTable
from transfer.adapt.base import Regime
from transfer.data.intervals import Estimate

_WORDS = {
    Regime.DEVICE_NEW: (
        "Source devices have measured the candidates that are ranked; the device measured k of the other "
        "half of each workload's candidates."
    ),
    Regime.CANDIDATE_NEW: (
        "Source devices know the workloads, but nobody has measured the candidates that are ranked; the "
        "device measured k of the other half of each workload's candidates."
    ),
    Regime.BOTH_NEW: "Nobody has measured a candidate of the workloads ranked: whole networks are held out.",
}


def page(
    sets: Sequence[tuple[DeviceSet, CurveTable]],
    figures: Mapping[str, Any],
    parts: Mapping[str, Sequence[Mapping[str, Any]]],
    command: str,
) -> list[str]:
    """The whole page.

    Args:
        sets: Each set of devices with its curve.
        figures: Those at the top level.
        parts: What `benchmarks.onboarding_extras` gave, by part: a list with an entry for each set.
        command: That made it.
    """
    lines = ["# Onboarding: results", "", f"`{command}`", ""]
    lines += [
        "Made by that command; do not edit. top-1 is the speed of the candidate put first over the best "
        "there is among those judged, mean over workloads, seeds and devices, each device left out in "
        "turn. In brackets: 90 % intervals, bootstrap over workloads. **Bold**: above the best baseline "
        "of the column by paired bootstrap over workloads. A random choice stands beside every figure, "
        "and a ceiling where candidates were measured twice: one record of a candidate ranking another. "
        "Regimes are never mixed.",
        "",
        *markdown_table(("figure", "value"), ((f"`{name}`", text_of(one)) for name, one in figures.items())),
        "",
    ]
    for one, table in sets:
        lines += [
            f"## {one.name}",
            "",
            f"Devices {', '.join(table.targets)}; {len(one.dataset)} candidates of "
            f"{len(np.unique(one.dataset.group))} workloads.",
            "",
            *_ceiling_lines(one),
        ]
        for regime in table.regimes:
            lines += _regime_lines(table, regime)
        for title, make in (
            ("coverage", coverage_lines),
            ("selectors", selector_lines),
            ("breadth", breadth_lines),
            ("across", across_lines),
        ):
            for part in parts.get(title, ()):
                if part["set"] == one.name:
                    lines += make(part)
    return lines


def _ceiling_lines(one: DeviceSet) -> list[str]:
    if not one.ceilings:
        return ["No candidate was measured twice: there is no ceiling to show.", ""]
    head = ["ceiling on", "top-1", "top-5", "tau", "candidates measured twice", "change, median"]
    head += ["top-1 on as many as are judged", "tau"]
    rows = [
        (
            device_id,
            *(cell(ceiling[name]) for name in ("top1", "top5", "tau")),
            f"{ceiling['candidates']:.0f} of {ceiling['workloads']:.0f} workloads",
            f"{100 * ceiling['median_change']:.1f} %",
            *(cell(ceiling.get(name)) for name in ("judged_top1", "judged_tau")),
        )
        for device_id, ceiling in one.ceilings.items()
    ]
    return [*markdown_table(head, rows), ""]


def _regime_lines(table: CurveTable, regime: Regime) -> list[str]:
    ks = table.samples(regime)
    seeds = sorted({point.seed for point in table.points if point.regime is regime})
    titles = [f"all ({measured_mean(table, regime, k):.0f})" if k is None else str(k) for k in ks]
    counted = f"{len(seeds)} seeds" if len(seeds) > 1 else "1 seed"
    lines = [f"### {regime.value}, {counted} ({', '.join(map(str, seeds))})", "", _WORDS[regime], ""]
    for measure in MEASURES:
        random = table.estimate(regime, RANDOM, 0, measure)
        beside = "" if random is None or measure == "tau" else f" (random {random.value:.3f})"
        rows = [
            (name, *(_cell(table, regime, name, k, measure) for k in ks))
            for name in table.contenders(regime)
            if name != RANDOM
        ]
        lines += [*markdown_table([f"{measure}{beside}", *titles], rows), ""]
    lines += _difference_lines(table, regime, ks, titles)
    for target in table.targets:
        cells = [
            f"{title}: {mine.value:.3f} (best baseline {best.value:.3f}, {named})"
            for k, title in zip(ks, titles, strict=True)
            if (mine := table.estimate(regime, table.default, k, "top1", (target,))) is not None
            and (named := table.best_baseline(regime, k, (target,))) is not None
            and (best := table.estimate(regime, named, k, "top1", (target,))) is not None
        ]
        if cells:
            lines.append(f"- {table.default} on {target}: {'; '.join(cells)}")
    return [*lines, ""]


def _difference_lines(
    table: CurveTable, regime: Regime, ks: Sequence[int | None], titles: Sequence[str]
) -> list[str]:
    """The default less everything that it must beat, paired."""
    others = [
        name
        for name in table.contenders(regime)
        if name == SCRATCH or (name not in table.strategies and name != RANDOM)
    ]
    best = [table.best_baseline(regime, k) for k in ks]
    gains = [table.gain(regime, k) for k in ks]
    first = ["" if gain is None else f"{bold(gain)} ({name})" for gain, name in zip(gains, best, strict=True)]
    rows = [("the best baseline", *first)]
    rows += [
        (other, *(bold(table.difference(regime, table.default, other, k)) for k in ks)) for other in others
    ]
    return [*markdown_table([f"top-1 of {table.default} less", *titles], rows), ""]


def _cell(table: CurveTable, regime: Regime, name: str, k: int | None, measure: str) -> str:
    found = table.estimate(regime, name, k, measure)
    if found is None:
        return ""
    if measure != "top1":
        return cell(found.value)
    text = cell(found)
    best = table.best_baseline(regime, k)
    if name not in table.strategies or best is None:
        return text
    gain = table.difference(regime, name, best, k)
    return f"**{text}**" if gain is not None and gain.is_above_zero else text


def coverage_lines(part: Mapping[str, Any]) -> list[str]:
    """How often the stated intervals held the truth."""
    head = ["k", "runs", "top-1: interval covers", "width", "expected", "true", "top-5: interval covers"]
    rows = [
        (
            k,
            row["runs"],
            f"{100 * row['top1_covered']:.0f} %",
            *(cell(row[name]) for name in ("top1_width", "top1_expected", "top1")),
            f"{100 * row['top5_covered']:.0f} %",
            cell(row["top5_width"]),
        )
        for k, row in part["by_k"].items()
    ]
    about = f"{part['regime']}, {part['strategy']}, seeds {part['seeds']}"
    return [f"### Stated 90 % intervals ({about})", "", *markdown_table([*head, "width"], rows), ""]


def selector_lines(part: Mapping[str, Any]) -> list[str]:
    """Ways to choose the samples at equal k."""
    ks = list(map(str, part["samples"]))
    rows = []
    for name, row in part["selectors"].items():
        less = {k: f" ({cell(found, '+')})" for k, found in row["less_random"].items() if found is not None}
        needed = row["samples_for_random"]
        figures = (f"{cell(row['top1'][k])}{less.get(k, '')}" for k in ks)
        rows.append((name, *figures, "" if needed is None else f"{needed:.0f}"))
    about = f"{part['regime']}, {part['strategy']}, seeds {part['seeds']}"
    head = ["top-1", *ks, f"samples for random's top-1 at {part['at']}"]
    lines = [f"### Ways to choose the samples ({about})", "", *markdown_table(head, rows)]
    return [*lines, "", "In brackets: less random at equal k, paired.", ""]


def breadth_lines(part: Mapping[str, Any]) -> list[str]:
    """Top-1 where device and workload are new, against the number of workloads learnt from."""
    found = part["workloads"]
    rows = [
        (f"{name}, k = {k}", *(cell(of.get(name, {}).get(str(k))) for of in found.values()))
        for name in next(iter(found.values()))
        for k in part["k"]
    ]
    title = f"### Breadth: top-1 (both-new) by workloads learnt from, seeds {part['seeds']}"
    return [title, "", *markdown_table(["", *found], rows), ""]


def across_lines(part: Mapping[str, Any]) -> list[str]:
    """What one kind of processor gives another."""
    head = ["target", "learns from", "k", "top-1", "scratch", "less scratch", "nearest", "tau"]
    rows = [
        (
            *(row[name] for name in ("target", "source", "k")),
            *(cell(row[name]) for name in ("top1", "scratch")),
            cell(row["less_scratch"], "+"),
            *(cell(row[name]) for name in ("nearest", "tau", "scratch_tau")),
        )
        for row in part["rows"]
    ]
    title = f"### From one kind of processor to another (both-new, seeds {part['seeds']})"
    return [title, "", *markdown_table([*head, "tau of scratch"], rows), ""]


def bold(estimate: Estimate | None) -> str:
    """A difference with its interval, bold where it is above 0 for sure; nothing where there is none."""
    text = cell(estimate, "+")
    return f"**{text}**" if estimate is not None and estimate.is_above_zero else text


def text_of(value: Any) -> str:
    """A value of the table of figures."""
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list):
        return ", ".join(text_of(one) for one in value)
    return str(value)
