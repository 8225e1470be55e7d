"""Masked adaptation: weights that all source devices rely on are kept, the rest is trained again.

Moses (arXiv 2201.05752) parts the weights of a cost model by |weight * gradient|, after the lottery-ticket
idea: weights that matter are taken to be independent of hardware and transferred, the others are not. Here
a weight matters as much as it does to the source device that it matters least to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transfer.adapt.base import Adapted, need_source, visible_part
from transfer.adapt.heads import with_target_head
from transfer.adapt.tuning_loop import shortened, tune
from transfer.data.dataset import Dataset
from transfer.model.fleet_tlp import FleetTLP, scoped_seed
from transfer.model.inputs import torch_threads
from transfer.train.config import TrainConfig
from transfer.train.rows import gather_rows, trainable_devices
from transfer.train.step import Stepper


@dataclass(frozen=True, slots=True)
class Masked:
    """Keep the weights that matter to every source; train the others on the few-shot set.

    Args:
        kept: Share of the weights of each layer of the backbone that stay as they are.
        rate_share: Learning rate of the others, as a share of the configuration's.
        epoch_share: Epochs, as a share of the configuration's.
        batches: Batches of source rows that the weights are judged on.
    """

    name: str = "masked"
    kept: float = 0.5
    rate_share: float = 0.3
    epoch_share: float = 0.5
    batches: int = 8
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
        """Judge the weights on `source_rows`, then train on the few-shot set. See `Strategy.adapt`."""
        model = need_source(source, self.name)
        # The sources' rows without any target label, and the few-shot set without any source label.
        nothing = np.zeros(0, dtype=np.int64)
        part = visible_part(dataset, target_device, few_shot_rows, nothing)
        known = visible_part(dataset, target_device, nothing, source_rows, need_few_shot=False)
        model = with_target_head(model, part, target_device, seed=seed)
        devices = [d for d in trainable_devices(known, np.arange(len(known))) if d in model.device_ids]
        importance = [self._importance(model, known, device_id, config, seed) for device_id in devices]
        frozen: list[tuple[Tensor, Tensor, Tensor]] = []
        for name, parameter in model.named_parameters():
            if not name.startswith("heads.") and importance and parameter.dim() > 1:
                least = torch.stack([one[name] for one in importance]).amin(dim=0)
                mask = least >= torch.quantile(least.flatten()[:1_000_000], 1 - self.kept)
                frozen.append((parameter, mask, parameter.detach().clone()))

        def put_back() -> None:
            with torch.no_grad():
                for parameter, mask, before in frozen:
                    parameter.copy_(torch.where(mask, before, parameter))

        how = shortened(config, self.epoch_share, self.rate_share)
        tune(model, part, (target_device,), how, seed, after_step=put_back)
        return Adapted(device_id=target_device, model=model, notes={"sources": devices})

    def _importance(
        self, model: FleetTLP, known: Dataset, device_id: str, config: TrainConfig, seed: int
    ) -> dict[str, Tensor]:
        """|weight * gradient| of the loss of one source device, summed over a few batches."""
        data = gather_rows(known, np.arange(len(known)), (device_id,))
        random = np.random.default_rng(seed)
        parts = data.parts(
            most=config.candidates_per_workload, per_epoch=config.candidates_per_epoch, random=random
        )
        order = random.permutation(len(parts))[: self.batches * config.workloads_per_batch]
        copy = model.copy()
        total = {name: torch.zeros_like(p) for name, p in copy.named_parameters()}
        with scoped_seed(seed), torch_threads(config.threads):
            # A step of length 0 leaves the weights alone and the gradients where they can be read.
            stepper = Stepper(copy, config, torch.device("cpu"))
            copy.eval()
            for start in range(0, len(order), config.workloads_per_batch):
                batch = [parts[place] for place in order[start : start + config.workloads_per_batch]]
                stepper.step(data, batch, 0.0)
                for name, parameter in copy.named_parameters():
                    if parameter.grad is not None:
                        total[name] += (parameter * parameter.grad).abs().detach()
        return total
