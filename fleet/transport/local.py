"""The way to replay devices in this process: no Ray, no thread, the same messages in the same order.

For trying a whole fleet out in seconds: the coordinator's tests and `benchmarks/scale.py` use it. What was
asked is done inside `poll`, so two runs with the same calls give the same messages.
"""

from __future__ import annotations

from pathlib import Path

from agents.device.agent_host import AgentHost
from agents.device.messages import AgentRequest, BeginAgent, Message, Stop
from agents.device.replay import ReplayWorkerFactory
from agents.records import DeviceId, DeviceKind, DeviceSpec, Protocol
from fleet.errors import FleetError
from fleet.transport.transport import HEARTBEAT_SECS, AgentTransport


class LocalTransport(AgentTransport):
    """Implements `fleet.transport.transport.AgentTransport` for devices of kind `replay`.

    Args:
        protocol: How the fleet measures.
        spool_root: Folder for spools, one a device. None: records wait in memory, and end with this process.
        heartbeat_secs: How often every agent says that it is alive.
        requests_per_poll: At most so many are done in one `poll`, so that it returns in time.
    """

    def __init__(
        self,
        *,
        protocol: Protocol,
        spool_root: Path | None = None,
        heartbeat_secs: float = HEARTBEAT_SECS,
        requests_per_poll: int = 64,
    ) -> None:
        self._protocol, self._spool_root = protocol, spool_root
        self._requests_per_poll = requests_per_poll
        self._shelf = ReplayWorkerFactory(spooled=spool_root is not None)
        self._host = AgentHost(
            self._shelf.open, host="here", heartbeat_secs=heartbeat_secs, most_waiting=float("inf")
        )
        self._taken_count = 0

    def start(self, spec: DeviceSpec, incarnation: int) -> None:
        """See `AgentTransport`.

        Raises:
            FleetError: The device is no replay device.
        """
        if spec.kind is not DeviceKind.REPLAY:
            raise FleetError(
                f"device {spec.device_id} is of kind {spec.kind}; without Ray only replay devices can be had"
            )
        folder = "" if self._spool_root is None else str(self._spool_root / spec.device_id)
        self._ask(
            BeginAgent(
                device_id=spec.device_id,
                incarnation=incarnation,
                spec=spec,
                protocol=spec.protocol(self._protocol),
                spool_folder=folder,
            )
        )

    def stop(self, device_id: DeviceId, incarnation: int, *, kill: bool) -> None:
        """See `AgentTransport`."""
        self._ask(Stop(device_id=device_id, incarnation=incarnation, kill=kill))

    def poll(self, timeout_secs: float) -> list[Message]:
        """Do what was asked, then see `AgentTransport`."""
        is_idle = any(not self._host.work() for _ in range(self._requests_per_poll))
        self._taken_count, messages = self._host.take(self._taken_count, timeout_secs if is_idle else 0.0)
        return messages

    def close(self, timeout_secs: float = 0.0) -> None:
        """End every agent."""
        self._host.close()
        self._host.close_workers()
        self._shelf.close()

    def _ask(self, request: AgentRequest) -> None:
        self._host.ask([request])
