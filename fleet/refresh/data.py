"""What a refresh reads of a store: a bounded part of each device's records, and when and why each was made.

Called by `fleet.refresh.run` and `fleet.refresh.freshness_look`. A refresh should take as long when the store
has ten times the records: of each workload and device at most `MOST_OF_WORKLOAD` candidates are read, the new
ones first, the old ones (the replay) by the order of their ids, which is random and the same on all devices,
so that labels still line up.

Legend: n rows of one device, N candidates of the dataset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from agents.records import DeviceId
from fleet.models.training_rows import JudgedRows, rows_at
from fleet.models.versions import DatasetSnapshot, published_layout
from fleet.store.noise_columns import READING_COLUMNS, SAYS_NOTHING, present_rows
from fleet.store.reader import StoreReader

if TYPE_CHECKING:
    from transfer.data.joined_records import MeasuredRow

#: Candidates of a workload on a device that a refresh reads; an epoch looks at 64 of them.
MOST_OF_WORKLOAD = 1024


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RefreshData:
    """A snapshot to learn from and to judge on, with what a dataset does not keep of its records."""

    snapshot: DatasetSnapshot
    #: (N, D) Unix seconds of the measurement that counts; NaN where there is none.
    measured_at: NDArray[np.float64]
    judged: JudgedRows


class _Chosen(NamedTuple):
    """Rows of one device that a refresh reads."""

    #: (n,) mask over all rows of the device, in the order of the store.
    mask: NDArray[np.bool_]
    #: Of the chosen rows.
    candidate_ids: list[str]
    measured_at: NDArray[np.float64]


def read_refresh_data(
    reader: StoreReader,
    device_ids: Collection[DeviceId],
    *,
    version: int | None = None,
    new_since: float = 0.0,
    only_new: bool = False,
    published: bool = False,
) -> RefreshData:
    """Read what a refresh, or a look at fresh records, needs.

    Of each candidate the newest environment counts (`fleet.store.noise_columns.present_rows`).

    Args:
        reader: The store.
        device_ids: Devices of one family.
        version: Version of the table; the reader's own where None.
        new_since: Unix seconds; records measured later are new.
        only_new: Leave out the others.
        published: Make the features of MTL-TLP too.

    Raises:
        FleetError: Published features of several families are asked for.
        TransferError: There is no ok record.
        StoreError: The version does not exist any more, or a file is damaged.
    """
    from transfer.data.joined_records import build_dataset

    table = reader.version if version is None else version
    entries = reader.devices()
    devices = {
        device_id: (entries[device_id].spec, descriptor)
        for device_id in device_ids
        if (descriptor := entries[device_id].descriptor) is not None
    }
    judged = JudgedRows()
    after = new_since if only_new else None
    chosen = {
        device_id: _choose(reader, device_id, table, after, new_since, judged)
        for device_id in sorted(devices)
    }

    def records() -> Iterator[MeasuredRow]:
        for device_id, rows in chosen.items():
            yield from rows_at(reader, device_id, table, rows.mask)

    workloads = reader.workloads()
    layout = published_layout(spec for spec, _ in devices.values()) if published else None
    dataset = build_dataset(records(), workloads, devices, layout=layout)
    place = {candidate_id: row for row, candidate_id in enumerate(dataset.candidate_ids)}
    measured_at = np.full(dataset.latency_secs.shape, np.nan)
    for device_id, rows in chosen.items():
        if device_id not in dataset.device_ids:
            continue
        column = dataset.column(device_id)
        # Rows of candidates that only lost ones tell of are not in the dataset.
        at = np.array([place.get(candidate_id, -1) for candidate_id in rows.candidate_ids], dtype=np.int64)  # type: ignore[call-overload]
        in_dataset = at >= 0
        measured_at[at[in_dataset], column] = rows.measured_at[in_dataset]
    return RefreshData(
        snapshot=DatasetSnapshot(dataset=dataset, workloads=workloads, devices=devices, table_version=table),
        measured_at=measured_at,
        judged=judged,
    )


def _choose(
    reader: StoreReader,
    device_id: DeviceId,
    version: int,
    after: float | None,
    new_since: float,
    judged: JudgedRows,
) -> _Chosen:
    names = (*READING_COLUMNS, "workload_id")
    batches = [batch for _, batch in reader.columns(names, device_ids=[device_id], version=version)]
    if not batches:
        return _Chosen(np.zeros(0, dtype=np.bool_), [], np.zeros(0))
    table = pa.Table.from_batches(batches)
    measured_at = table.column("measured_at").to_numpy()
    mask = present_rows(batches) & ~np.isin(_texts(table, "outcome"), SAYS_NOTHING)
    candidate = _codes(table, "candidate_id")
    if after is not None:
        mask &= measured_at > after
    mask = _bounded(mask, _codes(table, "workload_id"), candidate, measured_at > new_since)
    judged.look(device_id, batches, mask)
    return _Chosen(mask, table.column("candidate_id").filter(pa.array(mask)).to_pylist(), measured_at[mask])


def _bounded(
    mask: NDArray[np.bool_],
    workload: NDArray[np.int64],
    candidate: NDArray[np.int64],
    is_new: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """`MOST_OF_WORKLOAD` rows of each workload at most: new ones first, then by the candidates' ids."""
    rows = np.flatnonzero(mask)
    order = rows[np.lexsort((candidate[rows], ~is_new[rows], workload[rows]))]
    starts = np.flatnonzero(np.diff(workload[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff([*starts.tolist(), len(order)]))
    chosen = np.zeros(len(mask), dtype=np.bool_)
    chosen[order[rank < MOST_OF_WORKLOAD]] = True
    return chosen


def _codes(table: pa.Table, name: str) -> NDArray[np.int64]:
    """The place of each text among the sorted distinct ones."""
    return np.unique(_texts(table, name), return_inverse=True)[1].astype(np.int64)


def _texts(table: pa.Table, name: str) -> NDArray[np.str_]:
    return np.asarray(table.column(name).to_numpy(), dtype=np.str_)
