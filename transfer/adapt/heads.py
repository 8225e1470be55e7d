"""Heads of known devices as the start of a new one: which devices are alike.

Called by the strategies. Two sources of likeness: the hardware vectors, known before anything was measured,
and how well a head orders the pairs that were measured on the target. In a `part` of a dataset only the
target's visible latencies are present.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from transfer.adapt.base import Adapted, FewShotTask
from transfer.arrays import Rows
from transfer.data.dataset import Dataset
from transfer.data.ranking import rank_agreement
from transfer.features.hardware import vector_distances
from transfer.model.fleet_tlp import FleetTLP, scoped_seed
from transfer.model.inputs import torch_threads
from transfer.train.rows import TrainConfig, gather_rows
from transfer.train.step import Stepper, learning_rate_curve
from transfer.train.tree_fit import continue_trees

#: Candidates of a new device that choose the head to start from.
_LIKENESS = 512


def with_target_head(source: FleetTLP, part: Dataset, target_device: str, *, seed: int) -> FleetTLP:
    """Copy a model and give the copy a head like the most similar source head; one that it has is kept.

    `seed` is of the head, used only where the source has no heads at all.
    """
    model = source.copy()
    if target_device not in model.device_ids:
        with scoped_seed(seed):
            model.add_head(target_device, like=most_similar_heads(source, part, target_device))
        if model.trees is not None:
            # They judge for a device by its own hardware.
            vector = part.hardware[part.column(target_device)].astype(np.float32)
            model.set_hardware(target_device, torch.from_numpy(vector))
    return model


def with_heads(
    source: FleetTLP, dataset: Dataset, rows: Rows, device_ids: Sequence[str], *, seed: int
) -> FleetTLP:
    """Copy a model, with a head for exactly these devices; a new one is like the most similar source head.

    Args:
        source: Has heads.
        dataset: Candidates of all devices.
        rows: Rows whose latencies may be seen; of a new device a random few are looked at.
        device_ids: Devices of the dataset.
        seed: Of the choice of rows.
    """
    model = source.copy()
    for device_id in device_ids:
        if device_id not in model.device_ids:
            measured = rows[np.isfinite(dataset.latency_secs[rows, dataset.column(device_id)])]
            some = np.sort(np.random.default_rng(seed).permutation(measured)[:_LIKENESS])
            model = with_target_head(model, dataset.take(some), device_id, seed=seed)
    for device_id in sorted(set(model.device_ids) - set(device_ids)):
        model.drop_head(device_id)
    return model


def most_similar_heads(source: FleetTLP, part: Dataset, target_device: str) -> tuple[str, ...]:
    """Source heads that order the target's measured pairs best; of those that tie, the nearest hardware.

    They are to be averaged into the new head; several only where hardware says nothing either.
    """
    right = ordered_pairs(source, part, target_device)
    best = max(right.values(), default=0)
    tied = [device_id for device_id, count in right.items() if count == best]
    if not set(tied) <= set(part.device_ids):
        return tuple(tied)
    apart = vector_distances(part.hardware, part.column(target_device))
    distance = {device_id: apart[part.column(device_id)] for device_id in tied}
    least = min(distance.values(), default=0.0)
    return tuple(device_id for device_id in tied if distance[device_id] <= least)


def ordered_pairs(source: FleetTLP, part: Dataset, target_device: str) -> dict[str, int]:
    """Pairs of the target's measured candidates that each source head puts in the right order."""
    rows = part.rows_of(target_device)
    latency = part.latency_secs[rows, part.column(target_device)]
    same = part.group[rows][:, None] == part.group[rows][None, :]
    faster = same & (latency[:, None] < latency[None, :])
    features = part.features.take(rows)
    right = {}
    for device_id in source.device_ids:
        if device_id != target_device:
            scores = source.score(features, device_id)
            right[device_id] = int((faster & (scores[:, None] > scores[None, :])).sum())
    return right


# The loop that fine-tuning strategies share, and the choice of a learning rate on the few-shot set.
#
# The loop is that of `transfer.train.training` without what a few dozen rows do not need (validation,
# resuming, several workers), and with what strategies need: some layers left alone, and a look at the
# weights after each step. Called by the strategies only.


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
    factor = learning_rate_curve(config.epochs * training.batch_count(config), config.warmup_fraction)
    random = np.random.default_rng(seed)
    done = 0
    with scoped_seed(seed), torch_threads(config.threads):
        stepper = Stepper(model, config, torch.device("cpu"))
        model.train()
        for _ in range(config.epochs):
            for batch in training.batches(config, random):
                stepper.step(training, batch, factor(done))
                done += 1
                if after_step is not None:
                    after_step()
        model.eval()
    model.zero_grad()


def shortened(config: TrainConfig, epoch_share: float, rate_share: float = 1.0) -> TrainConfig:
    """A configuration with shares of its epochs (one at least) and of its learning rate."""
    epochs = max(1, round(config.epochs * epoch_share))
    return replace(config, epochs=epochs, learning_rate=config.learning_rate * rate_share)


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


# Heads that go on learning from the few-shot set alone: fine-tuned, followed by a slow copy, boosted.
#
# All three begin with the source head that orders the samples best and never look at source devices'
# measurements. They are the usual baselines of the field, done with care.


#: Epochs of fine-tuning, as a share of the configuration's.
_EPOCH_SHARE = 0.5
#: Learning rates to try, as shares of the configuration's.
_RATE_SHARES = (0.03, 0.1, 0.3, 1.0)
#: Share of itself that the slow copy of `Momentum` keeps in each step: over the steps of one adaptation it
#: moves most of the way, so it is less than the published .99 of an endless stream. Learning rate of the fast
#: copy, as a share of the configuration's.
_KEPT_SHARE, _FAST_RATE_SHARE = 0.95, 0.3


class FineTuneHead:
    """Train the nearest head on the few-shot set, with a learning rate chosen there; the backbone stays.

    Published fine-tuning of TLP takes one rate for all layers and trains for 50 epochs, which unlearns more
    than a few dozen labels teach. To train the trunk, or all of the model, was no better at any number of
    samples (`docs/results/onboarding.md`).
    """

    name = "finetune_head"
    least_samples = 2

    def adapt(self, task: FewShotTask) -> Adapted:
        """Choose a rate, then train on all of the few-shot set. See `Strategy.adapt`."""
        part, target, seed = task.samples(), task.target, task.seed
        start = with_target_head(task.need_source(self.name), part, target, seed=seed)
        how = shortened(task.config, _EPOCH_SHARE)

        def fit(visible: Dataset, rate: float) -> FleetTLP:
            model = start.copy().requires_grad_(False)
            model.head(target).requires_grad_(True)
            tune(model, visible, (target,), replace(how, learning_rate=rate), seed)
            return model.requires_grad_(True)

        rates = [share * task.config.learning_rate for share in _RATE_SHARES]
        rate, tried = choose_rate(start, part, target, rates, seed, fit)
        model = fit(part, rate) if rate > 0 else start
        notes = {"learning_rate": rate, "agreement": {f"{rate:.3g}": tau for rate, tau in tried.items()}}
        return Adapted(device_id=target, model=model, notes=notes)


class Momentum:
    """Train one copy of the source model on the few-shot set; another follows it, and is the result.

    MoA-Pruner (ASPLOS'25, section 5) keeps a Siamese copy of the pretrained model, updated as a moving
    average of the model that online measurements train. The copy forgets slowly, so a bad batch cannot spoil
    it.
    """

    name = "momentum"
    least_samples = 2

    def adapt(self, task: FewShotTask) -> Adapted:
        """Train and follow. See `Strategy.adapt`."""
        part = task.samples()
        slow = with_target_head(task.need_source(self.name), part, task.target, seed=task.seed)
        fast = slow.copy()
        pairs = list(zip(slow.parameters(), fast.parameters(), strict=True))

        def follow() -> None:
            with torch.no_grad():
                for behind, ahead in pairs:
                    behind.lerp_(ahead, 1 - _KEPT_SHARE)

        how = shortened(task.config, _EPOCH_SHARE, _FAST_RATE_SHARE)
        tune(fast, part, (task.target,), how, task.seed, after_step=follow)
        return Adapted(device_id=task.target, model=slow.eval())


class Boosted:
    """Go on with the source's trees on the few-shot set; the network is left alone.

    Fine-tuning moves a network that learnt from a thousand workloads by a few dozen candidates, and it
    forgets. Boosting that goes on from what the trees say adds small corrections to it instead, few trees for
    few samples.
    """

    name = "boosted"
    least_samples = 2

    def adapt(self, task: FewShotTask) -> Adapted:
        """Copy a head and add trees. See `Strategy.adapt`."""
        part, target, seed = task.samples(), task.target, task.seed
        model = with_target_head(task.need_source(self.name), part, target, seed=seed)
        rows = np.arange(len(part))
        added = continue_trees(model, part, rows, (target,), threads=task.config.threads, seed=seed)
        return Adapted(device_id=target, model=model.eval(), notes={"trees_added": added})
