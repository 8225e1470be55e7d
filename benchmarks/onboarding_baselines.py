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

from benchmarks.onboarding_cases import FewShot, FewShotSet, Situation, with_few_shot
from benchmarks.onboarding_label_change import Siblings, estimate_by_changes
from benchmarks.rivals.base import (
    flat_of,
    nearest_first,
    need,
    place_by_sources,
    places_of,
    sources_measured_test,
    speeds_of,
)
from benchmarks.rivals.mlp import MlpConfig, SummaryMlp
from transfer.adapt.source_model import part_latencies
from transfer.arrays import Floats, Rows, Singles
from transfer.data.labels import relative_speed
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
    "tree_method": "hist",
    "base_score": 0.0,
    "nthread": 1,
    "verbosity": 0,
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
    xgboost = need("xgboost")
    workloads = len(situation.dataset.workload_ids)
    x, y, group, margin = [], [], [], []
    for place, one in enumerate(lists):
        order = np.argsort(situation.dataset.group[one.rows], kind="stable")
        rows = one.rows[order]
        x.append(inputs(rows, one.device_id))
        y.append(one.labels[order])
        group.append(situation.dataset.group[rows] + place * workloads)
        margin.append(start(rows, one.device_id))
    matrix = xgboost.QuantileDMatrix(
        np.concatenate(x), label=np.concatenate(y), base_margin=np.concatenate(margin), nthread=1
    )
    matrix.set_group(np.unique(np.concatenate(group), return_counts=True)[1])
    booster = xgboost.train({**_PARAMS, "seed": situation.seed}, matrix, num_boost_round=_ROUNDS)

    def predict(rows: Rows, device_id: str) -> Floats:
        scores = booster.inplace_predict(
            inputs(rows, device_id), base_margin=start(rows, device_id), predict_type="margin"
        )
        return np.asarray(scores, dtype=np.float64)

    return predict
