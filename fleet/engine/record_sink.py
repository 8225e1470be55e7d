"""What becomes of records that arrived: into the store, or apart if late or refused; and what to tell of it.

`fleet.engine.coordinator` calls it once per turn with all that arrived. The records are on the disk with the
turn's events: in the same transaction of the state file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agents.codec import record_to_json
from agents.errors import AgentError
from agents.records import (
    REPEATS,
    Candidate,
    CandidateId,
    DeviceId,
    LeaseTag,
    Outcome,
    Record,
    WorkloadId,
    content_hash,
)
from fleet.core.arrivals import Arrival, Tallies, sort
from fleet.core.events import Event, Job, JobId, RecordsStored, ResultArrivedLate, Verdict
from fleet.core.state import FleetState
from fleet.coverage.coverage import Coverage
from fleet.errors import StoreError, StoreFull
from fleet.state.contents import LATE, REFUSED
from fleet.state.state_file import StateFile
from fleet.store.catalog import check_name
from fleet.store.delta.schema import check_columns, records_to_table
from fleet.store.store import Store

# Records that are set aside for people: those of expired leases, and those that the store refuses.
#
# What is wrong with a refused record does not go away by trying again: a number that is none, a layout of a
# newer version, text where seconds belong. So the sink keeps it here, acknowledges it,
# and goes on with the others. Nothing reads what is kept but people, so the oldest may go: without a bound
# a year of them would fill the disk.

#: Deliveries of either kind, and their bytes. The newest one stays, however long it is.
MOST_ROWS, MOST_BYTES = 10_000, 64 << 20
#: Errors that a malformed record may raise wherever it is looked at.
FAULTS = (StoreError, AgentError, ValueError, TypeError, AttributeError, OverflowError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Records of one arrival that cannot be stored."""

    arrival: Arrival
    records: tuple[Record, ...]
    #: One for each record.
    reasons: tuple[str, ...]


def sift(arrivals: Sequence[Arrival]) -> tuple[list[Arrival], list[Refusal]]:
    """Part arrivals from what of them the store would refuse.

    Returns:
        The arrivals with what can be stored, all of them and in their order, and the refusals.
    """
    good: list[Arrival] = []
    refusals: list[Refusal] = []
    for arrival in arrivals:
        faults = find_faults(arrival.records)
        storable = tuple(record for place, record in enumerate(arrival.records) if place not in faults)
        good.append(replace(arrival, records=storable) if faults else arrival)
        if faults:
            chosen = tuple(arrival.records[place] for place in sorted(faults))
            reasons = tuple(faults[place] for place in sorted(faults))
            refusals.append(Refusal(arrival=arrival, records=chosen, reasons=reasons))
    return good, refusals


def find_faults(records: Sequence[Record]) -> dict[int, str]:
    """Find the records that the store would refuse, by halves: all but a few are good.

    Returns:
        By place: what is wrong with it.
    """
    faults: dict[int, str] = {}
    waiting = [range(len(records))] if records else []
    while waiting:
        part = waiting.pop()
        fault = _fault([records[place] for place in part])
        if fault and len(part) == 1:
            faults[part[0]] = fault
        elif fault:
            middle = len(part) // 2
            waiting += [part[:middle], part[middle:]]
    return faults


def _fault(records: Sequence[Record]) -> str:
    """Why the store would refuse some records, all at once; empty where it would not."""
    try:
        check_flags(records)
        for name in {record.device_id for record in records}:
            check_name("device", name)
        check_columns(records_to_table(records))
    except FAULTS as error:
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def check_flags(records: Sequence[Record]) -> None:
    """Ask each record what it is asked after it was stored: then it would be too late to refuse it.

    Raises:
        AgentError, ValueError, TypeError, AttributeError: One cannot say it.
    """
    for record in records:
        _ = record.record_id, record.is_quarantined, record.is_suspect


def record_ids(records: Sequence[Record]) -> tuple[str, ...]:
    """Ids of refused records, as far as they have any."""
    ids: list[str] = []
    for record in records:
        try:
            ids.append(record.record_id)
        except FAULTS:
            continue  # no spool can have kept it either
    return tuple(ids)


def printable(record: Record) -> object:
    """A record for people: as JSON where it is one, else as Python shows it."""
    try:
        value = record_to_json(record)
        json.dumps(value)
    except FAULTS:
        return repr(record)
    return value


class DeadLetters:
    """Deliveries that were set aside: the lines of each, a JSON object a record.

    Attributes:
        path: The file that keeps them.
        refused: How many refused records there are, those of earlier starts included.
        notes: What was deleted, one line each; whoever tells people clears it.
    """

    def __init__(self, file: StateFile) -> None:
        self._file, self.path = file, file.path
        self.refused = file.letter_rows(REFUSED)
        self.notes: list[str] = []

    def keep_late(self, device_id: DeviceId, lease: LeaseTag, records: Sequence[Record]) -> bool:
        """Keep late records of one lease; they are on the disk when this returns.

        The lease had expired, so the job may have been measured again elsewhere.

        Returns:
            Whether they are new here.

        Raises:
            StoreFull: No room; none of them was kept.
            StoreError: The disk failed.
        """
        delivery = content_hash(lease.job_id, *(record.record_id for record in records))[:12]
        about = {"job_id": lease.job_id, "fencing_token": lease.fencing_token}
        lines = [json.dumps({**about, "record": record_to_json(record)}) for record in records]
        return self._keep(LATE, f"{device_id}/{lease.fencing_token:08d}-{delivery}", lines)

    def keep_refused(self, refusal: Refusal) -> None:
        """Keep refused records with their reasons; they are on the disk when this returns.

        Raises:
            StoreFull: No room; it may be tried again, nothing is counted twice.
            StoreError: The disk failed.
        """
        lease = refusal.arrival.lease
        about = {"job_id": lease.job_id, "fencing_token": lease.fencing_token} if lease is not None else {}
        lines = [
            json.dumps({**about, "reason": reason, "record": printable(record)})
            for record, reason in zip(refusal.records, refusal.reasons, strict=True)
        ]
        name = content_hash(*(f"{line}\n" for line in lines))[:16]
        self._keep(REFUSED, f"{refusal.arrival.device_id}/{name}", lines)
        self.refused = self._file.letter_rows(REFUSED)

    def _keep(self, kind: str, name: str, lines: Sequence[str]) -> bool:
        with self._file.turn() as turn:
            is_new, gone = turn.keep_letter(
                *(kind, name, len(lines), "".join(f"{line}\n" for line in lines).encode()),
                most_rows=MOST_ROWS,
                most_bytes=MOST_BYTES,
            )
        if gone:
            self.notes.append(
                f"the {gone} oldest deliveries of {kind} results in {self.path} were deleted: at most "
                f"{MOST_ROWS} and {MOST_BYTES / 2**20:g} MiB are kept for people to look at"
            )
        return is_new


@dataclass(slots=True)
class Intake:
    """What was done with arrivals."""

    events: list[Event] = field(default_factory=list)
    #: New records by device.
    fresh: dict[DeviceId, list[Record]] = field(default_factory=dict)
    #: To be told to the agents once the events are logged.
    acknowledge: list[tuple[DeviceId, int, tuple[str, ...]]] = field(default_factory=list)
    #: Records that the store refused; they are set aside.
    refusals: list[Refusal] = field(default_factory=list)


class RecordSink:
    """The way of records into the store.

    Attributes:
        letters: Keeps for people what came too late, and what the store would not have; not to be changed by
            others.
    """

    def __init__(
        self,
        store: Store,
        coverage: Coverage,
        tallies: Tallies,
        letters: DeadLetters,
    ) -> None:
        self._store, self.letters = store, letters
        #: Late results that are kept, and not told yet.
        self._untold: list[Event] = []
        self._coverage, self._candidates, self._tallies = coverage, coverage.candidates, tallies
        self._families = coverage.families

    def take(self, arrivals: Sequence[Arrival], state: FleetState) -> Intake:
        """Keep what arrived, in the order in which it came; the state says what each lease is worth.

        Raises:
            StoreFull: No room; nothing was counted, so all of it may be given again.
            StoreError: The disk failed.
        """
        try:
            return self._take(arrivals, state)
        except StoreFull:
            raise
        except FAULTS:
            good, refusals = sift(arrivals)
            if not refusals:
                raise
        for refusal in refusals:
            self.letters.keep_refused(refusal)
        # Whoever measured them is done with them: trying again would give the same.
        for refusal in refusals:
            self._leave(refusal, state)
        intake = self._take(good, state)
        intake.refusals = refusals
        for refusal in refusals:
            arrival, names = refusal.arrival, record_ids(refusal.records)
            intake.acknowledge.append((arrival.device_id, arrival.incarnation, names))
        return intake

    def _take(self, arrivals: Sequence[Arrival], state: FleetState) -> Intake:
        intake = Intake()
        by_verdict = sort(arrivals, state.verdict)
        for arrival in by_verdict[Verdict.LATE]:
            self._keep_late(arrival)
        stored = [*by_verdict[Verdict.COUNTS], *by_verdict[Verdict.REPEATED]]
        records = [record for arrival in stored for record in arrival.records]
        check_flags(records)
        fresh = self._store.take(records)
        intake.events, self._untold = self._untold, []
        self._count(fresh, intake)
        for arrival in by_verdict[Verdict.COUNTS]:
            self._finish(arrival, state, intake)
        for arrival in arrivals:
            names = tuple(record.record_id for record in arrival.records)
            intake.acknowledge.append((arrival.device_id, arrival.incarnation, names))
        return intake

    def unfinished(self, job: Job) -> dict[CandidateId, Candidate | None]:
        """Candidates of a job that the store lacks a result of; None for those whose traces are gone."""
        family, names = self._families[job.device_id], self._tallies.unfinished(job)
        candidates = self._candidates.find(family, job.workload_ids, names)
        by_workload: dict[WorkloadId, list[CandidateId]] = {}
        for name, candidate in candidates.items():
            by_workload.setdefault(candidate.workload_id, []).append(name)
        skipped: set[CandidateId] = set()
        for workload_id, some in by_workload.items():
            skipped |= self._candidates.blocked((family, workload_id)).intersection(some)
            if job.attempt == 0 and job.origin not in REPEATS:
                skipped |= self._coverage.measured_among(job.device_id, workload_id, some)
        return {name: candidates.get(name) for name in names if name not in skipped}

    def _count(self, records: Sequence[Record], intake: Intake) -> None:
        """Tell everybody of records that the store takes in."""
        self._coverage.add(records)
        for record in records:
            intake.fresh.setdefault(record.device_id, []).append(record)
        for device_id, some in intake.fresh.items():
            ok = sum(record.outcome is Outcome.OK for record in some)
            intake.events.append(RecordsStored(device_id=device_id, count=len(some), ok=ok))

    def _finish(self, arrival: Arrival, state: FleetState, intake: Intake) -> None:
        """Tell of a job that has all its records now."""
        if arrival.lease is None:
            return
        self._tallies.add(arrival)
        job_id, fencing_token = JobId(arrival.lease.job_id), arrival.lease.fencing_token
        job = state.job(job_id)
        if job is None or not (arrival.is_last or (arrival.is_leftover and not self.unfinished(job))):
            return
        intake.events.append(
            self._tallies.finish(arrival.device_id, job_id, fencing_token, arrival.incarnation)
        )

    def _leave(self, refusal: Refusal, state: FleetState) -> None:
        """Take refused candidates for finished, as far as their job is concerned, and plan them no more."""
        arrival = refusal.arrival
        if arrival.lease is None:
            return
        job_id = JobId(arrival.lease.job_id)
        if state.verdict(arrival.device_id, job_id, arrival.lease.fencing_token) is Verdict.COUNTS:
            self._tallies.set_aside(job_id, [record.candidate_id for record in refusal.records])
        for record in refusal.records:
            if record.workload_id in self._coverage.workload_ids:
                family = self._families[arrival.device_id]
                self._candidates.block((family, record.workload_id), [record.candidate_id])

    def _keep_late(self, arrival: Arrival) -> None:
        assert arrival.lease is not None
        flags = self._store.are_stored(arrival.records)
        late = [record for record, is_stored in zip(arrival.records, flags, strict=True) if not is_stored]
        if not late or not self.letters.keep_late(arrival.device_id, arrival.lease, late):
            return
        self._untold.append(
            ResultArrivedLate(
                device_id=arrival.device_id,
                job_id=JobId(arrival.lease.job_id),
                fencing_token=arrival.lease.fencing_token,
                incarnation=arrival.incarnation,
                count=len(late),
            )
        )
