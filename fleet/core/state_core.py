"""What the functions of all events share: devices and jobs, triggers, and the last events of each device.

Made by `state.py`. It looks things up and refuses what cannot have happened; it decides nothing.
"""

from __future__ import annotations

from msgspec import Struct, field

from agents.records import DeviceId
from fleet.core import events as ev
from fleet.core.device_state import WITH_AGENT, Device
from fleet.core.events import AgentFact, DeviceFact, Event, Fact, JobId, LeaseFact, Verdict
from fleet.core.job_state import Entry
from fleet.core.leases import Leasing
from fleet.core.refresh_triggers import Triggers
from fleet.core.requests import Requests
from fleet.errors import FleetError

#: Last events of a device that the message of an impossible one shows.
RECENT = 10


class StateError(FleetError):
    """An event that cannot have happened; the message holds the last events of the device."""


class Core(Struct, forbid_unknown_fields=True):
    """Everything that events change; a snapshot of the event log holds its fields."""

    leasing: Leasing = field(default_factory=Leasing)
    triggers: Triggers = field(default_factory=Triggers)
    requests: Requests = field(default_factory=Requests)
    recent: dict[DeviceId, list[Event]] = field(default_factory=dict)

    def verdict(self, device_id: DeviceId, job_id: JobId, fencing_token: int) -> Verdict:
        """Say what results of a lease are worth now; to be asked before they are stored."""
        entry = self.leasing.jobs.get(job_id)
        if entry is not None and entry.fencing_token == fencing_token and entry.job.device_id == device_id:
            return Verdict.COUNTS
        device = self.leasing.devices.get(device_id)
        if device is None:
            return Verdict.LATE
        # A token above the last is of a log that is gone. No job can be counted for it, and nobody took the
        # lease back: its records are as good as any. The token may be granted again meanwhile, to another
        # job, but an agent gets no lease before its spool is stored, and the store knows each record's id.
        if fencing_token in device.counted_tokens or fencing_token > device.fencing_token:
            return Verdict.REPEATED
        return Verdict.LATE

    def device(self, event: DeviceFact | ev.JobSubmitted) -> Device:
        """The device of an event.

        Raises:
            StateError: It was never added.
        """
        device_id = event.device_id if isinstance(event, DeviceFact) else event.job.device_id
        device = self.leasing.devices.get(device_id)
        if device is None:
            raise self.impossible(event, "the device was never added")
        return device

    def lease_holder(self, event: LeaseFact) -> Device:
        """The device of an event that names a lease, which must have been granted."""
        device = self.device(event)
        if not 0 < event.fencing_token <= device.fencing_token:
            raise self.impossible(event, f"its last lease has fencing token {device.fencing_token}")
        if getattr(event, "incarnation", 0) > device.incarnation:
            raise self.impossible(event, f"its last agent has incarnation {device.incarnation}")
        entry = self.leasing.jobs.get(event.job_id)
        if entry is not None and entry.job.device_id != device.device_id:
            raise self.impossible(event, f"the job belongs to {entry.job.device_id}")
        return device

    def entry(self, job_id: JobId) -> Entry:
        """A job that must be there."""
        entry = self.leasing.jobs.get(job_id)
        assert entry is not None
        return entry

    def is_current(self, device: Device, event: AgentFact) -> bool:
        """Whether an event is about the agent that the device has now, not about one that was given up."""
        if event.incarnation > device.incarnation:
            raise self.impossible(event, f"its last agent has incarnation {device.incarnation}")
        return event.incarnation == device.incarnation and device.state in WITH_AGENT

    def remember(self, device_id: DeviceId, event: Event) -> None:
        """Keep an event among the last ones of a device."""
        recent = self.recent.setdefault(device_id, [])
        if recent and isinstance(event, ev.AgentHeartbeat) and isinstance(recent[-1], ev.AgentHeartbeat):
            recent.pop()  # a row of heartbeats would drive out what says more
        recent.append(event)
        del recent[:-RECENT]

    def impossible(self, event: Fact, why: str) -> StateError:
        """The error for an event that cannot have happened."""
        device_id = device_of(event)
        recent = self.recent.get(device_id, ()) if device_id is not None else ()
        lines = "".join(f"\n  {event}" for event in recent) or "\n  none"
        return StateError(
            f"impossible: {why}; got {event}. It is a fault of the coordinator, or the event log is "
            f"not its own. Last events of {device_id or 'the fleet'}:{lines}"
        )


def device_of(event: Fact) -> DeviceId | None:
    """The device that an event is about; None where it is about the fleet."""
    if isinstance(event, ev.JobSubmitted):
        return event.job.device_id
    return event.device_id if isinstance(event, DeviceFact) else None
