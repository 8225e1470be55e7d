"""What the state asks of the shell; `fleet.core.events` gives these out again, import them from there.

They are never logged: the same events give the same instructions again.
"""

from __future__ import annotations

from agents.records import DeviceId
from agents.values import Value
from fleet.core.words import JobId, RequestId, TrainingReason


class StartAgent(Value, frozen=True, kw_only=True):
    """Start an agent; `AgentStarted`, `ProbeRefused` or `AgentDied` of this incarnation follows."""

    device_id: DeviceId
    incarnation: int


class StopAgent(Value, frozen=True, kw_only=True):
    """Stop an agent, with `kill` at once. Nothing needs to follow: the state counts it as gone already."""

    device_id: DeviceId
    incarnation: int
    kill: bool


class GrantLease(Value, frozen=True, kw_only=True):
    """Send a job to its agent."""

    device_id: DeviceId
    incarnation: int
    fencing_token: int
    job_id: JobId
    #: Time of the events at which it expires if no heartbeat renews it; renewals are not told to the agent.
    deadline_secs: float


class StartTraining(Value, frozen=True, kw_only=True):
    """Train the model of a family; `TrainingStarted` and then `TrainingFinished` or `-Failed` follow."""

    family: str
    reasons: tuple[TrainingReason, ...]


class StopTraining(Value, frozen=True, kw_only=True):
    """End the training of a family: nobody waits for it any more, and nothing of it is told from here on."""

    family: str


class StartDriver(Value, frozen=True, kw_only=True):
    """Start the driver of a request, which may have been begun before; `RequestEnded` follows."""

    request_id: RequestId


class StopDriver(Value, frozen=True, kw_only=True):
    """End the driver of a request: nothing of it is told from here on."""

    request_id: RequestId


class RetireDevice(Value, frozen=True, kw_only=True):
    """Take the file of a device away; `DeviceRetired` follows, or `RequestEnded` with the reason why not."""

    request_id: RequestId
    device_id: DeviceId


class ShowRequest(Value, frozen=True, kw_only=True):
    """A request is another than it was: tell those who follow it or wait for an answer."""

    request_id: RequestId


class Quarantine(Value, frozen=True, kw_only=True):
    """A device (`job_id` None) or a job was quarantined: show it."""

    device_id: DeviceId
    job_id: JobId | None
    reason: str


class WantJobs(Value, frozen=True, kw_only=True):
    """The queue of a device runs low: plan about `room` candidates for it (`scheduling.plan`)."""

    device_id: DeviceId
    room: int


Instruction = (
    StartAgent
    | StopAgent
    | GrantLease
    | StartTraining
    | StopTraining
    | StartDriver
    | StopDriver
    | RetireDevice
    | ShowRequest
    | Quarantine
    | WantJobs
)
