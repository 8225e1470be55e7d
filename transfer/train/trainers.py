"""How a model is trained, by name: one task in, one trained model out.

Called by `fleet train`, by the refresh of a fleet, and by comparisons on held-out rows, which know ways by
their names only. A FleetTLP is trained by `transfer.train.training` or goes on from another one by boosting
alone, an MTL-TLP is trained as published.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from transfer.arrays import Rows, Singles
from transfer.data.dataset import Dataset
from transfer.errors import TransferError
from transfer.features.blocks import LAYOUTS, PublishedLayout
from transfer.model.fleet_tlp import scoped_seed
from transfer.model.inputs import torch_threads
from transfer.model.kinds import BOOSTED, FLEET_TLP, MTL_TLP
from transfer.model.mtl_tlp import MtlTLP, TlpNetwork, mixed_lambda_rank, published_of
from transfer.model.tlp_model import TlpModel
from transfer.train.rows import TrainConfig, gather_rows, torch_device
from transfer.train.training import TrainRun, fit_validity, train
from transfer.train.tree_fit import continue_trees

# TLP and MTL-TLP trained as published, with real masks where the published code has labels of -100.
#
# The network and the loss are in `transfer.model.mtl_tlp`. The training is the published one too (TLP,
# ASPLOS'23, sections 4.3 and 5): random rows of all workloads in a batch, a random tenth of the rows (not
# of the workloads) to choose the epoch by, a constant learning rate. Two faults of the data are mended:
# failed candidates are left out, and each head uses the rows that have its label.
#
# Legend: N candidates of a dataset, n rows to learn from, L steps, E width of a step, D heads.


@dataclass(frozen=True, slots=True, kw_only=True)
class TlpConfig:
    """How TLP is trained; the defaults are the published ones for one GPU."""

    epochs: int = 50
    #: Rows of a batch. A store with few rows gives few steps of 1024 in 50 epochs: report a smaller batch
    #: too.
    batch: int = 1024
    learning_rate: float = 7e-4
    #: L2 inside Adam, on every parameter.
    weight_decay: float = 1e-6
    #: Largest norm of the gradient.
    gradient_clip: float = 0.5
    #: Share of the rows, at random, that the epoch is chosen by.
    validation_share: float = 0.1
    #: Threads of torch on a CPU.
    threads: int = 1
    #: Where torch computes: `cpu`, `cuda`, `cuda:1`...
    torch_device: str = "cpu"


def published_config(config: TrainConfig) -> TlpConfig:
    """How MTL-TLP is trained where a FleetTLP is trained with `config`.

    The 50 published epochs stand beside the default ones of ours; more or fewer are in proportion.
    """
    return TlpConfig(
        epochs=max(1, round(TlpConfig().epochs * config.epochs / TrainConfig().epochs)),
        threads=config.threads,
        torch_device=str(torch_device(config.device)),
    )


def train_mtl_tlp(
    dataset: Dataset,
    rows: Rows,
    *,
    layout: PublishedLayout,
    config: TlpConfig,
    seed: int,
    devices: Sequence[str],
) -> tuple[MtlTLP, tuple[float, ...]]:
    """Train MTL-TLP with a head for each device, from nothing.

    Gives the model with the weights of its best epoch, and the validation loss of each epoch: none where
    there were too few rows to hold any back. Arguments are as of `TrainingTask`, `layout` is of the published
    features; equal seeds give equal weights on a CPU.

    Raises:
        TransferError: The features are missing or of another layout, a device has nothing to learn from, or
            the training diverged.
    """
    steps = published_of(dataset.features, layout)
    data = gather_rows(dataset, rows, tuple(devices))
    rows, labels = data.rows, data.labels
    random = np.random.default_rng(seed)
    order = random.permutation(len(rows))
    held, training = np.split(order, [math.floor(config.validation_share * len(rows))])
    best, history = None, list[float]()
    threads = torch_threads(config.threads) if config.torch_device == "cpu" else nullcontext()
    with scoped_seed(seed), threads:
        model = MtlTLP(layout, devices)
        network = model.network.to(config.torch_device)
        optimizer = torch.optim.Adam(
            network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        for _ in range(config.epochs):
            network.train()
            shuffled = random.permutation(training)
            for batch, batch_labels in _batches(steps, rows[shuffled], labels[shuffled], config):
                loss = _loss(network(batch), batch_labels)
                if loss is not None:
                    optimizer.zero_grad(set_to_none=True)
                    loss.backward()  # type: ignore[no-untyped-call]  # torch publishes no type for it
                    nn.utils.clip_grad_norm_(network.parameters(), config.gradient_clip)
                    optimizer.step()
            if len(held):
                history.append(_validate(network, steps, rows[held], labels[held], config))
                if not math.isfinite(history[-1]):
                    raise TransferError(f"TLP diverged: validation loss {history[-1]}; lower the rate")
                if best is None or history[-1] < best[0]:
                    best = history[-1], {k: v.clone() for k, v in network.state_dict().items()}
    if best is not None:
        network.load_state_dict(best[1])
    return model.to("cpu").eval(), tuple(history)


def _batches(
    steps: Singles, rows: Rows, labels: Singles, config: TlpConfig
) -> Iterator[tuple[Tensor, Singles]]:
    """(size, L, E) features of some rows, a batch at a time, where torch computes; and their labels."""
    for start in range(0, len(rows), config.batch):
        part = slice(start, start + config.batch)
        batch = torch.from_numpy(np.asarray(steps[rows[part]], dtype=np.float32))
        yield batch.to(config.torch_device), labels[part]


def _loss(scores: Tensor, labels: Singles) -> Tensor | None:
    """Plain sum over the heads that have labels here; None without any."""
    targets = torch.from_numpy(labels).to(scores.device)
    losses = []
    for head in range(labels.shape[1]):
        if np.isfinite(labels[:, head]).any():
            present = targets[:, head].isfinite()
            losses.append(mixed_lambda_rank(scores[present, head], targets[present, head]))
    return torch.stack(losses).sum() if losses else None


def _validate(
    network: TlpNetwork,
    steps: Singles,
    rows: Rows,
    labels: Singles,
    config: TlpConfig,
) -> float:
    network.eval()
    total = 0.0
    with torch.no_grad():
        for batch, batch_labels in _batches(steps, rows, labels, config):
            loss = _loss(network(batch), batch_labels)
            total += 0.0 if loss is None else float(loss)
    return total


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
        config=asdict(task.config),
        epochs_done=len(result.history),
        best_epoch=result.best_epoch,
        resumed_epochs=result.resumed_epochs,
        curve={
            "held_out_workloads": len(np.unique(task.dataset.group[task.stop_rows])),
            "train_loss": best.train_loss,
            "validation_loss": best.validation_loss,
            **({} if task.run.folder is None else {"curves": str(task.run.folder)}),
        },
    )


def _train_boosted(task: TrainingTask) -> Trained:
    """The model of `TrainRun.init`, which has a head for each device; trees are added to its trees."""
    assert task.run.init is not None  # boosting goes on from it
    rows = np.union1d(task.rows, task.stop_rows)
    model = task.run.init.copy()
    model.validity_outputs.clear()
    fit_validity(model, task.dataset, rows, task.devices)
    added = continue_trees(
        model, task.dataset, rows, task.devices, threads=task.config.threads, seed=task.seed
    )
    return Trained(
        model=model.eval(),
        config=asdict(task.config),
        epochs_done=0,
        best_epoch=0,
        curve={"trees_added": added},
    )


def _train_mtl_tlp(task: TrainingTask) -> Trained:
    """From nothing; it holds back rows of its own to choose the epoch by, as published."""
    config = published_config(task.config)
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
        config=asdict(config),
        epochs_done=config.epochs,
        best_epoch=1 + int(np.argmin(losses)) if losses else config.epochs,
        curve={"validation_loss": min(losses, default=None)},
    )


def _layout_of(dataset: Dataset) -> PublishedLayout:
    """The layout of a dataset's published features."""
    published = dataset.features.published
    assert published is not None  # whoever trains an MTL-TLP reads a dataset with them
    shape = published.shape[1:]
    return next(layout for layout in LAYOUTS.values() if shape == (layout.steps, layout.width))


_TRAINERS: Mapping[str, Callable[[TrainingTask], Trained]] = {
    FLEET_TLP: _train_fleet_tlp,
    BOOSTED: _train_boosted,
    MTL_TLP: _train_mtl_tlp,
}
