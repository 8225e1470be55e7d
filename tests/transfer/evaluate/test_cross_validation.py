from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.model_fixtures import CONFIG, folds_of, make_dataset
from transfer.adapt.sample_selection import draw_few_shot
from transfer.errors import TransferError
from transfer.evaluate.cross_validation import (
    PARTS,
    CrossValidation,
    CrossValidationPlan,
    average_repeats,
    cross_validate,
)

TARGET = "cpu-new"
QUICK = replace(CONFIG, epochs=4)
DATASET = make_dataset(workloads=9, candidates=10)
FOLDS = folds_of(DATASET)
PLAN = CrossValidationPlan(target_device=TARGET, samples=16, config=QUICK)


@pytest.fixture(scope="module")
def result() -> CrossValidation:
    return cross_validate(DATASET, FOLDS, PLAN, seed=0)


def test_every_workload_is_held_out_once_and_every_approach_is_judged_on_it(result):
    assert set(result.sources) == {"cpu.a", "cpu.b"}
    assert set(result.target) == {"warm", "nearest", "scratch", "full"}
    for approach in (*result.sources.values(), *result.target.values()):
        assert sorted(approach.metrics.groups) == list(range(9))
        assert sorted(approach.scored.rows) == list(range(len(DATASET)))
        low, high = approach.interval("top1")
        assert 0 < low <= approach.metrics.top1 <= high <= 1
        assert ((approach.scored.scores > 0) & (approach.scored.scores <= 1)).all()
    # `full` learns from the training rows of the target only.
    measured = DATASET.rows_of(TARGET)
    counts = [np.intersect1d(measured, split.train).size for split in FOLDS]
    assert result.full_samples == round(np.mean(counts)) < len(measured)
    # Pairs for plots line up with the dataset.
    scored, column = result.target["warm"].scored, DATASET.column(TARGET)
    assert np.array_equal(scored.labels, DATASET.labels(scored.rows)[:, column], equal_nan=True)
    assert set(result.seconds) == set(PARTS)
    assert all(value > 0 for value in result.seconds.values())
    warm, scratch = result.target["warm"], result.target["scratch"]
    found = warm.minus(scratch)
    assert found.value == pytest.approx(warm.metrics.top1 - scratch.metrics.top1)
    assert found.low <= found.value <= found.high


def test_repeats_are_averaged_by_workload(result):
    other = replace(result, target=dict.fromkeys(result.target, result.target["full"]))
    both = average_repeats([result, other])
    for name, approach in both.target.items():
        parts = [one.target[name].metrics.top1_by_workload for one in (result, other)]
        assert approach.metrics.top1_by_workload == pytest.approx(np.mean(parts, axis=0))
    assert both.target["warm"].scored is result.target["warm"].scored


def test_held_out_latencies_and_target_data_beyond_the_samples_have_no_influence(result):
    """Only `full` may see target latencies that were not drawn; nobody may see those held out."""
    split = FOLDS[0]
    column = DATASET.column(TARGET)
    few_shot = draw_few_shot(DATASET, TARGET, split.train, PLAN.samples, seed=0)
    latency = DATASET.latency_secs.copy()
    # Scaled up and not made present or absent: what is measured decides who may be drawn.
    hidden = np.setdiff1d(np.arange(len(DATASET)), few_shot)
    latency[hidden, column] *= np.random.default_rng(0).uniform(1, 100, len(hidden))
    latency[split.test] *= 3
    other = cross_validate(replace(DATASET, latency_secs=latency), [split], PLAN, seed=0)
    seen = []
    same = cross_validate(DATASET, [split], PLAN, seed=0, on_progress=lambda *at: seen.append(at))
    assert seen == [("fold 1 of 3", part) for part in ("source", "warm", "scratch", "full")]
    for name in ("warm", "nearest", "scratch"):
        assert np.array_equal(same.target[name].scored.scores, other.target[name].scored.scores)
    for device_id in result.sources:
        assert np.array_equal(same.sources[device_id].scored.scores, other.sources[device_id].scored.scores)


@pytest.mark.slow  # starts two processes that import torch
def test_the_result_does_not_depend_on_the_number_of_workers(result):
    seen = []
    other = cross_validate(DATASET, FOLDS, PLAN, seed=0, workers=2, on_progress=lambda *at: seen.append(at))
    for name in result.target:
        assert np.array_equal(result.target[name].scored.scores, other.target[name].scored.scores)
    assert seen == [(fold.name, part) for fold in FOLDS for part in PARTS]


def test_few_shot_set_is_drawn_in_groups_from_what_was_tried_on_the_target():
    rows = np.flatnonzero(DATASET.group < 6)
    column = DATASET.column(TARGET)
    tried = np.flatnonzero(np.isfinite(DATASET.latency_secs[:, column]) | DATASET.failed[:, column])
    drawn = [draw_few_shot(DATASET, TARGET, rows, 24, seed=seed) for seed in range(10)]
    for few_shot in drawn:
        assert len(np.unique(few_shot)) == 24
        assert np.isin(few_shot, np.intersect1d(rows, tried)).all()
        assert np.unique(DATASET.group[few_shot], return_counts=True)[1].tolist() == [8, 8, 8]
    assert not np.array_equal(drawn[0], drawn[1])
    # It may be all that there is, and no more.
    everything = np.arange(len(DATASET))
    assert np.array_equal(draw_few_shot(DATASET, TARGET, everything, len(tried), seed=0), tried)
    with pytest.raises(TransferError, match=f"cannot draw {len(tried) + 1} samples of 'cpu-new'"):
        draw_few_shot(DATASET, TARGET, everything, len(tried) + 1, seed=0)
