"""The sentences of a report: verdict, headline, and numbers with sensible units.

Pure functions of a report in the layout of `report.json` (`fleet.report.page`). The page, the terminal and
the file show the same sentences because all of them call these functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeGuard

from fleet.json_types import Json

#: Probability that every interval in a report stands for.
INTERVAL_LEVEL = 0.90

#: Shown instead of a missing number.
NOT_MEASURED = "not measured"

#: Fewest workloads for a claim: with n fair coins all alike by chance has probability 2 * 2**-n, which
#: first falls below 10 % at n = 5; a bootstrap over fewer pairs gives intervals that are too narrow.
MIN_PAIRS = 5

#: Who serves a new device at the end of the demo, as `served_by` of its onboarding says.
SHIPPED, WARM = "shipped", "warm"

#: Units of a latency in seconds, the largest first.
_UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}

TIMES = "\N{MULTIPLICATION SIGN}"


class WarmStartVerdict(StrEnum):
    """How the warm start compares with another way to get a head from the same samples."""

    BETTER = "better"
    UNCLEAR = "unclear"
    WORSE = "worse"


class Rival(NamedTuple):
    """What the warm start is compared with, and how that ended."""

    name: str
    top1: float
    difference: float
    interval: Sequence[float]
    verdict: WarmStartVerdict

    @property
    def stands(self) -> str:
        """How the warm start stands against it."""
        if self.verdict is WarmStartVerdict.UNCLEAR:
            return f"not clearly different from {self.name}"
        return f"{self.verdict} than {self.name}"


def is_finite(number: float | None) -> TypeGuard[float]:
    """Whether there is a finite number."""
    return number is not None and math.isfinite(number)


def verdict(interval: Sequence[float], pairs: int) -> WarmStartVerdict:
    """Judge the mean of warm minus rival top-1 by its interval, over `pairs` held-out workloads.

    Returns:
        `BETTER` or `WORSE` only if the whole interval lies on one side of 0 and there are at least
        `MIN_PAIRS` workloads.
    """
    low, high = interval
    if pairs < MIN_PAIRS or low <= 0 <= high:
        return WarmStartVerdict.UNCLEAR
    return WarmStartVerdict.BETTER if low > 0 else WarmStartVerdict.WORSE


def rivals(onboarding: Json) -> list[Rival]:
    """Scratch first, then the nearest known head."""
    compared = []
    for name, start, key in (
        ("training from scratch", "scratch", "difference"),
        ("the nearest known head", "nearest", "nearest_difference"),
    ):
        interval = onboarding[f"{key}_interval"]
        judged = verdict(interval, len(onboarding["workloads"]))
        compared.append(Rival(name, onboarding[f"{start}_top1"], onboarding[key], interval, judged))
    return compared


def title(onboarding: Json) -> str:
    """Give the result in fewer than fifteen words: how good the head is that serves the new device."""
    serves = onboarding["served_by"] or WARM
    top1, device = onboarding[f"{serves}_top1"], label(onboarding["device"])
    model = "the shipped model" if serves == SHIPPED else "its own model"
    return f"{device}: {model}'s first choice reaches {percent(top1)} of the best speed"


def verdict_text(onboarding: Json) -> str:
    """Say whether the warm start pays, by how much, how sure that is, and which rival is the strongest."""
    scratch, nearest = rivals(onboarding)
    differences = [pair["warm_top1"] - pair["scratch_top1"] for pair in onboarding["workloads"]]
    ties = f", equal on {differences.count(0)}" if 0 in differences else ""
    text = (
        f"The warm start is {scratch.stands}: top-1 {signed(scratch.difference)} "
        f"with {counted(onboarding['samples'], 'sample')}{interval_words(scratch.interval)}. It is ahead on "
        f"{sum(difference > 0 for difference in differences)} of "
        f"{counted(len(differences), 'held-out workload')}{ties}."
    )
    if len(differences) < MIN_PAIRS:
        text += f" Fewer than {MIN_PAIRS} workloads are too few to call a winner."
    elif scratch.verdict is WarmStartVerdict.UNCLEAR:
        text += " The interval includes 0, so this run cannot show which is better."
    box = onboarding.get("shipped_top1", 0.0)
    is_strongest = nearest.top1 >= max(scratch.top1, box)
    text += (
        f" {'The strongest rival is' if is_strongest else 'Against'} {nearest.name}, used without any "
        f"training: top-1 {score_text(nearest.top1)}, the warm start {score_text(onboarding['warm_top1'])}, "
        f"difference {signed(nearest.difference)}{interval_words(nearest.interval)}."
    )
    if box and onboarding["served_by"] != SHIPPED:
        stands = "The strongest rival is the" if box >= max(scratch.top1, nearest.top1) else "The"
        text += f" {stands} shipped model's head, which takes no sample: top-1 {score_text(box)}."
    return text


def served_text(onboarding: Json) -> str:
    """Say whose head serves the device at the end; empty if no shipped model was a rival."""
    if not onboarding["served_by"]:
        return ""
    box, warm = (score_text(onboarding[f"{start}_top1"]) for start in ("shipped", "warm"))
    if onboarding["served_by"] == SHIPPED:
        return f"The shipped model's head serves it without a sample: top-1 {box}, the warm start {warm}. "
    return f"The warm start serves it: top-1 {warm}, the shipped model's head without a sample {box}. "


def headline(report: Json) -> tuple[str, str, str]:
    """Give what was measured, what was learned, and whether the warm start pays."""
    return (_measured(report), _learned(report), _onboarded(report))


def _measured(report: Json) -> str:
    devices = report["devices"]
    records, failed = (sum(device[key] for device in devices.values()) for key in ("records", "failed"))
    failures = f"{failed:,} failed" if failed else "none failed"
    text = (
        f"Took {counted(records, 'measurement')} of {counted(len(report['workloads']), 'workload')} on "
        f"{counted(len(devices), 'device')}; {failures}."
    )
    changes = {name: device["remeasure_median_change"] for name, device in devices.items()}
    if steady := {name: change for name, change in changes.items() if is_finite(change)}:
        worst = max(steady, key=lambda name: steady[name])
        change = percent(steady[worst])
        text += f" Measuring again changes a latency by {change} at most (median, {label(worst)})."
    pairs, disturbed = (
        {name: device[f"remeasured_{key}"] for name, device in devices.items()}
        for key in ("pairs", "disturbed")
    )
    if any(disturbed.values()) and disturbed == pairs:
        text += " Other work on the host disturbed every repeated measurement, so this is no noise floor."
    elif any(disturbed.values()):
        some = (f"{count} of {pairs[name]} on {label(name)}" for name, count in disturbed.items() if count)
        text += f" Other work on the host disturbed repeated measurements: {', '.join(some)}."
    return text


def _learned(report: Json) -> str:
    model = report["model"]
    heads, took = counted(len(model["heads"]), "head"), duration(model["train_seconds"])
    top1, chance = model["top1"].values(), model["random_top1"].values()
    low, high = percent(min(top1)), percent(max(top1))
    text = (
        f"One model with {heads} was trained in {took}. On held-out workloads the candidate that it puts "
        f"first reaches {low if low == high else f'{low} to {high}'} of the best measured speed (random "
        f"choice: {percent(sum(chance) / len(chance))})."
    )
    if len(report["workloads"]) < MIN_PAIRS:
        few = counted(len(report["workloads"]), "held-out workload")
        return f"{text} {few} cannot show that this is more than luck."
    sure = sum(model["top1_interval"][name][0] > model["random_top1"][name] for name in model["top1"])
    return f"{text} It is clearly better than random choice on {sure} of {counted(len(top1), 'device')}."


def _onboarded(report: Json) -> str:
    onboarding = report["onboarding"]
    text = (
        f"{label(onboarding['device'])} was onboarded from {counted(onboarding['samples'], 'sample')} in "
        f"{duration(onboarding['seconds'])}. {served_text(onboarding)}{verdict_text(onboarding)}"
    )
    if onboarding["warm_top1_interval"][0] <= onboarding["random_top1"]:
        text += " The warm start is not clearly better than random choice."
    return text


def counted(count: int, noun: str) -> str:
    """Give a count and its noun: "1 sample", "2 samples"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def percent(share: float | None) -> str:
    """Give a share in percent, with a decimal below 10 %."""
    if not is_finite(share):
        return NOT_MEASURED
    return f"{share * 100:.1f} %" if abs(share) < 0.0995 else f"{share * 100:.0f} %"


def signed(number: float, digits: int = 3) -> str:
    """Give a score difference with its sign; what rounds to 0 is +0."""
    return f"{round(number, digits) + 0.0:+.{digits}f}"


def score_text(number: float) -> str:
    """Give a top-k score or a tau."""
    return f"{number:.3f}"


def scored(number: float, interval: Sequence[float]) -> str:
    """Give a score with its interval in brackets."""
    return f"{score_text(number)} ({interval[0]:.2f} to {interval[1]:.2f})"


def best_latencies(report: Json) -> dict[str, list[str]]:
    """Give each workload's best latency on each device of the report, in its order; the template calls it."""
    best = [
        {entry["workload"]: entry["best_latency_seconds"] for entry in device["workloads"]}
        for device in report["devices"].values()
    ]
    names = dict.fromkeys(workload for latencies in best for workload in latencies)
    unit = latency_unit(secs for latencies in best for secs in latencies.values())
    return {name: [latency(latencies.get(name), unit) for latencies in best] for name in names}


def interval_words(interval: Sequence[float]) -> str:
    """Give the interval of a difference in brackets with a space before it."""
    return f" ({percent(INTERVAL_LEVEL)} interval {signed(interval[0])} to {signed(interval[1])})"


def latency(secs: float | None, unit: str = "") -> str:
    """Give a latency with three digits or more, in its own unit or in the given one."""
    if not is_finite(secs):
        return NOT_MEASURED
    unit = unit or latency_unit([secs])
    return f"{three_digits(secs / _UNITS[unit])} {unit}"


def latency_unit(latencies: Iterable[float | None]) -> str:
    """Choose one unit for all latencies of a table: the largest that the shortest of them fills."""
    shortest = min((secs for secs in latencies if is_finite(secs)), default=0.0)
    # 0.9995 of a unit would be rounded up to one of it.
    return next((unit for unit, size in _UNITS.items() if shortest >= size * 0.9995), "ns")


def duration(secs: float) -> str:
    """Give a wall time in the units of a clock."""
    if secs < 1:
        return f"{secs * 1000:.0f} ms"
    if secs < 99.95:
        return f"{secs:.1f} s"
    minutes, rest = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def three_digits(number: float) -> str:
    """Give at least three significant digits without an exponent."""
    # Rounded first: 9.996 is 10.0, not 10.00.
    rounded = float(f"{number:.2e}")
    size = math.floor(math.log10(abs(rounded))) if rounded else 0
    return f"{number:,.{max(0, 2 - size)}f}"


def label(text: str, limit: int = 28) -> str:
    """Make a foreign name printable and short; a long one loses its middle, as names differ at the end."""
    clean = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    if len(clean) <= limit:
        return clean
    tail = (limit - 1) // 2
    return f"{clean[: limit - 1 - tail]}…{clean[len(clean) - tail :]}"


def labels(texts: Sequence[str], limit: int = 28) -> list[str]:
    """Make names printable and keep them apart: of those cut to the same text, later ones get a number."""
    names = [label(text, limit) for text in texts]
    return [
        name if name not in names[:place] else f"{name} #{names[:place].count(name) + 1}"
        for place, name in enumerate(names)
    ]
