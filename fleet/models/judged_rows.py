"""Which measurements may judge heads, and how far a device's numbers repeat: what a dataset does not keep.

`fleet train`, `fleet eval` of a version and the refresh judge by the same rules
(`docs/decisions/0017-champions-per-device.md`): a model's own choices judge nobody, and neither does noise.
Nor does a suspect measurement say who serves (`docs/decisions/0078-the-shipped-head-is-the-floor.md`).

Legend: N candidates, D devices of a dataset; n rows of one device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from agents.records import DeviceId
from fleet.models.freshness import NOT_RANKED
from fleet.store.noise import noise_floor
from fleet.store.noise_columns import flag_column, readings

if TYPE_CHECKING:
    from transfer.data.dataset import Dataset

#: Pairs of measurements of one program that tell a noise floor or a ceiling at least; fewer are an anecdote.
LEAST_PAIRS = 8


class JudgedRows:
    """What a judge asks of the records of a dataset, gathered while they are read.

    Attributes:
        floors: Noise floor by device, without those that have too few second measurements.
    """

    def __init__(self) -> None:
        self.floors: dict[str, float] = {}
        self._judging: dict[DeviceId, pa.ChunkedArray] = {}
        self._steady: dict[DeviceId, pa.ChunkedArray] = {}

    def look(self, device_id: DeviceId, batches: Sequence[pa.RecordBatch], counts: NDArray[np.bool_]) -> None:
        """Take in all rows of a device, with `READING_COLUMNS`; `counts` (n,) are those of the dataset."""
        if not batches:
            return
        floor = noise_floor(reading for batch in batches for reading in readings(device_id, batch))
        if floor is not None and floor.pairs >= LEAST_PAIRS:
            self.floors[device_id] = floor.median_change
        table = pa.Table.from_batches(batches)
        not_ranked = pc.is_in(table.column("origin"), pa.array(sorted(NOT_RANKED)))
        judging = table.filter(pc.and_(pa.array(counts), not_ranked))
        self._judging[device_id] = judging.column("candidate_id")
        suspect = [flag_column(batch.column("quality"), "suspect") for batch in batches]
        steady = table.filter(pa.array(counts & ~np.concatenate(suspect)))
        self._steady[device_id] = steady.column("candidate_id")

    def not_ranked(self, dataset: Dataset) -> NDArray[np.bool_]:
        """(N, D) whether no model chose the measurement that a dataset took, and it is a first one."""
        return _mask(dataset, self._judging)

    def steady(self, dataset: Dataset) -> NDArray[np.bool_]:
        """(N, D) whether the device did not drift during the measurement that a dataset took."""
        return _mask(dataset, self._steady)


def _mask(dataset: Dataset, candidates: Mapping[DeviceId, pa.ChunkedArray]) -> NDArray[np.bool_]:
    """(N, D) which measurements of a dataset are of some candidates, by device."""
    place = {candidate_id: row for row, candidate_id in enumerate(dataset.candidate_ids)}
    is_of = np.zeros(dataset.latency_secs.shape, dtype=np.bool_)
    for device_id, names in candidates.items():
        if device_id not in dataset.device_ids:
            continue  # whatever it measured was lost or rejected
        rows = [place[candidate_id] for candidate_id in names.to_pylist() if candidate_id in place]
        is_of[rows, dataset.column(device_id)] = True
    return is_of
