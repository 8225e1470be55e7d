"""Which recorded candidates a live device may measure: those of our own, not those that a log has brought.

A candidate is ours if an agent of a live device has drawn it. Imported candidates are derived again
(`agents.programs.derivation`); here their traces are found, nothing runs. Replay devices answer from what
others may have brought, so their records vouch for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from agents.programs.trace_rules import MOST_TEXT
from agents.records import CandidateId, DeviceId, Family, Record, WorkloadId
from agents.trust import IMPORTED, claimed_id, is_imported, is_live
from fleet.store.catalog import DeviceEntry
from fleet.store.reader import StoreReader

#: The dialect of traces that a device can be given.
LIVE_DIALECT = "meta_schedule"


def devices_of_family(
    entries: Mapping[DeviceId, DeviceEntry], family: Family, *, live: bool
) -> list[DeviceId]:
    """Devices of a family whose records tell what to measure; for a live one, those that are live."""
    return [
        one
        for one, entry in entries.items()
        if entry.spec.family is family and (is_live(entry.spec) or not live)
    ]


def ours(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records (of live devices) of our own candidates."""
    for record in records:
        if (
            record.dialect == LIVE_DIALECT
            and record.origin != IMPORTED
            and not is_imported(record.workload_id)
        ):
            yield record


def claims(
    reader: StoreReader,
    family: Family,
    wanted: Collection[WorkloadId],
    device_ids: Collection[DeviceId] | None = None,
) -> dict[WorkloadId, list[CandidateId]]:
    """Imported candidates that claim to be of some workloads of ours, to derive from.

    The family is that of the devices which they were measured on. `device_ids` have records that came with a
    log; all are read if that is not known.

    Returns:
        By workload of ours, each candidate once, in the order of their first record; workloads without any
        are left out.
    """
    found: dict[WorkloadId, dict[CandidateId, None]] = {}
    if not wanted or not reader.has_imported_workloads(wanted):
        return {}
    devices = devices_of_family(reader.devices(), family, live=False)
    if device_ids is not None:
        devices = [one for one in devices if one in device_ids]
    names = ("workload_id", "candidate_id", "origin", "dialect")
    for _, batch in reader.columns(names, device_ids=devices):
        chosen = batch.filter(_is_imported(batch))
        for one, candidate_id in zip(*_texts(chosen, "workload_id", "candidate_id"), strict=True):
            claimed = claimed_id(one)
            if claimed is not None and claimed in wanted:
                found.setdefault(claimed, {})[candidate_id] = None
    return {one: list(candidates) for one, candidates in found.items()}


def imported_traces(
    reader: StoreReader, family: Family, wanted: Collection[CandidateId]
) -> dict[CandidateId, str]:
    """Traces of imported candidates (`claims`), for deriving from them; nothing else may be done with them.

    The candidates were measured on devices of the family.
    """
    ids = pa.array(sorted(wanted), pa.string())
    found: dict[CandidateId, str] = {}
    devices = devices_of_family(reader.devices(), family, live=False)
    for _, batch in reader.columns(("candidate_id", "trace"), device_ids=devices) if wanted else ():
        chosen = batch.filter(pc.is_in(batch.column("candidate_id"), ids))
        # Cut where it is refused anyway, so that many long ones take no memory.
        traces = pc.utf8_slice_codeunits(chosen.column("trace"), 0, MOST_TEXT + 1)
        found.update(zip(chosen.column("candidate_id").to_pylist(), traces.to_pylist(), strict=True))
    return {one: found[one] for one in wanted if one in found}


def _is_imported(batch: pa.RecordBatch) -> pa.Array:
    is_imported_row = pc.equal(batch.column("origin"), IMPORTED)
    return pc.and_(is_imported_row, pc.equal(batch.column("dialect"), LIVE_DIALECT))


def _texts(batch: pa.RecordBatch, *names: str) -> list[list[Any]]:
    return [batch.column(name).to_pylist() for name in names]
