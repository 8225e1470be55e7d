"""What happened in the fleet, and what is to be done about it: the words between `state.py` and the shell.

An event is a fact that the coordinator saw; it carries its own time, so the state needs no clock, and it can
be written to the event log. That time, `at_secs`, is Unix time at the start of a
coordinator and goes on while it runs. It neither jumps nor goes back with the wall clock, which `ClockSet`
tells.

An instruction is what the shell carries out; instructions are never logged, because applying the same
events gives the same ones again. All are frozen values: ids and counts only, no traces, no processes, no
paths.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from msgspec import convert, field, to_builtins

from agents.records import CandidateId, DeviceId
from agents.values import Value
from fleet.core.instructions import (
    GrantLease,
    Instruction,
    Quarantine,
    RetireDevice,
    ShowRequest,
    StartAgent,
    StartDriver,
    StartTraining,
    StopAgent,
    StopDriver,
    StopTraining,
    WantJobs,
)
from fleet.core.words import (
    AgentFact,
    Busy,
    DeviceFact,
    DevicePolicy,
    DeviceState,
    Fact,
    Job,
    JobId,
    JobState,
    LeaseFact,
    Limits,
    Origin,
    ReasonKind,
    RequestCancelled,
    RequestEnded,
    RequestProgressed,
    RequestSubmitted,
    TimeWindow,
    TrainingReason,
    Verdict,
)

#: Version of the rules by which the state decides: a log of others would be replayed differently.
RULES = 8


class CoordinatorStarted(Fact, frozen=True, kw_only=True):
    """A coordinator took over: every agent of the one before is gone, every lease is released.

    `StartAgent` follows for every device that is neither retired, absent nor quarantined.
    """

    #: Records of each device in the store: the truth that the state's own counts are set to. Devices that
    #: are not named keep theirs.
    records: Mapping[DeviceId, int] = field(default_factory=dict)
    #: Rules from here on; None keeps those before. They are part of the fact, because the same events must
    #: give the same state again after the configuration was changed.
    limits: Limits | None = None
    #: Version of the rules by which it decided; the state refuses others.
    rules: int = RULES


class ClockSet(Fact, frozen=True, kw_only=True):
    """The wall clock is not where it was: somebody set it, or the coordinator did not run for a while.

    Budgets and windows go by it, and nothing else.
    """

    #: Unix seconds that it shows.
    wall_secs: float


class CoordinatorStopping(Fact, frozen=True, kw_only=True):
    """No lease is granted and no agent is started any more; running leases may end."""


class DeviceAdded(DeviceFact, frozen=True, kw_only=True):
    """A device belongs to the fleet. Told again for a known device it changes what is said here only."""

    #: A value of `Family`.
    family: str
    policy: DevicePolicy = field(default_factory=DevicePolicy)
    #: Devices with the same text here take turns for what times their programs; empty: it shares with nobody.
    neighbourhood: str = ""


class DeviceChanged(DeviceFact, frozen=True, kw_only=True):
    """Another spec holds for a device: its agent is ended and started anew, its jobs wait for that."""

    reason: str = ""


class DeviceLeftOut(DeviceFact, frozen=True, kw_only=True):
    """A device is not looked after by this coordinator: it gets no agent, and keeps jobs and model.

    `DeviceAdded` brings it back. A retired device stays retired.
    """

    reason: str = ""


class DeviceRetired(DeviceFact, frozen=True, kw_only=True):
    """A device left the fleet: its jobs are cancelled, its agent is stopped. `DeviceAdded` brings it back.

    What its spool still holds is stored then, and counts for no job.
    """

    reason: str = ""


class AgentStarted(AgentFact, frozen=True, kw_only=True):
    """The agent's process is there; whether it can measure, the probe tells next."""


class ProbePassed(AgentFact, frozen=True, kw_only=True):
    """The device is what its file claims: it may get leases.

    The shell tells this after it has taken in what the agent's spool still held, because a lease that is
    granted now makes results of the job's earlier lease late.
    """

    environment_id: str
    #: Seconds that the host's local time is ahead of UTC just now; None where it is not known (taken as 0).
    utc_offset_secs: float | None = None
    #: Name of its host.
    host: str = ""


class ProbeRefused(AgentFact, frozen=True, kw_only=True):
    """The device is not what its file claims, or the agent could not begin (`AgentRefused`)."""

    reason: str


class AgentHeartbeat(AgentFact, frozen=True, kw_only=True):
    """A sign of life. It renews the device's leases where it shows progress, or work that may end in some.

    Not every heartbeat is worth its place in the event log: ask `FleetState.is_news`, and neither log nor
    apply one that is none.
    """

    #: The lease at work; None where the agent has none.
    fencing_token: int | None = None
    #: Candidates finished in that lease.
    done: int = 0
    busy: Busy = Busy.IDLE
    #: Whether nobody else uses the host; None where the agent does not look. Read by `idle_only`.
    is_host_idle: bool | None = None
    #: As in `ProbePassed`; None leaves it as it was.
    utc_offset_secs: float | None = None


class AgentDied(AgentFact, frozen=True, kw_only=True):
    """The agent ended without being asked to, or is out of reach. Its leases are released.

    No job is blamed by this alone; where the death is a job's doing (`FleetState.at_work` names the lease),
    `JobCrashed` says so, before or after.
    """

    reason: str
    #: Nothing is heard of it or of its host, which may be asleep or cut off: it counts against nobody.
    is_outage: bool = False


class JobSubmitted(Fact, frozen=True, kw_only=True):
    """A job waits for its device. Its id must be new."""

    job: Job


class JobFinished(LeaseFact, frozen=True, kw_only=True):
    """Every candidate of a job has its record in the store. Counted only if `FleetState.verdict` says so."""

    #: Of the agent that delivered the results; it may be a later one than that which measured.
    incarnation: int
    #: Records by outcome.
    outcomes: Mapping[str, int]
    #: Seconds of the device that the lease took.
    device_secs: float
    #: Candidates that killed a worker process.
    strikes: tuple[CandidateId, ...] = ()


class JobCrashed(LeaseFact, frozen=True, kw_only=True):
    """The agent died of a job under one lease; the third time quarantines the job.

    Under a running lease this tells of the agent's death too, so that `AgentDied` may follow or not.
    """

    stderr_tail: str = ""


class JobCancelled(DeviceFact, frozen=True, kw_only=True):
    """A queued or leased job is not wanted any more; what a lease that runs still delivers is late."""

    job_id: JobId
    reason: str = ""


class LeaseReturned(LeaseFact, frozen=True, kw_only=True):
    """A lease ends early, and nobody is to blame: it was not sent, or its agent left it unfinished.

    A job of which nothing was sent waits behind all others of its device; one that was begun is the next.
    """

    reason: str = ""
    #: Whether the job was begun: the results that it has brought count.
    has_results: bool = False


class ResultArrivedLate(LeaseFact, frozen=True, kw_only=True):
    """Records of a lease that was taken back arrived. They are kept apart and counted as late only."""

    incarnation: int
    #: Records that arrived.
    count: int


class DriftAlarm(DeviceFact, frozen=True, kw_only=True):
    """A device no longer behaves as its champion has learned it."""

    text: str = ""
    #: Whether most of its last records are suspect: `DriftEnded` tells when that is over.
    is_unsteady: bool = False


class DriftEnded(DeviceFact, frozen=True, kw_only=True):
    """A device that drifted is steady again: as it was before, or at another level for good."""


class RecordsStored(DeviceFact, frozen=True, kw_only=True):
    """The store took in records of a device that it did not have before. Repeats are not told."""

    #: New records, and how many of them are `ok`.
    count: int
    ok: int = 0


class TrainingStarted(Fact, frozen=True, kw_only=True):
    """The training that was asked for runs."""

    family: str


class TrainingFinished(Fact, frozen=True, kw_only=True):
    """The training ended and its challengers were judged, whether or not one was published."""

    family: str
    #: Version that it made; empty where nothing was kept.
    version: str = ""
    #: How it ended, for people.
    text: str = ""
    #: Devices that it serves from now on, and those that keep what they had, each with the reason.
    serves: Mapping[str, str] = field(default_factory=dict)
    kept_champions: Mapping[str, str] = field(default_factory=dict)


class TrainingFailed(Fact, frozen=True, kw_only=True):
    """The training ended without a model; it is asked for again after a back-off."""

    family: str
    reason: str
    #: Whether the same records would only fail again: it is asked for again once there are new ones.
    is_hopeless: bool = False
    #: Whether nothing went wrong: there is too little to learn from yet.
    wants_records: bool = False


class ModelPublished(Fact, frozen=True, kw_only=True):
    """A model version is the champion of some devices now."""

    version: str
    device_ids: tuple[DeviceId, ...]


class ModelRolledBack(DeviceFact, frozen=True, kw_only=True):
    """The champion of a device was taken back to an earlier version (empty: to none)."""

    version: str
    reason: str


class DiskFull(Fact, frozen=True, kw_only=True):
    """Nothing more can be stored: no lease is granted, and none expires, because results cannot be taken."""

    text: str = ""


class DiskFreed(Fact, frozen=True, kw_only=True):
    """There is room again."""


class Tick(Fact, frozen=True, kw_only=True):
    """Time has passed. Only this expires leases, ends back-offs and opens budgets and windows.

    The shell tells it once a turn, after everything that had arrived, and asks `FleetState.is_news` first.
    """


# fmt: off
Event = (
    CoordinatorStarted | ClockSet | CoordinatorStopping | DeviceAdded | DeviceChanged | DeviceLeftOut
    | DeviceRetired | AgentStarted | ProbePassed | ProbeRefused | AgentHeartbeat | AgentDied | JobSubmitted
    | JobFinished | JobCrashed | JobCancelled | LeaseReturned | ResultArrivedLate
    | DriftAlarm | DriftEnded | RecordsStored
    | TrainingStarted | TrainingFinished | TrainingFailed | ModelPublished | ModelRolledBack
    | DiskFull | DiskFreed | Tick
    | RequestSubmitted | RequestProgressed | RequestEnded | RequestCancelled
)
# fmt: on


class _Group(Value, frozen=True):
    """What is planned once: a conversion to a bare list of events would be planned anew at each call."""

    events: tuple[Event, ...]


def encode_events(events: Sequence[Event]) -> bytes:
    """Events as they stand in the event log: `[{"event": "AgentDied", "at_secs": ...}]`."""
    # Texts may quote names of files that are no Unicode, which msgspec does not write.
    return json.dumps(to_builtins(events), separators=(",", ":")).encode()


def decode_events(body: bytes) -> tuple[Event, ...]:
    """Read what `encode_events` wrote.

    Raises:
        ValueError: It is no JSON.
        msgspec.ValidationError: An event is unknown, or a field is missing, unknown or of the wrong kind.
    """
    return convert({"events": json.loads(body)}, _Group).events
