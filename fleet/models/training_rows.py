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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from agents.records import DeviceId, WorkloadId
from fleet.models.freshness import NOT_RANKED
from fleet.store.noise import (
    PRESENT_COLUMNS,
    READING_COLUMNS,
    SAYS_NOTHING,
    flag_column,
    noise_floor,
    outcome_of,
    present_rows,
    readings,
    settled_rows,
)
from fleet.store.reader import StoreReader
from transfer.arrays import Floats, Mask

if TYPE_CHECKING:
    from transfer.data.dataset import Dataset, MeasuredRow

#: Columns of `transfer.data.dataset.MeasuredRow` that the store has, in its order but for the device.
_COLUMNS = ("record_id", "workload_id", "candidate_id", "dialect", "trace", "outcome", "run_secs")
#: Candidates of a workload on a device that a refresh reads; an epoch looks at 64 of them.
_MOST_OF_WORKLOAD = 1024
#: Pairs of measurements of one program that tell a noise floor or a ceiling at least; fewer are an anecdote.
LEAST_PAIRS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentPart:
    """A bounded part of each device's records: a refresh takes as long when the store has ten times of them.

    Of each workload and device at most `_MOST_OF_WORKLOAD` candidates are read, the new ones first, the old
    ones (the replay) by the order of their ids, which is random and the same on all devices, so that labels
    still line up.
    """

    #: Unix seconds; records measured later are new.
    new_since: float = 0.0
    #: Leave out the others.
    only_new: bool = False

    def of(self, batches: Sequence[pa.RecordBatch], counts: Mask) -> Mask:
        """(n,) which of the rows of a device that count are in the part."""
        if not batches:
            return counts
        table = pa.Table.from_batches(batches)
        is_new = table.column("measured_at").to_numpy() > self.new_since
        mask = counts & ~np.isin(_texts(table, "outcome"), SAYS_NOTHING)
        rows = np.flatnonzero(mask & is_new if self.only_new else mask)
        workload, candidate = (
            np.unique(_texts(table, name), return_inverse=True)[1] for name in ("workload_id", "candidate_id")
        )
        order = rows[np.lexsort((candidate[rows], ~is_new[rows], workload[rows]))]
        starts = np.flatnonzero(np.diff(workload[order], prepend=-1))
        rank = np.arange(len(order)) - np.repeat(starts, np.diff([*starts.tolist(), len(order)]))
        chosen = np.zeros(len(mask), dtype=np.bool_)
        chosen[order[rank < _MOST_OF_WORKLOAD]] = True
        return chosen


def _texts(table: pa.Table, name: str) -> NDArray[np.str_]:
    return np.asarray(table.column(name).to_numpy(), dtype=np.str_)


class JudgedRows:
    """What a judge asks of the records of a dataset, gathered while they are read.

    Attributes:
        floors: Noise floor by device, without those that have too few second measurements.
    """

    def __init__(self) -> None:
        self.floors: dict[str, float] = {}
        self._rows: dict[DeviceId, pa.Table] = {}

    def look(self, device_id: DeviceId, batches: Sequence[pa.RecordBatch], counts: Mask) -> None:
        """Take in all rows of a device, with `READING_COLUMNS`; `counts` (n,) are those of the dataset."""
        if not batches:
            return
        floor = noise_floor(reading for batch in batches for reading in readings(device_id, batch))
        if floor is not None and floor.pairs >= LEAST_PAIRS:
            self.floors[device_id] = floor.median_change
        table = pa.Table.from_batches(batches)
        suspect = np.concatenate([flag_column(batch.column("quality"), "suspect") for batch in batches])
        columns = {
            "candidate_id": table.column("candidate_id"),
            "measured_at": table.column("measured_at"),
            "not_ranked": pc.is_in(table.column("origin"), pa.array(sorted(NOT_RANKED))),
            "steady": pa.array(~suspect),
        }
        self._rows[device_id] = pa.table(columns).filter(pa.array(counts))

    def not_ranked(self, dataset: Dataset) -> Mask:
        """(N, D) whether no model chose the measurement that a dataset took, and it is a first one."""
        return self._values(dataset, "not_ranked", fill=False)

    def steady(self, dataset: Dataset) -> Mask:
        """(N, D) whether the device did not drift during the measurement that a dataset took."""
        return self._values(dataset, "steady", fill=False)

    def measured_at(self, dataset: Dataset) -> Floats:
        """(N, D) Unix seconds of the measurement that a dataset took; NaN where there is none."""
        return self._values(dataset, "measured_at", fill=np.nan)

    def _values(self, dataset: Dataset, name: str, fill: float | bool) -> NDArray[Any]:
        """(N, D) a column of the rows that a dataset took."""
        place = {candidate_id: row for row, candidate_id in enumerate(dataset.candidate_ids)}
        values = np.full(dataset.latency_secs.shape, fill)
        for device_id, table in self._rows.items():
            if device_id in dataset.device_ids:  # else all that it measured was lost or rejected
                # Rows of candidates that only lost ones tell of are not in the dataset.
                names = table.column("candidate_id").to_pylist()
                rows = np.array([place.get(candidate_id, -1) for candidate_id in names], dtype=np.int64)
                column = table.column(name).to_numpy()
                values[rows[rows >= 0], dataset.column(device_id)] = column[rows >= 0]
        return values


def counting_rows(
    reader: StoreReader,
    device_id: DeviceId,
    version: int,
    workload_ids: Collection[WorkloadId] = (),
    names: Mapping[str, DeviceId] | None = None,
    judged: JudgedRows | None = None,
    part: RecentPart | None = None,
) -> Iterator[MeasuredRow]:
    """Yield what a dataset takes of the records that count of one device.

    Of each candidate one counts (`fleet.store.noise.present_rows`); with `names` one of each
    environment (`fleet.store.noise.settled`).

    Args:
        reader: The store.
        device_id: A device.
        version: Version of the table.
        workload_ids: Only of these workloads; of all if empty.
        names: Device that the rows of an environment are of; those of other environments are left out. None:
            all rows are of the device.
        judged: Is shown what tells which rows count, so that nobody reads it again.
        part: Only these of them.

    Yields:
        Rows in the order of the store.

    Raises:
        StoreError: The store is damaged, or a newer version wrote it.
    """
    columns = (*(PRESENT_COLUMNS if judged is None else READING_COLUMNS), "workload_id")
    choose = present_rows if names is None else settled_rows
    batches = _batches(reader, device_id, version, columns, workload_ids)
    if judged is None and part is None:
        counts = choose(batches)
    else:
        all_batches = list(batches)
        counts = choose(all_batches)
        if part is not None:
            counts = part.of(all_batches, counts)
        if judged is not None:
            judged.look(device_id, all_batches, counts)
    yield from _rows_at(reader, device_id, version, counts, workload_ids, names)


def _rows_at(
    reader: StoreReader,
    device_id: DeviceId,
    version: int,
    chosen: Mask,
    workload_ids: Collection[WorkloadId],
    names: Mapping[str, DeviceId] | None,
) -> Iterator[MeasuredRow]:
    """Yield what a dataset takes of the rows that `chosen` (n,) tells, of those of `workload_ids`."""
    from transfer.data.dataset import MeasuredRow

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
