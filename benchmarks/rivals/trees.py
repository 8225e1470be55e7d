"""Gradient-boosted trees on our features: XGBoost and LightGBM, each at the best of a small grid.

One model for all devices that are fitted, told apart by the hardware vector where there are several; one for
each is `EachDevice`. XGBoost and LightGBM are optional; they are imported when a ranker is fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from benchmarks.rivals.base import flat_features, hold_out_workloads, need, of_device, training_labels
from fleet.json_types import Json
from transfer.arrays import Floats, Groups, Rows, Singles
from transfer.data.dataset import Dataset
from transfer.data.ranking import rank_agreement
from transfer.model.trees import tree_inputs

Params = Json

#: Both objectives that the literature uses, each with shallow and deep trees.
XGBOOST_GRID: tuple[Params, ...] = tuple(
    {"objective": objective, "max_depth": depth, "eta": 0.1, "subsample": 0.8, "colsample_bytree": 0.5}
    for objective in ("rank:pairwise", "reg:squarederror")
    for depth in (4, 8)
)
#: LambdaRank with small and large trees.
LIGHTGBM_GRID: tuple[Params, ...] = tuple(
    {"objective": "lambdarank", "num_leaves": leaves, "learning_rate": 0.1, "feature_fraction": 0.5}
    for leaves in (15, 63)
)
#: Numbers of trees that are tried with each entry of the grid.
ROUNDS = (50, 100, 200, 400)
#: Share of the training workloads that grid and number of trees are chosen by.
_CHOICE_SHARE = 0.2
#: Levels of a relative speed where a library takes whole numbers only.
_LEVELS = 256
#: Most rows of one list: LightGBM refuses 10,000. Longer ones are cut into random parts.
_LONGEST_LIST = 5000

#: Predicts (n,) from (n, P) and a number of trees.
_Predict = Callable[[Singles, int], Floats]


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows as trees take them; the rows of one list (workload and device) stand together."""

    x: Singles
    y: Singles
    #: (n,) number of the list.
    group: Groups


class BoostedTrees:
    """XGBoost or LightGBM behind the interface of a ranker.

    Args:
        library: Which one.
        pooled: Tell devices apart by their hardware vector, beside the features.
        rounds: Numbers of trees to choose from.
    """

    def __init__(
        self,
        library: Literal["xgboost", "lightgbm"],
        *,
        pooled: bool = False,
        rounds: Sequence[int] = ROUNDS,
    ) -> None:
        self.library = library
        self.pooled = pooled
        self.grid = XGBOOST_GRID if library == "xgboost" else LIGHTGBM_GRID
        self.rounds = tuple(sorted(rounds))
        self._models: dict[str, tuple[_Predict, int]] = {}

    @property
    def name(self) -> str:
        """Library, and whether all devices share a model."""
        return self.library + "-pooled" * self.pooled

    def fit(self, dataset: Dataset, rows: Rows, devices: Sequence[str], seed: int) -> None:
        """Choose from the grid on held-out workloads of `rows`, then fit all of `rows`. See `Ranker.fit`."""
        need(self.library)
        labels = training_labels(dataset, rows, devices)
        train = _train_xgboost if self.library == "xgboost" else _train_lightgbm
        kept, held = hold_out_workloads(dataset, rows, _CHOICE_SHARE, seed)
        learn, judge, whole = (
            self._table(dataset, part, labels[np.isin(rows, part)], devices, seed)
            for part in (kept, held, rows)
        )
        if not len(judge.y) or not len(learn.y):
            # The few labelled workloads all fell on one side: choose on what there is.
            learn = judge = whole
        tried: list[tuple[float, Params, int]] = []
        for params in self.grid:
            predict = train(learn, params, self.rounds[-1], seed)
            for count in self.rounds:
                scores = predict(judge.x, count)
                found = rank_agreement(scores, judge.y.astype(np.float64), judge.group)
                tried.append((found, params, count))
        _, params, count = max(tried, key=lambda one: one[0])
        self._models = dict.fromkeys(devices, (train(whole, params, count, seed), count))

    def score(self, dataset: Dataset, rows: Rows, device_id: str) -> Floats:
        """Raw predictions of the trees. See `Ranker.score`."""
        predict, count = of_device(self, self._models, device_id)
        return predict(self._inputs(dataset, rows, device_id), count)

    def _inputs(self, dataset: Dataset, rows: Rows, device_id: str) -> Singles:
        flat = flat_features(dataset, rows)
        if not self.pooled:
            return flat
        return tree_inputs(flat, dataset.hardware[dataset.column(device_id)])

    def _table(
        self, dataset: Dataset, rows: Rows, labels: Singles, members: Sequence[str], seed: int
    ) -> _Table:
        """The labelled rows of some devices, list by list."""
        random = np.random.default_rng(seed)
        parts = []
        for place, device_id in enumerate(members):
            usable = np.flatnonzero(np.isfinite(labels[:, place]))
            group = dataset.group[rows[usable]]
            # Shuffled first, so that parts of a long list are random ones.
            order = random.permutation(len(usable))
            order = order[np.argsort(group[order], kind="stable")]
            picked = rows[usable[order]]
            parts.append(
                _Table(
                    self._inputs(dataset, picked, device_id),
                    labels[usable[order], place],
                    group[order] + place * len(dataset.workload_ids),
                )
            )
        return _Table(*(np.concatenate([getattr(one, name) for one in parts]) for name in _Table.__slots__))


def _list_sizes(group: Groups) -> Rows:
    """Rows of each list, long ones in parts."""
    sizes = np.unique(group, return_counts=True)[1]
    return np.array(
        [len(part) for size in sizes for part in np.array_split(np.arange(size), -(-size // _LONGEST_LIST))]
    )


def boosted(
    x: Singles | Floats, y: Singles | Floats, params: Params, rounds: int, seed: int, **more: Any
) -> Any:
    """An XGBoost booster; `more` are sizes of ranked lists (`group`), weights or margins of the rows."""
    xgboost = need("xgboost")
    matrix = xgboost.QuantileDMatrix(x, label=y, nthread=1, **more)
    settings = {"tree_method": "hist", "base_score": 0.0, "seed": seed, "nthread": 1, "verbosity": 0}
    return xgboost.train({**settings, **params}, matrix, num_boost_round=rounds)


def margins(booster: Any, x: Singles | Floats, **more: Any) -> Floats:
    """(n,) raw predictions of a booster."""
    return np.asarray(booster.inplace_predict(x, predict_type="margin", **more), dtype=np.float64)


def _train_xgboost(table: _Table, params: Params, rounds: int, seed: int) -> _Predict:
    is_ranked = str(params["objective"]).startswith("rank:")
    lists = _list_sizes(table.group) if is_ranked else None
    booster = boosted(table.x, table.y, params, rounds, seed, group=lists)
    return lambda x, count: margins(booster, x, iteration_range=(0, count))


def _train_lightgbm(table: _Table, params: Params, rounds: int, seed: int) -> _Predict:
    lightgbm = need("lightgbm")
    levels = np.round(table.y * (_LEVELS - 1)).astype(np.int32)
    data = lightgbm.Dataset(table.x, label=levels, group=_list_sizes(table.group), params={"verbosity": -1})
    settings = {
        # The gain of TLP's LambdaRank, 2 ** relative speed - 1, up to a constant factor.
        "label_gain": (np.exp2(np.arange(_LEVELS) / (_LEVELS - 1)) - 1).tolist(),
        "lambdarank_truncation_level": _LONGEST_LIST,
        "min_data_in_leaf": 5,
        "num_threads": 1,
        "deterministic": True,
        "force_row_wise": True,
        "seed": seed,
        "verbosity": -1,
    }
    booster = lightgbm.train({**settings, **params}, data, num_boost_round=rounds)

    def predict(x: Singles, count: int) -> Floats:
        raw = booster.predict(x, num_iteration=count, raw_score=True, num_threads=1)
        return np.asarray(raw, dtype=np.float64)

    return predict
