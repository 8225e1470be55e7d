"""How a model is trained, by name: one task in, one trained model out.

Called by `fleet train`, by the refresh of a fleet, and by comparisons on held-out rows, which know ways by
their names only. A FleetTLP is trained by `transfer.train.training` or goes on from another one by boosting
alone, an MTL-TLP is trained by `transfer.train.published_procedure`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from transfer.arrays import Rows
from transfer.data.dataset import Dataset
from transfer.errors import TransferError
from transfer.features.published_features import LAYOUTS, PublishedLayout
from transfer.model.kinds import BOOSTED, FLEET_TLP, MTL_TLP
from transfer.model.tlp_model import TlpModel
from transfer.train.config import TrainConfig
from transfer.train.published_procedure import published_config, train_mtl_tlp
from transfer.train.training import TrainRun, train
from transfer.train.tree_fit import continue_trees
from transfer.train.validity import fit_validity


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingTask:
    """What a model is trained on, and how."""

    dataset: Dataset
    #: Rows to learn from.
    rows: Rows
    #: Devices to give a head.
    devices: Sequence[str]
    config: TrainConfig
    seed: int
    #: Rows of other workloads that tell when to stop; learnt from by a kind that holds back rows of its own.
    stop_rows: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    #: Where to start from and what to keep on the way, for a kind that can.
    run: TrainRun = field(default_factory=TrainRun)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """A trained model and how it came about."""

    model: TlpModel
    #: Wall seconds.
    seconds: float
    #: Of its training, as plain values.
    config: Mapping[str, Any]
    epochs_done: int
    #: Epoch whose weights it has, counted from 1.
    best_epoch: int
    #: Epochs that an interrupted run had done before.
    resumed_epochs: int = 0
    #: For people only: what the losses and the speed were.
    curve: Mapping[str, Any]


def train_model(way: str, task: TrainingTask) -> Trained:
    """Train a model of a kind, or `BOOSTED`.

    Raises:
        TransferError: Nothing to learn from, the training failed, or the dataset lacks what the kind reads.
    """
    return _TRAINERS[way](task)


def _train_fleet_tlp(task: TrainingTask) -> Trained:
    result = train(
        task.dataset,
        task.rows,
        config=task.config,
        seed=task.seed,
        devices=task.devices,
        validation_rows=task.stop_rows,
        run=task.run,
    )
    best = result.history[result.best_epoch - 1]
    return Trained(
        model=result.model,
        seconds=result.seconds,
        config=asdict(task.config),
        epochs_done=len(result.history),
        best_epoch=result.best_epoch,
        resumed_epochs=result.resumed_epochs,
        curve={
            "held_out_workloads": len(np.unique(task.dataset.group[task.stop_rows])),
            "workloads_too_small": result.lonely_workloads,
            "resumed_epochs": result.resumed_epochs,
            "train_loss": best.train_loss,
            "validation_loss": best.validation_loss,
            "samples_per_s": sum(report.samples for report in result.history)
            / max(1e-9, sum(report.seconds for report in result.history)),
            **({} if task.run.folder is None else {"curves": str(task.run.folder)}),
        },
    )


def _train_boosted(task: TrainingTask) -> Trained:
    """The model of `TrainRun.init`, which has a head for each device; trees are added to its trees."""
    started = time.perf_counter()
    if task.run.init is None:
        raise TransferError("boosting goes on from a model, and the task has none")
    rows = np.union1d(task.rows, task.stop_rows)
    model = task.run.init.copy()
    model.validity_outputs.clear()
    fit_validity(model, task.dataset, rows, task.devices)
    added = continue_trees(
        model, task.dataset, rows, task.devices, threads=task.config.threads, seed=task.seed
    )
    return Trained(
        model=model.eval(),
        seconds=time.perf_counter() - started,
        config=asdict(task.config),
        epochs_done=0,
        best_epoch=0,
        curve={"trees_added": added},
    )


def _train_mtl_tlp(task: TrainingTask) -> Trained:
    """From nothing; it holds back rows of its own to choose the epoch by, as published."""
    started, config = time.perf_counter(), published_config(task.config)
    model, losses = train_mtl_tlp(
        task.dataset,
        np.union1d(task.rows, task.stop_rows),
        layout=_layout_of(task.dataset),
        config=config,
        seed=task.seed,
        devices=task.devices,
    )
    return Trained(
        model=model,
        seconds=time.perf_counter() - started,
        config=asdict(config),
        epochs_done=config.epochs,
        best_epoch=1 + int(np.argmin(losses)) if losses else config.epochs,
        curve={"validation_loss": min(losses, default=None)},
    )


def _layout_of(dataset: Dataset) -> PublishedLayout:
    """The layout of a dataset's published features."""
    published = dataset.features.published
    shape = None if published is None else published.shape[1:]
    for layout in LAYOUTS.values():
        if shape == (layout.steps, layout.width):
            return layout
    raise TransferError(
        "an MTL-TLP reads the published features of TLP, and the dataset has none; read it with them"
    )


_TRAINERS: Mapping[str, Callable[[TrainingTask], Trained]] = {
    FLEET_TLP: _train_fleet_tlp,
    BOOSTED: _train_boosted,
    MTL_TLP: _train_mtl_tlp,
}
