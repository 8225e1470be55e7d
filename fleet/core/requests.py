"""The requests that there are, and what each event does to them. Pure; part of `state.py`.

A request for a training waits until the one training of the fleet is free, runs with it, and ends with it;
`refresh_triggers.py` decides when. Every other request has a driver, a process that decides what is measured
for it: a few drivers run at a time, and each is started again with the coordinator.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agents.records import DeviceId
from fleet.core.device_state import Device
from fleet.core.event_json import value_from_json, value_to_json
from fleet.core.events import (
    DeviceState,
    Instruction,
    JobState,
    ReasonKind,
    RequestCancelled,
    RequestEnded,
    RequestProgressed,
    RequestSubmitted,
    RetireDevice,
    ShowRequest,
    StartDriver,
    StopDriver,
    TrainingFinished,
    TrainingReason,
)
from fleet.core.request_words import Request, RequestId, RequestKind, RequestState

if TYPE_CHECKING:
    from fleet.core.state_core import Core

#: Ended requests that are kept, and for how long.
KEPT_REQUESTS, KEPT_SECS = 1_000, 30 * 86_400.0
#: A driver ends by itself when its minutes are over, and tells what it has; after so long it is ended.
_DRIVER_GRACE_SECS = 600.0
#: Devices whose fingerprints one request measures at most.
_FINGERPRINTS = 16
#: Later requests that may be begun before a waiting one, and the priority that it has then.
_MOST_OVERTAKEN, _HIGHEST = 4, RequestKind.ONBOARDING.priority
_USABLE = frozenset({DeviceState.IDLE, DeviceState.LEASED})
#: Reasons for a training that a head of its own takes away from a device.
_DEALT_WITH = frozenset({ReasonKind.NEW_DEVICE, ReasonKind.NEW_ENVIRONMENT})


@dataclass(slots=True)
class RequestEntry:
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
            "done": self.done,
            "of": self.of,
            "left_secs": self.left_secs,
            "finding": self.finding,
            "result": dict(self.result),
            "reason": self.reason,
            "changes": self.changes,
        }


class Requests:
    """All requests that are open, and the last of those that have ended."""

    def __init__(self) -> None:
        self._entries: dict[RequestId, RequestEntry] = {}
        #: Requests that have not ended: looked at in every turn, while many that ended may be kept.
        self._open: dict[RequestId, RequestEntry] = {}

    def get(self, request_id: RequestId) -> RequestEntry | None:
        """A request; None for one that never was, or ended too long ago."""
        return self._entries.get(request_id)

    def ids(self) -> list[RequestId]:
        """Of all that are kept, in the order in which they were submitted."""
        return list(self._entries)

    def open(self) -> list[RequestEntry]:
        """Those that have not ended, in that order."""
        return list(self._open.values())

    def submit(self, request: Request, now: float) -> None:
        """Take a request in, and drop what ended too long ago or is too much."""
        entry = RequestEntry(request, now)
        self._entries[request.request_id] = self._open[request.request_id] = entry
        ended = [one for one in self._entries.values() if one.state.is_end]
        old = [one for one in ended if (one.ended_at or 0.0) < now - KEPT_SECS]
        too_many = heapq.nsmallest(len(ended) - KEPT_REQUESTS, ended, key=lambda one: one.ended_at or 0.0)
        for one in (*old, *too_many):
            self._entries.pop(one.request.request_id, None)

    def end(self, entry: RequestEntry, state: RequestState, now: float) -> None:
        """Note the end of a request."""
        del self._open[entry.request.request_id]
        entry.state, entry.ended_at, entry.left_secs = state, now, None
        entry.changes += 1

    def next_secs(self) -> float:
        """When the minutes of the next request are over; infinite where none has any."""
        return min((one.deadline_secs for one in self._open.values()), default=math.inf)

    def set_back(self, ahead_secs: float, now: float) -> None:
        """The clock was ahead: nothing that happened is yet to come, and no deadline is further away."""
        for one in self._entries.values():
            if one.deadline_secs < math.inf and one.started_at is not None:
                one.started_at -= ahead_secs
            one.submitted_at = min(one.submitted_at, now)
            one.started_at = None if one.started_at is None else min(one.started_at, now)
            one.ended_at = None if one.ended_at is None else min(one.ended_at, now)

    def to_json(self) -> list[Any]:
        """All of it; JSON-ready."""
        return [value_to_json(one) for one in self._entries.values()]

    @classmethod
    def from_json(cls, value: list[Any]) -> Requests:
        """Make what `to_json` wrote."""
        made = cls()
        entries = (value_from_json(RequestEntry, one) for one in value)
        made._entries = {one.request.request_id: one for one in entries}
        made._open = {key: one for key, one in made._entries.items() if not one.state.is_end}
        return made


def request_submitted(core: Core, event: RequestSubmitted) -> list[Instruction]:
    """Queue a request, and ask for what it wants."""
    request = event.request
    if core.requests.get(request.request_id) is not None:
        raise core.impossible(event, "a request of this id is there already")
    core.requests.submit(request, core.leasing.now)
    if request.kind.has_driver:
        return [ShowRequest(request_id=request.request_id), *_start_drivers(core), *reserve_devices(core)]
    if request.kind is RequestKind.RETIREMENT:
        return [ShowRequest(request_id=request.request_id), *_retire(core, core.requests.open()[-1])]
    family = family_of(request)
    text = f"request {request.request_id} asks for it"
    reason = TrainingReason(kind=ReasonKind.REQUEST, request_id=request.request_id, text=text)
    core.triggers.expect(family, reason, 0)
    return [ShowRequest(request_id=request.request_id)]


def request_progressed(core: Core, event: RequestProgressed) -> list[Instruction]:
    """Note how far a request has come; of one that has ended meanwhile it says nothing new."""
    entry = core.requests.get(event.request_id)
    if entry is None or entry.state is not RequestState.RUNNING:
        return []
    entry.done, entry.of, entry.left_secs = event.done, event.of, event.left_secs
    entry.finding = event.finding
    entry.changes += 1
    entry.is_measuring = event.is_measuring
    return [ShowRequest(request_id=event.request_id), *reserve_devices(core)]


def request_ended(core: Core, event: RequestEnded) -> list[Instruction]:
    """Note what a driver has done; of a request that was ended before it says nothing new."""
    entry = core.requests.get(event.request_id)
    if entry is None:
        raise core.impossible(event, "there is no request of this id")
    if entry.state is not RequestState.RUNNING:
        return []
    entry.result, entry.reason = dict(event.result), event.reason
    state = RequestState.FAILED if event.reason else RequestState.SUCCEEDED
    core.requests.end(entry, state, core.leasing.now)
    _train_instead(core, entry.request)
    made = _without_jobs(core, event.request_id)
    made += _start_drivers(core) + reserve_devices(core) + fingerprint_devices(core)
    return [ShowRequest(request_id=event.request_id), *made]


def _retire(core: Core, entry: RequestEntry) -> list[Instruction]:
    """Have the file of a device taken away: that it is gone ends the request, as it would without one."""
    if entry.state is RequestState.QUEUED:
        entry.state, entry.started_at = RequestState.RUNNING, core.leasing.now
        entry.changes += 1
    device_id = DeviceId(str(entry.request.arguments["device"]))
    return [RetireDevice(request_id=entry.request.request_id, device_id=device_id)]


def device_is_retired(core: Core, device: Device) -> list[Instruction]:
    """The device has left: the requests that asked for that have their end."""
    kind = RequestKind.RETIREMENT
    asked = [one for one in core.requests.open() if one.request.kind is kind]
    found = [one for one in asked if one.request.arguments["device"] == device.device_id]
    for entry in found:
        entry.result = {"device": device.device_id, "records": device.records}
        core.requests.end(entry, RequestState.SUCCEEDED, core.leasing.now)
    return _shown(found)


def drivers_begun(core: Core) -> list[Instruction]:
    """A coordinator took over: drivers begin anew, those that had been begun and those that waited.

    Not all of them at once: a coordinator with other limits may have begun more than there is room for. Those
    in commands ended with these.
    """
    made: list[Instruction] = []
    for entry in core.requests.open():
        if entry.request.is_embedded:
            reason = "its command has ended; the same command goes on from what is stored"
            entry.reason = reason
            core.requests.end(entry, RequestState.CANCELLED, core.leasing.now)
            made.append(ShowRequest(request_id=entry.request.request_id))
            made += _without_jobs(core, entry.request.request_id)
        elif entry.request.kind is RequestKind.RETIREMENT:
            made += _retire(core, entry)
        elif entry.state is RequestState.RUNNING and entry.request.kind.has_driver:
            entry.state, entry.started_at = RequestState.QUEUED, None
            entry.changes += 1
    return made + _start_drivers(core) + reserve_devices(core)


def reserve_devices(core: Core) -> list[Instruction]:
    """Keep the background off the devices that a driver measures on: it would wait for every answer.

    An arrival has its neighbours wait too, with which it would share what times their programs; and while its
    head is made as well, which would take twice as long beside their compilers.
    """
    leasing, before, found = core.leasing, core.leasing.reserved, set[DeviceId]()
    for entry in core.requests.open():
        if entry.request.is_background:
            continue
        is_arrival = entry.request.kind is RequestKind.ONBOARDING
        if is_arrival or (entry.is_measuring and entry.state is RequestState.RUNNING):
            found |= entry.request.device_ids
            if is_arrival:
                found |= _neighbours(core, entry.request.device_ids)
    leasing.reserved = frozenset(found)
    freed = [leasing.devices.get(one) for one in sorted(before - leasing.reserved)]
    return [made for device in freed if device is not None for made in leasing.settle(device)]


def _neighbours(core: Core, device_ids: frozenset[DeviceId]) -> set[DeviceId]:
    devices = core.leasing.devices
    mine = [devices[one] for one in device_ids if one in devices and devices[one].neighbourhood]
    places = {(one.host, one.neighbourhood) for one in mine}
    if not places:
        return set()
    return {one for one, device in devices.items() if (device.host, device.neighbourhood) in places}


def onboard_arrivals(core: Core) -> list[Instruction]:
    """Ask for a head for every device that works, where others of its family have one.

    Once in an environment: where nothing comes of it, a training gives it a head as soon as it has records.
    So it does where a device has these already: one training serves a hundred devices that waited for the
    first model, and onboardings of them would take hours, one after the other.
    """
    limits, made = core.leasing.limits, list[Instruction]()
    if not limits.arrival_samples:
        return made
    families = {one.family for one in core.leasing.devices.values() if one.champion}
    for device in core.leasing.devices.values():
        samples = limits.return_samples if device.champion else limits.arrival_samples
        is_new = device.environment_id != device.onboarded_in
        is_first = device.champion and not device.onboarded_in
        if not samples or not is_new or device.state not in _USABLE or device.family not in families:
            continue
        device.onboarded_in = device.environment_id
        if not is_first:
            device.fingerprinted_in = device.environment_id  # an onboarding measures it
        if is_first or _is_asked(core, device):
            continue  # its head is from before devices were given heads by themselves
        if not device.champion and core.leasing.rules >= 5 and device.records >= limits.reason_records:
            _train_for(core, device)
            continue
        core.triggers.drop(device.device_id, _DEALT_WITH)
        name = f"onboarding-{device.device_id}-{device.incarnation}"
        made += _ask_for_head(core, device, name, samples)
    return made + _start_drivers(core) + reserve_devices(core) if made else made


def onboard_drifted(core: Core, device: Device) -> list[Instruction]:
    """Ask for a new head for a device that drifted, from a few candidates measured since then.

    Nobody waits for it that could go on: without a head, or with a request for one, the device gets one
    anyhow. Once in `Limits.drift_pause_secs`: a device that never rests would do nothing else.
    """
    limits, since = core.leasing.limits, device.drifted_at
    is_able = limits.return_samples and device.champion and device.state in _USABLE
    if since is None or not is_able or _is_asked(core, device):
        return []
    asked_at = device.drift_asked_at
    if asked_at is not None and core.leasing.now < asked_at + limits.drift_pause_secs:
        return []
    device.drifted_at, device.drift_asked_at = None, core.leasing.now
    name = f"drift-{device.device_id}-{core.leasing.now:.0f}"
    # Agents stamp their records by the wall clock.
    moment = {"since": since + core.leasing.wall_ahead_secs}
    made = _ask_for_head(core, device, name, limits.return_samples, moment)
    return made + _start_drivers(core) + reserve_devices(core)


def _ask_for_head(
    core: Core, device: Device, name: str, samples: int, more: Mapping[str, Any] | None = None
) -> list[Instruction]:
    """Submit an onboarding that nobody asked for, unless it is there already."""
    request_id = RequestId(name)
    if core.requests.get(request_id) is not None:
        return []
    arguments = {"device": device.device_id, "samples": samples, "fewer": True, **(more or {})}
    request = Request(request_id=request_id, kind=RequestKind.ONBOARDING, arguments=arguments)
    core.requests.submit(request, core.leasing.now)
    return [ShowRequest(request_id=request_id)]


def fingerprint_devices(core: Core) -> list[Instruction]:
    """Have the fingerprints measured of devices with a head, which may be sources of others.

    Once in an environment, by one request at a time, behind all else that the devices do.
    """
    if not core.leasing.limits.fingerprints:
        return []
    if any(one.request.is_background for one in core.requests.open()):
        return []
    due = [
        device
        for device in core.leasing.devices.values()
        if device.champion
        and device.state in _USABLE
        and device.environment_id not in ("", device.fingerprinted_in)
        and not _is_asked(core, device)
    ][:_FINGERPRINTS]
    request_id = RequestId(f"fingerprints-{core.leasing.now:.0f}")
    if not due or core.requests.get(request_id) is not None:
        return []
    for device in due:
        device.fingerprinted_in = device.environment_id
    arguments = {"devices": sorted(one.device_id for one in due), "fingerprint": True}
    request = Request(request_id=request_id, kind=RequestKind.COLLECTION, arguments=arguments)
    core.requests.submit(request, core.leasing.now)
    return [ShowRequest(request_id=request_id), *_start_drivers(core)]


def _is_asked(core: Core, device: Device) -> bool:
    """Whether an open request is for the head of a device."""
    return any(
        one.request.kind is RequestKind.ONBOARDING and device.device_id in one.request.device_ids
        for one in core.requests.open()
    )


def _train_instead(core: Core, request: Request) -> None:
    """Where a device got no head, a training gives it one as soon as it has records."""
    if request.kind is not RequestKind.ONBOARDING:
        return
    for device_id in request.device_ids:
        device = core.leasing.devices.get(device_id)
        if device is not None and not device.champion:
            _train_for(core, device)


def _train_for(core: Core, device: Device) -> None:
    text = f"{device.device_id} has no head yet"
    reason = TrainingReason(kind=ReasonKind.NEW_DEVICE, device_id=device.device_id, text=text)
    core.triggers.expect(device.family, reason, core.leasing.limits.reason_records - device.records)


def _start_drivers(core: Core) -> list[Instruction]:
    """Start the drivers of waiting requests, as far as there is room for them; those in commands at once."""
    limits = core.leasing.limits
    found = [one for one in core.requests.open() if one.request.kind.has_driver]
    waiting = [one for one in found if one.state is RequestState.QUEUED]
    begun = [one for one in waiting if one.request.is_embedded or one.request.is_background]
    others = [one for one in waiting if one not in begun]
    others.sort(key=lambda one: -one.priority)
    counted = [one for one in found if not one.request.is_background]
    room = limits.drivers - sum(one.state is RequestState.RUNNING for one in counted)
    chosen = others[: max(0, room)]
    # An arrival waits for other arrivals only.
    at_work = [*chosen, *(one for one in found if one.state is RequestState.RUNNING)]
    arrivals = [one for one in others if one.request.kind is RequestKind.ONBOARDING]
    is_alone = not any(one.request.kind is RequestKind.ONBOARDING for one in at_work)
    if arrivals and is_alone and not limits.requests_only:
        chosen.append(arrivals[0])
    if chosen and core.leasing.rules >= 3:
        latest = max(waiting.index(one) for one in chosen)
        for one in waiting[:latest]:
            one.overtaken += one not in chosen and one not in begun
    made: list[Instruction] = []
    for entry in [*begun, *chosen]:
        entry.state, entry.started_at = RequestState.RUNNING, core.leasing.now
        entry.is_measuring = True
        entry.changes += 1
        request_id = entry.request.request_id
        made += [ShowRequest(request_id=request_id), StartDriver(request_id=request_id)]
    return made


def _without_jobs(core: Core, request_id: str) -> list[Instruction]:
    """Cancel the jobs of a request that has ended; those that run are finished, and count."""
    made: list[Instruction] = []
    for entry in core.leasing.jobs.of_request(request_id):
        core.leasing.jobs.end(entry, JobState.CANCELLED)
        made += core.leasing.settle(core.leasing.devices[entry.job.device_id])
    return made


def request_cancelled(core: Core, event: RequestCancelled) -> list[Instruction]:
    """End a request that is not wanted any more; one that has ended is no fault."""
    entry = core.requests.get(event.request_id)
    if entry is None:
        raise core.impossible(event, "there is no request of this id")
    if entry.state.is_end:
        return [ShowRequest(request_id=event.request_id)]
    return _give_up(core, entry, RequestState.CANCELLED, event.reason)


def requests_due(core: Core) -> list[Instruction]:
    """End the requests whose minutes are over."""
    made: list[Instruction] = []
    for entry in core.requests.open():
        if entry.deadline_secs <= core.leasing.now:
            reason = f"it was not done after its {entry.request.minutes:g} minutes"
            made += _give_up(core, entry, RequestState.FAILED, reason)
    return made


def training_runs(core: Core) -> list[Instruction]:
    """The training began: so did the requests that asked for it."""
    found = [entry for entry in _in_training(core) if entry.state is RequestState.QUEUED]
    for entry in found:
        entry.state, entry.started_at = RequestState.RUNNING, core.leasing.now
        entry.finding = f"the training for {core.triggers.family} runs"
        entry.changes += 1
    return _shown(found)


def training_is_judged(core: Core, event: TrainingFinished) -> list[Instruction]:
    """The training ended: the requests that asked for it have their answer."""
    found = _in_training(core)
    result = {
        "version": event.version,
        "text": event.text,
        "serves": dict(event.serves),
        "kept_champions": dict(event.kept_champions),
    }
    for entry in found:
        if event.serves or event.kept_champions:
            entry.result, entry.finding = result, event.text
            core.requests.end(entry, RequestState.SUCCEEDED, core.leasing.now)
        else:
            entry.reason = event.text or "no model was judged"
            core.requests.end(entry, RequestState.FAILED, core.leasing.now)
    return _shown(found)


def training_broke(core: Core, reason: str) -> list[Instruction]:
    """The training failed: it is tried again for other reasons, but not for whoever asked for this one."""
    found = _in_training(core)
    for entry in found:
        entry.reason = reason
        core.requests.end(entry, RequestState.FAILED, core.leasing.now)
    return _shown(found)


def family_of(request: Request) -> str:
    """The family whose model a request for a training is about."""
    assert request.kind is RequestKind.TRAINING
    return str(request.arguments.get("family", ""))


def _in_training(core: Core) -> list[RequestEntry]:
    """Open requests that the present training was asked for by."""
    entries = (
        core.requests.get(RequestId(one.request_id)) for one in core.triggers.reasons if one.request_id
    )
    return [one for one in entries if one is not None and not one.state.is_end]


def _give_up(core: Core, entry: RequestEntry, state: RequestState, reason: str) -> list[Instruction]:
    was_running = entry.state is RequestState.RUNNING
    entry.reason = reason
    core.requests.end(entry, state, core.leasing.now)
    request = entry.request
    made: list[Instruction] = [ShowRequest(request_id=request.request_id)]
    if request.kind.has_driver:
        _train_instead(core, request)
        made += [StopDriver(request_id=request.request_id)] if was_running else []
        made += _without_jobs(core, request.request_id) + _start_drivers(core)
        return made + reserve_devices(core)
    if request.kind is RequestKind.RETIREMENT:
        return made
    return made + core.triggers.drop_request(family_of(request), request.request_id, core.leasing.now)


def _shown(entries: list[RequestEntry]) -> list[Instruction]:
    return [ShowRequest(request_id=one.request.request_id) for one in entries]
