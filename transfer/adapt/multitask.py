"""MTL-TLP as onboarding: a head for the target trained together with replay of the sources' data.

The published method (TLP, ASPLOS'23, section 5) trains all heads at once from nothing, on half a million
target labels. With a few dozen the target's head cannot shape the backbone by itself: it starts from the
source head that ranks the support set best, and the sources' data keep the backbone from forgetting.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from transfer.adapt.base import visible_part
from transfer.dataset import Dataset
from transfer.model import MultiTaskTLP, scoped_seed
from transfer.train import TrainConfig, train, trainable_devices


@dataclass(frozen=True, slots=True)
class MultiTask:
    """Train source heads and the new head together, starting from the source model where there is one.

    Args:
        name: In reports.
        epoch_share: Epochs of the adaptation over those in the configuration, which is that of the source
            model. A few dozen labels are soon known by heart: with 64, a sixth of the epochs gave a Kendall's
            tau of .52 on held-out workloads, half .51, all of them .50.
        learning_rate_share: The same for the learning rate; with 1 the adapted head was no better than the
            source head it started from. Neither share is applied without a source model.
    """

    name: str = "multitask"
    epoch_share: float = 0.2
    learning_rate_share: float = 0.3

    def adapt(
        self,
        source: MultiTaskTLP | None,
        dataset: Dataset,
        target_device: str,
        support_rows: NDArray[np.int64],
        *,
        source_rows: NDArray[np.int64],
        config: TrainConfig,
        seed: int,
    ) -> MultiTaskTLP:
        """Train with replay; without `source`, from a new model. See `Strategy.adapt`."""
        part = visible_part(dataset, target_device, support_rows, source_rows)
        rows = np.arange(len(part))
        init = None if source is None else with_target_head(source, part, target_device, seed=seed)
        known = part.device_ids if init is None else init.device_ids
        devices = [d for d in trainable_devices(part, rows) if d in known or d == target_device]
        if source is not None:
            config = replace(
                config,
                epochs=max(1, round(config.epochs * self.epoch_share)),
                learning_rate=config.learning_rate * self.learning_rate_share,
            )
        return train(part, rows, config=config, seed=seed, devices=devices, init=init).model


def with_target_head(source: MultiTaskTLP, part: Dataset, target_device: str, *, seed: int) -> MultiTaskTLP:
    """Copy a model and give the copy a head like the most similar source head.

    Args:
        source: Model of the source devices.
        part: Dataset in which only the visible target latencies are present.
        target_device: The new device; a head that it already has is kept.
        seed: Of the head, used only where the source has no heads at all.
    """
    model = source.copy()
    if target_device not in model.device_ids:
        with scoped_seed(seed):
            model.add_head(target_device, like=most_similar_heads(source, part, target_device))
    return model


def most_similar_heads(source: MultiTaskTLP, part: Dataset, target_device: str) -> tuple[str, ...]:
    """Source heads that order the target's measured pairs best; all of them where they tie.

    Args:
        source: Model of the source devices.
        part: Dataset in which only the visible target latencies are present.
        target_device: The new device.

    Returns:
        Device ids, to be averaged into the new head; several only on a tie.
    """
    rows = part.rows_of(target_device)
    latency = part.latency_secs[rows, part.column(target_device)]
    same = part.group[rows][:, None] == part.group[rows][None, :]
    faster = same & (latency[:, None] < latency[None, :])
    features = part.features.take(rows)
    right = {}
    for device_id in source.device_ids:
        scores = source.score(features, device_id)
        right[device_id] = int((faster & (scores[:, None] > scores[None, :])).sum())
    best = max(right.values(), default=0)
    return tuple(device_id for device_id, count in right.items() if count == best)
