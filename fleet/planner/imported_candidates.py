"""Whose candidates are: live devices measure those of our own, not those that a log has brought.

A candidate is ours if an agent of a live device has drawn it. Imported candidates are derived again
(`agents.programs.derivation`): their traces go to agents for that only, and what comes back is a candidate
of our own like any other. Replay devices answer from what others may have brought, so their records vouch
for nothing. What claims to be of a workload that live devices measure waits in `ImportedCandidates` until a
device has room for known candidates.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from agents.programs.trace_rules import MOST_TEXT
from agents.records import (
    IMPORTED,
    CandidateId,
    DeviceId,
    Family,
    Record,
    Workload,
    WorkloadId,
    claimed_id,
    is_imported,
    is_live,
)
from fleet.store.catalog import DeviceEntry
from fleet.store.reader import StoreReader

#: The dialect of traces that a device can be given.
LIVE_DIALECT = "meta_schedule"


def devices_of_family(
    entries: Mapping[DeviceId, DeviceEntry], family: Family, *, live: bool
) -> list[DeviceId]:
    """Devices of a family whose records tell what to measure; for a live one, those that are live."""
    return [
        device_id
        for device_id, entry in entries.items()
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
    workload_ids: Collection[WorkloadId],
    device_ids: Collection[DeviceId] | None = None,
) -> dict[WorkloadId, list[CandidateId]]:
    """Imported candidates that claim to be of some workloads of ours, to derive from.

    The family is that of the devices which they were measured on. `device_ids` have records that came with a
    log; all are read if that is not known.

    Returns:
        By workload of ours, each candidate once, in the order of their first record; workloads without any
        are left out.
    """
    ids_by_workload: dict[WorkloadId, dict[CandidateId, None]] = {}
    if not workload_ids or not reader.has_imported_workloads(workload_ids):
        return {}
    devices = devices_of_family(reader.devices(), family, live=False)
    if device_ids is not None:
        devices = [device_id for device_id in devices if device_id in device_ids]
    names = ("workload_id", "candidate_id", "origin", "dialect")
    for _, batch in reader.columns(names, device_ids=devices):
        is_imported_row = pc.equal(batch.column("origin"), IMPORTED)
        chosen = batch.filter(pc.and_(is_imported_row, pc.equal(batch.column("dialect"), LIVE_DIALECT)))
        texts = (chosen.column(name).to_pylist() for name in names[:2])
        for workload_id, candidate_id in zip(*texts, strict=True):
            claimed = claimed_id(workload_id)
            if claimed is not None and claimed in workload_ids:
                ids_by_workload.setdefault(claimed, {})[candidate_id] = None
    return {workload_id: list(candidates) for workload_id, candidates in ids_by_workload.items()}


def imported_traces(
    reader: StoreReader, family: Family, candidate_ids: Collection[CandidateId]
) -> dict[CandidateId, str]:
    """Traces of imported candidates (`claims`), for deriving from them; nothing else may be done with them.

    The candidates were measured on devices of the family.
    """
    ids = pa.array(sorted(candidate_ids), pa.string())
    traces_by_id: dict[CandidateId, str] = {}
    devices = devices_of_family(reader.devices(), family, live=False)
    for _, batch in reader.columns(("candidate_id", "trace"), device_ids=devices) if candidate_ids else ():
        chosen = batch.filter(pc.is_in(batch.column("candidate_id"), ids))
        # Cut where it is refused anyway, so that many long ones take no memory.
        traces = pc.utf8_slice_codeunits(chosen.column("trace"), 0, MOST_TEXT + 1)
        traces_by_id.update(zip(chosen.column("candidate_id").to_pylist(), traces.to_pylist(), strict=True))
    return {
        candidate_id: traces_by_id[candidate_id]
        for candidate_id in candidate_ids
        if candidate_id in traces_by_id
    }


def underived(workload: Workload, reasons: Mapping[str, int]) -> str:
    """Tell people that imported candidates are not measured: how many, by reason."""
    counts = "; ".join(f"{reason} ({count})" for reason, count in sorted(reasons.items()))
    return f"{workload.name}: {sum(reasons.values())} imported candidates are not measured: {counts}"


class ImportedCandidates:
    """Imported candidates of one fleet.

    Args:
        families: Families with live devices, by the name under which these share candidates; more may come.

    Attributes:
        refused: Candidates that nothing was derived from, by reason; counted by the planner.
    """

    def __init__(self, families: Mapping[str, Family]) -> None:
        self._families = families
        self._waiting: dict[tuple[str, WorkloadId], deque[CandidateId]] = {}
        #: All that ever waited.
        self._offered: dict[tuple[str, WorkloadId], set[CandidateId]] = {}
        self.refused: Counter[str] = Counter()

    def search(
        self, workload_ids: Collection[WorkloadId], device_ids: Collection[DeviceId]
    ) -> Callable[[StoreReader], dict[tuple[str, WorkloadId], list[CandidateId]]]:
        """Make the question for the candidates in a store, for any thread to ask.

        It holds copies: devices come, and more workloads are wanted, while it is asked.

        Args:
            workload_ids: Workloads that the fleet measures.
            device_ids: Devices that have records which came with a log.
        """
        families, measured_ids, chosen = dict(self._families), frozenset(workload_ids), tuple(device_ids)
        return lambda reader: {
            (name, workload_id): list(candidate_ids)
            for name, family in families.items()
            for workload_id, candidate_ids in claims(reader, family, measured_ids, chosen).items()
        }

    def add(self, candidate_ids_by_key: Mapping[tuple[str, WorkloadId], Iterable[CandidateId]]) -> None:
        """Have the candidates wait that did not wait before."""
        for key, candidate_ids in candidate_ids_by_key.items():
            offered = self._offered.setdefault(key, set())
            fresh = [candidate_id for candidate_id in candidate_ids if candidate_id not in offered]
            offered.update(fresh)
            self._waiting.setdefault(key, deque()).extend(fresh)

    def count(self, name: str, workload_id: WorkloadId) -> int:
        """How many of a workload wait."""
        return len(self._waiting.get((name, workload_id), ()))

    def take(self, name: str, workload_id: WorkloadId, count: int) -> list[CandidateId]:
        """Take some out; none comes twice, whatever becomes of it."""
        waiting = self._waiting.get((name, workload_id), deque())
        return [waiting.popleft() for _ in range(min(count, len(waiting)))]
