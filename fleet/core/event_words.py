"""Words that events and instructions are made of: states, jobs, policies, reasons, what all events have.

`fleet.core.events` gives them out again; import them from there.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NewType

from agents.records import CandidateId, DeviceId, WorkloadId
from agents.values import Value

JobId = NewType("JobId", str)


class DeviceState(StrEnum):
    """Where a device is in its life."""

    #: Never had an agent.
    UNKNOWN = "unknown"
    #: An agent was asked for; it has not shown yet that it can measure.
    PROBING = "probing"
    #: Its agent waits for work.
    IDLE = "idle"
    #: At least one lease is out.
    LEASED = "leased"
    #: Failed too often in a row; started again after a while.
    QUARANTINED = "quarantined"
    #: Its agent ended; the next start waits for its back-off.
    LOST = "lost"
    #: Not looked after by the coordinator that runs; all that is known of it stays.
    ABSENT = "absent"
    #: Taken out of the fleet.
    RETIRED = "retired"


class JobState(StrEnum):
    """Where a job is in its life; `done` and `cancelled` are ends."""

    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    QUARANTINED = "quarantined"
    CANCELLED = "cancelled"


class Origin(StrEnum):
    """Why candidates are measured; the values are those of `Record.origin`."""

    #: Known on other devices of the family, so that labels line up.
    PAIRED = "paired"
    RANDOM = "random"
    #: Made again in our own design space from the decisions of an imported one.
    DERIVED = "derived"
    EVOLVED = "evolved"
    MODEL = "model"
    REMEASURE = "remeasure"
    NOISE = "noise"


class Busy(StrEnum):
    """What an agent was at when it gave its heartbeat."""

    IDLE = "idle"
    BUILDING = "building"
    TIMING = "timing"


class Verdict(StrEnum):
    """What the results of a lease are worth (`FleetState.verdict`)."""

    #: Store them, then tell of it with `RecordsStored` and `JobFinished`.
    COUNTS = "counts"
    #: The lease was taken back: keep them apart, never count them; tell with `ResultArrivedLate`.
    LATE = "late"
    #: Counted before, or of a job that left with its device or its request, or of an event log that was lost:
    #: store what the store lacks by the record ids, count it for no job, and acknowledge it.
    REPEATED = "repeated"


class ReasonKind(StrEnum):
    """What asks for a training."""

    NEW_RECORDS = "new_records"
    DRIFT = "drift"
    NEW_DEVICE = "new_device"
    NEW_ENVIRONMENT = "new_environment"
    #: Somebody asks for it: at once, and once.
    REQUEST = "request"


class Fact(Value, frozen=True, kw_only=True, tag_field="event", tag=True):
    """What all events have."""

    at_secs: float


class DeviceFact(Fact, frozen=True, kw_only=True):
    """What all events of a device have."""

    device_id: DeviceId


class AgentFact(DeviceFact, frozen=True, kw_only=True):
    """What all events of an agent have."""

    incarnation: int


class LeaseFact(DeviceFact, frozen=True, kw_only=True):
    """What all events of a lease have."""

    job_id: JobId
    fencing_token: int


class TimeWindow(Value, frozen=True, kw_only=True):
    """A part of the day, in seconds since midnight on the device's host; it may reach over midnight."""

    begin_secs: float
    end_secs: float


class DevicePolicy(Value, frozen=True, kw_only=True):
    """When a device may be used and how much of its time may be spent; the values come from configuration."""

    #: Device-seconds that may be spent in one hour and in one day (host's local day); None sets no limit.
    secs_per_hour: float | None = None
    secs_per_day: float | None = None
    #: Leases are granted only while nobody else uses the host.
    idle_only: bool = False
    #: Leases are granted only inside of these; empty means at any time.
    windows: tuple[TimeWindow, ...] = ()

    @property
    def is_limiting(self) -> bool:
        """Whether there may be a time at which it allows no lease."""
        has_budget = self.secs_per_hour is not None or self.secs_per_day is not None
        return has_budget or self.idle_only or bool(self.windows)


class Job(Value, frozen=True, kw_only=True):
    """Candidates of one device that are measured under one lease; ids only."""

    job_id: JobId
    device_id: DeviceId
    workload_ids: tuple[WorkloadId, ...]
    candidate_ids: tuple[CandidateId, ...]
    #: A value of `Origin`; of several kinds in one job, the main one.
    origin: str
    #: Attempt of its records: 0 for the first measurement of the candidates in an environment.
    attempt: int = 0
    #: Device-seconds that it will take, as far as one can tell beforehand; reserved in the budget.
    expected_secs: float = 0.0
    #: Model that chose its candidates; empty where none did.
    model_version: str = ""
    #: The request that it is measured for, empty for the background, and how soon (`RequestKind.priority`).
    request_id: str = ""
    priority: int = 0


class TrainingReason(Value, frozen=True, kw_only=True):
    """One thing that asks for a training of a family's model."""

    kind: ReasonKind
    #: The device that it is about; empty where it is about the whole family.
    device_id: str = ""
    #: One short sentence for people.
    text: str = ""
    #: The request that it comes from; empty for what the state found itself.
    request_id: str = ""
