"""The second half of a turn: what the state wants is carried out.

`fleet.engine.coordinator` calls it with what is durable already. Nothing here waits.
"""

from __future__ import annotations

from agents.records import DeviceId
from fleet.core import events as ev
from fleet.core.events import Event, Instruction
from fleet.core.request_words import RequestId
from fleet.engine.composition import Composition
from fleet.engine.context import FixedDevices
from fleet.engine.lease_dispatcher import LeaseDispatcher
from fleet.engine.notices import announce_event, announce_instruction
from fleet.engine.request_drivers import RequestDrivers
from fleet.errors import FleetError, StoreFull


class EffectRunner:
    """Does what the state says.

    Attributes:
        fed: Devices that were planned for since the start.
    """

    def __init__(self, parts: Composition, drivers: RequestDrivers) -> None:
        self._parts, self._drivers, self._dispatcher = parts, drivers, LeaseDispatcher(parts)
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
                self._dispatcher.grant(instruction)
            case ev.WantJobs(device_id=device_id, room=room):
                self._wants[device_id] = room
            case ev.StartTraining(family=family, reasons=reasons):
                if parts.trainer is not None:
                    self._flush()  # it reads the table
                    parts.trainer.start(family, reasons)
                else:
                    text = "nothing trains here"
                    done = ev.TrainingFinished(at_secs=parts.clock(), family=family, text=text)
                    parts.event_log.append(done)
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

    def _retire(self, request_id: RequestId, device_id: DeviceId) -> None:
        """Have the file of a device taken away: `DeviceUpdates` sees that, and follows."""
        parts = self._parts
        try:
            (parts.source or FixedDevices({})).retire(device_id)
        except (FleetError, OSError) as error:
            now, reason = parts.clock(), str(error)
            ended = ev.RequestEnded(at_secs=now, request_id=request_id, result={}, reason=reason)
            parts.event_log.append(ended)

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
