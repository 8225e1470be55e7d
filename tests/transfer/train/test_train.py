from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.model_fixtures import CONFIG, DEVICES, changed_block, make_dataset, same_weights, with_latency
from transfer.errors import TransferError
from transfer.model.fleet_tlp import FleetTLP
from transfer.train.config import TrainConfig
from transfer.train.rows import trainable_devices
from transfer.train.training import TrainRun, train

QUICK = replace(CONFIG, epochs=2)
DATASET = make_dataset()
ROWS = np.arange(len(DATASET))


def order_found(model: FleetTLP, dataset, device_id: str, rows: np.ndarray) -> float:
    """Share of the pairs inside a workload that the scores put in the right order."""
    latency = dataset.latency_secs[rows, dataset.column(device_id)]
    scores = model.score(dataset.features.take(rows), device_id)
    faster = (latency[:, None] < latency[None, :]) & (
        dataset.group[rows][:, None] == dataset.group[rows][None, :]
    )
    return float((scores[:, None] > scores[None, :])[faster].mean())


def test_learns_to_order_candidates_of_workloads_it_never_saw():
    dataset = make_dataset(workloads=16, candidates=16)
    held = np.flatnonzero(dataset.group >= 12)
    result = train(dataset, np.flatnonzero(dataset.group < 12), config=replace(CONFIG, epochs=30), seed=0)
    assert result.model.device_ids == DEVICES
    for device_id in DEVICES:
        assert order_found(result.model, dataset, device_id, held) > 0.8
    assert result.history[-1].train_loss < 0.7 * result.history[0].train_loss
    assert [report.epoch for report in result.history] == list(range(1, 31))
    assert result.seconds > 0


def test_weights_follow_the_seed_and_the_global_random_state_is_left_alone():
    state = torch.random.get_rng_state()
    first, second, other = (train(DATASET, ROWS, config=QUICK, seed=s).model for s in (3, 3, 4))
    assert same_weights(first, second)
    assert not same_weights(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_rows_outside_of_the_training_rows_have_no_influence():
    rows = np.flatnonzero(DATASET.group < 5)
    others = DATASET.group >= 5
    numbers = DATASET.features.numbers.copy()
    numbers[others] += 3
    other = with_latency(DATASET, others, None, 7 * DATASET.latency_secs[others])
    other = replace(other, features=changed_block(DATASET.features, numbers=numbers))
    model, again = (train(d, rows, config=QUICK, seed=0).model for d in (DATASET, other))
    assert same_weights(model, again)
    np.testing.assert_allclose(model.summary.mean, DATASET.features.summary[rows].mean(axis=0), rtol=1e-4)


def test_a_head_without_labels_gets_exactly_zero_gradient():
    start = train(DATASET, ROWS, config=QUICK, seed=0).model
    blind = with_latency(DATASET, slice(None), "cpu-new", np.nan)
    after = train(blind, ROWS, config=QUICK, seed=1, run=TrainRun(init=start)).model
    for a, b in zip(start.head("cpu-new").parameters(), after.head("cpu-new").parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(start.join.weight, after.join.weight)


def test_a_single_label_in_a_workload_teaches_nothing():
    lonely = with_latency(DATASET, slice(None), "cpu-new", np.where(ROWS % 10 == 0, 1e-3, np.nan))
    assert trainable_devices(lonely, ROWS) == DEVICES[:2]
    with pytest.raises(TransferError, match=r"cpu-new.*no workload has two measured"):
        train(lonely, ROWS, config=QUICK, seed=0, devices=("cpu-new",))


def test_init_is_not_changed_and_keeps_its_scaler():
    start = train(DATASET, np.arange(40), config=QUICK, seed=0, devices=DEVICES[:2]).model
    before = start.copy()
    after = train(
        DATASET, np.arange(40, 80), config=QUICK, seed=0, devices=DEVICES, run=TrainRun(init=start)
    ).model
    assert same_weights(start, before)
    assert torch.equal(after.encoder.numbers.mean, start.encoder.numbers.mean)
    assert after.device_ids == DEVICES


def test_early_stopping_returns_the_best_epoch():
    rows, held = np.flatnonzero(DATASET.group < 5), np.flatnonzero(DATASET.group >= 5)
    config = replace(CONFIG, epochs=60, patience=3, learning_rate=2e-2)
    seen = []
    result = train(
        DATASET, rows, config=config, seed=0, validation_rows=held, run=TrainRun(on_epoch=seen.append)
    )
    losses = [report.validation_loss for report in result.history]
    best = int(np.argmin(losses))
    assert len(losses) < 60
    assert len(losses) == best + 1 + 3
    assert seen == list(result.history)


def test_large_workloads_are_sampled():
    config = replace(QUICK, candidates_per_workload=4)
    assert np.isfinite(train(DATASET, np.arange(80), config=config, seed=0).history[-1].train_loss)


def test_features_that_are_not_finite_are_refused():
    summary = DATASET.features.summary.copy()
    summary[3] = np.nan
    broken = replace(DATASET, features=replace(DATASET.features, summary=summary))
    with pytest.raises(TransferError, match=r"`summary` of the training rows hold NaN"):
        train(broken, np.arange(40), config=QUICK, seed=0)
    assert train(broken, np.arange(40, 80), config=QUICK, seed=0).history


def test_a_model_that_is_not_finite_is_an_error():
    start = train(DATASET, np.arange(40), config=QUICK, seed=0).model
    with torch.no_grad():
        start.join.weight[0, 0] = torch.nan
    with pytest.raises(TransferError, match="training diverged: loss nan"):
        train(DATASET, np.arange(40), config=QUICK, seed=0, run=TrainRun(init=start))


def test_a_start_from_other_features_is_refused():
    start = train(DATASET, np.arange(40), config=QUICK, seed=0).model
    other = replace(DATASET, spec=replace(DATASET.spec, version=DATASET.spec.version + 1))
    with pytest.raises(TransferError, match="the model to start from reads features"):
        train(other, np.arange(40), config=QUICK, seed=0, run=TrainRun(init=start))


def test_useless_requests_are_refused():
    with pytest.raises(TransferError, match="any device"):
        train(DATASET, np.array([0, 10]), config=QUICK, seed=0)
    with pytest.raises(ValueError, match="epochs must be at least 1"):
        TrainConfig(epochs=0)
