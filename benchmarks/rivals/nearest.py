"""Replay of what source devices measured: no model at all, and hard to beat where devices are alike.

A new device takes the order of its candidates from the most similar device that measured them, the simplest
form of Transfer-Tuning (Gibson and Cano, PACT'22). It can rank only candidates that were measured
elsewhere, so it answers "which of the known schedules first", not "how good is this new one".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from benchmarks.rivals.base import places_on, unknown_device
from transfer.arrays import Floats, Rows
from transfer.data.dataset import Dataset
from transfer.data.ranking import rank_agreement
from transfer.errors import TransferError
from transfer.train.rows import training_labels


class NearestDevice:
    """Order candidates by the latencies of other devices.

    Args:
        use: `nearest`: of the device whose order agrees best with the target's in the rows learnt, next best
            where that one has no measurement; `mean`: the mean over all others of the rank in the workload.
    """

    def __init__(self, use: Literal["nearest", "mean"] = "nearest") -> None:
        self.use = use
        #: Sources of each device learnt, most similar first.
        self.order: dict[str, tuple[str, ...]] = {}

    @property
    def name(self) -> str:
        """`nearest-device` or `mean-rank`."""
        return "nearest-device" if self.use == "nearest" else "mean-rank"

    def fit(self, dataset: Dataset, rows: Rows, devices: Sequence[str], seed: int) -> None:
        """Find the devices most similar to each. See `Ranker.fit`; nothing here is random."""
        training_labels(dataset, rows, devices)
        self.order = {}
        for device_id in devices:
            own = -dataset.latency_secs[rows, dataset.column(device_id)]
            agreement = {}
            for source in map(str, dataset.device_ids):
                if source != device_id:
                    other = -dataset.latency_secs[rows, dataset.column(source)]
                    both = np.isfinite(own) & np.isfinite(other)
                    agreement[source] = rank_agreement(other[both], own[both], dataset.group[rows[both]])
            if not agreement:
                raise TransferError(
                    f"{self.name} needs another device beside {device_id!r}; give its records too"
                )
            self.order[device_id] = tuple(sorted(agreement, key=lambda source: -agreement[source]))

    def score(self, dataset: Dataset, rows: Rows, device_id: str) -> Floats:
        """Share of the workload's candidates that are no faster, among all that the source measured.

        0 where no source measured the candidate, or it failed there. See `Ranker.score`.
        """
        if device_id not in self.order:
            raise unknown_device(self, device_id, tuple(self.order))
        total, count = np.zeros(len(rows)), np.zeros(len(rows))
        for source in self.order[device_id]:
            share = places_on(dataset, source)[rows]
            told = np.isfinite(share) & ((count == 0) | (self.use == "mean"))
            total[told] += share[told]
            count[told] += 1
        return total / np.maximum(1, count)
