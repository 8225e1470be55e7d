"""No measurement at all: a head made from the hardware description by what the known heads look like.

How far likeness of hardware reaches is learnt among the known devices: each is left out in turn, and the
mixture of the others' heads that ranks its measured candidates best decides. The mixture is then taught to
one head, so that the result is a model like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transfer.adapt.base import Adapted, need_source, visible_part
from transfer.adapt.heads import (
    fit_head,
    hardware_distances,
    likeness,
    logits_of,
    tell_hardware,
)
from transfer.data.dataset import Dataset
from transfer.data.ranking import rank_agreement
from transfer.model.fleet_tlp import FleetTLP, scoped_seed
from transfer.train.config import TrainConfig

#: Most source rows that the mixture is learnt from.
_MOST_ROWS = 8192


@dataclass(frozen=True, slots=True)
class ZeroShot:
    """Mix the known heads by likeness of hardware; the few-shot set is not looked at.

    Args:
        bandwidths: Distances to choose from; the last ones are nearly the plain mean of all heads.
        distances: Distance of the target to each source by fingerprint; of the hardware vectors where None,
            or where a source is missing: distances of two kinds cannot be compared.
    """

    name: str = "zero_shot"
    bandwidths: tuple[float, ...] = (0.1, 0.3, 1.0, 10.0)
    distances: Mapping[str, float] | None = None
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
        """Mix and teach. See `Strategy.adapt`."""
        model = need_source(source, self.name).copy()
        random = np.random.default_rng(seed)
        rows = np.sort(random.permutation(source_rows)[:_MOST_ROWS])
        nothing = np.zeros(0, dtype=np.int64)
        part = visible_part(dataset, target_device, nothing, rows, need_few_shot=False)
        sources = [d for d in model.device_ids if d != target_device and d in part.device_ids]
        x = model.represent(part.features)
        logits = logits_of(model, x, sources)
        bandwidth = self._bandwidth(part, sources, logits)
        near = self.distances
        if near is None or not near.keys() >= set(sources):
            near = hardware_distances(part, target_device, sources)
        share = likeness({one: near[one] for one in sources}, bandwidth)
        mixture = logits[:, [sources.index(one) for one in share]] @ np.array(list(share.values()))
        if target_device not in model.device_ids:
            with scoped_seed(seed):
                model.add_head(target_device, like=max(share, key=lambda one: share[one]))
            tell_hardware(model, part, target_device)
        fit_head(model, target_device, x, mixture, seed=seed)
        return Adapted(device_id=target_device, model=model, notes={"shares": share, "bandwidth": bandwidth})

    def _bandwidth(self, part: Dataset, sources: list[str], logits: NDArray[np.float64]) -> float:
        """The bandwidth with which mixtures of the other heads rank each source best."""
        found = dict.fromkeys(self.bandwidths, 0.0)
        if len(sources) < 3:
            # One other head is no mixture: nothing can be learnt about how to mix.
            return self.bandwidths[-1]
        for one in sources:
            others = [d for d in sources if d != one]
            distances = hardware_distances(part, one, others)
            rows = part.rows_of(one)
            truth = -part.latency_secs[rows, part.column(one)]
            for bandwidth in self.bandwidths:
                share = likeness(distances, bandwidth)
                mixed = logits[rows][:, [sources.index(d) for d in share]] @ np.array(list(share.values()))
                found[bandwidth] += rank_agreement(mixed, truth, part.group[rows]) / len(sources)
        return max(found, key=lambda bandwidth: (found[bandwidth], bandwidth))
