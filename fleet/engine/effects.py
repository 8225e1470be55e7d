"""The second half of a turn: what the state wants is carried out.

`fleet.engine.coordinator` calls it with what is durable already. Nothing here waits.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agents.device.messages import Batch
from agents.records import REPEATS, Candidate, DeviceId, Lease, Workload, WorkloadId
from fleet.core import events as ev
from fleet.core.events import Event, GrantLease, Instruction, Job, JobCancelled
from fleet.core.words import RequestId
from fleet.engine.context import Composition
from fleet.engine.notices import announce_event, announce_instruction
from fleet.engine.request_drivers import RequestDrivers
from fleet.errors import FleetError, StoreFull


class EffectRunner:
    """Does what the state says.

    Attributes:
        fed: Devices that were planned for since the start.
    """

    def __init__(self, parts: Composition, drivers: RequestDrivers) -> None:
        self._parts, self._drivers = parts, drivers
        #: Devices that asked for jobs, perhaps before it was known what they measure.
        self._wants: dict[DeviceId, int] = {}
        self.fed: set[DeviceId] = set()

    def do(self, instruction: Instruction) -> None:
        """Carry out one instruction."""
        parts = self._parts
        announce_instruction(instruction, parts.notices)
        match instruction:
            case ev.StartAgent(device_id=device_id, incarnation=incarnation):
                if device_id in parts.roster.specs:
                    parts.transport.start(parts.roster.specs[device_id], incarnation)
            case ev.StopAgent(device_id=device_id, incarnation=incarnation, kill=kill):
                parts.agent_gone(device_id, incarnation)
                parts.transport.stop(device_id, incarnation, kill=kill)
            case ev.GrantLease():
                self._grant(instruction)
            case ev.WantJobs(device_id=device_id, room=room):
                self._wants[device_id] = room
            case ev.StartTraining(family=family, reasons=reasons):
                if parts.trainer is not None:
                    self._flush()  # it reads the table
                    parts.trainer.start(family, reasons)
                else:
                    parts.event_log.append(ev.TrainingFinished(family=family, text="nothing trains here"))
            case ev.StopTraining(family=family) if parts.trainer is not None:
                parts.trainer.stop(family)
            case ev.StartDriver(request_id=request_id):
                self._drivers.start(request_id)
            case ev.StopDriver(request_id=request_id):
                self._drivers.stop(request_id)
            case ev.RetireDevice(request_id=request_id, device_id=device_id):
                self._retire(request_id, device_id)
            case ev.Quarantine(job_id=job_id) if job_id is not None:
                self._drivers.questions.job_ended(job_id)
            case ev.ShowRequest(request_id=request_id):
                parts.desk.show(parts.state, request_id)

    def note(self, event: Event) -> None:
        """Follow up a durable event that concerns the shell itself."""
        parts = self._parts
        announce_event(event, parts.notices)
        match event:
            case ev.JobSubmitted(job=job):
                parts.planner.queues.opened(job)
            case ev.JobFinished(job_id=job_id):
                parts.planner.queues.closed(job_id)
                self._drivers.questions.job_ended(job_id)
            case ev.JobCancelled(job_id=job_id):
                parts.tallies.forget(job_id)
                parts.planner.queues.closed(job_id)
                self._drivers.questions.job_ended(job_id)
            case ev.RequestEnded(request_id=request_id) | ev.RequestCancelled(request_id=request_id):
                self._drivers.without_jobs_of(request_id)
            case ev.DeviceRetired(device_id=device_id):
                self._wants.pop(device_id, None)
                self._drivers.without_jobs_of(device_id)
            case ev.ModelPublished(device_ids=device_ids):
                parts.planner.heads.update(device_ids)
            case ev.ModelRolledBack(device_id=device_id, version=""):
                parts.planner.heads.discard(device_id)

    def _grant(self, grant: GrantLease) -> None:
        """Send what is left of a job to its agent; a job of which nothing can be sent ends."""
        parts = self._parts
        if (job := parts.state.job(grant.job_id)) is None:
            return
        unfinished = parts.record_sink.unfinished(job)
        if gone := sum(candidate is None for candidate in unfinished.values()):
            text = f"{gone} candidates of job {job.job_id} are not in the state file; they are left out"
            parts.notices.log(f"{job.device_id}: {text}")
        workloads = self._workloads(job)
        candidates = [
            # Otherwise its origin is that of the first measurement.
            msgspec.structs.replace(candidate, origin=job.origin) if job.origin in REPEATS else candidate
            for candidate in unfinished.values()
            if candidate is not None and candidate.workload_id in workloads
        ]
        if candidates:
            self._send(grant, job, candidates, workloads)
        elif unfinished:
            count = len(unfinished)
            reason = f"the traces of its {count} candidates are gone, or their workloads are not measured now"
            name = job.device_id
            parts.event_log.append(JobCancelled(device_id=name, job_id=job.job_id, reason=reason))
        else:
            lease = job.device_id, job.job_id, grant.fencing_token, grant.incarnation
            parts.event_log.append(parts.tallies.finish(*lease))

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

    def _retire(self, request_id: RequestId, device_id: DeviceId) -> None:
        """Have the file of a device taken away: `DeviceUpdates` sees that, and follows."""
        parts = self._parts
        try:
            parts.source.retire(device_id)
        except (FleetError, OSError) as error:
            parts.event_log.append(ev.RequestEnded(request_id=request_id, result={}, reason=str(error)))

    def _flush(self) -> None:
        """Bring all rows into the table, as far as the disk has room."""
        try:
            self._parts.store.flush()
        except StoreFull as error:
            self._parts.disk.full(error)

    def feed(self) -> None:
        """Plan for devices that asked for jobs, as far as it is known what they measure."""
        parts = self._parts
        room = {
            device_id: count
            for device_id, count in self._wants.items()
            if device_id in parts.up and parts.planner.workloads_of(device_id)
        }
        for device_id in room:
            del self._wants[device_id]
        if parts.settings.once:
            room = {device_id: count for device_id, count in room.items() if device_id not in self.fed}
        if room:
            self.fed.update(room)
            parts.planner.want(room)
