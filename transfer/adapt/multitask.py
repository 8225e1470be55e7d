"""MTL-TLP as onboarding: a head for the target trained together with replay of the sources' data.

The published method (TLP, ASPLOS'23, section 5) trains all heads at once from nothing, on half a million
target labels. With a few dozen the target's head cannot shape the backbone by itself: it starts from the
source head that ranks the few-shot set best, and the sources' data keep the backbone from forgetting. Beside
it stands the same training without any transfer (`Scratch`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from transfer.adapt.base import Adapted, FewShotTask
from transfer.adapt.heads import with_target_head
from transfer.adapt.tuning_loop import shortened
from transfer.train.rows import trainable_devices
from transfer.train.training import TrainRun, train


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
    least_samples: int = 2

    def adapt(self, task: FewShotTask) -> Adapted:
        """Train with replay; without a source model, from a new one. See `Strategy.adapt`."""
        part, target, config, seed, init = task.visible(), task.target, task.config, task.seed, None
        if task.source is not None:
            init = with_target_head(task.source, part, target, seed=seed)
            config = shortened(config, self.epoch_share, self.learning_rate_share)
        rows = np.arange(len(part))
        head_ids = part.device_ids if init is None else init.device_ids
        devices = [d for d in trainable_devices(part, rows) if d in head_ids or d == target]
        model = train(part, rows, config=config, seed=seed, devices=devices, run=TrainRun(init=init)).model
        return Adapted(device_id=target, model=model, notes={"sources": list(devices)})


@dataclass(frozen=True, slots=True)
class Scratch:
    """No transfer: a new model with the target's head only, trained on the few-shot rows only.

    The yardstick of every other strategy.
    """

    name: str = "scratch"
    least_samples: int = 2

    def adapt(self, task: FewShotTask) -> Adapted:
        """Train from nothing on nothing but the samples. See `Strategy.adapt`."""
        part = task.samples()
        rows = np.arange(len(part))
        model = train(part, rows, config=task.config, seed=task.seed, devices=(task.target,)).model
        return Adapted(device_id=task.target, model=model)
