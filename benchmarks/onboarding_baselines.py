"""What others would do with a few measurements of a new device: the baselines of the onboarding curve.

Each takes a `Situation` (what may be seen) and the rows that were measured, and gives scores of the rows held
out. They know the new device by its few rows, the source devices by all of theirs. Called by
`benchmarks.onboarding_curve`; knows nothing of strategies. XGBoost is optional and imported when it is
fitted.

Legend: N candidates of a dataset, D devices, P columns of the flat features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.onboarding_cases import FewShot, FewShotSet, Situation, with_few_shot
from benchmarks.rivals.base import (
    flat_of,
    nearest_first,
    place_by_sources,
    places_of,
    sources_measured_test,
    speeds_of,
)
from benchmarks.rivals.mlp import MlpConfig, SummaryMlp
from benchmarks.rivals.trees import boosted, margins
from transfer.adapt.source_model import Agreed, fast_weights, part_latencies
from transfer.arrays import Floats, Groups, Mask, Rows, Singles
from transfer.data.labels import group_min, relative_speed
from transfer.model.trees import tree_inputs
from transfer.train.rows import trainable_devices

#: Trees of all scopes: the middle of the grid of `benchmarks.rivals.trees`, the same for every k: a choice
#: made on a few dozen labels is mostly luck.
_PARAMS: dict[str, Any] = {
    "objective": "rank:pairwise",
    "max_depth": 6,
    "eta": 0.1,
    "subsample": 0.8,
    "colsample_bytree": 0.5,
}
_ROUNDS = 150


@dataclass(frozen=True, eq=False)
class Labelled:
    """Rows of one device with their relative speeds."""

    device_id: str
    rows: Rows
    labels: Floats


def baselines() -> list[FewShot]:
    """All of them, but for a random choice, whose expectation is exact."""
    return [
        FewShot("nearest-device", partial(_by_sources, is_mean=False)),
        FewShot("mean-rank", partial(_by_sources, is_mean=True)),
        FewShot("xgboost", _trees_alone),
        FewShot("xgboost-pooled", _trees_pooled),
        FewShot("xgboost-residual", _trees_residual),
        FewShot("xgboost-siblings", _trees_with_sources),
        FewShot("xgboost-change", _trees_of_changes),
        FewShot("mlp-fine-tuned", _mlp_fine_tuned),
    ]


def _by_sources(situation: Situation, few_shot: FewShotSet, *, is_mean: bool) -> Floats | None:
    if not sources_measured_test(situation):
        return None
    columns = [situation.sources.index(source) for source in nearest_sources(situation, few_shot)]
    return place_by_sources(places_of(situation)[situation.test][:, columns], is_mean=is_mean)


def nearest_sources(situation: Situation, few_shot: FewShotSet) -> list[str]:
    """The sources, most similar first."""
    target, sources = situation.target, situation.sources
    return nearest_first(situation.dataset, target, few_shot.rows, few_shot.latency_secs, sources)


def _trees_alone(situation: Situation, few_shot: FewShotSet) -> Floats | None:
    lists = _target_list(situation, few_shot)
    if lists is None:
        return None
    return _boost(situation, [lists], lambda rows, _: flat_of(situation)[rows])(
        situation.test, situation.target
    )


def _trees_pooled(situation: Situation, few_shot: FewShotSet) -> Floats | None:
    def inputs(rows: Rows, device_id: str) -> Singles:
        hardware = situation.dataset.hardware[situation.dataset.column(device_id)]
        return tree_inputs(flat_of(situation)[rows], hardware)

    return _learnt_across(situation, few_shot, inputs)


def _trees_residual(situation: Situation, few_shot: FewShotSet) -> Floats | None:
    def inputs(rows: Rows, _: str) -> Singles:
        return flat_of(situation)[rows]

    source = situation.once("trees of sources", lambda: _boost(situation, _source_lists(situation), inputs))
    mine = _target_list(situation, few_shot)
    if mine is None:
        return source(situation.test, situation.target)
    own = _boost(situation, [mine], inputs, start=source)
    return own(situation.test, situation.target)


def _trees_with_sources(situation: Situation, few_shot: FewShotSet) -> Floats | None:
    if not sources_measured_test(situation) or len(situation.sources) < 2:
        return None
    nearest = {situation.target: nearest_sources(situation, few_shot)}
    for source in situation.sources:
        # Which other source is nearest to a source is told by all that both measured.
        rows = situation.source_rows
        own = FewShotSet(rows, situation.dataset.latency_secs[rows, situation.dataset.column(source)])
        nearest[source] = situation.once(
            f"nearest of {source}",
            lambda own=own: nearest_sources(situation, own),  # type: ignore[misc]
        )

    def inputs(rows: Rows, device_id: str) -> Singles:
        others = [one for one in nearest[device_id] if one != device_id]
        at = [situation.sources.index(one) for one in others]
        beside = []
        for table in (places_of(situation)[rows][:, at], speeds_of(situation)[rows][:, at]):
            count = np.isfinite(table).sum(axis=1)
            mean = np.nansum(table, axis=1) / np.where(count, count, np.nan)
            beside += [mean, np.fmin.reduce(table, axis=1), np.fmax.reduce(table, axis=1), table[:, 0]]
        return np.concatenate([flat_of(situation)[rows], np.stack(beside, axis=1)], axis=1, dtype=np.float32)

    return _learnt_across(situation, few_shot, inputs)


def _trees_of_changes(situation: Situation, few_shot: FewShotSet) -> Floats | None:
    if not sources_measured_test(situation):
        return None
    dataset = situation.dataset
    columns = [dataset.column(one) for one in (*situation.sources, situation.target)]
    secs = dataset.latency_secs[:, columns[:-1]]
    target_secs = np.full(len(dataset), np.nan)
    target_secs[few_shot.rows] = few_shot.latency_secs
    siblings = Siblings(
        agreed=part_latencies(secs, dataset.group),
        measured=np.isfinite(secs),
        group=dataset.group,
        features=flat_of(situation),
        hardware=dataset.hardware[columns],
    )
    found = estimate_by_changes(siblings, target_secs, situation.seed)
    return None if found is None else -found[situation.test]


def _mlp_fine_tuned(situation: Situation, few_shot: FewShotSet) -> Floats | None:
    dataset = situation.dataset
    sources = list(trainable_devices(dataset, situation.source_rows))

    def make() -> SummaryMlp:
        model = SummaryMlp(MlpConfig())
        model.fit(dataset, situation.source_rows, sources, situation.seed)
        return model

    source = situation.once("mlp of sources", make)
    if _target_list(situation, few_shot) is None:
        scores = [source.score(dataset, situation.test, one) for one in sources]
        return cast(Floats, np.mean(scores, axis=0))
    own = SummaryMlp(MlpConfig(), start=source)
    seen = with_few_shot(dataset, situation.target, few_shot)
    own.fit(seen, few_shot.rows, [situation.target], situation.seed)
    return own.score(seen, situation.test, situation.target)


def _target_list(situation: Situation, few_shot: FewShotSet) -> Labelled | None:
    """The few-shot set as a list to learn; None where it has no pair of one workload to compare."""
    known = np.isfinite(few_shot.latency_secs)
    rows, secs = few_shot.rows[known], few_shot.latency_secs[known]
    group = situation.dataset.group[rows]
    if np.bincount(group, minlength=1).max(initial=0) < 2:
        return None
    labels = relative_speed(secs[:, None], group, len(situation.dataset.workload_ids))[:, 0]
    return Labelled(situation.target, rows, labels)


def _source_lists(situation: Situation) -> list[Labelled]:
    dataset, rows = situation.dataset, situation.source_rows
    labels = dataset.labels(rows)
    lists = []
    for source in situation.sources:
        mine = labels[:, dataset.column(source)]
        known = np.isfinite(mine)
        if known.any():
            lists.append(Labelled(source, rows[known], mine[known]))
    return lists


_Inputs = Callable[[Rows, str], Singles]
_Predict = Callable[[Rows, str], Floats]


def _learnt_across(situation: Situation, few_shot: FewShotSet, inputs: _Inputs) -> Floats:
    """Trees over all source devices, and the target where it has anything to compare."""
    mine = _target_list(situation, few_shot)
    lists = [*_source_lists(situation), *([mine] if mine is not None else [])]
    return _boost(situation, lists, inputs)(situation.test, situation.target)


def _nothing(rows: Rows, _: str) -> Floats:
    return np.zeros(len(rows))


def _boost(
    situation: Situation, lists: Sequence[Labelled], inputs: _Inputs, start: _Predict = _nothing
) -> _Predict:
    """Trees over the lists of some devices, on top of `start`."""
    workloads = len(situation.dataset.workload_ids)
    x, y, group, margin = [], [], [], []
    for place, one in enumerate(lists):
        order = np.argsort(situation.dataset.group[one.rows], kind="stable")
        rows = one.rows[order]
        x.append(inputs(rows, one.device_id))
        y.append(one.labels[order])
        group.append(situation.dataset.group[rows] + place * workloads)
        margin.append(start(rows, one.device_id))
    booster = boosted(
        np.concatenate(x),
        np.concatenate(y),
        _PARAMS,
        _ROUNDS,
        situation.seed,
        group=np.unique(np.concatenate(group), return_counts=True)[1],
        base_margin=np.concatenate(margin),
    )
    return lambda rows, device_id: margins(
        booster, inputs(rows, device_id), base_margin=start(rows, device_id)
    )


# How a candidate's label changes from one device to another, learnt from pairs of source devices. Two devices
# agree on most of a candidate; trees learn where they differ: for each ordered pair of source devices, the
# change of the logarithm of a candidate's latency from the first to the second, out of how fast it is on the
# first, both devices' hardware and its features. The target's few measurements are further pairs, from every
# source device to it. For the target, each source device that measured a candidate says its own latency and
# the change that the trees see; the mean of these is the estimate. Settings are one of six that were tried on
# four ISA profiles and three devices of AutoTVM logs (decision 44).

#: Most rows of pairs among source devices that trees are fitted to.
_MOST_ROWS = 30_000
#: The target's measurements count as much as this many of a source device's, where they are few.
_MOST_WEIGHT = 8.0
#: A candidate counts as its relative speed on the second device, this at least.
_LEAST_WEIGHT = 0.1
_CHANGE_TREES = 150
_CHANGE_SETTINGS = {
    "objective": "reg:squarederror",
    "max_depth": 5,
    "eta": 0.06,
    "min_child_weight": 10,
    "subsample": 0.8,
    "colsample_bytree": 0.5,
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
            change = margins(trees, _change_inputs(siblings, slower, place, target, rows))
            total[rows] += siblings.agreed.shared[rows] + siblings.agreed.own[rows, place] + change
    count = measured.sum(axis=1)
    return np.where(count > 0, total / np.maximum(1, count), np.nan)


def _learnt(siblings: Siblings, target_secs: Floats, seed: int) -> Any:
    """Trees of the changes among the source devices, and to the target where it has measured anything."""
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
            x.append(_change_inputs(siblings, slower, a, b, rows))
            y.append(own[rows, b] - own[rows, a])
            value = np.where(there[:, b], agreed.shared + own[:, b], np.nan)
            speed = np.maximum(fast_weights(value, group)[rows], _LEAST_WEIGHT)
            weight.append(speed * (heavier if b == target else 1.0))
    return boosted(
        np.concatenate(x),
        np.concatenate(y),
        _CHANGE_SETTINGS,
        _CHANGE_TREES,
        seed,
        weight=np.concatenate(weight),
    )


def _change_inputs(siblings: Siblings, slower: Floats, one: int, other: int, rows: Rows) -> Singles:
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
