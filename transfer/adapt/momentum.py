"""Momentum adaptation: a slow copy of the source model follows one that learns from the few-shot set.

MoA-Pruner (ASPLOS'25, section 5) keeps a Siamese copy of the pretrained model, updated as a moving average of
the model that online measurements train. The copy forgets slowly, so a bad batch cannot spoil it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from transfer.adapt.base import Adapted, need_source, visible_part
from transfer.adapt.heads import with_target_head
from transfer.adapt.tuning_loop import shortened, tune
from transfer.data.dataset import Dataset
from transfer.model.fleet_tlp import FleetTLP
from transfer.train.config import TrainConfig


@dataclass(frozen=True, slots=True)
class Momentum:
    """Train one copy on the few-shot set; another follows it, and is the result.

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
        """Train and follow; `source_rows` are not looked at. See `Strategy.adapt`."""
        part = visible_part(dataset, target_device, few_shot_rows, np.zeros(0, dtype=np.int64))
        slow = with_target_head(need_source(source, self.name), part, target_device, seed=seed)
        fast = slow.copy()
        pairs = list(zip(slow.parameters(), fast.parameters(), strict=True))

        def follow() -> None:
            with torch.no_grad():
                for behind, ahead in pairs:
                    behind.lerp_(ahead, 1 - self.keep)

        how = shortened(config, self.epoch_share, self.rate_share)
        tune(fast, part, (target_device,), how, seed, after_step=follow)
        return Adapted(device_id=target_device, model=slow.eval())
