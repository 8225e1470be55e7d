"""How sure a figure is: percentile bootstrap over workloads, and over seeds where there are several.

Called by `transfer.data.metrics`' users for means and differences over workloads. Every measure of this
project is a ratio of two sums over workloads (a mean is one with ones below), so one resampling serves them
all; two rankers judged on the same workloads are resampled together, which takes the difference between
workloads out of their comparison. Pure numpy; knows neither models nor datasets.

Legend: R resamples, S seeds, G workloads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from transfer.arrays import Floats

#: Share of the resamples inside an interval unless told otherwise.
LEVEL = 0.9
#: Draws of a bootstrap unless told otherwise.
RESAMPLES = 2000
#: One choice is given up for another that is better with this confidence, on so many workloads at least: 8
#: workloads with a pair each once put a head from 48 samples before one that was right.
_SURE, _LEAST_SURE = 0.95, 4


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its interval."""

    value: float
    low: float
    high: float

    @property
    def is_above_zero(self) -> bool:
        """Whether the whole interval is above 0: of a difference, that it is no accident."""
        return self.low > 0

    def listed(self) -> list[float]:
        """Value, low and high, as JSON has it."""
        return [self.value, self.low, self.high]


@dataclass(frozen=True, slots=True, eq=False)
class Resampled:
    """A figure and what it was in each resample, (R,)."""

    value: float
    draws: Floats

    def minus(self, other: Resampled) -> Resampled:
        """Difference to another figure of the same workloads and seeds, resampled alike."""
        return Resampled(self.value - other.value, self.draws - other.draws)

    def root(self) -> Resampled:
        """Square root, for measures that are means of squares."""
        return Resampled(float(np.sqrt(self.value)), np.sqrt(self.draws))

    def estimate(self, level: float = LEVEL) -> Estimate:
        """The figure with its percentile interval."""
        low, high = np.quantile(self.draws, [(1 - level) / 2, (1 + level) / 2])
        return Estimate(self.value, float(low), float(high))


def resample_ratio(above: Floats, below: Floats, seed: int, resamples: int = RESAMPLES) -> Resampled:
    """Resample sum(above) / sum(below).

    Workloads are drawn with replacement and, independently, seeds: what a figure would be on other workloads
    and with other initial weights. With several seeds the interval errs to the wide side where workloads and
    seeds interact. The same `seed` and shape give the same draws, so that differences are paired.

    Args:
        above: (G,) or (S, G) one value a workload, or a seed and workload.
        below: The same shape; ones for a mean.
        seed: Of the resampling.
        resamples: How many (R).

    Raises:
        ValueError: There is no value, or the shapes differ.
    """
    if above.shape != below.shape or not above.size or above.ndim > 2:
        raise ValueError(
            "bootstrap needs values by workload, or by seed and workload, got "
            f"{above.shape} over {below.shape}"
        )
    above, below = np.atleast_2d(above), np.atleast_2d(below)
    seeds, workloads = above.shape
    random = np.random.default_rng(seed)
    drawn_workloads = random.multinomial(workloads, np.full(workloads, 1 / workloads), size=resamples)
    drawn_seeds = random.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples)
    top = ((drawn_seeds @ above) * drawn_workloads).sum(axis=1)
    bottom = ((drawn_seeds @ below) * drawn_workloads).sum(axis=1)
    return Resampled(float(above.sum() / below.sum()), top / bottom)


def student_interval(values: Floats, level: float = LEVEL) -> Estimate:
    """The mean of (G,) values, one a workload, with its interval by Student's t.

    A bootstrap of few workloads knows nothing of a further one: its intervals are too narrow there. One value
    alone says nothing: its interval is everything.
    """
    mean = float(values.mean())
    if len(values) < 2:
        return Estimate(mean, -np.inf, np.inf)
    reach = t_quantile(len(values), level) * float(values.std(ddof=1)) / np.sqrt(len(values))
    return Estimate(mean, mean - reach, mean + reach)


def t_quantile(count: int, level: float = LEVEL) -> float:
    """Standard errors on either side of the mean of `count` values that hold a share `level` of it."""
    from scipy.special import stdtrit  # a third of a second, which a daemon without models need not wait

    return float(stdtrit(count - 1, (1 + level) / 2))


def is_beyond_luck(gains: Floats, among: int = 1) -> bool:
    """Whether gains are above 0 with 95 % confidence, by Student's t; never on fewer than 4 workloads.

    Args:
        gains: (G,) one value a workload.
        among: Rivals that are compared with one and the same first choice. The luckiest of ten leads by luck
            ten times as often, so each is asked for a tenth of the error (Bonferroni).
    """
    if len(gains) < _LEAST_SURE:
        return False
    # One side of an interval that leaves as much out on the other.
    return student_interval(gains, 1 - 2 * (1 - _SURE) / among).is_above_zero
