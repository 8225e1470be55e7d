from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.model_fixtures import CONFIG, make_dataset
from transfer.adapt.base import Strategy, visible_part
from transfer.adapt.multitask import MultiTask, most_similar_heads, with_target_head
from transfer.adapt.scratch import Scratch
from transfer.errors import TransferError
from transfer.losses import LossWeights, head_loss
from transfer.model import MultiTaskTLP
from transfer.train import train

TARGET = "cpu-new"
STRATEGIES: list[Strategy] = [Scratch(), MultiTask()]
DATASET = make_dataset(workloads=8, candidates=12)
SOURCE_ROWS = np.flatnonzero(DATASET.group < 6)
SUPPORT = np.flatnonzero((DATASET.group < 4) & (np.arange(len(DATASET)) % 3 == 0))
QUICK = replace(CONFIG, epochs=3)


@pytest.fixture(scope="module")
def source() -> MultiTaskTLP:
    return train(DATASET, SOURCE_ROWS, config=CONFIG, seed=0, devices=("cpu.a", "cpu.b")).model


def same_weights(a: MultiTaskTLP, b: MultiTaskTLP) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def support_loss(model: MultiTaskTLP) -> float:
    part = visible_part(DATASET, TARGET, SUPPORT, SUPPORT)
    scores = model.score(part.features, TARGET)
    labels = part.labels()[:, part.column(TARGET)]
    total = 0.0
    for group in np.unique(part.group):
        there = part.group == group
        logits = torch.logit(torch.from_numpy(scores[there]))[None]
        label = torch.from_numpy(labels[there])[None]
        loss = head_loss(logits, label, label.isfinite(), terms=LossWeights())
        total += 0.0 if loss is None else loss.item()
    return total


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_target_latencies_outside_the_support_have_no_influence(strategy, source):
    column = DATASET.column(TARGET)
    latency, failed = DATASET.latency_secs.copy(), DATASET.failed.copy()
    hidden = np.setdiff1d(np.arange(len(DATASET)), SUPPORT)
    latency[hidden, column] = np.random.default_rng(0).uniform(1e-9, 1e3, len(hidden))
    failed[hidden, column] = True
    other = replace(DATASET, latency_secs=latency, failed=failed)
    models = [
        strategy.adapt(source, d, TARGET, SUPPORT, source_rows=SOURCE_ROWS, config=QUICK, seed=0)
        for d in (DATASET, other)
    ]
    assert same_weights(*models)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_target_latencies_of_the_support_have_influence(strategy, source):
    latency = DATASET.latency_secs.copy()
    latency[SUPPORT, DATASET.column(TARGET)] = latency[SUPPORT[::-1], DATASET.column(TARGET)]
    other = replace(DATASET, latency_secs=latency)
    models = [
        strategy.adapt(source, d, TARGET, SUPPORT, source_rows=SOURCE_ROWS, config=QUICK, seed=0)
        for d in (DATASET, other)
    ]
    assert not same_weights(*models)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_rows_in_neither_set_have_no_influence(strategy, source):
    hidden = np.setdiff1d(np.arange(len(DATASET)), np.union1d(SUPPORT, SOURCE_ROWS))
    latency = DATASET.latency_secs.copy()
    latency[hidden] = 1.0
    other = replace(DATASET, latency_secs=latency)
    models = [
        strategy.adapt(source, d, TARGET, SUPPORT, source_rows=SOURCE_ROWS, config=QUICK, seed=0)
        for d in (DATASET, other)
    ]
    assert same_weights(*models)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_equal_arguments_give_equal_weights_and_leave_the_source_alone(strategy, source):
    before = source.copy()
    models = [
        strategy.adapt(source, DATASET, TARGET, SUPPORT, source_rows=SOURCE_ROWS, config=QUICK, seed=s)
        for s in (1, 1, 2)
    ]
    assert same_weights(models[0], models[1])
    assert not same_weights(models[0], models[2])
    assert same_weights(source, before)


def test_adapting_lowers_the_loss_on_the_support_set(source):
    part = visible_part(DATASET, TARGET, SUPPORT, SOURCE_ROWS)
    start = with_target_head(source, part, TARGET, seed=0)
    adapted = MultiTask().adapt(
        source, DATASET, TARGET, SUPPORT, source_rows=SOURCE_ROWS, config=replace(CONFIG, epochs=100), seed=0
    )
    assert support_loss(adapted) < 0.8 * support_loss(start)


def test_multitask_keeps_the_source_heads(source):
    adapted = MultiTask().adapt(
        source, DATASET, TARGET, SUPPORT, source_rows=SOURCE_ROWS, config=QUICK, seed=0
    )
    assert adapted.device_ids == (*source.device_ids, TARGET)


def test_multitask_without_a_source_trains_all_heads_at_once():
    model = MultiTask().adapt(None, DATASET, TARGET, SUPPORT, source_rows=SOURCE_ROWS, config=QUICK, seed=0)
    assert set(model.device_ids) == set(DATASET.device_ids)


def test_multitask_works_without_any_replay(source):
    nothing = np.zeros(0, dtype=np.int64)
    model = MultiTask().adapt(source, DATASET, TARGET, SUPPORT, source_rows=nothing, config=QUICK, seed=0)
    for device_id in source.device_ids:
        for a, b in zip(source.head(device_id).parameters(), model.head(device_id).parameters(), strict=True):
            assert torch.equal(a, b)


def test_scratch_has_the_target_head_only_and_ignores_the_source(source):
    models = [
        Scratch().adapt(s, DATASET, TARGET, SUPPORT, source_rows=rows, config=QUICK, seed=0)
        for s, rows in ((source, SOURCE_ROWS), (None, SOURCE_ROWS[:1]))
    ]
    assert models[0].device_ids == (TARGET,)
    assert same_weights(*models)


def test_labels_are_relative_to_the_best_of_the_support_set():
    part = visible_part(DATASET, TARGET, SUPPORT, SOURCE_ROWS)
    labels = part.labels()[:, part.column(TARGET)]
    seen = np.isfinite(labels)
    for group in np.unique(part.group[seen]):
        assert labels[seen & (part.group == group)].max() == 1.0


def test_the_most_similar_head_is_found(source):
    part = visible_part(DATASET, TARGET, SUPPORT, SOURCE_ROWS)
    scores = source.score(part.features, "cpu.b")
    latency = part.latency_secs.copy()
    # A target whose speed is exactly what one head says; measured everywhere, so that no other head ties.
    latency[:, part.column(TARGET)] = 1 / scores
    assert most_similar_heads(source, replace(part, latency_secs=latency), TARGET) == ("cpu.b",)


def test_nothing_measured_on_the_target_is_an_error(source):
    latency = DATASET.latency_secs.copy()
    latency[:, DATASET.column(TARGET)] = np.nan
    blind = replace(DATASET, latency_secs=latency)
    for strategy in STRATEGIES:
        with pytest.raises(
            TransferError, match=rf"none of the {len(SUPPORT)} support rows has an ok measurement"
        ):
            strategy.adapt(source, blind, TARGET, SUPPORT, source_rows=SOURCE_ROWS, config=QUICK, seed=0)
