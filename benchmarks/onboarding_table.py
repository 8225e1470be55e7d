"""Reads the points of an onboarding curve: means, paired differences, best baselines, figures to reach.

Called by `benchmarks.onboarding`; fits and scores nothing. A point holds values by workload; a figure of
several devices, splits and seeds is the mean over all their values, and its interval resamples workloads, the
same ones for all contenders, so that differences are paired.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.onboarding_curve import RANDOM, Point
from transfer.adapt.base import Regime
from transfer.data.intervals import Estimate, resample_ratio

MEASURES = ("top1", "top5", "tau")
SCRATCH = "scratch"

#: Device, split, seed and workload of one value.
_Place = tuple[str, str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CurveTable:
    """All points of the devices of one store.

    Attributes:
        points: What `run_curve` gave.
        strategies: Names of the contenders that are strategies of this project.
        default: The one that users get.
    """

    points: Sequence[Point]
    strategies: tuple[str, ...]
    default: str

    @property
    def regimes(self) -> tuple[Regime, ...]:
        """Regimes with points."""
        return tuple(one for one in Regime if any(point.regime is one for point in self.points))

    @property
    def targets(self) -> tuple[str, ...]:
        """Devices that were left out in turn."""
        return tuple(sorted({point.target for point in self.points}))

    def contenders(self, regime: Regime) -> tuple[str, ...]:
        """Names in the order of their first point."""
        return tuple(dict.fromkeys(point.contender for point in self.points if point.regime is regime))

    def samples(self, regime: Regime) -> tuple[int | None, ...]:
        """Numbers of samples with points; None (all) last."""
        found = {point.k for point in self.points if point.regime is regime and point.contender != RANDOM}
        return (*sorted(k for k in found if k is not None), *([None] if None in found else []))

    def estimate(
        self,
        regime: Regime,
        contender: str,
        k: int | None,
        measure: str = "top1",
        *,
        less: str | None = None,
        targets: Collection[str] = (),
    ) -> Estimate | None:
        """Mean of a measure with its 90 % interval; None if there is no point.

        Args:
            regime: Which regime.
            contender: Its name.
            k: Samples.
            measure: One of `MEASURES`.
            less: Another contender with as many samples: the mean difference on the same workloads, paired.
            targets: Only of these devices; of all where empty.
        """
        mine = self._values(regime, contender, k, measure, targets)
        theirs = dict.fromkeys(mine, 0.0) if less is None else self._values(regime, less, k, measure, targets)
        above: dict[int, float] = defaultdict(float)
        below: Counter[int] = Counter()
        for place in sorted(mine.keys() & theirs.keys()):
            above[place[3]] += mine[place] - theirs[place]
            below[place[3]] += 1
        if not below:
            return None
        order = sorted(below)
        sums, counts = np.array([above[one] for one in order]), np.array([below[one] for one in order])
        return resample_ratio(sums, counts.astype(np.float64), seed=0).estimate()

    def best_baseline(self, regime: Regime, k: int | None) -> str | None:
        """The baseline with the highest mean top-1 at k, a random choice included."""
        found = {
            name: estimate.value
            for name in self.contenders(regime)
            if name not in self.strategies and (estimate := self.estimate(regime, name, k)) is not None
        }
        return max(found, key=lambda name: found[name]) if found else None

    def gain(self, regime: Regime, k: int | None) -> Estimate | None:
        """The default's top-1 less that of the best baseline at k."""
        best = self.best_baseline(regime, k)
        return None if best is None else self.estimate(regime, self.default, k, less=best)

    def share_of_full(self, regime: Regime, k: int) -> float | None:
        """The default's top-1 at k over that with all of the device's data, by itself or from scratch.

        The better of the two stands below: a method that makes little of much data gets no credit for it.
        """
        mine = self.estimate(regime, self.default, k)
        full = [
            one.value
            for name in (self.default, SCRATCH)
            if (one := self.estimate(regime, name, None)) is not None
        ]
        return None if mine is None or not full else mine.value / max(full)

    def worst_less_scratch(self) -> tuple[float, str] | None:
        """Least mean difference of the default to scratch over regimes, devices and k, and where it was."""
        found = [
            (one.value, f"{regime}, {target}, k = {'all' if k is None else k}")
            for regime in self.regimes
            for target in self.targets
            for k in self.samples(regime)
            if (one := self.estimate(regime, self.default, k, less=SCRATCH, targets=(target,))) is not None
        ]
        return min(found) if found else None

    def seconds(self, contender: str, k: int | None, regime: Regime | None = None) -> float | None:
        """Mean wall seconds of adapting."""
        found = [
            point.seconds
            for point in self.points
            if point.contender == contender and point.k == k and (regime is None or point.regime is regime)
        ]
        return float(np.mean(found)) if found else None

    def samples_for(self, regime: Regime, contender: str, top1: float) -> float | None:
        """Samples at which a contender first reaches a top-1, between points by the logarithm of k.

        None where it never does.
        """
        before: tuple[float, float] | None = None
        for k in self.samples(regime):
            one = self.estimate(regime, contender, k)
            if k is None or one is None:
                continue
            if one.value >= top1:
                if before is None or one.value == before[1]:
                    return float(k)
                low, high = np.log2(1 + before[0]), np.log2(1 + k)
                share = (top1 - before[1]) / (one.value - before[1])
                return float(2 ** (low + share * (high - low)) - 1)
            before = float(k), one.value
        return None

    def _values(
        self, regime: Regime, contender: str, k: int | None, measure: str, targets: Collection[str]
    ) -> dict[_Place, float]:
        found: dict[_Place, float] = {}
        for point in self.points:
            same_k = contender == RANDOM or point.k == k
            if point.regime is not regime or point.contender != contender or not same_k:
                continue
            if targets and point.target not in targets:
                continue
            values = getattr(point, measure)
            for group, value in zip(point.groups, values, strict=True):
                found[point.target, point.split, point.seed, group] = value
        return found
