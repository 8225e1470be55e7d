from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.model_fixtures import CONFIG, DEVICES, changed_block, make_dataset, same_weights, with_latency
from transfer.data.dataset import Dataset
from transfer.errors import TransferError
from transfer.model.fleet_tlp import FleetTLP
from transfer.train.rows import TrainConfig, trainable_devices
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


def test_what_cannot_be_trained_is_refused():
    rows = np.arange(40)
    start = train(DATASET, rows, config=QUICK, seed=0).model
    summary = DATASET.features.summary.copy()
    summary[3] = np.nan
    broken = replace(DATASET, features=replace(DATASET.features, summary=summary))
    lonely = with_latency(DATASET, slice(None), "cpu-new", np.where(ROWS % 10 == 0, 1e-3, np.nan))
    assert trainable_devices(lonely, ROWS) == DEVICES[:2], "a single label in a workload teaches nothing"
    other = replace(DATASET, spec=replace(DATASET.spec, version=DATASET.spec.version + 1))
    spoilt = start.copy()
    with torch.no_grad():
        spoilt.join.weight[0, 0] = torch.nan
    for dataset, learnt, how, why in (
        (broken, rows, {}, r"`summary` of the training rows hold NaN"),
        (lonely, ROWS, {"devices": ("cpu-new",)}, r"cpu-new.*no workload has two measured"),
        (DATASET, np.array([0, 10]), {}, "any device"),
        (DATASET, rows, {"run": TrainRun(init=spoilt)}, "training diverged: loss nan"),
        (other, rows, {"run": TrainRun(init=start)}, "the model to start from reads features"),
        *(
            (with_latency(DATASET, 5, "cpu.a", secs), rows, {}, r"not finite and above 0.*mend or drop")
            for secs in (np.inf, -1.0, 0.0)
        ),
    ):
        with pytest.raises(TransferError, match=why):
            train(dataset, learnt, config=QUICK, seed=0, **how)
    with pytest.raises(ValueError, match="epochs must be at least 1"):
        TrainConfig(epochs=0)
    assert train(broken, np.arange(40, 80), config=QUICK, seed=0).history, "other rows do not matter"


# ---- devices lend each other the workloads that one of them did not measure ----


def lacking_of(dataset: Dataset, device: str, workloads: list[int], kept: int = 0) -> Dataset:
    """The dataset without what a device measured of some workloads, but for some candidates of each."""
    for workload in workloads:
        gone = np.flatnonzero(dataset.group == workload)[kept:]
        dataset = with_latency(dataset, gone, device, np.nan)
    return dataset


def test_a_device_that_measured_nothing_is_trained_only_where_others_lend() -> None:
    own = DEVICES[0]
    lacking = lacking_of(DATASET, own, list(range(len(DATASET.workload_ids))))
    with pytest.raises(TransferError, match="cannot train a head"):
        train(lacking, ROWS, config=QUICK, seed=0, devices=DEVICES)
    model = train(lacking, ROWS, config=replace(QUICK, lends=True), seed=0, devices=DEVICES).model
    assert own in model.device_ids
