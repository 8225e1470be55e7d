"""The sentences of a report: verdict, headline, and numbers with sensible units.

Pure functions of the values in `fleet.report.values`; the page, the terminal summary and `report.json` all
say the same words because they all ask here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import TypeGuard

from fleet.report.values import INTERVAL_LEVEL, OnboardingSummary, Report, ReportedNumber

#: Shown where there is no number.
NOT_MEASURED = "not measured"

#: Fewest workloads for a claim: with n fair coins all alike by chance has probability 2 * 2**-n, which
#: first falls below 10 % at n = 5; a bootstrap over fewer pairs gives intervals that are too narrow.
MIN_PAIRS = 5


class WarmStartVerdict(StrEnum):
    """How the warm start compares with training from scratch on the same samples."""

    BETTER = "better"
    UNCLEAR = "unclear"
    WORSE = "worse"
    NOT_MEASURED = "not_measured"


def known(number: float | None) -> TypeGuard[float]:
    """Say whether there is a finite number."""
    return number is not None and math.isfinite(number)


def verdict(difference: ReportedNumber, pairs: int) -> WarmStartVerdict:
    """Judge warm minus scratch by its interval.

    Args:
        difference: Mean of warm minus scratch top-1 and its interval.
        pairs: Held-out workloads behind it.

    Returns:
        `BETTER` or `WORSE` only where the whole interval lies on one side of 0 and there are at least
        `MIN_PAIRS` workloads; `NOT_MEASURED` where there is no difference at all.
    """
    if not known(difference.value):
        return WarmStartVerdict.NOT_MEASURED
    if pairs < MIN_PAIRS or difference.interval is None:
        return WarmStartVerdict.UNCLEAR
    low, high = difference.interval
    if low > 0:
        return WarmStartVerdict.BETTER
    return WarmStartVerdict.WORSE if high < 0 else WarmStartVerdict.UNCLEAR


def verdict_of(onboarding: OnboardingSummary) -> WarmStartVerdict:
    """Judge the onboarding of one device."""
    return verdict(onboarding.difference, len(_differences(onboarding)))


def _differences(onboarding: OnboardingSummary) -> list[float]:
    return [pair.difference for pair in onboarding.pairs if known(pair.difference)]


def verdict_title(onboarding: OnboardingSummary) -> str:
    """Give the verdict in a few words."""
    return {
        WarmStartVerdict.BETTER: "The warm start is better than training from scratch",
        WarmStartVerdict.UNCLEAR: "No clear difference between the warm start and training from scratch",
        WarmStartVerdict.WORSE: "The warm start is worse than training from scratch",
        WarmStartVerdict.NOT_MEASURED: "The warm start was not compared with training from scratch",
    }[verdict_of(onboarding)]


def verdict_text(onboarding: OnboardingSummary) -> str:
    """Say in plain words whether the warm start pays, by how much, and how sure that is."""
    found = verdict_of(onboarding)
    title = verdict_title(onboarding)
    if found is WarmStartVerdict.NOT_MEASURED:
        return f"{title}."
    differences = _differences(onboarding)
    count = len(differences)
    ahead = sum(difference > 0 for difference in differences)
    equal = sum(difference == 0 for difference in differences)
    text = (
        f"{title}: top-1 {signed(onboarding.difference.value)} with {counted(onboarding.samples, 'sample')}"
        f"{interval_words(onboarding.difference, sign=True)}."
    )
    if count:
        ties = f", equal on {equal}" if equal else ""
        text += f" It is ahead on {ahead} of {counted(count, 'held-out workload')}{ties}."
    if count < MIN_PAIRS:
        text += f" Fewer than {MIN_PAIRS} workloads are too few to call a winner."
    elif onboarding.difference.interval is None:
        text += " Without an interval no winner is called."
    elif found is WarmStartVerdict.UNCLEAR:
        text += " The interval includes 0, so this run cannot tell which is better."
    return text


def beats_random(top1: ReportedNumber, random_top1: float | None) -> bool | None:
    """Say whether the whole top-1 interval lies above random choice; `None` where that was not measured."""
    if top1.interval is None or not known(random_top1):
        return None
    return top1.interval[0] > random_top1


def headline(report: Report) -> tuple[str, ...]:
    """Give up to three sentences: what was measured, what was learned, whether the warm start pays."""
    return (_measured(report), _learned(report), _onboarded(report))


def _measured(report: Report) -> str:
    if not report.devices:
        return "Nothing was measured."
    records = sum(device.records for device in report.devices)
    failed = sum(device.failed for device in report.devices)
    places = f" of {counted(len(report.workloads), 'workload')}" if report.workloads else ""
    failures = f"{failed:,} failed" if failed else "none failed"
    where = counted(len(report.devices), "device")
    text = f"Took {counted(records, 'measurement')}{places} on {where}; {failures}."
    changes = [d.remeasure_median_change for d in report.devices if known(d.remeasure_median_change)]
    if changes:
        text += (
            f" Measuring again changes a latency by {percent(max(changes))} at most (median, worst device)."
        )
    return text


def _learned(report: Report) -> str:
    model = report.model
    if model is None:
        return "No model was trained."
    values = [score.top1.value for score in model.scores if known(score.top1.value)]
    text = f"One model with {counted(len(model.heads), 'head')} was trained"
    text += f" in {duration(model.train_secs)}." if known(model.train_secs) else "."
    if not values:
        return f"{text} Its ranking was not measured."
    low, high = min(values), max(values)
    reach = percent(low) if percent(low) == percent(high) else f"{percent(low)} to {percent(high)}"
    text += (
        f" On held-out workloads the candidate that it puts first reaches {reach} of the best measured speed"
    )
    chance = [score.random_top1 for score in model.scores if known(score.random_top1)]
    text += f" (random choice: {percent(sum(chance) / len(chance))})." if chance else "."
    judged = [beats_random(score.top1, score.random_top1) for score in model.scores]
    if 0 < len(report.held_out) < MIN_PAIRS:
        text += (
            f" {counted(len(report.held_out), 'held-out workload')} cannot show that this is more than luck."
        )
    elif any(found is not None for found in judged):
        sure = sum(found is True for found in judged)
        text += f" It is clearly better than random choice on {sure} of {counted(len(judged), 'device')}."
    return text


def _onboarded(report: Report) -> str:
    onboarding = report.onboarding
    if onboarding is None:
        return "No new device was onboarded."
    took = f" in {duration(onboarding.seconds)}" if known(onboarding.seconds) else ""
    text = (
        f"{label(onboarding.device)} was onboarded from {counted(onboarding.samples, 'sample')}{took}. "
        f"{verdict_text(onboarding)}"
    )
    if beats_random(onboarding.top1, onboarding.random_top1) is False:
        text += " The warm start is not clearly better than random choice."
    return text


def counted(count: int, noun: str) -> str:
    """Give a count and its noun: "1 sample", "2 samples"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def percent(share: float | None) -> str:
    """Give a share in percent, with a decimal below 10 %."""
    if not known(share):
        return NOT_MEASURED
    return f"{share * 100:.1f} %" if abs(share) < 0.0995 else f"{share * 100:.0f} %"


def signed(number: float | None, digits: int = 3) -> str:
    """Give a score difference with its sign; what rounds to 0 is +0."""
    if not known(number):
        return NOT_MEASURED
    return f"{round(number, digits) + 0.0:+.{digits}f}"


def score_text(number: float | None) -> str:
    """Give a top-k score or a tau."""
    return NOT_MEASURED if not known(number) else f"{number:.3f}"


def interval_words(estimate: ReportedNumber, *, sign: bool = False) -> str:
    """Give the interval in brackets with a space before it; empty where there is none."""
    if estimate.interval is None:
        return ""
    low, high = ((signed if sign else score_text)(end) for end in estimate.interval)
    return f" ({percent(INTERVAL_LEVEL)} interval {low} to {high})"


def latency(secs: float | None) -> str:
    """Give a latency with three digits in s, ms, µs or ns."""
    if not known(secs):
        return NOT_MEASURED
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        # 0.9995 of a unit would be rounded up to one of it.
        if secs >= size * 0.9995 or unit == "ns":
            return f"{three_digits(secs / size)} {unit}"
    return NOT_MEASURED


def duration(secs: float | None) -> str:
    """Give a wall time as people say it."""
    if not known(secs):
        return NOT_MEASURED
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
