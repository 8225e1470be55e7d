"""The first half of a turn: what the agents say goes to the store, to the state, and to whom it may concern.

`fleet.daemon.coordinator` calls it. All records of a turn are stored before the state hears of any message:
an agent that is up may get a lease at once, and that would make what its spool still held late.
"""

from __future__ import annotations

from collections.abc import Sequence

from agents.messages import (
    AgentGone,
    AgentRefused,
    AgentUp,
    Asked,
    Failed,
    Message,
    Proposed,
    WorkloadsListed,
)
from agents.records import DeviceId
from fleet.core import events as ev
from fleet.core.arrivals import Arrival, arrivals_of
from fleet.daemon.announcing import announce_message
from fleet.daemon.hearing import events_of
from fleet.daemon.host_load import HostLoad
from fleet.daemon.parts import Parts
from fleet.daemon.storing import Taken
from fleet.errors import StoreFull


class Receiving:
    """Hears the agents.

    Args:
        parts: What a coordinator consists of.

    Attributes:
        held: Arrivals that found no room; they are tried again.
        acknowledge: What is durable and may be told to the agents, once the state's events are too.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._load: HostLoad | None = None
        self.held: list[Arrival] = []
        self.acknowledge: list[tuple[DeviceId, int, tuple[str, ...]]] = []

    def hear(self, messages: Sequence[Message]) -> None:
        """Take in messages, in their order.

        Raises:
            FleetError: The disk failed, or no workload fits the settings.
        """
        parts = self._parts
        for message in messages:
            if isinstance(message, AgentUp):
                parts.coverage.set_environment(message.device_id, message.environment_id)
        self.held += arrivals_of(messages)
        if parts.disk.may_try:
            try:
                taken = parts.storing.take(self.held, parts.state, parts.clock())
                parts.disk.probe()
            except StoreFull as error:
                parts.disk.full(error)
            else:
                self.held = []
                self._follow(taken)
        for message in messages:
            try:
                self._concern(message)
            except StoreFull as error:
                parts.disk.full(error)
            is_idle = self._is_host_idle(message.device_id)
            for event in events_of(message, parts.state, parts.clock(), is_host_idle=is_idle):
                parts.chronicle.tell(event)

    def _follow(self, taken: Taken) -> None:
        """Tell of what is stored now; that there is room comes after it, because leases follow from that."""
        parts, now = self._parts, self._parts.clock()
        for event in taken.events:
            parts.chronicle.tell(event)
        self.acknowledge += taken.acknowledge
        for device_id, records in taken.fresh.items():
            if parts.trainer is not None:
                parts.trainer.records_stored(device_id, parts.families[device_id], len(records))
            said = parts.steadiness.add(device_id, records)
            if said and parts.steadiness.is_drifting(device_id):
                parts.chronicle.tell(ev.DriftAlarm(at_secs=now, device_id=device_id, text=said))
            elif said:
                parts.notices.say(f"{device_id}: {said}")
        parts.disk.freed()

    def _is_host_idle(self, device_id: DeviceId) -> bool | None:
        """Looked at for devices of this host only, and only where their policy asks for it."""
        policy = self._parts.settings.policies.get(device_id)
        if policy is None or not policy.idle_only:
            return None
        if self._load is None:
            self._load = HostLoad()
        is_here = self._parts.feeder.hosts.get(device_id) == self._load.host
        return self._load.is_idle if is_here else None

    def _concern(self, message: Message) -> None:
        """See to what a message says to the shell itself."""
        parts = self._parts
        device_id, incarnation = message.device_id, message.incarnation
        announce_message(message, parts.notices)
        match message:
            case AgentUp():
                parts.agents.up[device_id] = incarnation
                parts.agents.descriptors[device_id] = message.descriptor
                parts.feeder.hosts[device_id] = message.host
                parts.listing.agent_up(parts.specs[device_id], incarnation)
            case AgentRefused() | AgentGone():
                parts.agent_gone(device_id, incarnation)
            case Failed(what=Asked.MEASURE):
                # The state takes the agent for dead, and starts another.
                parts.agent_gone(device_id, incarnation)
                parts.links.stop(device_id, incarnation, kill=True)
            case Failed(what=Asked.PROPOSE):
                parts.feeder.failed(device_id, message.request_id)
            case Failed(what=Asked.WORKLOADS):
                parts.listing.agent_gone(device_id)
            case Proposed():
                parts.feeder.proposed(message)
            case WorkloadsListed():
                parts.intake.flush()
                ready = parts.listing.listed(parts.specs[device_id], message.workloads)
                measured = len(parts.feeder.workloads_of(device_id))
                if ready:
                    parts.notices.say(f"{len(ready)} devices measure {measured} workloads")


__all__ = ["Receiving"]
