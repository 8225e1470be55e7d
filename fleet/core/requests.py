"""The requests that are open or ended lately, and which of them measure now. Pure; part of `state.py`.

A request for a training waits until the one training of the fleet is free, runs with it, and ends with it;
`refresh_triggers.py` decides when. Every other request has a driver, a process that decides what is measured
for it: a few drivers run at a time, and each is started again with the coordinator. What each event does to
requests is in `request_events.py`.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from agents.records import DeviceId
from fleet.core.events import Instruction, JobState, ShowRequest, StartDriver
from fleet.core.words import Request, RequestId, RequestKind, RequestState

if TYPE_CHECKING:
    from fleet.core.state_core import Core

#: Ended requests that are kept, and for how long.
KEPT_REQUESTS, KEPT_SECS = 1_000, 30 * 86_400.0
#: A driver ends by itself when its minutes are over, and tells what it has; after so long it is ended.
_DRIVER_GRACE_SECS = 600.0
#: Later requests that may be begun before a waiting one, and the priority that it has then.
_MOST_OVERTAKEN, _HIGHEST = 4, RequestKind.ONBOARDING.priority
#: Fields that clients are shown as they are.
_DESCRIBED = ("done", "of", "left_secs", "finding", "reason", "changes")


class RequestEntry(Struct, forbid_unknown_fields=True):
    """A request and what became of it. Times are those of the events; None where it has not come so far."""

    request: Request
    submitted_at: float
    state: RequestState = RequestState.QUEUED
    started_at: float | None = None
    ended_at: float | None = None
    done: int = 0
    of: int = 0
    left_secs: float | None = None
    finding: str = ""
    #: The request's result, plain JSON values by name; empty unless it succeeded.
    result: dict[str, Any] = field(default_factory=dict)
    #: Why it failed or was cancelled.
    reason: str = ""
    is_measuring: bool = True
    #: How often anything of this was changed.
    changes: int = 1
    #: Later requests that were begun before it.
    overtaken: int = 0

    @property
    def priority(self) -> int:
        """In which order drivers are started; a request that was overtaken too often waits no longer."""
        return _HIGHEST if self.overtaken >= _MOST_OVERTAKEN else self.request.kind.priority

    @property
    def deadline_secs(self) -> float:
        """When its minutes are over; infinite where it does not run or has no limit."""
        minutes = self.request.minutes
        if self.state is not RequestState.RUNNING or self.started_at is None or minutes is None:
            return math.inf
        grace = _DRIVER_GRACE_SECS if self.request.kind.has_driver else 0.0
        return self.started_at + 60.0 * minutes + grace

    def begin(self, now: float) -> None:
        """Note that it runs."""
        self.state, self.started_at = RequestState.RUNNING, now
        self.changes += 1

    def describe(self, wall_ahead_secs: float) -> dict[str, Any]:
        """What clients are shown; JSON-ready. Times in Unix seconds, None before they come."""
        submitted, started, ended = (
            None if at_secs is None else at_secs + wall_ahead_secs
            for at_secs in (self.submitted_at, self.started_at, self.ended_at)
        )
        return {
            "id": self.request.request_id,
            "kind": self.request.kind.value,
            "arguments": dict(self.request.arguments),
            "minutes": self.request.minutes,
            "state": self.state.value,
            "submitted_at": submitted,
            "started_at": started,
            "ended_at": ended,
            **{name: getattr(self, name) for name in _DESCRIBED},
            "result": dict(self.result),
        }


class Requests(Struct, dict=True, forbid_unknown_fields=True):
    """All requests that are open, and the last of those that have ended."""

    entries: dict[RequestId, RequestEntry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        #: Requests that have not ended: looked at in every turn, while many that ended may be kept.
        self._open = {key: entry for key, entry in self.entries.items() if not entry.state.is_end}

    def get(self, request_id: RequestId) -> RequestEntry | None:
        """A request; None for one that never was, or ended too long ago."""
        return self.entries.get(request_id)

    def open(self) -> list[RequestEntry]:
        """Those that have not ended, in that order."""
        return list(self._open.values())

    def submit(self, request: Request, now: float) -> None:
        """Take a request in, and drop what ended too long ago or is too much."""
        entry = RequestEntry(request, now)
        self.entries[request.request_id] = self._open[request.request_id] = entry
        ended = [entry for entry in self.entries.values() if entry.state.is_end]
        old = [entry for entry in ended if (entry.ended_at or 0.0) < now - KEPT_SECS]
        too_many = heapq.nsmallest(len(ended) - KEPT_REQUESTS, ended, key=lambda entry: entry.ended_at or 0.0)
        for dropped in (*old, *too_many):
            self.entries.pop(dropped.request.request_id, None)

    def end(self, entry: RequestEntry, state: RequestState, now: float, reason: str = "") -> None:
        """Note the end of a request, and why it did not succeed."""
        del self._open[entry.request.request_id]
        entry.reason = reason
        entry.state, entry.ended_at, entry.left_secs = state, now, None
        entry.changes += 1

    def next_secs(self) -> float:
        """When the minutes of the next request are over; infinite where none has any."""
        return min((entry.deadline_secs for entry in self._open.values()), default=math.inf)

    def set_back(self, ahead_secs: float, now: float) -> None:
        """The clock was ahead: nothing that happened is yet to come, and no deadline is further away."""
        for entry in self.entries.values():
            if entry.deadline_secs < math.inf and entry.started_at is not None:
                entry.started_at -= ahead_secs
            entry.submitted_at = min(entry.submitted_at, now)
            entry.started_at = None if entry.started_at is None else min(entry.started_at, now)
            entry.ended_at = None if entry.ended_at is None else min(entry.ended_at, now)


def reserve_devices(core: Core) -> list[Instruction]:
    """Keep the background off the devices that a driver measures on: it would wait for every answer.

    An arrival has its neighbours wait too, with which it would share what times their programs; and while its
    head is made as well, which would take twice as long beside their compilers.
    """
    leasing, before, reserved = core.leasing, core.leasing.reserved, set[DeviceId]()
    for entry in core.requests.open():
        if entry.request.is_background:
            continue
        is_arrival = entry.request.kind is RequestKind.ONBOARDING
        if is_arrival or (entry.is_measuring and entry.state is RequestState.RUNNING):
            reserved |= entry.request.device_ids
            if is_arrival:
                reserved |= _neighbours(core, entry.request.device_ids)
    leasing.reserved = frozenset(reserved)
    freed = [leasing.devices.get(device_id) for device_id in sorted(before - leasing.reserved)]
    return [instruction for device in freed if device is not None for instruction in leasing.settle(device)]


def _neighbours(core: Core, device_ids: frozenset[DeviceId]) -> set[DeviceId]:
    devices = core.leasing.devices
    mine = [
        devices[device_id]
        for device_id in device_ids
        if device_id in devices and devices[device_id].neighbourhood
    ]
    places = {(device.host, device.neighbourhood) for device in mine}
    if not places:
        return set()
    return {
        device_id for device_id, device in devices.items() if (device.host, device.neighbourhood) in places
    }


def start_drivers(core: Core) -> list[Instruction]:
    """Start the drivers of waiting requests, as far as there is room for them; those in commands at once."""
    limits = core.leasing.limits
    entries = [entry for entry in core.requests.open() if entry.request.kind.has_driver]
    waiting = [entry for entry in entries if entry.state is RequestState.QUEUED]
    begun = [entry for entry in waiting if entry.request.is_embedded or entry.request.is_background]
    others = [entry for entry in waiting if entry not in begun]
    others.sort(key=lambda entry: -entry.priority)
    counted = [entry for entry in entries if not entry.request.is_background]
    room = limits.drivers - sum(entry.state is RequestState.RUNNING for entry in counted)
    chosen = others[: max(0, room)]
    # An arrival waits for other arrivals only.
    at_work = [*chosen, *(entry for entry in entries if entry.state is RequestState.RUNNING)]
    arrivals = [entry for entry in others if entry.request.kind is RequestKind.ONBOARDING]
    is_alone = not any(entry.request.kind is RequestKind.ONBOARDING for entry in at_work)
    if arrivals and is_alone and not limits.requests_only:
        chosen.append(arrivals[0])
    if chosen:
        latest = max(waiting.index(entry) for entry in chosen)
        for entry in waiting[:latest]:
            entry.overtaken += entry not in chosen and entry not in begun
    instructions: list[Instruction] = []
    for entry in [*begun, *chosen]:
        entry.begin(core.leasing.now)
        entry.is_measuring = True
        request_id = entry.request.request_id
        instructions += [ShowRequest(request_id=request_id), StartDriver(request_id=request_id)]
    return instructions


def without_jobs(core: Core, request_id: str) -> list[Instruction]:
    """Cancel the jobs of a request that has ended; those that run are finished, and count."""
    instructions: list[Instruction] = []
    for entry in core.leasing.jobs.of_request(request_id):
        device = core.leasing.devices[entry.job.device_id]
        if entry.fencing_token is not None:
            # Released with its agent or coordinator, and not expired: what the spool holds is to be stored.
            device.remember(entry.fencing_token)
        core.leasing.jobs.end(entry, JobState.CANCELLED)
        instructions += core.leasing.settle(device)
    return instructions
