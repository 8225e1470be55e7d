"""How the strategies stand among the devices already known: each is left out in turn and onboarded.

Made ahead of an onboarding and kept by a hash of everything that they follow from, so that they are made once
for given records. Called by `transfer.adapt.auto`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from agents.records import canonical_json, content_hash
from transfer.adapt.base import Strategy
from transfer.adapt.select import FewOfEach
from transfer.dataset import Dataset
from transfer.errors import DatasetError
from transfer.intervals import LEVEL, Estimate
from transfer.onboarding_cases import CasePlan, Regime
from transfer.onboarding_contenders import Adapting
from transfer.onboarding_curve import CurvePlan, run_curve
from transfer.train import TrainConfig, trainable_devices
from transfer.training_state import digest

Floats = NDArray[np.float64]

#: Raise it when standings are made otherwise: those kept before are then made again.
VERSION = 2
#: Numbers of samples at which strategies are compared; between them the logarithm of k is what counts.
_SAMPLES = (0, 32, 256)
#: Most candidates of a workload that are learnt from, and judged on.
_MOST_POOL, _MOST_JUDGED = 32, 32
#: Mean values closer than this are no difference: the strategy that was named first stands.
_ALIKE = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Standings:
    """What each strategy reached on average over the known devices.

    Attributes:
        key: Hash of what they follow from.
        samples: Numbers of samples, rising.
        top1: Mean top-1 by strategy, one value for each number of samples; None where it could not run.
        agreement: Share of pairs in the right order, likewise.
        devices: Devices that were left out in turn.
        top5: Mean top-5, likewise.
        spread: Standard deviation over the devices of top-1, and of top-5; empty with fewer than two.
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
    version: int = VERSION

    def at(self, k: int) -> dict[str, float]:
        """Top-1 that each strategy would reach with k samples, between those tried by the logarithm of k."""
        found = {name: _between(self.samples, values, k) for name, values in self.top1.items()}
        return {name: round(value, 4) for name, value in found.items() if value is not None}

    def expected(self, name: str, k: int) -> tuple[Estimate, Estimate] | None:
        """Top-1 and top-5 of a strategy on one more device like the known ones, with 90 % intervals.

        By Student's t: few devices say little of how unlike the next one is. None where too few are known.
        """
        if name not in self.spread or len(self.devices) < 2:
            return None
        beyond = float(student.ppf((1 + LEVEL) / 2, len(self.devices) - 1))
        beyond *= math.sqrt(1 + 1 / len(self.devices))
        told = []
        for means, spreads in zip((self.top1, self.top5), self.spread[name], strict=True):
            mean, spread = _between(self.samples, means[name], k), _between(self.samples, spreads, k)
            if mean is None or spread is None:
                return None
            low, high = max(0.0, mean - beyond * spread), min(1.0, mean + beyond * spread)
            told.append(Estimate(mean, low, high))
        return told[0], told[1]

    def best(self, able: Sequence[Strategy], k: int) -> Strategy:
        """The strategy that stands best with k samples among those that are able; of equals the first."""
        known = self.at(k)
        most = max((known.get(one.name, -math.inf) for one in able), default=-math.inf)
        return next((one for one in able if known.get(one.name, -math.inf) >= most - _ALIKE), able[0])

    def difference(self, one: str, other: str, k: int) -> float:
        """Agreement of a strategy less that of another with k samples; 0 where it is not known."""
        mine, theirs = (
            _between(self.samples, self.agreement[name], k) if name in self.agreement else None
            for name in (one, other)
        )
        return 0.0 if mine is None or theirs is None else mine - theirs


def leave_one_out(
    dataset: Dataset,
    strategies: Sequence[Strategy],
    regime: Regime,
    config: TrainConfig,
    cache: Path | None,
) -> Standings | None:
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
    rows = np.arange(len(dataset))
    devices = trainable_devices(dataset, rows)
    if len(devices) < 2:
        return None
    key = content_hash(
        str(VERSION),
        canonical_json([repr(one) for one in strategies]),
        canonical_json([regime.value, list(devices), list(_SAMPLES), _MOST_POOL, _MOST_JUDGED]),
        canonical_json(asdict(config)),
        dataset.spec.hash,
        digest(
            dataset.latency_secs, dataset.failed, dataset.group, dataset.features.summary, dataset.hardware
        ),
    )
    kept = None if cache is None else cache / f"standings-{key}.json"
    if kept is not None and (found := _read(kept, key)) is not None:
        return found
    made = _make(dataset, strategies, regime, config, devices, key)
    if kept is not None:
        _write(kept, made)
    return made


def _make(
    dataset: Dataset,
    strategies: Sequence[Strategy],
    regime: Regime,
    config: TrainConfig,
    devices: Sequence[str],
    key: str,
) -> Standings:
    selector = FewOfEach()
    plan = CurvePlan(
        cases=CasePlan(
            regimes=(regime,),
            targets=tuple(devices),
            seeds=(0,),
            most_pool=_MOST_POOL,
            most_judged=_MOST_JUDGED,
            most_splits=1,
        ),
        contenders=tuple(Adapting(one, selector, one.name) for one in strategies),
        selector=selector,
        config=config,
        samples=_SAMPLES,
        with_all=False,
    )
    try:
        points = run_curve(dataset, None, plan)
    except DatasetError:
        # Siblings that share no candidates: nothing can be told, and nothing is.
        points = []
    top1, top5, agreement, spread = {}, {}, {}, {}
    for one in strategies:
        mine = [[p for p in points if p.contender == one.name and p.k == k] for k in _SAMPLES]
        top1[one.name] = tuple(_mean([p.top1 for p in found]) for found in mine)
        top5[one.name] = tuple(_mean([p.top5 for p in found]) for found in mine)
        agreement[one.name] = tuple(_mean([(1 + p.tau) / 2 for p in found]) for found in mine)
        spread[one.name] = (
            tuple(_spread([p.top1 for p in found]) for found in mine),
            tuple(_spread([p.top5 for p in found]) for found in mine),
        )
    return Standings(
        key=key,
        samples=_SAMPLES,
        top1=top1,
        agreement=agreement,
        devices=tuple(map(str, devices)),
        top5=top5,
        spread=spread,
    )


def _mean(values: Sequence[Floats]) -> float | None:
    return float(np.mean(np.concatenate(values))) if values else None


def _spread(values: Sequence[Floats]) -> float | None:
    """Standard deviation of the means: one for each device, with one division and seed."""
    return float(np.std([one.mean() for one in values], ddof=1)) if len(values) > 1 else None


def _between(samples: Sequence[int], values: Sequence[float | None], k: int) -> float | None:
    known = [
        (math.log2(1 + at), value) for at, value in zip(samples, values, strict=True) if value is not None
    ]
    if not known:
        return None
    places, heights = zip(*known, strict=True)
    return float(np.interp(math.log2(1 + k), places, heights))


def _read(path: Path, key: str) -> Standings | None:
    """What was kept; None where it is missing or damaged: it is then made again."""
    try:
        value: dict[str, Any] = json.loads(path.read_text())
        if value["version"] != VERSION or value["key"] != key:
            return None
        return Standings(
            key=key,
            samples=tuple(value["samples"]),
            top1={name: tuple(several) for name, several in value["top1"].items()},
            agreement={name: tuple(several) for name, several in value["agreement"].items()},
            devices=tuple(value["devices"]),
            top5={name: tuple(several) for name, several in value["top5"].items()},
            spread={
                name: (tuple(several[0]), tuple(several[1])) for name, several in value["spread"].items()
            },
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(path: Path, standings: Standings) -> None:
    """Keep standings; they appear whole or not at all, and a folder that cannot be written keeps none."""
    beside = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(asdict(standings), indent=1))
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)


__all__ = ["VERSION", "Standings", "leave_one_out"]
