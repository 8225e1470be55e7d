"""What an agent is asked, as values that may cross a process; `fleet` makes them, `agent.py` does them."""

from __future__ import annotations

from dataclasses import dataclass

from agents.device.batch import Batch
from agents.device.messages import ProposeRequest
from agents.lease import Lease
from agents.records import DeviceId, DeviceSpec, FastPickle, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest(FastPickle):
    """What all requests have; one to a life that is over is dropped."""

    device_id: DeviceId
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginAgent(AgentRequest):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(AgentRequest):
    """End: when what was asked before is done, or at once."""

    kill: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure(AgentRequest):
    """Measure a batch under a lease."""

    lease: Lease
    batch: Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclude(AgentRequest):
    """Begin no further part of any batch from now on, and say which leases are left unfinished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Propose(AgentRequest):
    """Draw or evolve candidates."""

    wish: ProposeRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ListWorkloads(AgentRequest):
    """List the workloads of networks."""

    networks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge(AgentRequest):
    """Forget records that the store holds for good."""

    record_ids: tuple[str, ...]
