"""Gradient-boosted trees on our features: XGBoost and LightGBM, each at the best of a small grid.

One model for all devices that are fitted, told apart by the hardware vector where there are several; one for
each is `EachDevice`. XGBoost and LightGBM are optional; they are imported when a ranker is fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from benchmarks.rivals.base import flat_features, hold_out_workloads, need, of_device, training_labels
from fleet.json_types import Json
from transfer.adapt.source_model import fast_weights
from transfer.arrays import Floats, Groups, Rows, Singles
from transfer.data.dataset import Dataset
from transfer.data.labels import group_min
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


class _Table(NamedTuple):
    """Rows as trees take them; the rows of one list (workload and device) stand together."""

    x: Singles
    y: Singles
    #: (n,) number of the list, and what the trees go on from.
    group: Groups
    margin: Floats


class BoostedTrees:
    """XGBoost or LightGBM behind the interface of a ranker.

    Args:
        library: Which one.
        pooled: Tell devices apart by their hardware vector, beside the features.
        rounds: Numbers of trees to choose from.
        grid: Settings to choose from; of one with one number of trees nothing is chosen.
        inputs: (n, P) what trees read of some rows for a device, in place of our features.
        start: Of XGBoost, trees of the same inputs to go on from.
    """

    def __init__(
        self,
        library: Literal["xgboost", "lightgbm"],
        *,
        pooled: bool = False,
        rounds: Sequence[int] = ROUNDS,
        grid: Sequence[Params] = (),
        inputs: Callable[[Rows, str], Singles] | None = None,
        start: BoostedTrees | None = None,
    ) -> None:
        self.library, self.pooled = library, pooled
        self.grid = tuple(grid) or (XGBOOST_GRID if library == "xgboost" else LIGHTGBM_GRID)
        self.rounds = tuple(sorted(rounds))
        self._read, self._start = inputs, start
        self._devices: tuple[str, ...] = ()
        self._model: tuple[_Predict, int] | None = None

    @property
    def name(self) -> str:
        """Library, and whether all devices share a model."""
        return self.library + "-pooled" * self.pooled

    def fit(self, dataset: Dataset, rows: Rows, devices: Sequence[str], seed: int) -> None:
        """Choose from the grid on held-out workloads of `rows`, then fit all of `rows`. See `Ranker.fit`."""
        need(self.library)
        labels = training_labels(dataset, rows, devices)
        train = _train_xgboost if self.library == "xgboost" else _train_lightgbm
        whole = self._table(dataset, rows, labels, devices, seed)
        choices = [(params, count) for params in self.grid for count in self.rounds]
        if len(choices) > 1:
            parts = hold_out_workloads(dataset, rows, _CHOICE_SHARE, seed)
            learn, judge = (
                self._table(dataset, part, labels[np.isin(rows, part)], devices, seed) for part in parts
            )
            if not len(judge.y) or not len(learn.y):
                # The few labelled workloads all fell on one side: choose on what there is.
                learn = judge = whole
            truth = judge.y.astype(np.float64)
            predict = [train(learn, params, self.rounds[-1], seed) for params in self.grid]
            agreement = [
                rank_agreement(one(judge.x, count), truth, judge.group)
                for one in predict
                for count in self.rounds
            ]
            choices = [choices[int(np.argmax(agreement))]]
        params, count = choices[0]
        self._devices, self._model = tuple(devices), (train(whole, params, count, seed), count)

    def score(self, dataset: Dataset, rows: Rows, device_id: str) -> Floats:
        """Raw predictions of the trees. See `Ranker.score`."""
        of_device(self, dict.fromkeys(self._devices, self), device_id)
        return self.predicted(dataset, rows, device_id)

    def predicted(self, dataset: Dataset, rows: Rows, device_id: str) -> Floats:
        """As `score`, of a device that need not have been learnt."""
        assert self._model is not None
        predict, count = self._model
        values = predict(self._inputs(dataset, rows, device_id), count)
        return values if self._start is None else values + self._start.predicted(dataset, rows, device_id)

    def _inputs(self, dataset: Dataset, rows: Rows, device_id: str) -> Singles:
        if self._read is not None:
            return self._read(rows, device_id)
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
            # Shuffled first, so that parts of a long list are random ones.
            usable = random.permutation(usable)
            usable = usable[np.argsort(dataset.group[rows[usable]], kind="stable")]
            picked, start = rows[usable], self._start
            group = dataset.group[picked] + place * len(dataset.workload_ids)
            margin = np.zeros(len(picked)) if start is None else start.predicted(dataset, picked, device_id)
            parts.append((self._inputs(dataset, picked, device_id), labels[usable, place], group, margin))
        return _Table(*(np.concatenate(values) for values in zip(*parts, strict=True)))


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
    booster = boosted(table.x, table.y, params, rounds, seed, group=lists, base_margin=table.margin)
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


#: Most rows of pairs among known devices that trees are fitted to.
_MOST_ROWS = 30_000
#: The new device's measurements count as much as this many of a known one's, where they are few.
_MOST_WEIGHT = 8.0
#: A candidate counts as its relative speed on the second device, this at least.
_LEAST_WEIGHT = 0.1
#: One of six settings that were tried on four ISA profiles and three devices of AutoTVM logs (decision 44).
_CHANGE_SETTINGS = {
    "objective": "reg:squarederror",
    "max_depth": 5,
    "eta": 0.06,
    "min_child_weight": 10,
    "subsample": 0.8,
    "colsample_bytree": 0.5,
}
_CHANGE_ROUNDS = 150


def by_changes(
    own: Floats, shared: Floats, group: Groups, hardware: Singles, features: Singles | Floats, seed: int
) -> Floats | None:
    """How a candidate's label changes from one device to another, learnt from pairs of known devices.

    Two devices agree on most of a candidate; trees learn where they differ: for each ordered pair of known
    devices, the change of the logarithm of a candidate's latency from the first to the second, out of how
    fast it is on the first, both devices' hardware and its features. The new device's few measurements are
    further pairs, from every known device to it. For the new device, each known one that measured a candidate
    says its own latency and the change that the trees see; the mean of these is the estimate.

    Args:
        own: (N, D) logarithms of latencies less `shared`, NaN where unmeasured; the last one is new.
        shared: (N,) what devices agree on.
        group: (N,) workloads.
        hardware: (D, H) hardware vectors.
        features: (N, P) of the candidates.
        seed: Of rows that are left out, and of the trees.

    Returns:
        (N,) estimates of `shared` and the new device's own, NaN where no known device measured the candidate;
        None where no two devices share one.
    """
    logs, new = shared[:, None] + own, own.shape[1] - 1
    slower = logs - group_min(logs, group, int(group.max(initial=-1)) + 1)[group]

    def inputs(one: int, other: int, rows: Rows) -> Singles:
        devices = np.concatenate([hardware[one], hardware[other], hardware[other] - hardware[one]])
        behind = slower[rows, one][:, None]
        beside = np.broadcast_to(devices, (len(rows), len(devices)))
        return np.concatenate([behind, np.exp(-behind), beside, features[rows]], axis=1, dtype=np.float32)

    rows_of = {
        (one, other): np.flatnonzero(np.isfinite(own[:, one]) & np.isfinite(own[:, other]))
        for other in range(new + 1)
        for one in range(new)
        if one != other
    }
    with_new = sum(len(rows) for (_, other), rows in rows_of.items() if other == new)
    among = sum(map(len, rows_of.values())) - with_new
    if among + with_new < 2:
        return None
    random, share = np.random.default_rng(seed), min(1.0, _MOST_ROWS / max(1, among))
    heavier = min(_MOST_WEIGHT, max(1.0, among / max(1, with_new)))
    x, y, weight = [], [], []
    for (one, other), pair in rows_of.items():
        rows = np.sort(random.permutation(pair)[: round(share * len(pair))]) if other != new else pair
        x.append(inputs(one, other, rows))
        y.append(own[rows, other] - own[rows, one])
        speed = np.maximum(fast_weights(logs[:, other], group)[rows], _LEAST_WEIGHT)
        weight.append(speed * (heavier if other == new else 1.0))
    whole = np.concatenate(x), np.concatenate(y)
    trees = boosted(*whole, _CHANGE_SETTINGS, _CHANGE_ROUNDS, seed, weight=np.concatenate(weight))
    every = np.arange(len(own))
    estimates = np.array([logs[:, one] + margins(trees, inputs(one, new, every)) for one in range(new)])
    known = np.isfinite(estimates)
    total = np.where(known, estimates, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), total / np.maximum(1, known.sum(axis=0)), np.nan)
