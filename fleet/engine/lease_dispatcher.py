"""From a lease to a batch: fetch the traces of a job's candidates and send them to the agent.

`fleet.engine.coordinator` calls it for every `GrantLease`. Traces come from the pools, else from the store,
which a thread searches meanwhile. Candidates whose traces are nowhere are left out with a word, and a job
that has none left ends: nothing waits for what cannot come. Where the store cannot be read, nobody knows that
they are nowhere: they are left out of this lease only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agents.device.batch import Batch
from agents.lease import Lease
from agents.records import REPEATS, Candidate, CandidateId, Workload, WorkloadId
from fleet.core.events import Event, GrantLease, Job, JobCancelled, LeaseReturned
from fleet.engine.composition import Composition
from fleet.planner.lease_searches import LeaseSearch, TraceLookup


class LeaseDispatcher:
    """Sends jobs to agents.

    Attributes:
        searching: Knows which leases wait for their traces.
    """

    def __init__(self, parts: Composition) -> None:
        self._parts, self._families = parts, parts.roster.sharing
        self.searching = TraceLookup(
            parts.pools, parts.thread, self._families, parts.coverage.holders, parts.notices.say
        )

    def grant(
        self, grant: GrantLease, job: Job, now: float, searched: LeaseSearch | None = None
    ) -> list[Event]:
        """Send what is left of a job to its agent.

        Args:
            grant: The lease.
            job: The job.
            now: Seconds that the state goes by.
            searched: What the store was searched for already.

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
            self.searching.look_for(grant, LeaseSearch(job=job, missing=tuple(missing)))
            return []
        workloads = self._workloads(job)
        candidates = [
            # Otherwise its origin is that of the first measurement, which the pools know.
            replace(found[one], origin=job.origin) if job.origin in REPEATS else found[one]
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
