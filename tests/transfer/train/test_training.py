"""What a training learns and refuses, going on after a kill, curves, and the chance that a candidate runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.model_fixtures import CONFIG, DEVICES, changed_block, make_dataset, same_weights, with_latency
from transfer.checked_folder import CheckpointError
from transfer.errors import TransferError
from transfer.model.fleet_tlp import FleetTLP
from transfer.train import CURVES_NAME
from transfer.train.rows import torch_device, trainable_devices
from transfer.train.training import TrainRun, train

DATASET = make_dataset()
ALL = np.arange(len(DATASET))
ROWS, HELD = np.flatnonzero(DATASET.group < 6), np.flatnonzero(DATASET.group >= 6)
QUICK, RUN = replace(CONFIG, epochs=2), replace(CONFIG, epochs=6)


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
    lonely = with_latency(DATASET, slice(None), "cpu-new", np.where(ALL % 10 == 0, 1e-3, np.nan))
    assert trainable_devices(lonely, ALL) == DEVICES[:2], "a single label in a workload teaches nothing"
    other = replace(DATASET, spec=replace(DATASET.spec, version=DATASET.spec.version + 1))
    spoilt = start.copy()
    with torch.no_grad():
        spoilt.join.weight[0, 0] = torch.nan
    for dataset, learnt, how, why in (
        (broken, rows, {}, r"`summary` of the training rows hold NaN"),
        (lonely, ALL, {"devices": ("cpu-new",)}, r"cpu-new.*no workload has two measured"),
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
    assert train(broken, np.arange(40, 80), config=QUICK, seed=0).history, "other rows do not matter"


# ---- devices lend each other the workloads that one of them did not measure ----


def test_a_device_that_measured_nothing_is_trained_only_where_others_lend() -> None:
    own = DEVICES[0]
    lacking = with_latency(DATASET, ALL, own, np.nan)
    with pytest.raises(TransferError, match="cannot train a head"):
        train(lacking, ALL, config=QUICK, seed=0, devices=DEVICES)
    model = train(lacking, ALL, config=replace(QUICK, lends=True), seed=0, devices=DEVICES).model
    assert own in model.device_ids


# ---- runs that stop and go on ----


class StoppedError(Exception):
    pass


def interrupted(folder: Path, epoch: int, **how) -> None:
    """A run that stops after an epoch."""

    def stop(report) -> None:
        if report.epoch == epoch:
            raise StoppedError

    with pytest.raises(StoppedError):
        run_in(folder, on_epoch=stop, **how)


def run_in(folder: Path, on_epoch=None, **how):
    return train(DATASET, ROWS, config=RUN, seed=3, **how, run=TrainRun(folder=folder, on_epoch=on_epoch))


@pytest.mark.parametrize("with_validation", [False, True])
def test_a_run_that_goes_on_ends_with_the_same_weights_and_losses(tmp_path, with_validation):
    held = HELD if with_validation else None
    straight = train(DATASET, ROWS, config=RUN, seed=3, validation_rows=held)
    for epoch in (2, 5):
        interrupted(tmp_path, epoch, validation_rows=held)
        assert [path.name for path in tmp_path.glob("epoch-*")] == [f"epoch-00000{epoch}"]
    result = run_in(tmp_path, validation_rows=held)
    assert same_weights(result.model, straight.model)
    assert result.history == straight.history
    assert (result.resumed_epochs, straight.resumed_epochs) == (5, 0)
    assert result.best_epoch == straight.best_epoch
    assert [path.name for path in tmp_path.glob("*") if "tfevents" not in path.name] == [CURVES_NAME]
    # The curves hold every epoch once.
    points = [json.loads(line) for line in (tmp_path / CURVES_NAME).read_text().splitlines()]
    assert [point["epoch"] for point in points] == [1, 2, 3, 4, 5, 6]
    assert [point["train_loss"] for point in points] == [report.train_loss for report in result.history]
    assert all(point["samples"] == len(ROWS) and point["samples_per_s"] > 0 for point in points)


def test_what_is_kept_of_another_run_or_damaged_is_refused(tmp_path):
    interrupted(tmp_path, 1)
    for changes, named in (
        ({"seed": 4}, "seed"),
        ({"rows": ROWS[:-1]}, "data"),
        ({"devices": DEVICES[:2]}, "devices"),
    ):
        arguments = {"rows": ROWS, "config": RUN, "seed": 3} | changes
        with pytest.raises(
            CheckpointError, match=rf": state of another training run \(.*{named}.* differ\); delete [^;]*$"
        ):
            train(DATASET, **arguments, run=TrainRun(folder=tmp_path))
    for name in ("state.safetensors", "manifest.json"):
        path = tmp_path / "epoch-000001" / name
        raw = path.read_bytes()
        path.write_bytes(raw[:-9])
        with pytest.raises(CheckpointError, match=r"(torn|damaged).*delete .* to start over"):
            run_in(tmp_path)
        path.write_bytes(raw)


def test_tensorboard_reads_the_curves(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    run_in(tmp_path, validation_rows=HELD)
    (path,) = tmp_path.glob("*tfevents*")
    tags = {value.tag for event in loader.EventFileLoader(str(path)).Load() for value in event.summary.value}
    assert tags == {"loss/train", "loss/validation", "learning_rate", "samples_per_s"}


def test_a_gpu_that_is_not_there_is_named():
    if torch.cuda.is_available():
        pytest.skip("this host has a GPU")
    assert torch_device("auto").type == "cpu"
    with pytest.raises(
        TransferError, match=r"finds none; install a CUDA build of torch .* or train on the CPU"
    ):
        train(DATASET, ROWS, config=replace(RUN, device="cuda"), seed=0)


@pytest.mark.gpu
def test_a_gpu_learns_what_a_cpu_learns(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    sizes = replace(CONFIG.sizes, dropout=0.0)
    config = replace(RUN, sizes=sizes, epochs=20)
    found = {}
    for device in ("cpu", "cuda"):
        result = train(
            DATASET,
            ROWS,
            config=replace(config, device=device),
            seed=0,
            validation_rows=HELD,
            run=TrainRun(folder=tmp_path / device),
        )
        found[device] = result.history[-1]
        assert next(result.model.parameters()).device.type == "cpu"
    assert found["cuda"].train_loss == pytest.approx(found["cpu"].train_loss, rel=0.05)
