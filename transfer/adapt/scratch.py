"""No transfer: the same network trained on the few-shot set alone. The yardstick of every other strategy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transfer.adapt.base import Adapted, visible_part
from transfer.data.dataset import Dataset
from transfer.model.fleet_tlp import FleetTLP
from transfer.train.config import TrainConfig
from transfer.train.training import train


@dataclass(frozen=True, slots=True)
class Scratch:
    """Train a new model with the target's head only, on the few-shot rows only."""

    name: str = "scratch"
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
        """Train from nothing; `source` and `source_rows` are not looked at. See `Strategy.adapt`."""
        part = visible_part(dataset, target_device, few_shot_rows, np.zeros(0, dtype=np.int64))
        rows = np.arange(len(part))
        model = train(part, rows, config=config, seed=seed, devices=(target_device,)).model
        return Adapted(device_id=target_device, model=model)
