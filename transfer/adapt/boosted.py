"""The source model's trees, boosted on with the few-shot set: a head that knows what the source knew.

Fine-tuning moves a network that learnt from a thousand workloads by a few dozen candidates, and it forgets.
Boosting that goes on from what the trees say adds small corrections to it instead, few trees for few samples.
The network is left alone; the new head is that of the device that orders the samples best.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transfer.adapt.base import Adapted, need_source, visible_part
from transfer.adapt.heads import with_target_head
from transfer.data.dataset import Dataset
from transfer.model.fleet_tlp import FleetTLP
from transfer.train.config import TrainConfig
from transfer.train.tree_fit import continue_trees


@dataclass(frozen=True, slots=True)
class Boosted:
    """Go on with the source's trees on the few-shot set."""

    name: str = "boosted"
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
        """Copy a head and add trees; `source_rows` are not looked at. See `Strategy.adapt`."""
        part = visible_part(dataset, target_device, few_shot_rows, np.zeros(0, dtype=np.int64))
        model = with_target_head(need_source(source, self.name), part, target_device, seed=seed)
        rows = np.arange(len(part))
        added = continue_trees(model, part, rows, (target_device,), threads=config.threads, seed=seed)
        return Adapted(device_id=target_device, model=model.eval(), notes={"trees_added": added})
