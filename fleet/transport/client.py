"""A call becomes a request to one agent, alike in all transports. How it gets there is theirs (`_ask`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from agents.device.batch import Batch
from agents.device.messages import ProposeRequest
from agents.device.requests import Acknowledge, AgentRequest, Conclude, ListWorkloads, Measure, Propose
from agents.lease import Lease
from agents.records import DeviceId


class AgentClient(ABC):
    """The part of `fleet.transport.transport.AgentTransport` that only asks."""

    def measure(self, lease: Lease, incarnation: int, batch: Batch) -> None:
        """See `AgentTransport`."""
        self._ask(Measure(device_id=lease.device_id, incarnation=incarnation, lease=lease, batch=batch))

    def propose(self, device_id: DeviceId, incarnation: int, request: ProposeRequest) -> None:
        """See `AgentTransport`."""
        self._ask(Propose(device_id=device_id, incarnation=incarnation, wish=request))

    def list_workloads(self, device_id: DeviceId, incarnation: int, networks: Sequence[str]) -> None:
        """See `AgentTransport`."""
        self._ask(ListWorkloads(device_id=device_id, incarnation=incarnation, networks=tuple(networks)))

    def conclude(self, device_id: DeviceId, incarnation: int) -> None:
        """See `AgentTransport`."""
        self._ask(Conclude(device_id=device_id, incarnation=incarnation))

    def acknowledge(self, device_id: DeviceId, incarnation: int, record_ids: Iterable[str]) -> None:
        """See `AgentTransport`."""
        self._ask(Acknowledge(device_id=device_id, incarnation=incarnation, record_ids=tuple(record_ids)))

    def forget(self, device_id: DeviceId) -> None:  # noqa: B027  # most know nothing beside the agents
        """See `AgentTransport`."""

    @abstractmethod
    def _ask(self, request: AgentRequest) -> None:
        """Let an agent have a request; dropped without a word where it is not up (any more)."""
