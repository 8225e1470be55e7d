"""How the strategies stand among the devices already known: each is left out in turn and onboarded.

Made ahead of an onboarding and kept by a hash of everything that they follow from, so that they are made once
for given records. Called by `transfer.auto.strategy`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from scipy.special import stdtrit

from agents.records import canonical_json, content_hash
from transfer.adapt.base import Strategy
from transfer.adapt.sample_selection import FewOfEach
from transfer.checked_folder import put_file
from transfer.data.dataset import Dataset
from transfer.data.intervals import LEVEL, Estimate, is_beyond_luck
from transfer.errors import DatasetError
from transfer.evaluate.onboarding_cases import Case, CasePlan, Regime, make_cases
from transfer.evaluate.onboarding_contenders import Adapting, Asked, Point, run_case
from transfer.train.config import TrainConfig
from transfer.train.rows import trainable_devices
from transfer.train.state import digest

Floats = NDArray[np.float64]

#: Raise it when leave-one-device-out scores are made otherwise: those kept before are then made again.
VERSION = 4
#: Numbers of samples at which strategies are compared; between them the logarithm of k is what counts.
_SAMPLES = (0, 32, 256)
#: Most candidates of a workload that are learnt from, and judged on.
_MOST_POOL, _MOST_JUDGED = 32, 32
#: Most devices that are looked at: leaving one out costs a training on the others.
_MOST_DEVICES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOneOutScores:
    """What each strategy reached on average over the known devices.

    Attributes:
        key: Hash of what they follow from.
        samples: Numbers of samples, rising.
        top1: Mean top-1 by strategy, one value for each number of samples; None where it could not run.
        agreement: Share of pairs in the right order, likewise.
        devices: Devices that were left out in turn.
        top5: Mean top-5, likewise.
        spread: Standard deviation over the devices of top-1, and of top-5; empty with fewer than two.
        judged: What heads were judged on: a workload's number for each device and workload.
        by_judged: Top-1 on each of them by strategy, a row for each number of samples; None where it could
            not run.
        how: Hash of strategies and settings: what they follow from but for the records.
        known: Devices with records; more than `devices` where there are many.
        measured: Measurements of those.
        version: Of how they were made.
    """

    key: str
    samples: tuple[int, ...]
    top1: Mapping[str, tuple[float | None, ...]]
    agreement: Mapping[str, tuple[float | None, ...]]
    devices: tuple[str, ...]
    top5: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    spread: Mapping[str, tuple[tuple[float | None, ...], tuple[float | None, ...]]] = field(
        default_factory=dict
    )
    judged: tuple[int, ...] = ()
    by_judged: Mapping[str, tuple[tuple[float | None, ...], ...]] = field(default_factory=dict)
    how: str = ""
    known: tuple[str, ...] = ()
    measured: int = 0
    version: int = VERSION

    def at(self, k: int) -> dict[str, float]:
        """Top-1 that each strategy would reach with k samples, between those tried by the logarithm of k."""
        top1_by_name = {name: _between(self.samples, values, k) for name, values in self.top1.items()}
        return {name: round(value, 4) for name, value in top1_by_name.items() if value is not None}

    def expected(self, name: str, k: int) -> tuple[Estimate, Estimate] | None:
        """Top-1 and top-5 of a strategy on one more device like the known ones, with 90 % intervals.

        By Student's t: few devices say little of how unlike the next one is. None where too few are known.
        """
        if name not in self.spread or len(self.devices) < 2:
            return None
        beyond = float(stdtrit(len(self.devices) - 1, (1 + LEVEL) / 2))
        beyond *= math.sqrt(1 + 1 / len(self.devices))
        estimates = []
        for means, spreads in zip((self.top1, self.top5), self.spread[name], strict=True):
            mean, spread = _between(self.samples, means[name], k), _between(self.samples, spreads, k)
            if mean is None or spread is None:
                return None
            low, high = max(0.0, mean - beyond * spread), min(1.0, mean + beyond * spread)
            estimates.append(Estimate(mean, low, high))
        return estimates[0], estimates[1]

    def best(self, able: Sequence[Strategy], k: int) -> Strategy:
        """The strategy to take with k samples: the first, unless another is better beyond luck.

        A few devices judged on the same workloads say little of small differences, and the first is what is
        best on most stores: whichever came out on top was worse than it by .007 on average over k.

        Args:
            able: Those that can work with the samples, best guess first.
            k: Number of samples.
        """
        top1_by_name = self.at(k)
        scored = [strategy for strategy in able if strategy.name in top1_by_name] or able[:1]
        first = scored[0]
        rivals = scored[1:]
        better = [
            strategy
            for strategy in rivals
            if is_beyond_luck(self.gains(strategy.name, first.name, k), among=len(rivals))
        ]
        return max([first, *better], key=lambda strategy: top1_by_name.get(strategy.name, 0.0))

    def gains(self, strategy: str, other: str, k: int) -> Floats:
        """(workloads,) top-1 of a strategy less that of another with k samples, mean over the devices."""
        mine, theirs = (self._judged(name, k) for name in (strategy, other))
        apart = mine - theirs
        is_judged = np.isfinite(apart)
        _, place = np.unique(np.array(self.judged, dtype=np.int64)[is_judged], return_inverse=True)
        counts = np.bincount(place)
        return np.asarray(np.bincount(place, apart[is_judged]) / np.maximum(1, counts))

    def _judged(self, name: str, k: int) -> Floats:
        """(judged,) top-1 of a strategy with k samples; NaN where it could not run."""
        rows = self.by_judged.get(name, ())
        columns = zip(*rows, strict=True) if rows else [()] * len(self.judged)
        top1s = (_between(self.samples, values, k) if values else None for values in columns)
        return np.array([np.nan if top1 is None else top1 for top1 in top1s], dtype=np.float64)

    def difference(self, strategy: str, other: str, k: int) -> float:
        """Agreement of a strategy less that of another with k samples; 0 where it is not known."""
        mine, theirs = (
            _between(self.samples, self.agreement[name], k) if name in self.agreement else None
            for name in (strategy, other)
        )
        return 0.0 if mine is None or theirs is None else mine - theirs


_KEPT = TypeAdapter(LeaveOneOutScores)


def leave_one_out(
    dataset: Dataset,
    strategies: Sequence[Strategy],
    regime: Regime,
    config: TrainConfig,
    cache: Path | None,
) -> LeaveOneOutScores | None:
    """Onboard each device from the others by every strategy, or look up what that gave.

    Args:
        dataset: Candidates of the known devices, and nothing that may not be seen.
        strategies: What to compare; their `repr` tells their settings.
        regime: What the heads are asked.
        config: How source models are trained.
        cache: Folder of what was made before; None for nothing.

    Returns:
        None where fewer than two devices have anything to rank.
    """
    devices, measured = _records_of(dataset)
    if len(devices) < 2:
        return None
    how = _how(dataset, strategies, regime, config)
    key = content_hash(
        how,
        canonical_json(list(devices)),
        digest(
            dataset.latency_secs, dataset.failed, dataset.group, dataset.features.described, dataset.hardware
        ),
    )
    path = None if cache is None else cache / f"standings-{key}.json"
    if path is not None and (again := _read(path)) is not None and again.key == key:
        return again
    scores = replace(
        _make(dataset, strategies, regime, config, devices, key),
        how=how,
        known=devices,
        measured=measured,
    )
    if path is not None:
        _write(path, scores)
    return scores


def made_ahead(
    dataset: Dataset,
    strategies: Sequence[Strategy],
    regime: Regime,
    config: TrainConfig,
    cache: Path,
    *,
    growth: float = 2.0,
) -> LeaveOneOutScores | None:
    """Look up what `leave_one_out` gave of the same devices a while ago.

    A fleet measures all the time, and strategies do not change places with every record. There may be
    `growth` times the measurements and the devices of then.

    Returns:
        The leave-one-device-out scores from most measurements; None where there are none that are good.
    """
    devices, measured = _records_of(dataset)
    if len(devices) < 2:
        return None
    how = _how(dataset, strategies, regime, config)
    several = [scores for path in cache.glob("standings-*.json") if (scores := _read(path)) is not None]
    good = [
        scores
        for scores in several
        if scores.how == how
        and set(scores.known) <= set(devices)
        and len(scores.known) * growth >= len(devices)
        and scores.measured * growth >= measured
    ]
    return max(good, key=lambda scores: scores.measured, default=None)


def drop_older(scores: LeaveOneOutScores, cache: Path) -> None:
    """Delete leave-one-device-out scores of the same devices that were made before."""
    for path in cache.glob("standings-*.json"):
        before = _read(path)
        if (
            before is not None
            and (before.how, before.known) == (scores.how, scores.known)
            and before != scores
        ):
            path.unlink(missing_ok=True)


def _records_of(dataset: Dataset) -> tuple[tuple[str, ...], int]:
    """Devices that something can be learnt from, and how many measurements they have."""
    devices = tuple(map(str, trainable_devices(dataset, np.arange(len(dataset)))))
    columns = [dataset.column(device) for device in devices]
    return devices, int(np.isfinite(dataset.latency_secs[:, columns]).sum())


def _how(dataset: Dataset, strategies: Sequence[Strategy], regime: Regime, config: TrainConfig) -> str:
    return content_hash(
        str(VERSION),
        canonical_json([repr(strategy) for strategy in strategies]),
        canonical_json([regime.value, list(_SAMPLES), _MOST_POOL, _MOST_JUDGED, _MOST_DEVICES]),
        canonical_json(asdict(config)),
        dataset.spec.hash,
    )


def _make(
    dataset: Dataset,
    strategies: Sequence[Strategy],
    regime: Regime,
    config: TrainConfig,
    devices: Sequence[str],
    key: str,
) -> LeaveOneOutScores:
    selector = FewOfEach()
    # Of many, some that lie far apart in the order of their names.
    devices = devices[:: math.ceil(len(devices) / _MOST_DEVICES)]
    dataset = dataset.of_devices(devices)
    plan = CasePlan(
        regimes=(regime,),
        targets=tuple(devices),
        seeds=(0,),
        most_pool=_MOST_POOL,
        most_judged=_MOST_JUDGED,
        most_splits=1,
    )

    def points_of(case: Case) -> list[Point | None]:
        contenders: list[Asked] = [
            (k, Adapting(strategy, selector, strategy.name))
            for k in _SAMPLES
            if k <= len(case.pool)
            for strategy in strategies
        ]
        return run_case(dataset, case, contenders, selector, config)

    try:
        cases = make_cases(dataset, None, plan)
        points = [point for case in cases for point in points_of(case) if point is not None]
    except DatasetError:
        # Source devices that share no candidates: nothing can be told, and nothing is.
        cases, points = [], []
    top1, top5, agreement, spread, by_judged = {}, {}, {}, {}, {}
    places = sorted({(case.target, int(group)) for case in cases for group in dataset.group[case.test]})
    for strategy in strategies:
        mine = [[p for p in points if p.contender == strategy.name and p.k == k] for k in _SAMPLES]
        top1[strategy.name] = tuple(_mean([p.top1 for p in points_of_k]) for points_of_k in mine)
        top5[strategy.name] = tuple(_mean([p.top5 for p in points_of_k]) for points_of_k in mine)
        agreement[strategy.name] = tuple(
            _mean([(1 + p.tau) / 2 for p in points_of_k]) for points_of_k in mine
        )
        spread[strategy.name] = (
            tuple(_spread([p.top1 for p in points_of_k]) for points_of_k in mine),
            tuple(_spread([p.top5 for p in points_of_k]) for points_of_k in mine),
        )
        by_judged[strategy.name] = tuple(_by_place(points_of_k, places) for points_of_k in mine)
    return LeaveOneOutScores(
        key=key,
        samples=_SAMPLES,
        top1=top1,
        agreement=agreement,
        devices=tuple(map(str, devices)),
        top5=top5,
        spread=spread,
        judged=tuple(group for _, group in places),
        by_judged=by_judged,
    )


def _mean(values: Sequence[Floats]) -> float | None:
    return float(np.mean(np.concatenate(values))) if values else None


def _spread(values: Sequence[Floats]) -> float | None:
    """Standard deviation of the means: one for each device, with one division and seed."""
    return (
        float(np.std([device_values.mean() for device_values in values], ddof=1)) if len(values) > 1 else None
    )


def _by_place(points: Sequence[Point], places: Sequence[tuple[str, int]]) -> tuple[float | None, ...]:
    """Top-1 on each of some workloads of devices; None where there is none."""
    top1_by_place = {
        (point.target, int(group)): round(float(value), 4)
        for point in points
        for group, value in zip(point.groups, point.top1, strict=True)
    }
    return tuple(top1_by_place.get(place) for place in places)


def _between(samples: Sequence[int], values: Sequence[float | None], k: int) -> float | None:
    measured_points = [
        (math.log2(1 + at), value) for at, value in zip(samples, values, strict=True) if value is not None
    ]
    if not measured_points:
        return None
    places, heights = zip(*measured_points, strict=True)
    return float(np.interp(math.log2(1 + k), places, heights))


def _read(path: Path) -> LeaveOneOutScores | None:
    """What was kept; None where it is missing or damaged: it is then made again."""
    try:
        value = json.loads(path.read_text())
        if value["version"] != VERSION:
            return None
        return _KEPT.validate_python(value)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, device_scores: LeaveOneOutScores) -> None:
    """Keep scores; they appear whole or not at all, and a folder that cannot be written keeps none."""
    with suppress(OSError):
        put_file(path, json.dumps(asdict(device_scores), indent=1).encode())
