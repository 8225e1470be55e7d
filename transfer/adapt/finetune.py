"""Fine-tuning of the head: go on training it on the few-shot set, with a learning rate chosen there.

The usual baseline of the field, but done with care: published fine-tuning of TLP takes one rate for all
layers and trains for 50 epochs, which unlearns more than a few dozen labels teach. To train the trunk, or all
of the model, was no better at any number of samples (`docs/results/onboarding-strategies.md`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from transfer.adapt.base import Adapted, need_source, visible_part
from transfer.adapt.heads import with_target_head
from transfer.adapt.tuning_loop import choose_rate, head_alone, shortened, tune
from transfer.data.dataset import Dataset
from transfer.model.fleet_tlp import FleetTLP
from transfer.train.config import TrainConfig


@dataclass(frozen=True, slots=True)
class FineTuneHead:
    """Train the nearest head on the few-shot set; the backbone stays as it is.

    Args:
        rate_shares: Learning rates to try, as shares of the configuration's.
        epoch_share: Epochs, as a share of the configuration's.
    """

    name: str = "finetune_head"
    rate_shares: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    epoch_share: float = 0.5
    least_samples: int = 2

    def adapt(
        self,
        source: FleetTLP | None,
        dataset: Dataset,
        target_device: str,
        few_shot_rows: NDArray[np.int64],
        *,
        source_rows: NDArray[np.int64],
        config: TrainConfig,
        seed: int,
    ) -> Adapted:
        """Choose a rate, then train on all of the few-shot set; `source_rows` are not looked at."""
        nothing = np.zeros(0, dtype=np.int64)
        part = visible_part(dataset, target_device, few_shot_rows, nothing)
        start = with_target_head(need_source(source, self.name), part, target_device, seed=seed)
        how = shortened(config, self.epoch_share)

        def fit(visible: Dataset, rate: float) -> FleetTLP:
            model = start.copy()
            with head_alone(model, target_device):
                tune(model, visible, (target_device,), replace(how, learning_rate=rate), seed)
            return model

        rates = [share * config.learning_rate for share in self.rate_shares]
        rate, tried = choose_rate(start, part, target_device, rates, seed, fit)
        model = fit(part, rate) if rate > 0 else start
        notes = {"learning_rate": rate, "agreement": {f"{rate:.3g}": tau for rate, tau in tried.items()}}
        return Adapted(device_id=target_device, model=model, notes=notes)
