"""The loop that fine-tuning strategies share, and the choice of a learning rate on the few-shot set.

The loop is that of `transfer.train.training` without what a few dozen rows do not need (validation, resuming,
several workers), and with what strategies need: some layers left alone, and a look at the weights after each
step. Called by the strategies only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from transfer.data.dataset import Dataset
from transfer.data.ranking import rank_agreement
from transfer.model.fleet_tlp import FleetTLP, scoped_seed
from transfer.model.inputs import torch_threads
from transfer.train.config import TrainConfig
from transfer.train.rows import gather_rows
from transfer.train.step import Stepper, learning_rate_curve


def tune(
    model: FleetTLP,
    part: Dataset,
    devices: Sequence[str],
    config: TrainConfig,
    seed: int,
    after_step: Callable[[], None] | None = None,
) -> None:
    """Train a model on the CPU in place on the labels that `part` shows of some devices.

    Parameters that need no gradient stay as they are. `after_step` is called after each update.

    Raises:
        TransferError: No device has a pair to rank, or the loss is not finite.
    """
    training = gather_rows(part, np.arange(len(part)), tuple(devices))
    sizes = {"most": config.candidates_per_workload, "per_epoch": config.candidates_per_epoch}
    steps = config.epochs * -(-training.part_count(**sizes) // config.workloads_per_batch)
    factor = learning_rate_curve(steps, config.warmup_fraction)
    random = np.random.default_rng(seed)
    done = 0
    with scoped_seed(seed), torch_threads(config.threads):
        stepper = Stepper(model, config, torch.device("cpu"))
        model.train()
        for _ in range(config.epochs):
            parts = training.parts(**sizes, random=random)
            order = random.permutation(len(parts))
            for start in range(0, len(order), config.workloads_per_batch):
                batch = [parts[place] for place in order[start : start + config.workloads_per_batch]]
                stepper.step(training, batch, factor(done))
                done += 1
                if after_step is not None:
                    after_step()
        model.eval()
    for parameter in model.parameters():
        parameter.grad = None


def shortened(config: TrainConfig, epoch_share: float, rate_share: float = 1.0) -> TrainConfig:
    """A configuration with shares of its epochs (one at least) and of its learning rate."""
    epochs = max(1, round(config.epochs * epoch_share))
    return replace(config, epochs=epochs, learning_rate=config.learning_rate * rate_share)


@contextmanager
def head_alone(model: FleetTLP, device_id: str) -> Iterator[None]:
    """Inside the block only the head of a device needs gradients."""
    free = {id(parameter) for parameter in model.head(device_id).parameters()}
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        for parameter, _ in before:
            parameter.requires_grad_(id(parameter) in free)
        yield
    finally:
        for parameter, needed in before:
            parameter.requires_grad_(needed)


def choose_rate(
    start: FleetTLP,
    part: Dataset,
    device_id: str,
    rates: Sequence[float],
    seed: int,
    fit: Callable[[Dataset, float], FleetTLP],
) -> tuple[float, dict[float, float]]:
    """Choose a learning rate on the few-shot set: learn from half of its workloads, rank the other half.

    Only the labels of the device are looked at. `fit` gives a tuned copy of `start`, which stands for a rate
    of 0, from the rows shown and a rate.

    Returns:
        The rate (0 where no rate did better than leaving the model alone), and the agreement (mean of
        Kendall's tau over both halves) of each. Without two workloads that can be ranked, the least rate and
        nothing.
    """
    rows, column = part.rows_of(device_id), part.column(device_id)
    groups, counts = np.unique(part.group[rows], return_counts=True)
    able = np.random.default_rng(seed).permutation(groups[counts >= 2])
    if len(able) < 2:
        return min(rates), {}
    agreement = dict.fromkeys((0.0, *rates), 0.0)
    for held in (able[::2], able[1::2]):
        held_rows = rows[np.isin(part.group[rows], held)]
        latency = part.latency_secs.copy()
        latency[held_rows, column] = np.nan
        visible = replace(part, latency_secs=latency)
        features = part.features.take(held_rows)
        truth = -part.latency_secs[held_rows, column]
        for rate in agreement:
            model = start if rate == 0.0 else fit(visible, rate)
            agreement[rate] += (
                rank_agreement(model.score(features, device_id), truth, part.group[held_rows]) / 2
            )
    # The first of equals: to leave the model alone, then the smaller rates.
    return max(sorted(agreement), key=lambda rate: agreement[rate]), agreement
