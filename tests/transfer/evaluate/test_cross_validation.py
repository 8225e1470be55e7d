from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.model_fixtures import CONFIG, folds_of, make_dataset
from transfer.adapt.sample_selection import draw_few_shot
from transfer.evaluate.cross_validation import (
    PARTS,
    CrossValidation,
    CrossValidationPlan,
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
