"""How the coordinator reaches the agents: what it may ask, and what comes back.

`coordinator.py` knows only this. `ray_transport.py` is the real thing; `local.py` holds replay devices
in this process. Neither decides anything: starting again, expiring a lease and counting are the
coordinator's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from agents.device.messages import (
    Acknowledge,
    AgentRequest,
    Batch,
    Conclude,
    ListWorkloads,
    Measure,
    Message,
    Propose,
    ProposeRequest,
)
from agents.records import DeviceId, DeviceSpec, Lease

#: An agent that lives says so this often (`Heartbeat`), whatever its device is doing.
HEARTBEAT_SECS = 2.0


class AgentTransport(ABC):
    """One agent a device, each with an incarnation number that the coordinator gives.

    Promises of every implementation, for each (device, incarnation) that was started:

    - The first message is `AgentUp`, `AgentRefused` or `AgentGone`. `AgentRefused` or `AgentGone` comes
      exactly once and last; after it there is no process left that could make records, or none that this
      object will ever hear again.
    - Nothing is retried and nobody is started again by itself.
    - Messages of an older incarnation may come after `start` of a newer one, until its `AgentGone`. They
      carry their number: the coordinator decides what is late.
    - A request to an incarnation that is not up (any more) is dropped without a word: its `AgentGone` says or
      has said so.
    - What is asked of one device is done in the order of asking.

    Methods return at once, but for `poll` and `close`. One thread uses an object.
    """

    @abstractmethod
    def start(self, spec: DeviceSpec, incarnation: int) -> None:
        """Start the agent of a device. A fresh one waits some seconds for the end of its predecessor."""

    @abstractmethod
    def stop(self, device_id: DeviceId, incarnation: int, *, kill: bool) -> None:
        """End an agent and all its processes; `AgentGone` follows.

        Args:
            device_id: The device.
            incarnation: Which of its agents.
            kill: At once, even if the agent hangs or is stopped by a signal; else when what it was asked
                before is done.
        """

    def forget(self, device_id: DeviceId) -> None:  # noqa: B027  # most know nothing beside the agents
        """Take no account of a device that left; its agent ends in order, and says so, all the same."""

    def measure(self, lease: Lease, incarnation: int, batch: Batch) -> None:
        """Measure a batch; `Results` follow, or `Failed`. At most two of a device at a time."""
        self._ask(Measure(device_id=lease.device_id, incarnation=incarnation, lease=lease, batch=batch))

    def propose(self, device_id: DeviceId, incarnation: int, request: ProposeRequest) -> None:
        """Draw or evolve candidates; `Proposed` follows, or `Failed`."""
        self._ask(Propose(device_id=device_id, incarnation=incarnation, wish=request))

    def list_workloads(self, device_id: DeviceId, incarnation: int, networks: Sequence[str]) -> None:
        """List workloads of networks (`agents.programs.networks`); `WorkloadsListed` follows, or `Failed`."""
        self._ask(ListWorkloads(device_id=device_id, incarnation=incarnation, networks=tuple(networks)))

    def conclude(self, device_id: DeviceId, incarnation: int) -> None:
        """Have an agent begin no further part of its batches; `Concluded` follows, after what it finished."""
        self._ask(Conclude(device_id=device_id, incarnation=incarnation))

    def acknowledge(self, device_id: DeviceId, incarnation: int, record_ids: Iterable[str]) -> None:
        """Let the agent forget records that the store holds for good. May be lost, may be repeated."""
        self._ask(Acknowledge(device_id=device_id, incarnation=incarnation, record_ids=tuple(record_ids)))

    @abstractmethod
    def poll(self, timeout_secs: float) -> list[Message]:
        """Return the messages that have arrived, in the order of each agent; wait for the first one.

        Args:
            timeout_secs: Longest wait; the list is empty after it.
        """

    @abstractmethod
    def close(self, timeout_secs: float) -> None:
        """End every agent: in order where it can be had in the time, else by force. No more messages."""

    @abstractmethod
    def _ask(self, request: AgentRequest) -> None:
        """Let an agent have a request; dropped without a word where it is not up (any more)."""
