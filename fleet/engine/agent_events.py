"""What agents say as events of the state. Pure.

`fleet.engine.coordinator` calls it for every message; the records in a message are `fleet.core.arrivals`'
business.
"""

from __future__ import annotations

import time

from agents.device.messages import (
    AgentGone,
    AgentRefused,
    AgentUp,
    Asked,
    Concluded,
    Failed,
    Heartbeat,
    Message,
    MorePending,
)
from fleet.core import events as ev
from fleet.core.events import Event, JobId
from fleet.core.state import FleetState


def events_of(message: Message, state: FleetState, now: float, wall: float) -> list[Event]:
    """Translate a message.

    Args:
        message: Any; many tell the state nothing.
        state: As it was before the message.
        now: Seconds that the state goes by.
        wall: Unix seconds.
    """
    device_id, incarnation = message.device_id, message.incarnation
    match message:
        case AgentUp(has_more=has_more):
            started = ev.AgentStarted(at_secs=now, device_id=device_id, incarnation=incarnation)
            return [started] if has_more else [started, passed(message, now, wall)]
        case MorePending(is_last=False):
            # The agent needs more time, not another start.
            return [ev.AgentStarted(at_secs=now, device_id=device_id, incarnation=incarnation)]
        case AgentRefused(reason=reason):
            return [ev.ProbeRefused(at_secs=now, device_id=device_id, incarnation=incarnation, reason=reason)]
        case AgentGone(reason=reason):
            died = ev.AgentDied(
                at_secs=now,
                device_id=device_id,
                incarnation=incarnation,
                reason=reason,
                is_outage=message.is_host_gone,
            )
            return [*_blamed(message, state, now), died]
        case Heartbeat():
            return [
                ev.AgentHeartbeat(
                    at_secs=now,
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
                    at_secs=now,
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
            return [ev.AgentDied(at_secs=now, device_id=device_id, incarnation=incarnation, reason=error)]
        case Failed(what=Asked.MEASURE, lease=lease, error=error) if lease is not None:
            return [
                ev.JobCrashed(
                    at_secs=now,
                    device_id=device_id,
                    job_id=JobId(lease.job_id),
                    fencing_token=lease.fencing_token,
                    stderr_tail=error,
                )
            ]
    return []


def passed(up: AgentUp, now: float, wall: float) -> ev.ProbePassed:
    """That a device may have leases: to be told once all is stored that its spool still held."""
    return ev.ProbePassed(
        at_secs=now,
        device_id=up.device_id,
        incarnation=up.incarnation,
        environment_id=up.environment_id,
        host=up.host,
        utc_offset_secs=_utc_offset_secs(wall),
    )


def _utc_offset_secs(wall: float) -> float:
    """Of this host: boards in another time zone keep its hours. It changes twice a year."""
    return float(time.localtime(wall).tm_gmtoff)


def _blamed(message: AgentGone, state: FleetState, now: float) -> list[Event]:
    """An agent that ends while it works on a job may have ended because of it, unless more is known."""
    at_work = state.at_work(message.device_id)
    is_current = state.describe(message.device_id)["incarnation"] == message.incarnation
    is_known = message.was_asked or message.is_blameless
    if is_known or at_work is None or not is_current:
        return []
    return [
        ev.JobCrashed(
            at_secs=now,
            device_id=message.device_id,
            job_id=at_work[0],
            fencing_token=at_work[1],
            stderr_tail=message.stderr_tail or message.reason,
        )
    ]
