"""The first half of a turn: what the agents say goes to the store, to the state, and to whom it may concern.

`fleet.engine.coordinator` calls it. All records of a turn are stored before the state hears of any message:
an agent that is up may get a lease at once, and that would make what its spool still held late.
"""

from __future__ import annotations

import time
from collections import deque

from agents.device.messages import (
    AgentGone,
    AgentRefused,
    AgentUp,
    Asked,
    Concluded,
    Described,
    Failed,
    Heartbeat,
    Message,
    MorePending,
    Proposed,
    Results,
    WorkloadsListed,
)
from agents.records import DeviceId, is_live
from fleet.core import events as ev
from fleet.core.arrivals import Arrival, arrivals_of, take_records
from fleet.core.events import Event, JobId
from fleet.core.state import FleetState
from fleet.engine.context import Composition
from fleet.engine.notices import announce_message
from fleet.engine.record_sink import Intake
from fleet.engine.request_drivers import RequestDrivers
from fleet.errors import StoreFull

# What agents say as events of the state. Pure.
#
# `fleet.engine.coordinator` calls it for every message; the records in a message are `fleet.core.arrivals`'
# business.


def events_of(message: Message, state: FleetState, wall: float) -> list[Event]:
    """Translate a message.

    Args:
        message: Any; many tell the state nothing.
        state: As it was before the message.
        wall: Unix seconds.
    """
    device_id, incarnation = message.device_id, message.incarnation
    match message:
        case AgentUp(has_more=has_more):
            started = ev.AgentStarted(device_id=device_id, incarnation=incarnation)
            return [started] if has_more else [started, passed(message, wall)]
        case MorePending(is_last=False):
            # The agent needs more time, not another start.
            return [ev.AgentStarted(device_id=device_id, incarnation=incarnation)]
        case AgentRefused(reason=reason):
            return [ev.ProbeRefused(device_id=device_id, incarnation=incarnation, reason=reason)]
        case AgentGone(reason=reason):
            died = ev.AgentDied(
                device_id=device_id,
                incarnation=incarnation,
                reason=reason,
                is_outage=message.is_host_gone,
            )
            return [*_blamed(message, state), died]
        case Heartbeat():
            return [
                ev.AgentHeartbeat(
                    device_id=device_id,
                    incarnation=incarnation,
                    fencing_token=message.held[0].fencing_token if message.held else None,
                    done=message.done,
                    busy=ev.Busy(message.busy.value),
                    is_host_idle=message.is_host_idle,
                    utc_offset_secs=_utc_offset_secs(wall),
                )
            ]
        case Concluded(leases=leases):
            return [
                ev.LeaseReturned(
                    device_id=device_id,
                    job_id=JobId(lease.job_id),
                    fencing_token=lease.fencing_token,
                    reason="the coordinator stops",
                    has_results=True,
                )
                for lease in leases
            ]
        case Failed(what=Asked.MEASURE, error=error, is_blameless=True):
            # Its agent is no use as things are on its host, and is started again; the job waits for that.
            return [ev.AgentDied(device_id=device_id, incarnation=incarnation, reason=error)]
        case Failed(what=Asked.MEASURE, lease=lease, error=error) if lease is not None:
            return [
                ev.JobCrashed(
                    device_id=device_id,
                    job_id=JobId(lease.job_id),
                    fencing_token=lease.fencing_token,
                    stderr_tail=error,
                )
            ]
    return []


def passed(up: AgentUp, wall: float) -> ev.ProbePassed:
    """That a device may have leases: to be told once all is stored that its spool still held."""
    return ev.ProbePassed(
        device_id=up.device_id,
        incarnation=up.incarnation,
        environment_id=up.environment_id,
        host=up.host,
        utc_offset_secs=_utc_offset_secs(wall),
    )


def _utc_offset_secs(wall: float) -> float:
    """Of this host: boards in another time zone keep its hours. It changes twice a year."""
    return float(time.localtime(wall).tm_gmtoff)


def _blamed(message: AgentGone, state: FleetState) -> list[Event]:
    """An agent that ends while it works on a job may have ended because of it, unless more is known."""
    at_work = state.at_work(message.device_id)
    is_current = state.describe(message.device_id)["incarnation"] == message.incarnation
    is_known = message.was_asked or message.is_blameless
    if is_known or at_work is None or not is_current:
        return []
    return [
        ev.JobCrashed(
            device_id=message.device_id,
            job_id=at_work[0],
            fencing_token=at_work[1],
            stderr_tail=message.stderr_tail or message.reason,
        )
    ]


#: Three heartbeats of a replay device, the slowest of all.
_LEAST_SILENCE_SECS = 30.0
#: Records of one turn, or a few more: the rest waits for the next turn, so that views stay fresh.
_RECORDS_PER_TURN = 1024


class Ingest:
    """Hears the agents.

    Attributes:
        held: Arrivals that found no room; they are tried again.
        acknowledge: What is durable and may be told to the agents, once the state's events are too.
    """

    def __init__(self, parts: Composition, drivers: RequestDrivers) -> None:
        self._parts, self._drivers = parts, drivers
        #: Agents that are up while their spool still comes.
        self._coming: dict[tuple[DeviceId, int], AgentUp] = {}
        #: When each agent was heard last, in seconds that this process listened: a pause of its own must not
        #: pass for a silence of theirs.
        self._heard: dict[tuple[DeviceId, int], float] = {}
        #: What has come and is not worked on yet.
        self._waiting: deque[Message] = deque()
        self.held: list[Arrival] = []
        #: When the oldest of what nobody has acknowledged yet came, on the monotonic clock.
        self._since = time.monotonic()
        self.acknowledge: list[tuple[DeviceId, int, tuple[str, ...]]] = []

    def listen(self, timeout_secs: float) -> None:
        """Wait for messages, unless some are left of the turn before."""
        if not self._waiting:
            self._waiting += self._parts.transport.poll(timeout_secs)

    @property
    def is_idle(self) -> bool:
        """Whether nothing that came is still to be worked on, or to be stored."""
        return not self._waiting and not self.held

    def hear(self) -> None:
        """Take in the messages of a turn, in their order.

        Raises:
            FleetError: The disk failed, or no workload fits the settings.
        """
        parts, messages = self._parts, take_records(self._waiting, _RECORDS_PER_TURN)
        for message in messages:
            if isinstance(message, AgentUp):
                self._enter_environment(message)
        if not self.held and not self.acknowledge:
            self._since = time.monotonic()
        self.held += arrivals_of(messages)
        if parts.disk.may_try:
            try:
                # First: what was taken must be told of, whatever comes next.
                parts.disk.probe()
                parts.store.move_on()
                intake = parts.record_sink.take(self.held, parts.state)
            except StoreFull as error:
                parts.disk.full(error)
            else:
                self.held = []
                self._follow(intake)
        for message in messages:
            try:
                self._concern(message)
            except StoreFull as error:
                parts.disk.full(error)
                # Nobody would ask again for what it had to tell.
                parts.discovery.agent_gone(message.device_id)
            parts.event_log.append(*events_of(message, parts.state, parts.clock.wall()))
            self._look_for_last(message)
            self._heard[message.device_id, message.incarnation] = parts.clock()

    @property
    def unacknowledged(self) -> tuple[int, float]:
        """Records that have come and are not acknowledged, and seconds since the oldest of them came."""
        count = sum(len(arrival.records) for arrival in self.held) + sum(
            len(ids) for _, _, ids in self.acknowledge
        )
        return count, time.monotonic() - self._since if self.held or self.acknowledge else 0.0

    def end_silent(self) -> None:
        """End agents that say nothing any more and have no lease that could expire; others are started.

        A lease that no heartbeat renews expires. An agent without one, stopped by a signal or out of reach,
        would be taken for idle for ever. Its host may be asleep: that counts against nobody.
        """
        parts, now = self._parts, self._parts.clock()
        most_secs = max(_LEAST_SILENCE_SECS, parts.settings.limits.lease_secs)
        self._heard = {key: self._heard.get(key, now) for key in parts.up.items()}
        for (device_id, incarnation), at in list(self._heard.items()):
            if now - at > most_secs and not parts.state.describe(device_id)["leases"]:
                reason = "its agent says nothing any more"
                parts.notices.log(f"{device_id}: {reason}", kind="silent", style="red")
                parts.agent_gone(device_id, incarnation)
                parts.transport.stop(device_id, incarnation, kill=True)
                parts.event_log.append(
                    ev.AgentDied(
                        device_id=device_id,
                        incarnation=incarnation,
                        reason=reason,
                        is_outage=True,
                    )
                )

    def _enter_environment(self, message: AgentUp) -> None:
        """Note the environment of a device; say so where all that it has measured was in another one."""
        parts, device_id = self._parts, message.device_id
        parts.coverage.set_environment(device_id, message.environment_id)
        if parts.coverage.records(device_id):
            return
        if before := parts.coverage.other_records(device_id):
            parts.notices.alarm(
                device_id,
                f"is in a new environment: {before} records of earlier ones are kept and still train models,"
                " but new ones are not compared with them, and its candidates are measured again"
                " (docs/measuring-protocol.md says what makes an environment)",
                "environment",
            )

    def _look_for_last(self, message: Message) -> None:
        """Let a device have leases once the last part of a long spool is in: later ones would be late."""
        key = message.device_id, message.incarnation
        match message:
            case AgentUp(has_more=True):
                self._coming[key] = message
            case MorePending(is_last=True) if (up := self._coming.pop(key, None)) is not None:
                self._parts.event_log.append(passed(up, self._parts.clock.wall()))
            case AgentGone() | AgentRefused():
                self._coming.pop(key, None)

    def _follow(self, intake: Intake) -> None:
        """Tell of what is stored now; that there is room comes after it, because leases follow from that."""
        parts = self._parts
        parts.event_log.append(*intake.events)
        self.acknowledge += intake.acknowledge
        self._drivers.questions.stored(intake.fresh)
        for device_id, records in intake.fresh.items():
            spec = parts.roster.all_specs[device_id]
            if parts.trainer is not None:
                parts.trainer.records_stored(device_id, str(spec.family), len(records))
            if not is_live(spec):
                continue  # what it answers was suspect when it was measured; it drifts never
            said = parts.steadiness.add(device_id, records)
            if said and parts.steadiness.is_drifting(device_id):
                parts.event_log.append(ev.DriftAlarm(device_id=device_id, text=said, is_unsteady=True))
            elif said:
                parts.notices.log(f"{device_id}: {said}")
                parts.event_log.append(ev.DriftEnded(device_id=device_id))
        for refusal in intake.refusals:
            count, where = len(refusal.records), parts.record_sink.letters.path
            text = f"the store refuses {count} of its records, which are set aside in {where}"
            parts.notices.alarm(refusal.arrival.device_id, f"{text}: {refusal.reasons[0]}", "refused")
        notes = parts.record_sink.letters.notes
        while notes:
            parts.notices.log(notes.pop(0), kind="deleted")
        if parts.store.no_room is None:
            parts.disk.freed()
        else:
            parts.disk.full(parts.store.no_room)

    def _concern(self, message: Message) -> None:
        """See to what a message says to the shell itself."""
        parts = self._parts
        device_id, incarnation = message.device_id, message.incarnation
        announce_message(message, parts.notices)
        if self._drivers.questions.heard(message):
            return
        match message:
            case AgentUp():
                parts.up[device_id] = incarnation
                parts.descriptors[device_id] = message.descriptor
                parts.planner.hosts[device_id] = message.host
                if spec := parts.roster.specs.get(device_id):  # one that left may answer yet
                    parts.discovery.agent_up(spec, incarnation)
            case Described():
                parts.descriptors[device_id] = message.descriptor
            case AgentRefused() | AgentGone():
                parts.agent_gone(device_id, incarnation)
            case Failed(what=Asked.MEASURE):
                # The state takes the agent for dead, and starts another.
                parts.agent_gone(device_id, incarnation)
                parts.transport.stop(device_id, incarnation, kill=True)
            case Failed(what=Asked.PROPOSE):
                parts.planner.failed(device_id, message.request_id)
            case Failed(what=Asked.WORKLOADS):
                parts.discovery.agent_gone(device_id)
            case Proposed():
                parts.planner.proposed(message)
            case Results():
                # Here, not at the end of the job: another lease may have had a part of it.
                parts.planner.queues.took(device_id, len(message.records), message.device_secs)
            # A list that a driver asked for, who is gone, is of other networks.
            case WorkloadsListed(networks=networks) if networks == tuple(parts.settings.choice.networks):
                ready = parts.discovery.listed(parts.roster.all_specs[device_id], message.workloads)
                measured = len(parts.planner.workloads_of(device_id))
                if ready:
                    parts.notices.log(f"{len(ready)} devices measure {measured} workloads")
