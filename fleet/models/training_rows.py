"""What a dataset takes of a store, read as columns, and which of it may judge heads.

Called by `fleet.models.versions`. A device is read twice: a few short columns tell which rows count,
then traces and seconds of those are read. Environments and protocols never are.

`fleet train`, `fleet eval` of a version and the refresh judge by the same rules
(`docs/decisions/0017-champions-per-device.md`): a model's own choices judge nobody, and neither does noise.
Nor does a suspect measurement say who serves (`docs/decisions/0078-the-shipped-head-is-the-floor.md`).

Legend: N candidates, D devices of a dataset; n rows of one device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from agents.records import DeviceId, WorkloadId
from fleet.models.freshness import NOT_RANKED
from fleet.store.noise import noise_floor
from fleet.store.noise_columns import (
    PRESENT_COLUMNS,
    READING_COLUMNS,
    flag_column,
    outcome_of,
    present_rows,
    readings,
    settled_rows,
)
from fleet.store.reader import StoreReader

if TYPE_CHECKING:
    from transfer.data.dataset import Dataset
    from transfer.data.joined_records import MeasuredRow

#: Columns of `transfer.data.joined_records.MeasuredRow` that the store has, in its order but for the device.
_COLUMNS = ("record_id", "workload_id", "candidate_id", "dialect", "trace", "outcome", "run_secs")
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


def counting_rows(
    reader: StoreReader,
    device_id: DeviceId,
    version: int,
    workload_ids: Collection[WorkloadId] = (),
    names: Mapping[str, DeviceId] | None = None,
    judged: JudgedRows | None = None,
) -> Iterator[MeasuredRow]:
    """Yield what a dataset takes of the records that count of one device.

    Of each candidate one counts (`fleet.store.noise_columns.present_rows`); with `names` one of each
    environment (`fleet.store.noise.settled`).

    Args:
        reader: The store.
        device_id: A device.
        version: Version of the table.
        workload_ids: Only of these workloads; of all if empty.
        names: Device that the rows of an environment are of; those of other environments are left out. None:
            all rows are of the device.
        judged: Is shown what tells which rows count, so that nobody reads it again.

    Yields:
        Rows in the order of the store.

    Raises:
        StoreError: The store is damaged, or a newer version wrote it.
    """
    columns = (*(PRESENT_COLUMNS if judged is None else READING_COLUMNS), "workload_id")
    choose = present_rows if names is None else settled_rows
    batches = _batches(reader, device_id, version, columns, workload_ids)
    if judged is None:
        counts = choose(batches)
    else:
        all_batches = list(batches)
        counts = choose(all_batches)
        judged.look(device_id, all_batches, counts)
    yield from rows_at(reader, device_id, version, counts, workload_ids, names)


def rows_at(
    reader: StoreReader,
    device_id: DeviceId,
    version: int,
    chosen: NDArray[np.bool_],
    workload_ids: Collection[WorkloadId] = (),
    names: Mapping[str, DeviceId] | None = None,
) -> Iterator[MeasuredRow]:
    """Yield what a dataset takes of some rows of one device.

    `chosen` (n,) tells which of the device's rows, in the order of the store; they are counted among
    `workload_ids` only, among all if that is empty. The other arguments are those of `counting_rows`.

    Raises:
        StoreError: The store is damaged, or a newer version wrote it.
    """
    from transfer.data.joined_records import MeasuredRow

    start = 0
    columns_of = (*_COLUMNS, "environment_id")
    for batch in _batches(reader, device_id, version, columns_of, workload_ids):
        rows = batch.filter(pa.array(chosen[start : start + batch.num_rows]))
        start += batch.num_rows
        columns = {name: rows.column(name).to_pylist() for name in _COLUMNS}
        columns["outcome"] = [outcome_of(text) for text in columns["outcome"]]
        columns["run_secs"] = [tuple(secs) for secs in columns["run_secs"]]
        environments = rows.column("environment_id").to_pylist() if names is not None else ()
        for place, (record_id, *rest) in enumerate(zip(*columns.values(), strict=True)):
            of = device_id if names is None else names.get(environments[place])
            if of is not None:
                yield MeasuredRow(record_id, of, *rest)


def _batches(
    reader: StoreReader,
    device_id: DeviceId,
    version: int,
    names: Sequence[str],
    workload_ids: Collection[WorkloadId],
) -> Iterator[pa.RecordBatch]:
    for _, batch in reader.columns(names, device_ids=[device_id], version=version):
        if workload_ids:
            chosen_ids = pa.array(list(workload_ids), pa.string())
            batch = batch.filter(pc.is_in(batch.column("workload_id"), chosen_ids))
        yield batch
