"""Records as they arrive from agents: which of them count, and which jobs they complete. Pure.

`fleet.engine.coordinator` asks before it stores anything. It knows leases and jobs by their names, and
neither the store nor the transport.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from agents.device.messages import AgentUp, Message, MorePending, Results, TaggedRecord
from agents.records import CandidateId, DeviceId, LeaseTag, Record
from fleet.core.events import Job, JobFinished, JobId, Verdict

Judge = Callable[[DeviceId, JobId, int], Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Records of one agent under one lease."""

    device_id: DeviceId
    #: Of the agent that delivered them.
    incarnation: int
    #: None for records that no lease made: those of a collection without a coordinator.
    lease: LeaseTag | None
    records: tuple[Record, ...]
    #: Seconds of the device that they took, where it is told.
    device_secs: float = 0.0
    #: No more of this lease comes from this agent.
    is_last: bool = False
    #: From the spool of an earlier life: nobody says which part is the last.
    is_leftover: bool = False


def take_records(messages: deque[Message], most: int) -> list[Message]:
    """Take messages from the front until they hold `most` records; the last one is taken whole."""
    front, records = [], 0
    while messages and records < most:
        message = messages.popleft()
        front.append(message)
        if isinstance(message, AgentUp | MorePending):
            records += len(message.pending)
        elif isinstance(message, Results):
            records += len(message.records)
    return front


def arrivals_of(messages: Iterable[Message]) -> list[Arrival]:
    """The records in some messages, in their order; leftovers of one lease in a message are one arrival."""
    arrivals: list[Arrival] = []
    for message in messages:
        if isinstance(message, AgentUp | MorePending):
            arrivals += _leftovers(message.device_id, message.incarnation, message.pending)
        elif isinstance(message, Results):
            arrivals.append(
                Arrival(
                    device_id=message.device_id,
                    incarnation=message.incarnation,
                    lease=message.lease,
                    records=tuple(message.records),
                    device_secs=message.device_secs,
                    is_last=message.is_last,
                )
            )
    return arrivals


def _leftovers(device_id: DeviceId, incarnation: int, pending: Iterable[TaggedRecord]) -> list[Arrival]:
    by_lease: dict[LeaseTag | None, list[Record]] = {}
    for lease, record in pending:
        by_lease.setdefault(lease, []).append(record)
    return [
        Arrival(
            device_id=device_id,
            incarnation=incarnation,
            lease=lease,
            records=tuple(records),
            is_leftover=True,
        )
        for lease, records in by_lease.items()
    ]


def sort(arrivals: Iterable[Arrival], judge: Judge) -> dict[Verdict, list[Arrival]]:
    """Sort arrivals by what their leases are worth now; records that no lease made count."""
    arrivals_by_verdict: dict[Verdict, list[Arrival]] = {verdict: [] for verdict in Verdict}
    for arrival in arrivals:
        verdict = Verdict.COUNTS
        if arrival.lease is not None:
            verdict = judge(arrival.device_id, JobId(arrival.lease.job_id), arrival.lease.fencing_token)
        arrivals_by_verdict[verdict].append(arrival)
    return arrivals_by_verdict


@dataclass(slots=True)
class _Tally:
    """What was counted of one job."""

    finished: set[CandidateId] = field(default_factory=set)
    record_ids: set[str] = field(default_factory=set)
    outcomes: Counter[str] = field(default_factory=Counter)
    strikes: set[CandidateId] = field(default_factory=set)
    #: Seconds of the device by lease.
    device_secs: dict[int, float] = field(default_factory=dict)


class Tallies:
    """What was counted of the jobs that have not ended; in memory, for the spools tell it again."""

    def __init__(self) -> None:
        self._jobs: dict[JobId, _Tally] = {}

    def add(self, arrival: Arrival) -> None:
        """Count an arrival whose lease counts and whose records are in the store."""
        if arrival.lease is None:
            return
        tally = self._jobs.setdefault(JobId(arrival.lease.job_id), _Tally())
        fencing_token = arrival.lease.fencing_token
        tally.device_secs[fencing_token] = tally.device_secs.get(fencing_token, 0.0) + arrival.device_secs
        for record in arrival.records:
            if record.record_id in tally.record_ids:
                continue
            tally.record_ids.add(record.record_id)
            tally.outcomes[str(record.outcome)] += 1
            tally.finished.add(record.candidate_id)
            if record.is_quarantined:
                tally.strikes.add(record.candidate_id)

    def set_aside(self, job_id: JobId, candidate_ids: Iterable[CandidateId]) -> None:
        """Count candidates whose records the store refused: nothing more is to be had of them."""
        tally = self._jobs.setdefault(job_id, _Tally())
        tally.finished.update(candidate_ids)

    def forget(self, job_id: JobId) -> None:
        """Let go of a job that was cancelled."""
        self._jobs.pop(job_id, None)

    def unfinished(self, job: Job) -> list[CandidateId]:
        """Candidates of a job that have no counted record yet, as far as this knows."""
        tally = self._jobs.get(job.job_id)
        return [
            candidate_id
            for candidate_id in job.candidate_ids
            if tally is None or candidate_id not in tally.finished
        ]

    def finish(self, device_id: DeviceId, job_id: JobId, fencing_token: int, incarnation: int) -> JobFinished:
        """Make the event of a job whose candidates are all in the store, and forget the job."""
        tally = self._jobs.pop(job_id, None) or _Tally()
        return JobFinished(
            device_id=device_id,
            job_id=job_id,
            fencing_token=fencing_token,
            incarnation=incarnation,
            outcomes=dict(tally.outcomes),
            device_secs=tally.device_secs.get(fencing_token, 0.0),
            strikes=tuple(sorted(tally.strikes)),
        )
