"""The state of the fleet: events in, instructions out. Pure: no clock, no Ray, no disk, no random.

The coordinator applies what it saw and carries out what is answered; after a restart the logged events are
applied again and give the same state. What each event does is in `device_events.py` and
`model_events.py`, by the rules of `leases.py`, `policies.py` and `refresh_triggers.py`.

Time is that of the events: the seconds in which coordinators ran. Only budgets and windows go by the wall
clock, whose distance the state knows (`ClockSet`).

A lease ends in one of four ways. *Finished*: its results were counted. *Released*: the agent or the
coordinator died; what its spool still holds counts until the job is leased again or ended. *Expired*: no
heartbeat renewed it; its results are late for ever, because its agent may be a zombie that measures on.
*Returned*: its batch was never sent, so there are no results and nobody is to blame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import convert, to_builtins

from agents.records import DeviceId
from fleet.core import device_events, model_events, request_events
from fleet.core import events as ev
from fleet.core.events import Event, Instruction, Job, JobId, JobState
from fleet.core.requests import reserve_devices
from fleet.core.state_core import Core, StateError, device_of
from fleet.core.words import Limits, Request, RequestId

#: Version of `FleetState.to_json`.
_SCHEMA = 2


class FleetState(Core, forbid_unknown_fields=True):
    """Devices, jobs, leases, budgets, requests and the training of a fleet, for the shell.

    The limits of its `leasing` hold until a `CoordinatorStarted` brings others.
    """

    # ---- what the shell calls ----

    def apply(self, event: Event) -> list[Instruction]:
        """Take in one event; the same events give the same instructions and the same state.

        Args:
            event: What happened. Time that goes back is taken as standing still, but for the start of a
                coordinator.

        Returns:
            What is to be done, in this order.

        Raises:
            StateError: It cannot have happened. The state is as it was.
        """
        leasing = self.leasing
        before = leasing.now
        leasing.now = max(before, event.at_secs)
        try:
            instructions = _HANDLERS[type(event)](self, event)
        except StateError:
            leasing.now = before
            raise
        device_id = device_of(event)
        if device_id is not None:
            self.remember(device_id, event)
        if not leasing.is_stopping and not leasing.is_full:
            instructions += request_events.ask_for_training(self)
        return instructions

    def is_news(self, event: Event) -> bool:
        """Whether an event changes anything: many heartbeats and ticks do not; the event log lacks them.

        One that is no news must not be applied either, or a replay of the log would miss it.
        """
        leasing = self.leasing
        if isinstance(event, ev.AgentHeartbeat):
            device = leasing.devices.get(event.device_id)
            return device is None or device.is_news(event, leasing.limits)
        if isinstance(event, ev.Tick):
            is_quiet = leasing.is_stopping or leasing.is_full
            if not is_quiet and self.triggers.is_ready(event.at_secs, leasing.limits):
                return True
            return min(leasing.next_wake(), self.requests.next_secs()) <= event.at_secs
        return True

    def at_work(self, device_id: DeviceId) -> tuple[JobId, int] | None:
        """Job and fencing token of the lease that a device works on; None where it has no lease."""
        device = self.leasing.devices.get(device_id)
        lease = device.front() if device else None
        return (lease.job_id, lease.fencing_token) if lease else None

    def job(self, job_id: JobId) -> Job | None:
        """A job that is queued, leased or quarantined; None for one that ended or never was."""
        entry = self.leasing.jobs.get(job_id)
        return entry.job if entry else None

    def jobs(self) -> list[Job]:
        """All jobs that are queued, leased or quarantined, in the order in which they were submitted."""
        return [entry.job for entry in self.leasing.jobs.entries.values()]

    def job_state(self, job_id: JobId) -> JobState | None:
        """State of a job; None for one that ended or never was."""
        entry = self.leasing.jobs.get(job_id)
        return entry.state if entry else None

    def job_counts(self) -> dict[JobState, int]:
        """Jobs by state; done, quarantined and cancelled ones since the beginning of the event log."""
        return dict(self.leasing.jobs.counts)

    @property
    def jobs_submitted(self) -> int:
        """Jobs that were ever submitted: the sum of `job_counts`."""
        return self.leasing.jobs.submitted

    @property
    def wall_ahead_secs(self) -> float:
        """How far the wall clock is ahead of the time of the events."""
        return self.leasing.wall_ahead_secs

    @property
    def limits(self) -> Limits:
        """The rules in force."""
        return self.leasing.limits

    def device_ids(self) -> list[DeviceId]:
        """All devices that were ever added, in that order."""
        return list(self.leasing.devices)

    def unsteady(self) -> list[DeviceId]:
        """Devices that drift, and were not told to be steady again."""
        return [device.device_id for device in self.leasing.devices.values() if device.is_unsteady]

    def describe(self, device_id: DeviceId) -> dict[str, Any]:
        """One device for status and API, JSON-ready; see `Device.describe`, and `queued` jobs."""
        leasing = self.leasing
        device = leasing.devices[device_id].describe(leasing.now, leasing.wall_ahead_secs)
        return device | {"queued": leasing.jobs.queued(device_id)}

    def training(self) -> dict[str, Any]:
        """The training, JSON-ready: state (idle, asked, running), since, family, reasons, last, failures."""
        return self.triggers.describe(self.leasing.wall_ahead_secs)

    def request_ids(self) -> list[RequestId]:
        """All requests that are open, and the last of those that have ended, in the order of their coming."""
        return list(self.requests.entries)

    def request(self, request_id: RequestId) -> dict[str, Any] | None:
        """One request for its clients, JSON-ready (`RequestEntry.describe`); None where none has this id."""
        entry = self.requests.get(request_id)
        return entry.describe(self.leasing.wall_ahead_secs) if entry is not None else None

    def open_request(self, request_id: RequestId) -> Request | None:
        """One request that has not ended; None where none of this id is open."""
        entry = self.requests.get(request_id)
        return None if entry is None or entry.state.is_end else entry.request

    def open_requests(self) -> list[Request]:
        """Requests that have not ended, in the order of their coming."""
        return [entry.request for entry in self.requests.open()]

    def to_json(self) -> dict[str, Any]:
        """The whole state, JSON-ready, for a snapshot of the event log."""
        return {"schema": _SCHEMA, "rules": ev.RULES, **to_builtins(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FleetState:
        """Make the state that `to_json` wrote.

        Raises:
            StateError: It was written by another version.
            msgspec.ValidationError: It is no state.
        """
        versions = {"schema": _SCHEMA, "rules": ev.RULES}
        for key, version in versions.items():
            if value.get(key) != version:
                raise StateError(f"its snapshot has {key} {value.get(key)!r}, this version reads {version}")
        state = convert({key: value[key] for key in value.keys() - versions.keys()}, cls)
        reserve_devices(state)
        return state


_HANDLERS: dict[type[Any], Callable[[Core, Any], list[Instruction]]] = {
    ev.CoordinatorStarted: device_events.coordinator_started,
    ev.ClockSet: device_events.clock_set,
    ev.CoordinatorStopping: device_events.coordinator_stopping,
    ev.DeviceAdded: device_events.device_added,
    ev.DeviceChanged: device_events.device_changed,
    ev.DeviceLeftOut: device_events.device_left_out,
    ev.DeviceRetired: device_events.device_retired,
    ev.AgentStarted: device_events.agent_started,
    ev.ProbePassed: device_events.probe_passed,
    ev.ProbeRefused: device_events.probe_refused,
    ev.AgentHeartbeat: device_events.agent_heartbeat,
    ev.AgentDied: device_events.agent_died,
    ev.JobSubmitted: device_events.job_submitted,
    ev.JobFinished: device_events.job_finished,
    ev.JobCrashed: device_events.job_crashed,
    ev.JobCancelled: device_events.job_cancelled,
    ev.LeaseReturned: device_events.lease_returned,
    ev.ResultArrivedLate: device_events.result_arrived_late,
    ev.DriftAlarm: model_events.drift_alarm,
    ev.DriftEnded: model_events.drift_ended,
    ev.RecordsStored: model_events.records_stored,
    ev.TrainingStarted: model_events.training_started,
    ev.TrainingFinished: model_events.training_finished,
    ev.TrainingFailed: model_events.training_failed,
    ev.ModelPublished: model_events.model_published,
    ev.ModelRolledBack: model_events.model_rolled_back,
    ev.DiskFull: device_events.disk_full,
    ev.DiskFreed: device_events.disk_freed,
    ev.Tick: device_events.tick,
    ev.RequestSubmitted: request_events.request_submitted,
    ev.RequestProgressed: request_events.request_progressed,
    ev.RequestEnded: request_events.request_ended,
    ev.RequestCancelled: request_events.request_cancelled,
}
