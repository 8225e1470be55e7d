"""What an agent tells the coordinator, and what it is asked.

Frozen values that may cross a process. Every message names its device and the agent's incarnation (the number
of the agent's life), so that nothing from a life that is over can be taken for news.
`fleet.transport.transport` says in which order they come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from msgspec import field

from agents.records import (
    Candidate,
    CandidateId,
    Descriptor,
    DeviceId,
    DeviceSpec,
    Lease,
    LeaseTag,
    Protocol,
    Record,
    Workload,
    WorkloadId,
)
from agents.values import Value

# A batch of candidates and the parts that it is measured in. Called by the workers and by who asks them.

#: A part takes about this long. A dead agent costs that, and the programs that wait to be timed again.
PART_SECS = 15.0


class Batch(Value, frozen=True, kw_only=True):
    """Candidates to measure on one device, and how."""

    candidates: tuple[Candidate, ...]
    #: Every workload that the candidates name.
    workloads: Mapping[WorkloadId, Workload]
    protocol: Protocol
    #: Counted up for a measurement of the same candidate in the same environment.
    attempt: int = 0
    #: Candidates within this fraction of the best of their workload are measured once more, seconds later:
    #: they decide what is chosen, and a neighbour on the host slows a program for seconds. 0: none.
    confirm_within: float = 0.05
    model_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a part of a batch gave."""

    records: list[Record]
    #: Seconds that it took.
    device_secs: float
    #: The batch is done.
    is_last: bool


#: A record and the lease that it was made under; None for one that was made under none.
TaggedRecord = tuple[LeaseTag | None, Record]


class Activity(StrEnum):
    """What an agent is doing."""

    IDLE = "idle"
    #: Compiling, drawing candidates, waiting for the host's timing lock.
    BUILDING = "building"
    #: A program runs on the device, to be timed or checked.
    TIMING = "timing"


class Asked(StrEnum):
    """What an agent was asked for, in `Failed`."""

    MEASURE = "measure"
    PROPOSE = "propose"
    WORKLOADS = "workloads"
    ACKNOWLEDGE = "acknowledge"


class ProposeRequest(Value, frozen=True, kw_only=True):
    """A wish for candidates of one workload."""

    #: Chosen by who asks; comes back in `Proposed` or `Failed`.
    request_id: str
    workload: Workload
    #: How many are wanted; a small space gives fewer.
    count: int
    seed: int
    #: Traces of good candidates, best first: evolve from them. Empty: draw at random.
    parents: tuple[str, ...] = ()
    #: Candidates that are known already.
    exclude: frozenset[CandidateId] = frozenset()
    #: Traces of imported candidates: what can be derived from them, and nothing else.
    foreign: tuple[str, ...] = ()


class Message(Value, frozen=True, kw_only=True):
    """What all messages have."""

    device_id: DeviceId
    #: Number of the agent's life, given by who started it.
    incarnation: int


class AgentUp(Message, frozen=True, kw_only=True):
    """The device may be used; always the first message of an agent that lives."""

    descriptor: Descriptor
    #: Of the records that it would make now (`DeviceWorker.environment_id`).
    environment_id: str
    #: The agent's process, and the host that it runs on.
    pid: int = 0
    host: str = ""
    #: Records of earlier lives that nobody acknowledged, the first of them; `MorePending` brings the others.
    pending: tuple[TaggedRecord, ...] = ()
    #: Whether `MorePending` follows.
    has_more: bool = False


class MorePending(Message, frozen=True, kw_only=True):
    """More records of earlier lives: a long spool comes in several messages, ahead of any results."""

    pending: tuple[TaggedRecord, ...]
    #: Nothing more is left of earlier lives.
    is_last: bool = True


class Described(Message, frozen=True, kw_only=True):
    """More is known of the device than `AgentUp` told: its canaries were timed. Comes ahead of results."""

    descriptor: Descriptor


class AgentRefused(Message, frozen=True, kw_only=True):
    """The host cannot be the device that its spec describes; the agent has ended. The last message."""

    reason: str


class AgentGone(Message, frozen=True, kw_only=True):
    """The agent has ended, asked or not. The last message: what it leaves is in its spool."""

    #: Why, in one line.
    reason: str
    stderr_tail: str = ""
    #: Whether `stop` asked for it.
    was_asked: bool = False
    #: Whether its end is known to have come from outside, and not of what it was doing: its host is gone, Ray
    #: broke down, or somebody killed it.
    is_blameless: bool = False
    #: Whether that was because its host is out of reach: asleep, cut off, or not there.
    is_host_gone: bool = False


class Heartbeat(Message, frozen=True, kw_only=True):
    """The agent's process is alive, whatever its device is doing."""

    #: Leases that it works on or that wait, the running one first.
    held: tuple[LeaseTag, ...] = ()
    #: Candidates of the running lease that are finished.
    done: int = 0
    busy: Activity = Activity.IDLE
    #: Whether nobody else uses the agent's host; None where nobody asked for it, or it is not known yet.
    is_host_idle: bool | None = None


class Results(Message, frozen=True, kw_only=True):
    """Records of one lease, durable in the agent's spool. A batch of slow programs comes in several parts."""

    lease: LeaseTag
    records: Sequence[Record]
    #: Seconds that the device was taken by this part.
    device_secs: float
    #: No more of this lease comes.
    is_last: bool


class Proposed(Message, frozen=True, kw_only=True):
    """The answer to a `ProposeRequest`, which comes back without what it excluded."""

    request: ProposeRequest
    candidates: tuple[Candidate, ...]
    #: How many of `ProposeRequest.foreign` nothing was derived from, by reason.
    refused: Mapping[str, int] = field(default_factory=dict)


class WorkloadsListed(Message, frozen=True, kw_only=True):
    """The workloads of some networks, heaviest first."""

    networks: tuple[str, ...]
    workloads: tuple[Workload, ...]


class Concluded(Message, frozen=True, kw_only=True):
    """The agent measures nothing more; all that it finished has been told."""

    #: Leases that are not finished.
    leases: tuple[LeaseTag, ...]


class Failed(Message, frozen=True, kw_only=True):
    """One request had no result; the agent lives on."""

    what: Asked
    #: The failure in one line.
    error: str
    #: The lease, where a measurement failed: nothing more of it comes.
    lease: LeaseTag | None = None
    #: Of the `ProposeRequest`, where that failed.
    request_id: str = ""
    #: Whether it failed for want of a working host, whatever was asked: worker processes do not start, the
    #: spool has no room.
    is_blameless: bool = False


class AgentRequest(Value, frozen=True, kw_only=True):
    """What all requests have; one to a life that is over is dropped."""

    device_id: DeviceId
    incarnation: int


class BeginAgent(AgentRequest, frozen=True, kw_only=True):
    """Begin the life of an agent."""

    spec: DeviceSpec
    #: How it will be asked to measure, for the environment id that it tells.
    protocol: Protocol
    #: Folder of its spool, on its own host.
    spool_folder: str
    #: Logical CPUs of its host that the fleet may use; those of its process when None.
    usable_cores: tuple[int, ...] | None = None
    #: All devices of its host, itself included: whose timing cores it must keep off.
    neighbours: tuple[DeviceSpec, ...] = ()
    #: Processes of the fleet on the agent's host, besides its parent and all below that: what these do is no
    #: load of others, which its heartbeats tell. None: they need not.
    fleet_pids: tuple[int, ...] | None = None


class Stop(AgentRequest, frozen=True, kw_only=True):
    """End: when what was asked before is done, or at once."""

    kill: bool


class Measure(AgentRequest, frozen=True, kw_only=True):
    """Measure a batch under a lease."""

    lease: Lease
    batch: Batch


class Conclude(AgentRequest, frozen=True, kw_only=True):
    """Begin no further part of any batch from now on, and say which leases are left unfinished."""


class Propose(AgentRequest, frozen=True, kw_only=True):
    """Draw or evolve candidates."""

    wish: ProposeRequest


class ListWorkloads(AgentRequest, frozen=True, kw_only=True):
    """List the workloads of networks."""

    networks: tuple[str, ...]


class Acknowledge(AgentRequest, frozen=True, kw_only=True):
    """Forget records that the store holds for good."""

    record_ids: tuple[str, ...]
