"""When a change means something: its size over what the series does by itself. Pure.

The one definition of "significant" of this project's pages, API and command line. A change is relative: after
over before, less one. The noise of a series is the standard deviation of such a change when nothing was
changed; it comes from A/A runs (`of_aa_run`), from the scatter of a series (`of_series`) or from an interval
(`of_interval`). Severity is the change over the noise. Significant is what reaches `THRESHOLD`: with Gaussian
noise, 1 of 370 comparisons does so by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

#: Severity from which a change is significant.
THRESHOLD = 3.0
#: Least noise of a measured series: no timer and no clock repeats better.
LEAST_NOISE = 0.002
#: Median of |x| to standard deviation, and half of a 90 % interval in these, for Gaussian noise.
_MEDIAN_TO_SIGMA, _HALF_INTERVAL = 1.4826, 1.645
#: Points of a series that say something of its scatter.
_LEAST_POINTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """How a change stands against the noise of its series."""

    #: Standard deviation of a change by chance; None where nobody knows it.
    noise: float | None
    #: |change| over noise; None likewise.
    severity: float | None

    @property
    def is_significant(self) -> bool | None:
        """Whether it reaches the threshold; None where the noise is not known."""
        return None if self.severity is None else self.severity >= THRESHOLD


def judge(change: float, noise: float | None) -> Judgement:
    """Judge one change.

    Args:
        change: Relative change, such as .03 for 3 % more.
        noise: Of its series, as a standard deviation; None where nobody knows it.
    """
    if noise is None or not math.isfinite(noise) or not math.isfinite(change):
        return Judgement(noise=None, severity=None)
    noise = max(noise, LEAST_NOISE)
    return Judgement(noise=noise, severity=abs(change) / noise)


def of_aa_run(median_change: float) -> float:
    """Noise of a change by an A/A run, whose median of |later / earlier - 1| is given."""
    return _MEDIAN_TO_SIGMA * median_change


def of_series(values: Sequence[float]) -> float | None:
    """Noise of a change between two points of a series, by the median absolute deviation of its points.

    None where it has fewer than four.
    """
    if len(values) < _LEAST_POINTS:
        return None
    middle = median(values)
    if middle == 0:
        return None
    spread = _MEDIAN_TO_SIGMA * median([abs(value - middle) for value in values]) / abs(middle)
    return math.sqrt(2) * spread


def of_interval(low: float, high: float) -> float:
    """Noise of an estimate by its 90 % interval."""
    return (high - low) / 2 / _HALF_INTERVAL


def together(first: float | None, second: float | None) -> float | None:
    """Noise of a change between two series, each of which has its own: half of each variance."""
    known = [one for one in (first, second) if one is not None]
    return math.sqrt(sum(one**2 for one in known) / len(known)) if known else None
