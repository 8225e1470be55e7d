from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.model_fixtures import CONFIG, folds_of, make_dataset
from transfer.adapt.guard import MultiTask
from transfer.adapt.sample_selection import draw_few_shot
from transfer.evaluate.compare import Fold, judge_fits
from transfer.evaluate.cross_validation import OnboardingPlan, onboard

TARGET = "cpu-new"
DATASET = make_dataset(workloads=9, candidates=10)
FOLDS = [Fold(split=split, seed=0, place=place) for place, split in enumerate(folds_of(DATASET))]
PLAN = OnboardingPlan(target=TARGET, samples=16, config=replace(CONFIG, epochs=4), strategy=MultiTask())


def test_every_workload_is_held_out_once_and_every_way_is_judged_on_it() -> None:
    told: list[str] = []
    scores = [onboard(fold, DATASET, PLAN) for fold in FOLDS]
    found = judge_fits(FOLDS, scores, DATASET, on_progress=lambda done: told.append(done.split))
    assert told == [fold.split.name for fold in FOLDS]
    ways = {("source", "cpu.a"), ("source", "cpu.b")}
    assert set(found.metrics) == ways | {(way, TARGET) for way in ("warm", "nearest", "scratch", "full")}
    for [metrics] in found.metrics.values():
        assert sorted(metrics.groups) == list(range(9))
    for by_head, secs in scores:
        assert secs > 0
        assert all(((values > 0) & (values <= 1)).all() for values in by_head.values())
    difference = found.difference("warm", "scratch", TARGET, "top1")
    assert difference.low <= difference.value <= difference.high


def test_held_out_latencies_and_target_data_beyond_the_samples_have_no_influence() -> None:
    """Only `full` may see target latencies that were not drawn; nobody may see those held out."""
    split, column = FOLDS[0].split, DATASET.column(TARGET)
    few_shot = draw_few_shot(DATASET, TARGET, split.train, PLAN.samples, seed=0)
    latency = DATASET.latency_secs.copy()
    # Scaled up and not made present or absent: what is measured decides who may be drawn.
    hidden = np.setdiff1d(np.arange(len(DATASET)), few_shot)
    latency[hidden, column] *= np.random.default_rng(0).uniform(1, 100, len(hidden))
    latency[split.test] *= 3
    other, _ = onboard(FOLDS[0], replace(DATASET, latency_secs=latency), PLAN)
    same, _ = onboard(FOLDS[0], DATASET, PLAN)
    for key in same.keys() - {("full", TARGET)}:
        assert np.array_equal(same[key], other[key]), key
    assert not np.array_equal(same["full", TARGET], other["full", TARGET])
