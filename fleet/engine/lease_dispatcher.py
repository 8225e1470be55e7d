"""From a lease to a batch: fetch the traces of a job's candidates and send them to the agent.

`fleet.engine.coordinator` calls it for every `GrantLease`. Traces come from the pools, else from the store,
which a thread searches meanwhile. Candidates whose traces are nowhere are left out with a word, and a job
that has none left ends: nothing waits for what cannot come. Where the store cannot be read, nobody knows that
they are nowhere: they are left out of this lease only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from agents.device.batch import Batch
from agents.lease import Lease
from agents.records import REPEATS, Candidate, CandidateId, DeviceId, Protocol, Workload, WorkloadId
from fleet.core.arrivals import Tallies
from fleet.core.events import Event, GrantLease, Job, JobCancelled, LeaseReturned
from fleet.coverage.coverage import Coverage
from fleet.engine.lease_searches import LeaseSearch, TraceLookup
from fleet.planner.candidate_pools import CandidatePools
from fleet.planner.job_planner import JobPlanner
from fleet.planner.workload_modules import WorkloadModules
from fleet.results.record_sink import RecordSink
from fleet.store.intake import Intake
from fleet.store.trace_lookup import StoreThread
from fleet.transport.transport import AgentTransport


class LeaseDispatcher:
    """Sends jobs to agents.

    Args:
        coverage: Knows which workload a candidate is of, and is told of those that are nowhere.
        pools: Has traces.
        planner: Knows the workloads of devices.
        modules: Knows those that only requests measure.
        record_sink: Knows what of a job is left.
        intake: Has records that are not in the table yet.
        tallies: Counts by job.
        transport: The way to the agents.
        thread: Searches the store.
        families: Family of every device, those that only the store knows included.
        protocols: How each device is timed.
        say: Told of candidates that are nowhere, and of a store that cannot be read.

    Attributes:
        searching: Knows which leases wait for their traces.
    """

    def __init__(
        self,
        coverage: Coverage,
        pools: CandidatePools,
        planner: JobPlanner,
        modules: WorkloadModules,
        record_sink: RecordSink,
        intake: Intake,
        tallies: Tallies,
        transport: AgentTransport,
        thread: StoreThread,
        families: Mapping[DeviceId, str],
        protocols: Mapping[DeviceId, Protocol],
        say: Callable[[str], None],
    ) -> None:
        self._coverage, self._pools, self._planner, self._modules = coverage, pools, planner, modules
        self._record_sink, self._intake, self._tallies = record_sink, intake, tallies
        self._transport, self._families, self._protocols, self._say = transport, families, protocols, say
        self.searching = TraceLookup(pools, thread, families, coverage.holders, say)

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
        found = self._pools.at_hand(family, job.candidate_ids)
        left = self._record_sink.left(job, found)
        missing = [one for one in left if one not in found]
        for workload_id in job.workload_ids if missing else ():
            found |= self._pools.get(family, workload_id, missing)
            missing = [one for one in missing if one not in found]
        if missing and (searched is None or not set(missing) <= set(searched.missing)):
            self._intake.flush(candidate_ids=missing)
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
        return [self._tallies.finish(job.device_id, job.job_id, grant.fencing_token, grant.incarnation, now)]

    def _workloads(self, job: Job) -> Mapping[WorkloadId, Workload]:
        """What the candidates of a job may be of: what its device measures, or what its request asks for."""
        if not job.request_id:
            return self._planner.workloads_of(job.device_id)
        found = {one: self._modules.get(job.device_id, one) for one in job.workload_ids}
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
            protocol=self._protocols[job.device_id],
            attempt=job.attempt,
            model_version=job.model_version,
        )
        lease = Lease(
            device_id=job.device_id,
            job_id=job.job_id,
            fencing_token=grant.fencing_token,
            deadline_secs=grant.deadline_secs,
        )
        self._transport.measure(lease, grant.incarnation, batch)

    def _drop(self, job: Job, family: str, missing: list[CandidateId]) -> None:
        """Leave candidates alone whose traces are gone; others are proposed in their place."""
        self._say(
            f"{job.device_id}: {len(missing)} candidates of job {job.job_id} are neither in the pools nor in "
            "the store; they are left out"
        )
        for one in missing:
            of = self._coverage.workload_of(family, job.workload_ids, one)
            if of is not None:
                self._coverage.block(family, of, [one])


__all__ = ["LeaseDispatcher"]
