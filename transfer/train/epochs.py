"""The epochs of a training run: walk over the batches, judge, remember the best, stop in time.

Called by `transfer.train.training`. All that an epoch draws at random follows from the seed and its number,
so a run that goes on after an interruption draws what it would have drawn. Knows no files: what must be kept
of a run is its `TrainingProgress`, which the caller stores and gives back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from transfer.train.config import EpochReport, TrainConfig
from transfer.train.rows import TrainingRows
from transfer.train.step import Stepper, learning_rate_curve


@dataclass(slots=True)
class TrainingProgress:
    """How far a run has come, beside the weights and the optimiser's averages."""

    #: One report for each epoch that is over.
    history: list[EpochReport] = field(default_factory=list)
    #: Steps done.
    steps: int = 0
    #: Lowest validation loss, its epoch, and the weights of then; None without validation.
    best: tuple[float, int, dict[str, Tensor]] | None = None

    def is_over(self, config: TrainConfig) -> bool:
        """Whether all epochs are done, or the last ones brought nothing."""
        epoch = len(self.history)
        stalled = self.best is not None and epoch - self.best[1] >= config.patience
        return epoch >= config.epochs or stalled


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
    sizes = {"most": config.candidates_per_workload, "per_epoch": config.candidates_per_epoch}
    per_epoch = -(-training.part_count(**sizes) // config.workloads_per_batch)
    factor = learning_rate_curve(config.epochs * per_epoch, config.warmup_fraction)
    # Judged on the same candidates after every epoch.
    held = None if validation is None else validation.parts(**sizes, random=np.random.default_rng(seed))
    while not progress.is_over(config):
        started = time.perf_counter()
        epoch = len(progress.history) + 1
        random = np.random.default_rng((seed, epoch))
        torch.manual_seed(_dropout_seed(seed, epoch))
        parts = training.parts(**sizes, random=random)
        order = random.permutation(len(parts))
        stepper.model.train()
        losses = []
        for start in range(0, len(order), config.workloads_per_batch):
            batch = [parts[place] for place in order[start : start + config.workloads_per_batch]]
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
                samples=sum(len(part) for part in parts),
                seconds=time.perf_counter() - started,
            )
        )
        after_epoch(progress.history[-1])
    if progress.best is not None:
        stepper.model.load_state_dict(progress.best[2])


def _dropout_seed(seed: int, epoch: int) -> int:
    """A seed of its own for each epoch; the 1 tells it from the one that deals the batches."""
    return int(np.random.SeedSequence((seed, epoch, 1)).generate_state(1, np.uint64)[0] >> np.uint64(1))
