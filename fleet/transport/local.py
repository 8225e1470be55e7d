"""The way to replay devices in this process: no Ray, no thread, the same messages in the same order.

For trying a whole fleet out in seconds: the coordinator's tests and `benchmarks/scale.py` use it. What was
asked is done inside `poll`, so two runs with the same calls give the same messages.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from agents.device.agent_host import AgentHost
from agents.device.messages import AgentGone, AgentRequest, BeginAgent, Heartbeat, Message, Stop
from agents.device.replay import ReplayWorkerFactory
from agents.records import DeviceId, DeviceKind, DeviceSpec, Protocol
from fleet.errors import FleetError
from fleet.transport.transport import HEARTBEAT_SECS, AgentTransport

_Key = tuple[DeviceId, int]


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
        self._fetched: list[Message] = []
        #: Requests to frozen agents, and messages that they had not sent yet.
        self._frozen: dict[_Key, tuple[list[AgentRequest], list[Message]]] = {}

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
        if kill:
            self._frozen.pop((device_id, incarnation), None)
        self._ask(Stop(device_id=device_id, incarnation=incarnation, kill=kill))

    def poll(self, timeout_secs: float) -> list[Message]:
        """Do what was asked, then see `AgentTransport`."""
        is_idle = False
        for _ in range(self._requests_per_poll):
            if is_idle := not self._host.work():
                break
        self._fetch(timeout_secs if is_idle and not self._fetched else 0.0)
        messages, self._fetched = self._fetched, []
        return messages

    def close(self, timeout_secs: float = 0.0) -> None:
        """End every agent."""
        self._host.close()
        self._host.close_workers()
        self._shelf.close()

    def crash(
        self,
        device_id: DeviceId,
        incarnation: int,
        *,
        is_done: bool = False,
        is_blameless: bool = False,
    ) -> None:
        """End an agent as a kill of its process would: what it has not said in a `poll` is lost.

        Args:
            device_id: The device.
            incarnation: Which of its agents.
            is_done: Whether it dies after what it was asked, and before it says so; else before.
            is_blameless: What `AgentGone` gives.
        """
        while is_done and self._host.work():
            pass
        self._fetch(0.0)
        self.stop(device_id, incarnation, kill=True)
        while self._host.work():
            pass  # its worker lets go of the spool
        self._fetch(0.0)
        name = (device_id, incarnation)
        remaining: list[Message] = []
        for message in self._fetched:
            if (message.device_id, message.incarnation) != name:
                remaining.append(message)
            elif isinstance(message, AgentGone):
                remaining.append(
                    replace(message, reason="killed by SIGKILL", was_asked=False, is_blameless=is_blameless)
                )
        self._fetched = remaining

    def freeze(self, device_id: DeviceId, incarnation: int) -> None:
        """Let an agent say nothing and begin nothing from now on, as SIGSTOP would."""
        self._fetch(0.0)
        self._frozen[device_id, incarnation] = ([], [])

    def thaw(self, device_id: DeviceId, incarnation: int) -> None:
        """Let a frozen agent go on: it says what it had done, and does what it was asked since."""
        requests, messages = self._frozen.pop((device_id, incarnation))
        self._fetched += messages
        self._host.ask(requests)

    def _ask(self, request: AgentRequest) -> None:
        name = (request.device_id, request.incarnation)
        if name in self._frozen:
            self._frozen[name][0].append(request)
        else:
            self._host.ask([request])

    def _fetch(self, timeout_secs: float) -> None:
        self._taken_count, messages = self._host.take(self._taken_count, timeout_secs)
        for message in messages:
            frozen = self._frozen.get((message.device_id, message.incarnation))
            if frozen is None:
                self._fetched.append(message)
            elif not isinstance(message, Heartbeat):
                frozen[1].append(message)
