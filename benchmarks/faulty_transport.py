"""Agents in this process that die and freeze on demand, for chaos and for the coordinator's tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from agents.device.messages import AgentGone, AgentRequest, Heartbeat, Message
from agents.records import DeviceId
from fleet.transport.local import LocalTransport

_Key = tuple[DeviceId, int]


class FaultyTransport(LocalTransport):
    """A `LocalTransport` whose agents can be hurt."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        #: Requests to frozen agents, and messages that they had not sent yet.
        self._frozen: dict[_Key, tuple[list[AgentRequest], list[Message]]] = {}
        #: Messages for the next `poll`.
        self._fetched: list[Message] = []

    def poll(self, timeout_secs: float) -> list[Message]:
        """See `AgentTransport`; what frozen agents say waits."""
        fresh = self._of_others(super().poll(0.0 if self._fetched else timeout_secs))
        messages, self._fetched = [*self._fetched, *fresh], []
        return messages

    def stop(self, device_id: DeviceId, incarnation: int, *, kill: bool) -> None:
        """See `AgentTransport`."""
        if kill:
            self._frozen.pop((device_id, incarnation), None)
        super().stop(device_id, incarnation, kill=kill)

    def crash(
        self,
        device_id: DeviceId,
        incarnation: int,
        *,
        is_done: bool,
        is_blameless: bool,
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
        self._fetch()
        self.stop(device_id, incarnation, kill=True)
        while self._host.work():
            pass  # its worker lets go of the spool
        self._fetch()
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
        self._fetch()
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
            super()._ask(request)

    def _fetch(self) -> None:
        self._taken_count, messages = self._host.take(self._taken_count, 0.0)
        self._fetched += self._of_others(messages)

    def _of_others(self, messages: Iterable[Message]) -> list[Message]:
        """The messages of agents that are not frozen; those of the others wait with them."""
        passing: list[Message] = []
        for message in messages:
            frozen = self._frozen.get((message.device_id, message.incarnation))
            if frozen is None:
                passing.append(message)
            elif not isinstance(message, Heartbeat):
                frozen[1].append(message)
        return passing
