"""Boosted trees on what a search has measured: they say what a region is worth that nobody measured yet.

A process (`process.py`) knows the neighbours of what was measured. Far from all of them it expects the mean
of everything, which is slow, so a search that followed it alone stayed where it began. Trees learn that a
tile is good wherever it stands. Used by `learner.py` alone. XGBoost is imported at the first fit.

Legend: n measured candidates, N others, P features.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from transfer.arrays import Floats, Singles

#: Small steps and shallow trees: of a few dozen candidates each leaf should hold some.
_SETTINGS = {
    "max_depth": 4,
    "eta": 0.1,
    "min_child_weight": 2,
    "subsample": 0.7,
    "colsample_bynode": 0.5,
    "nthread": 1,
    "verbosity": 0,
}
_TREES = 80
#: Weight of a candidate: its speed over the best, to this power. Order among the fast ones is what counts.
_WEIGHT = 0.5
#: Parts of the measured ones, each judged by trees of the others: of few ones most must teach.
_PARTS, _PARTS_OF_MANY = 4, 2
_MANY = 64


class GrownTrees:
    """Trees of (n, P) features, (n,) opinions of the head and (n,) values, higher for faster ones."""

    def __init__(self, features: Singles, head: Floats, values: Floats) -> None:
        import xgboost

        # In one workload three features in five are the same for all candidates.
        self._used = np.ptp(features, axis=0) > 0
        rows = xgboost.DMatrix(
            self._inputs(features, head), label=values, weight=np.exp(_WEIGHT * (values - values.max()))
        )
        settings: dict[str, Any] = _SETTINGS | {"base_score": float(values.mean())}
        self._booster = xgboost.train(settings, rows, num_boost_round=_TREES)

    def mean(self, features: Singles, head: Floats) -> Floats:
        """(N,) expected values of candidates with (N, P) features."""
        inputs = self._inputs(features, head)
        means: Floats = np.asarray(self._booster.inplace_predict(inputs), dtype=np.float64)
        return means

    def _inputs(self, features: Singles, head: Floats) -> Singles:
        return np.concatenate([features[:, self._used], head[:, None].astype(np.float32)], axis=1)


def left_out_means(features: Singles, head: Floats, values: Floats) -> Floats:
    """(n,) expected values of measured candidates, each by trees that do not know it."""
    parts = _PARTS if len(values) < _MANY else _PARTS_OF_MANY
    part = np.random.default_rng(0).permutation(len(values)) % parts
    means = np.empty(len(values))
    for fold in range(parts):
        out = part == fold
        means[out] = GrownTrees(features[~out], head[~out], values[~out]).mean(features[out], head[out])
    return means
