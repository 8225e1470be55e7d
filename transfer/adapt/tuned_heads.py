"""Heads that go on learning from the few-shot set alone: fine-tuned, followed by a slow copy, boosted.

All three begin with the source head that orders the samples best and never look at source devices'
measurements. They are the usual baselines of the field, done with care.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from transfer.adapt.base import Adapted, FewShotTask
from transfer.adapt.heads import with_target_head
from transfer.adapt.tuning_loop import choose_rate, head_alone, shortened, tune
from transfer.data.dataset import Dataset
from transfer.model.fleet_tlp import FleetTLP
from transfer.train.tree_fit import continue_trees


@dataclass(frozen=True, slots=True)
class FineTuneHead:
    """Train the nearest head on the few-shot set, with a learning rate chosen there; the backbone stays.

    Published fine-tuning of TLP takes one rate for all layers and trains for 50 epochs, which unlearns more
    than a few dozen labels teach. To train the trunk, or all of the model, was no better at any number of
    samples (`docs/results/onboarding.md`).

    Args:
        rate_shares: Learning rates to try, as shares of the configuration's.
        epoch_share: Epochs, as a share of the configuration's.
    """

    name: str = "finetune_head"
    rate_shares: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    epoch_share: float = 0.5
    least_samples: int = 2

    def adapt(self, task: FewShotTask) -> Adapted:
        """Choose a rate, then train on all of the few-shot set. See `Strategy.adapt`."""
        part, target, seed = task.samples(), task.target, task.seed
        start = with_target_head(task.need_source(self.name), part, target, seed=seed)
        how = shortened(task.config, self.epoch_share)

        def fit(visible: Dataset, rate: float) -> FleetTLP:
            model = start.copy()
            with head_alone(model, target):
                tune(model, visible, (target,), replace(how, learning_rate=rate), seed)
            return model

        rates = [share * task.config.learning_rate for share in self.rate_shares]
        rate, tried = choose_rate(start, part, target, rates, seed, fit)
        model = fit(part, rate) if rate > 0 else start
        notes = {"learning_rate": rate, "agreement": {f"{rate:.3g}": tau for rate, tau in tried.items()}}
        return Adapted(device_id=target, model=model, notes=notes)


@dataclass(frozen=True, slots=True)
class Momentum:
    """Train one copy of the source model on the few-shot set; another follows it, and is the result.

    MoA-Pruner (ASPLOS'25, section 5) keeps a Siamese copy of the pretrained model, updated as a moving
    average of the model that online measurements train. The copy forgets slowly, so a bad batch cannot spoil
    it.

    Args:
        keep: Share of itself that the slow copy keeps in each step. Over the steps of one adaptation it
            moves most of the way, so it is less than the published .99 of an endless stream.
        rate_share: Learning rate of the fast copy, as a share of the configuration's.
        epoch_share: Epochs, as a share of the configuration's.
    """

    name: str = "momentum"
    keep: float = 0.95
    rate_share: float = 0.3
    epoch_share: float = 0.5
    least_samples: int = 2

    def adapt(self, task: FewShotTask) -> Adapted:
        """Train and follow. See `Strategy.adapt`."""
        part = task.samples()
        slow = with_target_head(task.need_source(self.name), part, task.target, seed=task.seed)
        fast = slow.copy()
        pairs = list(zip(slow.parameters(), fast.parameters(), strict=True))

        def follow() -> None:
            with torch.no_grad():
                for behind, ahead in pairs:
                    behind.lerp_(ahead, 1 - self.keep)

        how = shortened(task.config, self.epoch_share, self.rate_share)
        tune(fast, part, (task.target,), how, task.seed, after_step=follow)
        return Adapted(device_id=task.target, model=slow.eval())


@dataclass(frozen=True, slots=True)
class Boosted:
    """Go on with the source's trees on the few-shot set; the network is left alone.

    Fine-tuning moves a network that learnt from a thousand workloads by a few dozen candidates, and it
    forgets. Boosting that goes on from what the trees say adds small corrections to it instead, few trees for
    few samples.
    """

    name: str = "boosted"
    least_samples: int = 2

    def adapt(self, task: FewShotTask) -> Adapted:
        """Copy a head and add trees. See `Strategy.adapt`."""
        part, target, seed = task.samples(), task.target, task.seed
        model = with_target_head(task.need_source(self.name), part, target, seed=seed)
        rows = np.arange(len(part))
        added = continue_trees(model, part, rows, (target,), threads=task.config.threads, seed=seed)
        return Adapted(device_id=target, model=model.eval(), notes={"trees_added": added})
