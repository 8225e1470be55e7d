"""From a lease to a batch: fetch the traces of a job's candidates and send them to the agent.

`fleet.engine.effects` calls it for every `GrantLease`. Traces come from the pools, else from the store, which
a thread searches meanwhile: for several jobs at once, and again after a failure. What is looked for is a
job's: its search goes on while its lease is given back and another is granted, and what is found waits in
memory.

Candidates whose traces are nowhere are left out with a word, and a job that has none left ends: nothing waits
for what cannot come. Where the store cannot be read, nobody knows that they are nowhere: they are left out of
this lease only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from agents.device.batch import Batch
from agents.lease import Lease
from agents.records import REPEATS, Candidate, CandidateId, Workload, WorkloadId
from fleet.core.events import Event, GrantLease, Job, JobCancelled, JobId, LeaseReturned
from fleet.engine.composition import Composition
from fleet.store.trace_lookup import Answer, Found, find_candidates

#: Candidates that are looked for at once: all of them must stay in memory until their batches are sent.
_MOST_AT_ONCE = 1024
#: How often the store is asked again when it cannot be read, and seconds between tries.
TRIES, PAUSE_SECS = 3, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSearch:
    """A search in the store for the traces of one job."""

    job: Job
    missing: tuple[CandidateId, ...]
    failures: int = 0
    #: Why the store could not be read, where it was asked often enough: it may have what is missing.
    unread: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSearches:
    """Searches for jobs of one family, as they come back from the thread."""

    family: str
    searches: tuple[LeaseSearch, ...]


class LeaseDispatcher:
    """Sends jobs to agents, and knows which leases wait for their traces."""

    def __init__(self, parts: Composition) -> None:
        self._parts, self._families = parts, parts.roster.sharing
        #: Jobs that are looked for, each with its present lease, if it has one.
        self._open: dict[JobId, GrantLease | None] = {}
        #: Families for which the store is being searched, and what is to be looked for next.
        self._next: dict[str, list[LeaseSearch]] = {}
        #: Searches that are asked again after a failure, and when.
        self._again: list[tuple[float, LeaseSearch]] = []
        #: The last failure, until the store can be read again.
        self._said = ""

    def grant(
        self, grant: GrantLease, job: Job, now: float, searched: LeaseSearch | None = None
    ) -> list[Event]:
        """Send what is left of a job to its agent; `searched` is what the store was searched for already.

        Returns:
            The end of the job or of its lease, where nothing of it can be sent.

        Raises:
            StoreFull: No room to hand on what is to be searched; to be granted again once there is some.
        """
        family = self._families[job.device_id]
        found = self._parts.pools.at_hand(family, job.candidate_ids)
        left = self._parts.record_sink.left(job, found)
        missing = [one for one in left if one not in found]
        for workload_id in job.workload_ids if missing else ():
            found |= self._parts.pools.get(family, workload_id, missing)
            missing = [one for one in missing if one not in found]
        if missing and (searched is None or not set(missing) <= set(searched.missing)):
            self._parts.intake.flush(candidate_ids=missing)
            self._look_for(grant, LeaseSearch(job=job, missing=tuple(missing)))
            return []
        workloads = self._workloads(job)
        candidates = [
            # Otherwise its origin is that of the first measurement, which the pools know.
            msgspec.structs.replace(found[one], origin=job.origin) if job.origin in REPEATS else found[one]
            for one in left
            if one in found and found[one].workload_id in workloads
        ]
        unread = searched.unread if missing and searched is not None else ""
        if missing and not unread:
            self._drop(job, family, missing)
        if candidates:
            self._send(grant, job, candidates, workloads)
            return []
        if unread:
            reason = f"the store cannot be read for its traces: {unread}"
            return [
                LeaseReturned(
                    at_secs=now,
                    device_id=job.device_id,
                    job_id=job.job_id,
                    fencing_token=grant.fencing_token,
                    reason=reason,
                )
            ]
        if left:
            reason = (
                f"the traces of its {len(left)} candidates are gone, or their workloads are not measured now"
            )
            return [JobCancelled(at_secs=now, device_id=job.device_id, job_id=job.job_id, reason=reason)]
        return [
            self._parts.tallies.finish(job.device_id, job.job_id, grant.fencing_token, grant.incarnation, now)
        ]

    @property
    def unsent(self) -> set[JobId]:
        """Jobs whose leases wait for their traces: their agents know nothing of them."""
        return {job_id for job_id, grant in self._open.items() if grant is not None}

    def waiting(self, deadline_secs: float) -> list[GrantLease]:
        """Leases that wait for their traces, and as far as is known here do not run beyond a time."""
        return [one for one in self._open.values() if one is not None and one.deadline_secs <= deadline_secs]

    def renewed(self, grant: GrantLease) -> None:
        """Note that a lease runs longer than was known."""
        self._open[grant.job_id] = grant

    def let_go(self, job_id: JobId) -> None:
        """Note that a job has no lease any more; what is found for it waits in memory."""
        self._open[job_id] = None

    def look_again(self, now: float) -> None:
        """Ask again what failed a while ago."""
        due = [search for at_secs, search in self._again if at_secs <= now]
        if due:
            self._again = [one for one in self._again if one[0] > now]
            self._queue(due)

    def answered(
        self, asked: LeaseSearches, answer: Answer, now: float
    ) -> list[tuple[GrantLease, LeaseSearch]]:
        """Take in what the store had.

        Returns:
            Leases that can be gone on with, and what was looked for.
        """
        found: Found = answer.value or Found()
        error = answer.error or found.unread
        self._parts.pools.remember(asked.family, found.candidates)
        ready: list[tuple[GrantLease, LeaseSearch]] = []
        for one in asked.searches:
            search, grant = one, self._open[one.job.job_id]
            if error and len(self._parts.pools.at_hand(asked.family, one.missing)) < len(one.missing):
                search = replace(one, failures=one.failures + 1)
                if grant is not None and search.failures < TRIES:
                    self._again.append((now + PAUSE_SECS, search))
                    continue
                search = replace(search, unread=error)
            del self._open[one.job.job_id]
            if grant is not None:
                ready.append((grant, search))
        if error and error != self._said:
            self._parts.notices.say(
                f"the store cannot be read for the traces of leases, they are asked for again: {error}"
            )
        self._said = error
        waiting = self._next.pop(asked.family, [])
        if waiting:
            self._ask(asked.family, waiting)
        return ready

    def _look_for(self, grant: GrantLease, search: LeaseSearch) -> None:
        """Have the traces of a lease looked for, unless they are already for an earlier lease of the job."""
        is_new = grant.job_id not in self._open
        self._open[grant.job_id] = grant
        if is_new:
            self._queue([search])

    def _queue(self, searches: list[LeaseSearch]) -> None:
        for one in searches:
            family = self._families[one.job.device_id]
            if family in self._next:
                self._next[family].append(one)
            else:
                self._ask(family, [one])

    def _ask(self, family: str, searches: list[LeaseSearch]) -> None:
        """Search for several jobs at once: it takes as long as for one."""
        count, wanted = 0, set[CandidateId]()
        while count < len(searches) and len(wanted) < _MOST_AT_ONCE:
            wanted.update(searches[count].missing)
            count += 1
        self._next[family] = searches[count:]
        devices_of_family = [one for one, other in self._families.items() if other == family]
        first = frozenset(self._parts.coverage.holders(family, wanted))
        question = partial(find_candidates, device_ids=devices_of_family, wanted=wanted, first=first)
        self._parts.thread.ask(LeaseSearches(family=family, searches=tuple(searches[:count])), question)

    def _workloads(self, job: Job) -> Mapping[WorkloadId, Workload]:
        """What the candidates of a job may be of: what its device measures, or what its request asks for.

        While its agent is asked what there is to measure, nobody knows: what was queued before goes on.
        """
        measured = self._parts.planner.workloads_of(job.device_id)
        if measured and not job.request_id:
            return measured
        found = {one: self._parts.modules.get(job.device_id, one) for one in job.workload_ids}
        return {one: workload for one, workload in found.items() if workload is not None}

    def _send(
        self,
        grant: GrantLease,
        job: Job,
        candidates: list[Candidate],
        workloads: Mapping[WorkloadId, Workload],
    ) -> None:
        batch = Batch(
            candidates=tuple(candidates),
            workloads={one.workload_id: workloads[one.workload_id] for one in candidates},
            protocol=self._parts.roster.protocols[job.device_id],
            attempt=job.attempt,
            model_version=job.model_version,
        )
        lease = Lease(
            device_id=job.device_id,
            job_id=job.job_id,
            fencing_token=grant.fencing_token,
            deadline_secs=grant.deadline_secs,
        )
        self._parts.transport.measure(lease, grant.incarnation, batch)

    def _drop(self, job: Job, family: str, missing: list[CandidateId]) -> None:
        """Leave candidates alone whose traces are gone; others are proposed in their place."""
        self._parts.notices.say(
            f"{job.device_id}: {len(missing)} candidates of job {job.job_id} are neither in the pools nor in "
            "the store; they are left out"
        )
        for of, some in self._parts.coverage.by_workload(family, job.workload_ids, missing).items():
            self._parts.coverage.block(family, of, some)
