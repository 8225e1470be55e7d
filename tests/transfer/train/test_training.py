"""Going on after a kill, curves, and what a batch is made of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.model_fixtures import CONFIG, DEVICES, make_dataset, same_weights
from transfer.checked_folder import CheckpointError
from transfer.errors import TransferError
from transfer.train import CURVES_NAME
from transfer.train.rows import TrainConfig, torch_device
from transfer.train.training import TrainRun, train

DATASET = make_dataset()
ROWS, HELD = np.flatnonzero(DATASET.group < 6), np.flatnonzero(DATASET.group >= 6)
RUN = replace(CONFIG, epochs=6)


class StoppedError(Exception):
    pass


def stop_after(epoch: int):
    def on_epoch(report) -> None:
        if report.epoch == epoch:
            raise StoppedError

    return on_epoch


def interrupted(folder: Path, epoch: int, **how) -> None:
    """A run that stops after an epoch."""
    with pytest.raises(StoppedError):
        run_in(folder, on_epoch=stop_after(epoch), **how)


def run_in(folder: Path, on_epoch=None, **how):
    return train(DATASET, ROWS, config=RUN, seed=3, **how, run=TrainRun(folder=folder, on_epoch=on_epoch))


def states(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("epoch-*"))


@pytest.mark.parametrize("with_validation", [False, True])
def test_a_run_that_goes_on_ends_with_the_same_weights_and_losses(tmp_path, with_validation):
    held = HELD if with_validation else None
    straight = train(DATASET, ROWS, config=RUN, seed=3, validation_rows=held)
    for epoch in (2, 5):
        interrupted(tmp_path, epoch, validation_rows=held)
        assert states(tmp_path) == [f"epoch-00000{epoch}"]
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
    with pytest.raises(ValueError, match="device must be one of auto, cpu, cuda, got 'tpu'"):
        TrainConfig(device="tpu")
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
