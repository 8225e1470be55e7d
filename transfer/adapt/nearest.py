"""The nearest device's head, unchanged: the simplest form of transfer, and the least to beat.

Transfer-Tuning (Gibson and Cano, PACT'22) replays the schedules of a similar workload or device; here the
order that a similar device's head gives is taken as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transfer.adapt.base import Adapted, need_source, visible_part
from transfer.adapt.heads import most_similar_heads
from transfer.data.dataset import Dataset
from transfer.model.fleet_tlp import FleetTLP
from transfer.train.config import TrainConfig


@dataclass(frozen=True, slots=True)
class Nearest:
    """Copy the head of the device that orders the few-shot set best; with k = 0, of the nearest hardware."""

    name: str = "nearest"
    least_samples: int = 0

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
        """Choose and copy; nothing is trained. See `Strategy.adapt`."""
        model = need_source(source, self.name).copy()
        part = visible_part(dataset, target_device, few_shot_rows, source_rows, need_few_shot=False)
        like = most_similar_heads(model, part, target_device)
        # Of several the first: heads have hidden units of their own, so their mean is none of them.
        if target_device not in model.device_ids:
            model.add_head(target_device, like=like[0])
        return Adapted(device_id=target_device, model=model, notes={"sources": [like[0]]})
