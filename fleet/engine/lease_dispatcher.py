"""From a lease to a batch: get the traces of a job's candidates and send them to the agent.

`fleet.engine.effects` calls it for every `GrantLease`. Candidates whose traces are nowhere are left out with
a word, and a job that has none left ends: nothing waits for what cannot come.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agents.device.batch import Batch
from agents.lease import Lease
from agents.records import REPEATS, Candidate, CandidateId, Workload, WorkloadId
from fleet.core.events import GrantLease, Job, JobCancelled
from fleet.engine.composition import Composition


class LeaseDispatcher:
    """Sends jobs to agents."""

    def __init__(self, parts: Composition) -> None:
        self._parts, self._families = parts, parts.roster.sharing
        self._candidates = parts.coverage.candidates

    def grant(self, grant: GrantLease) -> None:
        """Send what is left of a job to its agent; a job of which nothing can be sent ends."""
        parts, now = self._parts, self._parts.clock()
        if (job := parts.state.job(grant.job_id)) is None:
            return
        family = self._families[job.device_id]
        candidates = self._candidates.at_hand(family, job.candidate_ids)
        unfinished = parts.record_sink.unfinished(job, candidates)
        missing = [name for name in unfinished if name not in candidates]
        for workload_id in job.workload_ids if missing else ():
            candidates |= self._candidates.get((family, workload_id), missing)
            missing = [name for name in missing if name not in candidates]
        if missing:
            self._drop(job, family, missing)
        workloads = self._workloads(job)
        batch = [
            # Otherwise its origin is that of the first measurement.
            msgspec.structs.replace(candidates[name], origin=job.origin)
            if job.origin in REPEATS
            else candidates[name]
            for name in unfinished
            if name in candidates and candidates[name].workload_id in workloads
        ]
        if batch:
            self._send(grant, job, batch, workloads)
        elif unfinished:
            count = len(unfinished)
            reason = f"the traces of its {count} candidates are gone, or their workloads are not measured now"
            name = job.device_id
            parts.event_log.append(
                JobCancelled(at_secs=now, device_id=name, job_id=job.job_id, reason=reason)
            )
        else:
            lease = job.device_id, job.job_id, grant.fencing_token, grant.incarnation
            parts.event_log.append(parts.tallies.finish(*lease, now))

    def _workloads(self, job: Job) -> Mapping[WorkloadId, Workload]:
        """What the candidates of a job may be of: what its device measures, or what its request asks for.

        While its agent is asked what there is to measure, nobody knows: what was queued before goes on.
        """
        measured = self._parts.planner.workloads_of(job.device_id)
        if measured and not job.request_id:
            return measured
        modules, workload_ids = self._parts.modules, job.workload_ids
        workloads = {workload_id: modules.get(job.device_id, workload_id) for workload_id in workload_ids}
        return {workload_id: workload for workload_id, workload in workloads.items() if workload is not None}

    def _send(
        self,
        grant: GrantLease,
        job: Job,
        candidates: list[Candidate],
        workloads: Mapping[WorkloadId, Workload],
    ) -> None:
        batch = Batch(
            candidates=tuple(candidates),
            workloads={candidate.workload_id: workloads[candidate.workload_id] for candidate in candidates},
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
        self._parts.notices.log(
            f"{job.device_id}: {len(missing)} candidates of job {job.job_id} are not in the state file; "
            "they are left out"
        )
        for workload_id, some in self._candidates.by_workload(family, job.workload_ids, missing).items():
            self._candidates.block((family, workload_id), some)
