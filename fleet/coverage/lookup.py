"""What an id stands for in a store: a record, a candidate or a workload.

Called by `fleet show`. Only columns of ids are read to find it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from agents.records import CandidateId, DeviceId, Record, Workload, WorkloadId
from fleet.errors import StoreError
from fleet.store.reader import StoreReader
from fleet.store.trace_lookup import find_records

#: Fewest characters of an id that may stand for the whole.
_SHORTEST = 6
_KINDS = ("record_id", "candidate_id", "workload_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundId:
    """What was found; `records` are all of the candidate, or the single one."""

    #: `record`, `candidate` or `workload`.
    kind: str
    #: The whole id.
    id: str
    workload: Workload | None
    records: tuple[Record, ...] = ()
    #: Of a workload: records by device.
    counts: dict[str, int] | None = None


def find(reader: StoreReader, text: str) -> FoundId | None:
    """Find what an id, its first six characters at least, or the name of a workload stands for.

    Returns:
        None where the store has nothing of this name.

    Raises:
        StoreError: Several ids begin so.
    """
    workloads = reader.workloads()
    named = [workload for workload in workloads.values() if text in (workload.name, workload.workload_id)]
    matches: dict[str, dict[str, set[DeviceId]]] = {kind: {} for kind in _KINDS}
    if named:
        matches["workload_id"] = {workload.workload_id: set() for workload in named}
    elif len(text) >= _SHORTEST:
        for device_id, kind, value in _beginning_with(reader, text):
            matches[kind].setdefault(value, set()).add(device_id)
    for kind in _KINDS:
        if len(matches[kind]) > 1:
            raise StoreError(
                f"{len(matches[kind])} ids of a {kind.removesuffix('_id')} begin with {text!r}: give more of "
                f"it, such as {min(matches[kind])}"
            )
        for value, devices in matches[kind].items():
            return _found_id(reader, kind.removesuffix("_id"), value, devices, workloads)
    return None


def _beginning_with(reader: StoreReader, text: str) -> Iterator[tuple[DeviceId, str, str]]:
    for device_id, batch in reader.columns(_KINDS):
        for kind in _KINDS:
            column = batch.column(kind)
            for value in pc.unique(column.filter(pc.starts_with(column, text))).to_pylist():
                yield device_id, kind, value


def _found_id(
    reader: StoreReader, kind: str, value: str, devices: set[DeviceId], workloads: dict[WorkloadId, Workload]
) -> FoundId:
    if kind == "workload":
        counts: dict[str, int] = {}
        for device_id, batch in reader.columns(["workload_id"]):
            counts[device_id] = counts.get(device_id, 0) + pc.sum(pc.equal(batch.column(0), value)).as_py()
        return FoundId(kind=kind, id=value, workload=workloads.get(WorkloadId(value)), counts=counts)
    candidate_ids = {CandidateId(value)} if kind == "candidate" else _candidates_of(reader, value)
    records = [
        record
        for device_id in sorted(devices)
        for record in find_records(reader, device_id, candidate_ids)
        if kind == "candidate" or record.record_id == value
    ]
    workload = workloads.get(records[0].workload_id) if records else None
    return FoundId(kind=kind, id=value, workload=workload, records=tuple(records))


def _candidates_of(reader: StoreReader, record_id: str) -> set[CandidateId]:
    for _, batch in reader.columns(["record_id", "candidate_id"]):
        chosen: pa.RecordBatch = batch.filter(pc.equal(batch.column(0), record_id))
        if chosen.num_rows:
            return {CandidateId(candidate_id) for candidate_id in chosen.column(1).to_pylist()}
    return set()
