"""What others would do with a few measurements of a new device: the baselines of the onboarding curve.

Each takes a `Situation` (what may be seen) and the rows that were measured, and gives scores of the rows held
out. They know the new device by its few rows, the source devices by all of theirs. Called by
`benchmarks.onboarding_curve`; knows nothing of strategies. XGBoost is optional and imported when it is
fitted.

Legend: N candidates of a dataset, D devices, P columns of the flat features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.onboarding_cases import FewShot, FewShotSet, Situation, with_few_shot
from benchmarks.rivals.base import (
    flat_of,
    nearest_first,
    place_by_sources,
    places_of,
    sources_measured_test,
    speeds_of,
)
from benchmarks.rivals.trees import BoostedTrees, by_changes
from transfer.adapt.source_model import part_latencies
from transfer.adapt.summary_nets import SummaryNets, fit_nets, tune_nets
from transfer.arrays import Floats, Groups, Rows, Singles
from transfer.data.dataset import Dataset
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


def _trees(
    situation: Situation,
    seen: Dataset,
    rows: Rows,
    devices: Sequence[str],
    inputs: Callable[[Rows, str], Singles],
    start: BoostedTrees | None = None,
) -> BoostedTrees:
    """Trees of some devices' measurements of some rows, on top of `start`."""
    trees = BoostedTrees("xgboost", grid=(_PARAMS,), rounds=(_ROUNDS,), inputs=inputs, start=start)
    trees.fit(seen, rows, devices, situation.seed)
    return trees


def _seen(situation: Situation, few_shot: FewShotSet) -> tuple[Dataset, list[str]]:
    """All that may be seen, and the target if it has measured a pair of one workload to compare."""
    seen = with_few_shot(situation.dataset, situation.target, few_shot)
    return seen, [one for one in trainable_devices(seen, few_shot.rows) if one == situation.target]


def _flat(situation: Situation, rows: Rows, _: str) -> Singles:
    return flat_of(situation)[rows]


def _with_hardware(situation: Situation, rows: Rows, device_id: str) -> Singles:
    dataset = situation.dataset
    return tree_inputs(flat_of(situation)[rows], dataset.hardware[dataset.column(device_id)])


def _trees_alone(situation: Situation, few_shot: FewShotSet) -> Floats | None:
    seen, target = _seen(situation, few_shot)
    if not target:
        return None
    trees = _trees(situation, seen, few_shot.rows, target, partial(_flat, situation))
    return trees.predicted(seen, situation.test, situation.target)


def _trees_pooled(situation: Situation, few_shot: FewShotSet) -> Floats | None:
    return _learnt_across(situation, few_shot, partial(_with_hardware, situation))


def _trees_residual(situation: Situation, few_shot: FewShotSet) -> Floats | None:
    (seen, target), inputs = _seen(situation, few_shot), partial(_flat, situation)
    source = situation.once(
        "trees of sources",
        lambda: _trees(situation, situation.dataset, situation.source_rows, situation.sources, inputs),
    )
    trees = _trees(situation, seen, few_shot.rows, target, inputs, source) if target else source
    return trees.predicted(seen, situation.test, situation.target)


def _trees_with_sources(situation: Situation, few_shot: FewShotSet) -> Floats | None:
    if not sources_measured_test(situation) or len(situation.sources) < 2:
        return None
    nearest = {situation.target: nearest_sources(situation, few_shot)}
    for source in situation.sources:
        # Which other source is nearest to a source is told by all that both measured.
        rows = situation.source_rows
        own = FewShotSet(rows, situation.dataset.latency_secs[rows, situation.dataset.column(source)])
        nearest[source] = situation.once(f"nearest of {source}", partial(nearest_sources, situation, own))

    def inputs(rows: Rows, device_id: str) -> Singles:
        at = [situation.sources.index(one) for one in nearest[device_id] if one != device_id]
        beside = []
        for table in (places_of(situation)[rows][:, at], speeds_of(situation)[rows][:, at]):
            count = np.isfinite(table).sum(axis=1)
            mean = np.nansum(table, axis=1) / np.where(count, count, np.nan)
            beside += [mean, np.fmin.reduce(table, axis=1), np.fmax.reduce(table, axis=1), table[:, 0]]
        return np.concatenate([flat_of(situation)[rows], np.stack(beside, axis=1)], axis=1, dtype=np.float32)

    return _learnt_across(situation, few_shot, inputs)


def _learnt_across(
    situation: Situation, few_shot: FewShotSet, inputs: Callable[[Rows, str], Singles]
) -> Floats:
    """Trees over all source devices, and the target where it has anything to compare."""
    seen, target = _seen(situation, few_shot)
    rows = np.union1d(situation.source_rows, few_shot.rows) if target else situation.source_rows
    trees = _trees(situation, seen, rows, [*situation.sources, *target], inputs)
    return trees.predicted(seen, situation.test, situation.target)


def _mlp_fine_tuned(situation: Situation, few_shot: FewShotSet) -> Floats | None:
    """A perceptron of what the source devices agree on, which goes on with the samples."""
    dataset, target, seed = situation.dataset, situation.target, situation.seed

    def make() -> SummaryNets:
        columns = [dataset.column(source) for source in situation.sources]
        latency = dataset.latency_secs.copy()
        shared = part_latencies(latency[:, columns], dataset.group).shared
        latency[:, dataset.column(target)] = np.exp(shared)
        agreed = replace(dataset, latency_secs=latency).take(situation.source_rows)
        return fit_nets(agreed, target, 1, seed)

    nets = situation.once("perceptron of sources", make)
    seen, learns = _seen(situation, few_shot)
    if learns:
        nets = tune_nets(nets, seen.take(few_shot.rows), target, seed)
    return np.asarray(nets.log_scores(dataset.features.take(situation.test).summary)[0])


def _trees_of_changes(situation: Situation, few_shot: FewShotSet) -> Floats | None:
    """By `benchmarks.rivals.trees.by_changes`; a level of each device in a workload is no change."""
    if not sources_measured_test(situation):
        return None
    seen, test = _seen(situation, few_shot)[0], situation.test
    columns = [seen.column(one) for one in (*situation.sources, situation.target)]
    secs, group = seen.latency_secs[:, columns], seen.group
    agreed = part_latencies(secs[:, :-1], group)
    own = np.column_stack([agreed.own, _own_of(secs[:, -1], agreed.shared, group)])
    own = np.where(np.isfinite(secs), own, np.nan)
    hardware, features = seen.hardware[columns], flat_of(situation)
    change = by_changes(own, agreed.shared, group, hardware, features, situation.seed)
    return None if change is None else -change[test]


def _own_of(secs: Floats, shared: Floats, group: Groups) -> Floats:
    """(n,) what a device says beside what the source devices agree on; NaN where that cannot be told.

    A workload's level is the mean of the device's measurements in it, so one alone says nothing.
    """
    own = np.log(secs) - shared
    known = np.isfinite(own)
    count = np.bincount(group[known], minlength=int(group.max(initial=-1)) + 1)
    level = np.bincount(group[known], own[known], len(count)) / np.maximum(1, count)
    return np.asarray(np.where(count[group] > 1, own - level[group], np.nan))
