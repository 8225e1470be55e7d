"""The multi-task training story, read top to bottom.

One call trains a `FleetTLP` on a `Dataset`: scale the inputs by the training rows, then for each
epoch walk over batches of whole workloads and lower the mean over devices of the loss inside each
workload. With a run folder, every epoch is kept and a killed run goes on where it was. Called by
`transfer.adapt`, `transfer.evaluate.cross_validation` and the refresh of the fleet. It must not know where a
dataset comes from or where a model goes.

The parts, all in `transfer.train`: `rows` (rows and labels), `step` (loss and update), `state` (what is kept,
and curves).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from transfer.arrays import Ints, Rows
from transfer.data.dataset import Dataset
from transfer.errors import TransferError
from transfer.model.fleet_tlp import FleetTLP, model_config, scoped_seed
from transfer.model.inputs import torch_threads
from transfer.train.rows import (
    EpochReport,
    TrainConfig,
    TrainingRows,
    gather_rows,
    torch_device,
    trainable_devices,
    with_lent_latencies,
)
from transfer.train.state import TrainingProgress, digest, load_state, recording, remove_states
from transfer.train.step import Stepper, learning_rate_curve
from transfer.train.tree_fit import fit_trees

# The validity output: how likely a candidate builds and runs on a device.
#
# Fitted when the ranking is learnt: a logistic regression on the finished
# backbone, from the candidates that failed and those that ran. So failures cost the ranking nothing (TLP
# gives them a speed near 0 and ranks them), and a device without failures has no such output. Knows nothing
# of searches, which may ask `FleetTLP.validity` before they spend time on a candidate.
#
# Legend: n candidates, T trunk width.

#: Failures, and candidates that ran, that a device must have at least.
LEAST_OF_EACH = 8
#: Most of either that are looked at, evenly over the rows.
_MOST = 4096
#: L2 penalty on the weights, for a loss that is a mean over candidates.
_PENALTY = 1e-3
_STEPS = 60


def fit_validity(model: FleetTLP, dataset: Dataset, rows: Rows, device_ids: Sequence[str]) -> None:
    """Give a model on the CPU the validity outputs of the devices that have failures to learn from.

    Heads and backbone are not changed.
    """
    for device_id in device_ids:
        column = dataset.column(device_id)
        ran = rows[np.isfinite(dataset.latency_secs[rows, column])]
        failed = rows[dataset.failed[rows, column]]
        if min(len(ran), len(failed)) < LEAST_OF_EACH:
            continue
        chosen = [_evenly(part, _MOST) for part in (ran, failed)]
        valid = torch.from_numpy(np.repeat([1.0, 0.0], [len(part) for part in chosen])).float()
        # Each side stands for all of its candidates, so that the output is a probability.
        stands_for = [len(part) / len(few) for part, few in zip((ran, failed), chosen, strict=True)]
        weight = torch.from_numpy(np.repeat(stands_for, [len(part) for part in chosen])).float()
        x = model.represent(dataset.features.take(np.concatenate(chosen)))
        model.set_validity(device_id, _logistic(x, valid, weight / weight.sum()))


def _evenly(rows: Rows, most: int) -> Ints:
    """At most so many rows, at equal distances."""
    if len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]


def _logistic(x: Tensor, valid: Tensor, weight: Tensor) -> Tensor:
    """(T + 1,) weights and bias that fit best; the answer is unique, and nothing about it is random."""
    with torch.enable_grad():
        parameters = torch.zeros(x.shape[1] + 1, requires_grad=True)
        optimizer = torch.optim.LBFGS([parameters], max_iter=_STEPS, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            logits = x @ parameters[:-1] + parameters[-1]
            errors = F.binary_cross_entropy_with_logits(logits, valid, reduction="none")
            value = (errors * weight).sum() + _PENALTY * parameters[:-1].square().sum()
            value.backward()  # type: ignore[no-untyped-call]  # torch publishes no type for it
            return value

        optimizer.step(loss)  # type: ignore[no-untyped-call]  # torch publishes no type for it
    return parameters.detach()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """A trained model and how it came about."""

    model: FleetTLP
    history: tuple[EpochReport, ...]
    #: Epoch whose weights the model has: the last one, or the best on the validation rows.
    best_epoch: int
    #: Epochs that an interrupted run had done before; 0 for a fresh one.
    resumed_epochs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRun:
    """Where a training starts from, and what it keeps on the way.

    Attributes:
        init: Model to start from (not changed); its input scaling and its other heads are kept. Heads that
            it lacks are added fresh. Default: a new model, with scaling from the training rows.
        on_epoch: Called after each epoch.
        folder: Folder for the curves and the state after each epoch. An interrupted run that it holds, with
            the same data, settings and seed, goes on; on a CPU it ends with the weights it would have had.
            The state is removed when the run is over.
    """

    init: FleetTLP | None = None
    on_epoch: Callable[[EpochReport], None] | None = None
    folder: Path | None = None


_FRESH = TrainRun()


def train(
    dataset: Dataset,
    rows: np.ndarray,
    *,
    config: TrainConfig,
    seed: int,
    devices: Sequence[str] | None = None,
    validation_rows: np.ndarray | None = None,
    run: TrainRun = _FRESH,
) -> TrainResult:
    """Train one model with a head for each device.

    Args:
        dataset: Candidates of all devices; only `rows` and `validation_rows` of it are looked at.
        rows: Row numbers to train on. Labels are relative to the best latency among them.
        config: How.
        seed: Of initial weights, dropout and the order of batches. Torch's global random state is
            left as it was.
        devices: Devices to train heads for. Default: all of the dataset that have two different
            candidates of one workload in `rows`.
        validation_rows: Rows for early stopping; the weights of the best epoch are returned. Choose
            other workloads than those of `rows`.
        run: Where it starts from, and what it keeps.

    Returns:
        The model, on the CPU and in evaluation mode.

    Raises:
        TransferError: Nothing to learn from; the inputs or the loss are not finite; or the run folder holds
            another run.
    """
    rows = np.asarray(rows, dtype=np.int64)
    device_ids = tuple(devices) if devices is not None else trainable_devices(dataset, rows)
    held = np.asarray([] if validation_rows is None else validation_rows, dtype=np.int64)
    lent = dataset
    if config.lends:
        lent = with_lent_latencies(dataset, np.concatenate([rows, held]), device_ids)
    training = gather_rows(lent, rows, device_ids)
    validation = gather_rows(lent, held, device_ids, need_all=False) if len(held) else None
    target = torch_device(config.device)
    with ExitStack() as scope:
        if target.type == "cuda":
            scope.enter_context(torch.random.fork_rng(devices=[target]))
        scope.enter_context(scoped_seed(seed))
        scope.enter_context(torch_threads(config.threads))
        model = _start(dataset, rows, device_ids, config, run.init).to(target)
        stepper = Stepper(model, config, target)
        progress = TrainingProgress()
        keep: Callable[[EpochReport], None] | None = None
        if run.folder is not None:
            identity = _identity(training, validation, config, seed, run.init)
            progress = load_state(run.folder, identity, stepper)
            keep = scope.enter_context(recording(run.folder, identity, stepper, progress))
        resumed = len(progress.history)

        def after_epoch(report: EpochReport) -> None:
            if keep is not None:
                keep(report)
            if run.on_epoch is not None:
                run.on_epoch(report)

        run_epochs(stepper, training, validation, config, seed, progress, after_epoch)
        fit_validity(model.to("cpu"), dataset, rows, device_ids)
        fit_trees(model, lent, rows, device_ids, config=config, seed=seed)
    if run.folder is not None:
        remove_states(run.folder)
    return TrainResult(
        model=model.to("cpu").eval(),
        history=tuple(progress.history),
        best_epoch=len(progress.history) if progress.best is None else progress.best[1],
        resumed_epochs=resumed,
    )


def _start(
    dataset: Dataset,
    rows: np.ndarray,
    device_ids: tuple[str, ...],
    config: TrainConfig,
    init: FleetTLP | None,
) -> FleetTLP:
    """A new model scaled by the training rows, or a copy of `init` with the missing heads."""
    if init is None:
        model = FleetTLP(model_config(dataset.spec, config.sizes))
        model.fit_scaler(dataset.features.take(rows))
    elif init.config.spec_hash == dataset.spec.hash:
        model = init.copy()
    else:
        raise TransferError(
            f"the model to start from reads features {init.config.spec_hash}, the dataset holds "
            f"{dataset.spec.hash}; train from nothing instead"
        )
    model.check_block(dataset.features)
    # They belong to other rows, and the backbone as it was; both are made anew when it is ready.
    model.validity_outputs.clear()
    model.trees = None
    for device_id in device_ids:
        if device_id not in model.device_ids:
            model.add_head(device_id)
    return model


def _identity(
    training: TrainingRows,
    validation: TrainingRows | None,
    config: TrainConfig,
    seed: int,
    init: FleetTLP | None,
) -> dict[str, Any]:
    """Everything that the weights follow from; another value of any of it is another run."""
    parts = [training] if validation is None else [training, validation]
    arrays = [array for part in parts for array in (part.rows, part.labels)]
    return {
        "config": asdict(config),
        "seed": seed,
        "devices": list(training.device_ids),
        "features": training.dataset.spec.hash,
        "data": digest(*arrays, training.dataset.group),
        "init": None if init is None else digest(*init.state_dict().values()),
    }


def run_epochs(
    stepper: Stepper,
    training: TrainingRows,
    validation: TrainingRows | None,
    config: TrainConfig,
    seed: int,
    progress: TrainingProgress,
    after_epoch: Callable[[EpochReport], None],
) -> None:
    """Run the epochs that are left; with validation, leave the weights of the best one in the model.

    Model and optimiser are as they were at the end of the last epoch done; `progress` is brought up to date
    after each epoch, before `after_epoch` is called.

    Raises:
        TransferError: Loss or gradient are not finite.
    """
    factor = learning_rate_curve(config.epochs * training.batch_count(config), config.warmup_fraction)
    # Judged on the same candidates after every epoch.
    held = None if validation is None else validation.parts(config, np.random.default_rng(seed))
    while not progress.is_over(config):
        started = time.perf_counter()
        epoch = len(progress.history) + 1
        random = np.random.default_rng((seed, epoch))
        torch.manual_seed(_dropout_seed(seed, epoch))
        batches = training.batches(config, random)
        stepper.model.train()
        losses = []
        for batch in batches:
            loss = stepper.step(training, batch, factor(progress.steps))
            progress.steps += 1
            if loss is not None:
                losses.append(loss)
        validation_loss = None
        if validation is not None and held is not None:
            validation_loss = stepper.held_loss(validation, held)
            if progress.best is None or validation_loss < progress.best[0]:
                weights = {name: value.clone() for name, value in stepper.model.state_dict().items()}
                progress.best = validation_loss, epoch, weights
        progress.history.append(
            EpochReport(
                epoch=epoch,
                # 0 where no random choice held a pair.
                train_loss=sum(losses) / max(1, len(losses)),
                validation_loss=validation_loss,
                learning_rate=config.learning_rate * factor(progress.steps - 1),
                samples=sum(len(part) for batch in batches for part in batch),
                seconds=time.perf_counter() - started,
            )
        )
        after_epoch(progress.history[-1])
    if progress.best is not None:
        stepper.model.load_state_dict(progress.best[2])


def _dropout_seed(seed: int, epoch: int) -> int:
    """A seed of its own for each epoch; the 1 tells it from the one that deals the batches."""
    return int(np.random.SeedSequence((seed, epoch, 1)).generate_state(1, np.uint64)[0] >> np.uint64(1))
