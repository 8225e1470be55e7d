"""Which measurements may judge heads, and how far a device's numbers repeat: what a dataset does not keep.

`fleet train` and the refresh judge by the same rules
(`docs/decisions/0017-champions-per-device.md`): a model's own choices judge nobody, and neither does noise.

Legend: N candidates, D devices of a dataset; n rows of one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from agents.records import DeviceId
from fleet.models.freshness import NOT_RANKED
from fleet.store.noise import noise_floor
from fleet.store.noise_columns import READING_COLUMNS, present_rows, readings
from fleet.store.reader import StoreReader

if TYPE_CHECKING:
    from transfer.data.dataset import Dataset

#: Pairs of measurements of one program that tell a noise floor or a ceiling at least; fewer are an anecdote.
LEAST_PAIRS = 8


def judging_columns(
    reader: StoreReader, dataset: Dataset, version: int
) -> tuple[NDArray[np.bool_], dict[str, float]]:
    """What a judge asks of the records that a dataset was made of (`fleet.models.versions.load_snapshot`).

    Args:
        reader: The store.
        dataset: What was read of it.
        version: Version of the table that it was read at.

    Returns:
        (N, D) whether no model chose the measurement that counts and it is a first one; and the noise floor
        by device, without those that have too few second measurements.
    """
    place = {candidate_id: row for row, candidate_id in enumerate(dataset.candidate_ids)}
    not_ranked = np.zeros(dataset.latency_secs.shape, dtype=np.bool_)
    floors: dict[str, float] = {}
    for column, device_id in enumerate(dataset.device_ids):
        found = reader.columns(READING_COLUMNS, device_ids=[device_id], version=version)
        batches = [batch for _, batch in found]
        if not batches:
            continue
        if (floor := known_floor(device_id, batches)) is not None:
            floors[device_id] = floor
        table = pa.Table.from_batches(batches)
        chosen = table.filter(pa.array(present_rows(batches) & is_not_ranked(table.column("origin"))))
        names = chosen.column("candidate_id").to_pylist()
        not_ranked[[place[one] for one in names if one in place], column] = True
    return not_ranked, floors


def known_floor(device_id: DeviceId, batches: Sequence[pa.RecordBatch]) -> float | None:
    """Noise floor of a device by its rows with `READING_COLUMNS`; None where too few tell."""
    floor = noise_floor(one for batch in batches for one in readings(device_id, batch))
    return floor.median_change if floor is not None and floor.pairs >= LEAST_PAIRS else None


def is_not_ranked(origins: pa.ChunkedArray) -> NDArray[np.bool_]:
    """(n,) whether no model chose a row and it is a first measurement."""
    return np.asarray(pc.is_in(origins, pa.array(sorted(NOT_RANKED))).to_numpy(), dtype=np.bool_)
