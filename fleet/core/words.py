"""Words that events and instructions are made of: states, jobs, policies, reasons, what all events have.

`fleet.core.events` gives them out again; import them from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NewType

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

    #: Seconds in which coordinators ran; the event log gives them.
    at_secs: float = 0.0


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


# Requests of people and programs, and what happens to them: words and events. Values only.
#
# `fleet.core.events` gives the events out again. The rules are in `request_events.py`.

RequestId = NewType("RequestId", str)


class RequestKind(StrEnum):
    """What is asked for."""

    #: A refresh of the model of a family: `{"family": ...}`.
    TRAINING = "training"
    #: Candidates of workloads, each measured once on every device that is asked for.
    COLLECTION = "collection"
    #: The reference programs of onboardings.
    FINGERPRINT = "fingerprint"
    #: A head for a device from few measured candidates.
    ONBOARDING = "onboarding"
    #: A search for fast programs on a device.
    TUNING = "tuning"
    #: Logs of other tools, read into the store; nothing is measured.
    IMPORT = "import"
    #: How well models rank candidates that they never saw; nothing is measured.
    EVALUATION = "evaluation"
    #: A device leaves the fleet; its records and its model stay.
    RETIREMENT = "retirement"

    @property
    def has_driver(self) -> bool:
        """Whether a driver does it, a process of its own: it measures, reads logs, or judges."""
        return self not in (RequestKind.TRAINING, RequestKind.RETIREMENT)

    @property
    def priority(self) -> int:
        """Which jobs a device does first: arrivals, then tuning, then collections; 0 is the background."""
        return _PRIORITIES.get(self, 0)


_PRIORITIES = {
    RequestKind.ONBOARDING: 3,
    RequestKind.TUNING: 2,
    RequestKind.COLLECTION: 1,
    RequestKind.FINGERPRINT: 1,
}


class RequestState(StrEnum):
    """Where a request is in its life; the last three are ends."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_end(self) -> bool:
        """Whether nothing follows any more."""
        return self not in (RequestState.QUEUED, RequestState.RUNNING)


class Request(Value, frozen=True, kw_only=True):
    """What somebody asks for."""

    #: Of the client's making: sent twice, the request exists once.
    request_id: RequestId
    kind: RequestKind
    #: Plain JSON values by name, checked for the kind before it was submitted.
    arguments: Mapping[str, Any]
    #: Minutes that it may run; None sets no limit.
    minutes: float | None = None

    @property
    def is_embedded(self) -> bool:
        """Whether its driver is in the command that asked for it, and ends with it."""
        return bool(self.arguments.get("embedded"))

    @property
    def is_own_training(self) -> bool:
        """Whether the fleet asked for this training by itself: nobody's request is refused because of it."""
        return self.kind is RequestKind.TRAINING and bool(self.arguments.get("reasons"))

    @property
    def is_background(self) -> bool:
        """Whether its jobs are of the background: it waits for every other request, and holds up none.

        A command that measures fingerprints inside of itself has no background.
        """
        return self.kind is RequestKind.FINGERPRINT and not self.is_embedded

    @property
    def priority(self) -> int:
        """Of its jobs."""
        return 0 if self.is_background else self.kind.priority

    @property
    def device_ids(self) -> frozenset[DeviceId]:
        """The devices that its driver measures on."""
        if not self.kind.has_driver or self.kind in (RequestKind.IMPORT, RequestKind.EVALUATION):
            return frozenset()
        named = self.arguments.get("devices") or [self.arguments.get("device", "")]
        return frozenset(map(DeviceId, named))

    @property
    def family(self) -> str:
        """The family whose model a request for a training is about."""
        assert self.kind is RequestKind.TRAINING
        return str(self.arguments.get("family", ""))


class RequestSubmitted(Fact, frozen=True, kw_only=True):
    """A request waits for its turn. Its id must be new."""

    request: Request


class RequestProgressed(Fact, frozen=True, kw_only=True):
    """A running request has come further."""

    request_id: RequestId
    #: Steps that are done, and of how many; 0 of 0 where nobody knows.
    done: int
    of: int
    #: Seconds that it will still take; None where nobody knows.
    left_secs: float | None = None
    #: The last finding, in one line.
    finding: str = ""
    #: Whether it still measures: the devices of a driver that only computes go on with the background.
    is_measuring: bool = True


class RequestEnded(Fact, frozen=True, kw_only=True):
    """The driver of a request has ended."""

    request_id: RequestId
    #: The request's result, plain JSON values by name.
    result: Mapping[str, Any]
    #: Why it failed; empty where it succeeded.
    reason: str = ""


class RequestCancelled(Fact, frozen=True, kw_only=True):
    """A request is not wanted any more; what works for it alone is stopped."""

    request_id: RequestId
    reason: str = ""


# Numbers of the state's rules: how long a lease lasts, when to try again, what asks for a training.


class Limits(Value, frozen=True, kw_only=True):
    """Numbers of the rules in `state.py`; the defaults fit a fleet of real devices."""

    #: A lease that no heartbeat renews lasts this long.
    lease_secs: float = 60.0
    #: Work without a finished candidate renews a lease for so long: builds and runs have time-outs of their
    #: own far below this.
    stall_secs: float = 300.0
    #: An agent that has not passed its probe after this is stopped and started again.
    start_secs: float = 180.0
    #: Leases of a device at once: one is at work, the next waits with the agent, so that it never idles.
    leases: int = 2
    #: Longest wait before a restart; the first is at once, the next waits 1 s, then twice as long each time.
    restart_wait_secs: float = 60.0
    #: Deaths and refusals in a row, without a finished candidate between, that quarantine a device.
    device_failures: int = 5
    #: A quarantined device is probed again after this.
    quarantine_secs: float = 600.0
    #: Crashes that quarantine a job.
    job_crashes: int = 3
    #: Jobs that a device should have waiting, and candidates of one job: what `WantJobs` asks for, once half
    #: of them are gone.
    queued_jobs: int = 3
    job_candidates: int = 64
    #: Jobs are asked for again if none came.
    want_secs: float = 30.0
    #: Candidates that a device measures for its first head, and again in another environment; 0: neither.
    arrival_samples: int = 0
    return_samples: int = 0
    #: Least time between two onboardings of a device because it drifted.
    drift_pause_secs: float = 3600.0
    #: Devices with a head have their fingerprint measured, once in an environment.
    fingerprints: bool = False
    #: Drivers of requests that run at the same time.
    drivers: int = 2
    #: Measure for requests only: no jobs of the background are asked for or granted.
    requests_only: bool = False
    #: Whether there is a trainer: without one only requests ask for trainings, and get that answer.
    trains: bool = True
    #: New records of a family since its last training that ask for the next: at least so many, and at least
    #: this share of those it was made from.
    training_records: int = 512
    training_share: float = 0.2
    #: New records of a device before its drift, its environment or the lack of a head ask for a training: it
    #: would learn nothing new without them.
    reason_records: int = 64
    #: Least time between the ends of one training and the start of the next, and the first wait after a
    #: failed one, which doubles up to the last.
    training_pause_secs: float = 300.0
    training_retry_secs: float = 60.0
    training_retry_most_secs: float = 3600.0
