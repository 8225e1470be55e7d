"""How a candidate's label changes from one device to another, learnt from pairs of source devices.

Two devices agree on most of a candidate; trees learn where they differ: for each ordered pair of source
devices, the change of the logarithm of a candidate's latency from the first to the second, out of how fast it
is on the first, both devices' hardware and its features. The target's few measurements are further pairs,
from every source device to it. For the target, each source device that measured a candidate says its own
latency and the change that the trees see; the mean of these is the estimate.

Called by `benchmarks.onboarding_baselines`. XGBoost is optional and imported when it is fitted. Settings are
one of six that were tried on four ISA profiles and three devices of AutoTVM logs (decision 44).

Legend: n rows, S source devices, P features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.rivals.base import need
from transfer.adapt.source_model import Agreed, fast_weights
from transfer.arrays import Floats, Groups, Mask, Rows, Singles
from transfer.data.labels import group_min

#: Most rows of pairs among source devices that trees are fitted to.
_MOST_ROWS = 30_000
#: The target's measurements count as much as this many of a source device's, where they are few.
_MOST_WEIGHT = 8.0
#: A candidate counts as its relative speed on the second device, this at least.
_LEAST_WEIGHT = 0.1
_TREES = 150
_SETTINGS = {
    "objective": "reg:squarederror",
    "tree_method": "hist",
    "max_depth": 5,
    "eta": 0.06,
    "min_child_weight": 10,
    "subsample": 0.8,
    "colsample_bytree": 0.5,
    "base_score": 0.0,
    "nthread": 1,
    "verbosity": 0,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Siblings:
    """What source devices measured, and what is known of the candidates and of all devices."""

    agreed: Agreed
    #: (n, S) who measured the row.
    measured: Mask
    #: (n,) workloads.
    group: Groups
    #: (n, P) of the candidates.
    features: NDArray[np.floating]
    #: (S + 1, slots) of the source devices and, last, the target.
    hardware: NDArray[np.floating]

    def slower(self) -> Floats:
        """(n, S) logarithm of latency over the best of the workload on each device; NaN where unmeasured."""
        value = np.where(self.measured, self.agreed.shared[:, None] + self.agreed.own, np.nan)
        return np.asarray(
            value - group_min(value, self.group, int(self.group.max(initial=-1)) + 1)[self.group]
        )


def estimate_by_changes(siblings: Siblings, target_secs: Floats, seed: int) -> Floats | None:
    """Log seconds of the target, up to a constant of the workload.

    Args:
        siblings: What may be seen of the source devices.
        target_secs: (n,) what the target measured, NaN elsewhere.
        seed: Of the rows that are kept where there are too many, and of the trees.

    Returns:
        (n,) values, NaN where no source device measured the row; None where no two devices share a candidate.
    """
    trees = _learnt(siblings, target_secs, seed)
    if trees is None:
        return None
    slower, measured = siblings.slower(), siblings.measured
    total, target = np.zeros(len(measured)), len(siblings.hardware) - 1
    for place in range(measured.shape[1]):
        rows = np.flatnonzero(measured[:, place])
        if len(rows):
            change = trees.inplace_predict(
                _inputs(siblings, slower, place, target, rows), predict_type="margin"
            )
            total[rows] += siblings.agreed.shared[rows] + siblings.agreed.own[rows, place] + change
    count = measured.sum(axis=1)
    return np.where(count > 0, total / np.maximum(1, count), np.nan)


def _learnt(siblings: Siblings, target_secs: Floats, seed: int) -> Any:
    """Trees of the changes among the source devices, and to the target where it has measured anything."""
    xgboost = need("xgboost")
    agreed, group = siblings.agreed, siblings.group
    target = siblings.measured.shape[1]
    own = np.concatenate([agreed.own, _own_of(target_secs, agreed.shared, group)[:, None]], axis=1)
    there = np.concatenate([siblings.measured, np.isfinite(own[:, -1:])], axis=1)
    rows_of = {
        (a, b): np.flatnonzero(there[:, a] & there[:, b])
        for b in range(target + 1)
        for a in range(target)
        if a != b
    }
    among = sum(len(rows) for (_, b), rows in rows_of.items() if b != target)
    with_target = sum(len(rows) for (_, b), rows in rows_of.items() if b == target)
    if among + with_target < 2:
        return None
    heavier = min(_MOST_WEIGHT, max(1.0, among / max(1, with_target)))
    random, keep, slower = (
        np.random.default_rng(seed),
        min(1.0, _MOST_ROWS / max(1, among)),
        siblings.slower(),
    )
    x, y, weight = [], [], []
    for (a, b), found in rows_of.items():
        rows = found
        if keep < 1 and b != target:
            rows = np.sort(random.permutation(found)[: round(keep * len(found))])
        if len(rows):
            x.append(_inputs(siblings, slower, a, b, rows))
            y.append(own[rows, b] - own[rows, a])
            value = np.where(there[:, b], agreed.shared + own[:, b], np.nan)
            speed = np.maximum(fast_weights(value, group)[rows], _LEAST_WEIGHT)
            weight.append(speed * (heavier if b == target else 1.0))
    table = xgboost.QuantileDMatrix(
        np.concatenate(x), label=np.concatenate(y), weight=np.concatenate(weight), nthread=1
    )
    return xgboost.train({**_SETTINGS, "seed": seed}, table, num_boost_round=_TREES)


def _inputs(siblings: Siblings, slower: Floats, one: int, other: int, rows: Rows) -> Singles:
    """(rows, columns) that the trees read of the change from one device to another."""
    first, second = siblings.hardware[one], siblings.hardware[other]
    devices = np.concatenate([first, second, second - first])
    behind = slower[rows, one][:, None]
    beside = np.broadcast_to(devices, (len(rows), len(devices)))
    return np.concatenate(
        [behind, np.exp(-behind), beside, siblings.features[rows]], axis=1, dtype=np.float32
    )


def _own_of(secs: Floats, shared: Floats, group: Groups) -> Floats:
    """(n,) what a device says beside what the source devices agree on; NaN where that cannot be told.

    A workload's level is the mean of the device's measurements in it, so one alone says nothing.
    """
    own = np.log(secs) - shared
    known = np.isfinite(own)
    count = np.bincount(group[known], minlength=int(group.max(initial=-1)) + 1)
    level = np.bincount(group[known], own[known], len(count)) / np.maximum(1, count)
    return np.asarray(np.where(count[group] > 1, own - level[group], np.nan))
