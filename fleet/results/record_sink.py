"""What becomes of records that arrived: into the store, or apart if late or refused; and what to tell of it.

`fleet.engine.coordinator` calls it once per turn with all that arrived. The records are on the disk with the
turn's events: in the same transaction of the state file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agents.records import REPEATS, Candidate, CandidateId, DeviceId, Outcome, Record, WorkloadId
from fleet.core.arrivals import Arrival, Tallies, sort
from fleet.core.events import Event, Job, JobId, RecordsStored, ResultArrivedLate, Verdict
from fleet.core.state import FleetState
from fleet.coverage.coverage import Coverage
from fleet.errors import StoreFull
from fleet.planner.candidate_pools import CandidatePools
from fleet.results.dead_letters import DeadLetters
from fleet.results.record_counts import RecordCounts
from fleet.results.refused_records import FAULTS, Refusal, check_flags, record_ids, sift
from fleet.store.store import Store


@dataclass(slots=True)
class Taken:
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
        counts: What the store has, by device; kept up.
        letters: Keeps for people what came too late, and what the store would not have; not to be changed by
            others.
    """

    def __init__(
        self,
        store: Store,
        counts: dict[DeviceId, RecordCounts],
        coverage: Coverage,
        pools: CandidatePools,
        tallies: Tallies,
        families: Mapping[DeviceId, str],
        letters: DeadLetters,
    ) -> None:
        self._store, self.letters = store, letters
        #: Late results that are kept, and not told yet.
        self._untold: list[Event] = []
        self._coverage, self._pools, self._tallies = coverage, pools, tallies
        self._families = families
        self.counts = counts

    @property
    def imported_devices(self) -> list[DeviceId]:
        """Devices with records of workloads that came with a log."""
        return [device_id for device_id, counts in self.counts.items() if counts.imported]

    def kept_notes(self) -> list[str]:
        """Which late and refused results were deleted since the last call, for being too many."""
        notes = list(self.letters.notes)
        self.letters.notes.clear()
        return notes

    def take(self, arrivals: Sequence[Arrival], state: FleetState, now: float) -> Taken:
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
        taken = self._take(good, state, now)
        taken.refusals = refusals
        for refusal in refusals:
            one, names = refusal.arrival, record_ids(refusal.records)
            taken.acknowledge.append((one.device_id, one.incarnation, names))
        return taken

    def _take(self, arrivals: Sequence[Arrival], state: FleetState, now: float) -> Taken:
        taken = Taken()
        found = sort(arrivals, state.verdict)
        for one in found[Verdict.LATE]:
            self._keep_late(one, now)
        stored = [*found[Verdict.COUNTS], *found[Verdict.REPEATED]]
        records = [record for one in stored for record in one.records]
        check_flags(records)
        fresh = self._store.take(records)
        taken.events, self._untold = self._untold, []
        self._count(fresh, taken, now)
        for one in found[Verdict.COUNTS]:
            self._finish(one, state, taken, now)
        for one in arrivals:
            names = tuple(record.record_id for record in one.records)
            taken.acknowledge.append((one.device_id, one.incarnation, names))
        return taken

    def left(self, job: Job, at_hand: Mapping[CandidateId, Candidate]) -> list[CandidateId]:
        """Candidates of a job that the store lacks; those at hand need not be looked for."""
        family, left = self._families[job.device_id], self._tallies.left(job)
        may_skip = job.attempt == 0 and job.origin not in REPEATS
        elsewhere = [one for one in left if one not in at_hand]
        grouped = self._coverage.by_workload(family, job.workload_ids, elsewhere)
        for one in left:
            if one in at_hand:
                grouped.setdefault(at_hand[one].workload_id, []).append(one)
        skipped: set[CandidateId] = set()
        for of, some in grouped.items():
            skipped |= self._coverage.blocked_among(family, of, some)
            skipped |= self._coverage.measured_among(job.device_id, of, some) if may_skip else set()
        return [one for one in left if one not in skipped]

    def _count(self, records: Sequence[Record], taken: Taken, now: float) -> None:
        """Tell everybody of records that the store takes in."""
        self._coverage.add(records)
        for record in records:
            taken.fresh.setdefault(record.device_id, []).append(record)
        measured: dict[tuple[str, WorkloadId], dict[CandidateId, None]] = {}
        for device_id, some in taken.fresh.items():
            counts = self.counts.setdefault(device_id, RecordCounts())
            ok = sum(record.outcome is Outcome.OK for record in some)
            counts.add(len(some), ok, max(record.measured_at for record in some))
            taken.events.append(RecordsStored(at_secs=now, device_id=device_id, count=len(some), ok=ok))
            family = self._families.get(device_id, "")
            for record in some:
                measured.setdefault((family, record.workload_id), {})[record.candidate_id] = None
        for (family, workload_id), ids in measured.items():
            self._pools.measured(family, workload_id, ids)

    def _finish(self, one: Arrival, state: FleetState, taken: Taken, now: float) -> None:
        """Tell of a job that has all its records now."""
        if one.lease is None:
            return
        self._tallies.add(one)
        job_id, fencing_token = JobId(one.lease.job_id), one.lease.fencing_token
        job = state.job(job_id)
        if job is None or not (one.is_last or (one.is_leftover and not self.left(job, {}))):
            return
        taken.events.append(self._tallies.finish(one.device_id, job_id, fencing_token, one.incarnation, now))

    def _leave(self, refusal: Refusal, state: FleetState) -> None:
        """Take refused candidates for finished, as far as their job is concerned, and plan them no more."""
        one = refusal.arrival
        if one.lease is None:
            return
        job_id = JobId(one.lease.job_id)
        if state.verdict(one.device_id, job_id, one.lease.fencing_token) is Verdict.COUNTS:
            self._tallies.set_aside(job_id, [record.candidate_id for record in refusal.records])
        for record in refusal.records:
            if record.workload_id in self._coverage.wanted:
                family = self._families[one.device_id]
                self._coverage.block(family, record.workload_id, [record.candidate_id])

    def _keep_late(self, one: Arrival, now: float) -> None:
        assert one.lease is not None
        known = self._store.known(one.records)
        late = [record for record, is_known in zip(one.records, known, strict=True) if not is_known]
        if not late or not self.letters.keep_late(one.device_id, one.lease, late):
            return
        self._untold.append(
            ResultArrivedLate(
                at_secs=now,
                device_id=one.device_id,
                job_id=JobId(one.lease.job_id),
                fencing_token=one.lease.fencing_token,
                incarnation=one.incarnation,
                count=len(late),
            )
        )
