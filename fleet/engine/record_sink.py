"""What becomes of records that arrived: into the store, or apart if late or refused; and what to tell of it.

`fleet.engine.coordinator` calls it once per turn with all that arrived. The records are on the disk with the
turn's events: in the same transaction of the state file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agents.records import REPEATS, Candidate, CandidateId, DeviceId, Outcome, Record
from fleet.core.arrivals import Arrival, Tallies, sort
from fleet.core.events import Event, Job, JobId, RecordsStored, ResultArrivedLate, Verdict
from fleet.core.state import FleetState
from fleet.coverage.coverage import Coverage
from fleet.engine.set_aside import FAULTS, DeadLetters, Refusal, check_flags, record_ids, sift
from fleet.errors import StoreFull
from fleet.store.store import Store


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
        families: Mapping[DeviceId, str],
        letters: DeadLetters,
    ) -> None:
        self._store, self.letters = store, letters
        #: Late results that are kept, and not told yet.
        self._untold: list[Event] = []
        self._coverage, self._candidates, self._tallies = coverage, coverage.candidates, tallies
        self._families = families

    def kept_notes(self) -> list[str]:
        """Which late and refused results were deleted since the last call, for being too many."""
        notes = list(self.letters.notes)
        self.letters.notes.clear()
        return notes

    def take(self, arrivals: Sequence[Arrival], state: FleetState, now: float) -> Intake:
        """Keep what arrived, in the order in which it came; the state says what each lease is worth.

        Raises:
            StoreFull: No room; nothing was counted, so all of it may be given again.
            StoreError: The disk failed.
        """
        try:
            return self._take(arrivals, state, now)
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
        intake = self._take(good, state, now)
        intake.refusals = refusals
        for refusal in refusals:
            arrival, names = refusal.arrival, record_ids(refusal.records)
            intake.acknowledge.append((arrival.device_id, arrival.incarnation, names))
        return intake

    def _take(self, arrivals: Sequence[Arrival], state: FleetState, now: float) -> Intake:
        intake = Intake()
        by_verdict = sort(arrivals, state.verdict)
        for arrival in by_verdict[Verdict.LATE]:
            self._keep_late(arrival, now)
        stored = [*by_verdict[Verdict.COUNTS], *by_verdict[Verdict.REPEATED]]
        records = [record for arrival in stored for record in arrival.records]
        check_flags(records)
        fresh = self._store.take(records)
        intake.events, self._untold = self._untold, []
        self._count(fresh, intake, now)
        for arrival in by_verdict[Verdict.COUNTS]:
            self._finish(arrival, state, intake, now)
        for arrival in arrivals:
            names = tuple(record.record_id for record in arrival.records)
            intake.acknowledge.append((arrival.device_id, arrival.incarnation, names))
        return intake

    def unfinished(self, job: Job, at_hand: Mapping[CandidateId, Candidate]) -> list[CandidateId]:
        """Candidates of a job that the store lacks; those at hand need not be looked for."""
        family, unfinished = self._families[job.device_id], self._tallies.unfinished(job)
        may_skip = job.attempt == 0 and job.origin not in REPEATS
        elsewhere = [candidate_id for candidate_id in unfinished if candidate_id not in at_hand]
        grouped = self._candidates.by_workload(family, job.workload_ids, elsewhere)
        for candidate_id in unfinished:
            if candidate_id in at_hand:
                grouped.setdefault(at_hand[candidate_id].workload_id, []).append(candidate_id)
        skipped: set[CandidateId] = set()
        for of, some in grouped.items():
            skipped |= self._candidates.blocked((family, of)).intersection(some)
            skipped |= self._coverage.measured_among(job.device_id, of, some) if may_skip else set()
        return [candidate_id for candidate_id in unfinished if candidate_id not in skipped]

    def _count(self, records: Sequence[Record], intake: Intake, now: float) -> None:
        """Tell everybody of records that the store takes in."""
        self._coverage.add(records)
        for record in records:
            intake.fresh.setdefault(record.device_id, []).append(record)
        for device_id, some in intake.fresh.items():
            ok = sum(record.outcome is Outcome.OK for record in some)
            intake.events.append(RecordsStored(at_secs=now, device_id=device_id, count=len(some), ok=ok))

    def _finish(self, arrival: Arrival, state: FleetState, intake: Intake, now: float) -> None:
        """Tell of a job that has all its records now."""
        if arrival.lease is None:
            return
        self._tallies.add(arrival)
        job_id, fencing_token = JobId(arrival.lease.job_id), arrival.lease.fencing_token
        job = state.job(job_id)
        if job is None or not (arrival.is_last or (arrival.is_leftover and not self.unfinished(job, {}))):
            return
        intake.events.append(
            self._tallies.finish(arrival.device_id, job_id, fencing_token, arrival.incarnation, now)
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

    def _keep_late(self, arrival: Arrival, now: float) -> None:
        assert arrival.lease is not None
        flags = self._store.are_stored(arrival.records)
        late = [record for record, is_stored in zip(arrival.records, flags, strict=True) if not is_stored]
        if not late or not self.letters.keep_late(arrival.device_id, arrival.lease, late):
            return
        self._untold.append(
            ResultArrivedLate(
                at_secs=now,
                device_id=arrival.device_id,
                job_id=JobId(arrival.lease.job_id),
                fencing_token=arrival.lease.fencing_token,
                incarnation=arrival.incarnation,
                count=len(late),
            )
        )
