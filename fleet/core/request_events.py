"""What each event does to requests, and which ones the fleet asks for by itself. Pure; part of `state.py`.

Devices that arrive get a head without being asked, devices that drifted a new one, and those with a head have
their fingerprints measured. `requests.py` has the requests themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.records import DeviceId
from fleet.core.device_state import USABLE, Device
from fleet.core.events import (
    Instruction,
    ReasonKind,
    RequestCancelled,
    RequestEnded,
    RequestProgressed,
    RequestSubmitted,
    RetireDevice,
    ShowRequest,
    StopDriver,
    TrainingFinished,
    TrainingReason,
)
from fleet.core.requests import RequestEntry, reserve_devices, start_drivers, without_jobs
from fleet.core.state_core import Core
from fleet.core.words import Request, RequestId, RequestKind, RequestState

#: Devices whose fingerprints one request measures at most.
_FINGERPRINTS = 16
#: Reasons for a training that a head of its own takes away from a device.
_DEALT_WITH = frozenset({ReasonKind.NEW_DEVICE, ReasonKind.NEW_ENVIRONMENT})


def request_submitted(core: Core, event: RequestSubmitted) -> list[Instruction]:
    """Queue a request, and ask for what it wants."""
    request = event.request
    if core.requests.get(request.request_id) is not None:
        raise core.impossible(event, "a request of this id is there already")
    core.requests.submit(request, core.leasing.now)
    if request.kind.has_driver:
        return [ShowRequest(request_id=request.request_id), *start_drivers(core), *reserve_devices(core)]
    if request.kind is RequestKind.RETIREMENT:
        return [ShowRequest(request_id=request.request_id), *_retire(core, core.requests.open()[-1])]
    text = f"request {request.request_id} asks for it"
    reason = TrainingReason(kind=ReasonKind.REQUEST, request_id=request.request_id, text=text)
    core.triggers.expect(request.family, reason, 0)
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
    entry.result = dict(event.result)
    state = RequestState.FAILED if event.reason else RequestState.SUCCEEDED
    core.requests.end(entry, state, core.leasing.now, event.reason)
    _train_instead(core, entry.request)
    instructions = without_jobs(core, event.request_id)
    instructions += start_drivers(core) + reserve_devices(core) + fingerprint_devices(core)
    return [ShowRequest(request_id=event.request_id), *instructions]


def _retire(core: Core, entry: RequestEntry) -> list[Instruction]:
    """Have the file of a device taken away: that it is gone ends the request, as it would without one."""
    if entry.state is RequestState.QUEUED:
        entry.begin(core.leasing.now)
    device_id = DeviceId(str(entry.request.arguments["device"]))
    return [RetireDevice(request_id=entry.request.request_id, device_id=device_id)]


def device_is_retired(core: Core, device: Device) -> list[Instruction]:
    """The device has left: the requests that asked for that have their end."""
    entries = [
        entry
        for entry in core.requests.open()
        if entry.request.kind is RequestKind.RETIREMENT
        and entry.request.arguments["device"] == device.device_id
    ]
    for entry in entries:
        entry.result = {"device": device.device_id, "records": device.records}
        core.requests.end(entry, RequestState.SUCCEEDED, core.leasing.now)
    return _show_requests(entries)


def drivers_begun(core: Core) -> list[Instruction]:
    """A coordinator took over: drivers begin anew, those that had been begun and those that waited.

    Not all of them at once: a coordinator with other limits may have begun more than there is room for. Those
    in commands ended with these.
    """
    instructions: list[Instruction] = []
    for entry in core.requests.open():
        if entry.request.is_embedded:
            reason = "its command has ended; the same command continues from what is stored"
            core.requests.end(entry, RequestState.CANCELLED, core.leasing.now, reason)
            instructions.append(ShowRequest(request_id=entry.request.request_id))
            instructions += without_jobs(core, entry.request.request_id)
        elif entry.request.kind is RequestKind.RETIREMENT:
            instructions += _retire(core, entry)
        elif entry.state is RequestState.RUNNING and entry.request.kind.has_driver:
            entry.state, entry.started_at = RequestState.QUEUED, None
            entry.changes += 1
    return instructions + start_drivers(core) + reserve_devices(core)


def onboard_arrivals(core: Core) -> list[Instruction]:
    """Ask for a head for every device that works, where others of its family have one.

    Once in an environment: where nothing comes of it, a training gives it a head as soon as it has records.
    So it does where a device has these already: one training serves a hundred devices that waited for the
    first model, and onboardings of them would take hours, one after the other.
    """
    limits, instructions = core.leasing.limits, list[Instruction]()
    if not limits.arrival_samples:
        return instructions
    families = {device.family for device in core.leasing.devices.values() if device.champion}
    for device in core.leasing.devices.values():
        samples = limits.return_samples if device.champion else limits.arrival_samples
        is_new = device.environment_id != device.onboarded_in
        is_first = device.champion and not device.onboarded_in
        if not samples or not is_new or device.state not in USABLE or device.family not in families:
            continue
        device.onboarded_in = device.environment_id
        if not is_first:
            device.fingerprinted_in = device.environment_id  # an onboarding measures it
        if is_first or _is_asked(core, device):
            continue  # its head was there before its environment was known
        if not device.champion and device.records >= limits.reason_records:
            train_for(core, device)
            continue
        core.triggers.drop(device.device_id, _DEALT_WITH)
        name = f"onboarding-{device.device_id}-{device.incarnation}"
        arguments = {"device": device.device_id, "samples": samples}
        instructions += _submit_own(core, name, RequestKind.ONBOARDING, arguments)
    return instructions + start_drivers(core) + reserve_devices(core) if instructions else instructions


def onboard_drifted(core: Core, device: Device) -> list[Instruction]:
    """Ask for a new head for a device that drifted, from a few candidates measured since then.

    Nobody waits for it that could go on: without a head, or with a request for one, the device gets one
    anyhow. Once in `Limits.drift_pause_secs`: a device that never rests would do nothing else.
    """
    limits, since = core.leasing.limits, device.drifted_at
    is_able = limits.return_samples and device.champion and device.state in USABLE
    if since is None or not is_able or _is_asked(core, device):
        return []
    asked_at = device.drift_asked_at
    if asked_at is not None and core.leasing.now < asked_at + limits.drift_pause_secs:
        return []
    device.drifted_at, device.drift_asked_at = None, core.leasing.now
    name = f"drift-{device.device_id}-{core.leasing.now:.0f}"
    # Agents stamp their records by the wall clock.
    moment = since + core.leasing.wall_ahead_secs
    arguments = {"device": device.device_id, "samples": limits.return_samples, "since": moment}
    instructions = _submit_own(core, name, RequestKind.ONBOARDING, arguments)
    return instructions + start_drivers(core) + reserve_devices(core)


def _submit_own(core: Core, name: str, kind: RequestKind, arguments: Mapping[str, Any]) -> list[Instruction]:
    """Submit a request that nobody asked for; nothing follows where it is there already."""
    request_id = RequestId(name)
    if core.requests.get(request_id) is not None:
        return []
    request = Request(request_id=request_id, kind=kind, arguments=arguments)
    core.requests.submit(request, core.leasing.now)
    return [ShowRequest(request_id=request_id)]


def fingerprint_devices(core: Core) -> list[Instruction]:
    """Have the fingerprints measured of devices with a head, which may be sources of others.

    Once in an environment, by one request at a time, behind all else that the devices do.
    """
    if not core.leasing.limits.fingerprints:
        return []
    if any(entry.request.is_background for entry in core.requests.open()):
        return []
    due = [
        device
        for device in core.leasing.devices.values()
        if device.champion
        and device.state in USABLE
        and device.environment_id not in ("", device.fingerprinted_in)
        and not _is_asked(core, device)
    ][:_FINGERPRINTS]
    if not due:
        return []
    arguments = {"devices": sorted(device.device_id for device in due)}
    name = f"fingerprints-{core.leasing.now:.0f}"
    submitted = _submit_own(core, name, RequestKind.FINGERPRINT, arguments)
    if not submitted:
        return []
    for device in due:
        device.fingerprinted_in = device.environment_id
    return submitted + start_drivers(core)


def _is_asked(core: Core, device: Device) -> bool:
    """Whether an open request is for the head of a device."""
    return any(
        entry.request.kind is RequestKind.ONBOARDING and device.device_id in entry.request.device_ids
        for entry in core.requests.open()
    )


def _train_instead(core: Core, request: Request) -> None:
    """Where a device got no head, a training gives it one as soon as it has records."""
    if request.kind is not RequestKind.ONBOARDING:
        return
    for device_id in request.device_ids:
        device = core.leasing.devices.get(device_id)
        if device is not None and not device.champion:
            train_for(core, device)


def train_for(core: Core, device: Device) -> None:
    """Ask for a training that gives a device its first head, once it has enough records."""
    text = f"{device.device_id} has no head yet"
    reason = TrainingReason(kind=ReasonKind.NEW_DEVICE, device_id=device.device_id, text=text)
    core.triggers.expect(device.family, reason, core.leasing.limits.reason_records - device.records)


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
    instructions: list[Instruction] = []
    for entry in core.requests.open():
        if entry.deadline_secs <= core.leasing.now:
            reason = f"it was not done after its {entry.request.minutes:g} minutes"
            instructions += _give_up(core, entry, RequestState.FAILED, reason)
    return instructions


def ask_for_training(core: Core) -> list[Instruction]:
    """Ask for the training that is due; where nobody's request is for it, it gets one of the fleet's own.

    Whoever lists the requests sees it, with its reasons, its progress and its end, and may cancel it.
    """
    triggers, now = core.triggers, core.leasing.now
    instructions: list[Instruction] = [*triggers.ask(now, core.leasing.limits)]
    if not instructions or _in_training(core):
        return instructions
    arguments = {"family": triggers.family, "reasons": [reason.text for reason in triggers.reasons]}
    name = f"training-{triggers.family}-{now:.0f}"
    return [*_submit_own(core, name, RequestKind.TRAINING, arguments), *instructions]


def training_runs(core: Core) -> list[Instruction]:
    """The training began: so did the requests that asked for it."""
    entries = [entry for entry in _in_training(core) if entry.state is RequestState.QUEUED]
    for entry in entries:
        entry.begin(core.leasing.now)
        entry.finding = f"the training for {core.triggers.family} runs"
    return _show_requests(entries)


def training_is_judged(core: Core, event: TrainingFinished) -> list[Instruction]:
    """The training ended: the requests that asked for it have their answer."""
    entries = _in_training(core)
    result = {
        "version": event.version,
        "text": event.text,
        "serves": dict(event.serves),
        "kept_champions": dict(event.kept_champions),
    }
    for entry in entries:
        if event.serves or event.kept_champions:
            entry.result, entry.finding = result, event.text
            core.requests.end(entry, RequestState.SUCCEEDED, core.leasing.now)
        else:
            reason = event.text or "no model was judged"
            core.requests.end(entry, RequestState.FAILED, core.leasing.now, reason)
    return _show_requests(entries)


def training_broke(core: Core, reason: str) -> list[Instruction]:
    """The training failed: it is tried again for other reasons, but not for whoever asked for this one."""
    entries = _in_training(core)
    for entry in entries:
        core.requests.end(entry, RequestState.FAILED, core.leasing.now, reason)
    return _show_requests(entries)


def _in_training(core: Core) -> list[RequestEntry]:
    """Open requests that the present training was asked for by, or that the fleet has made for it."""
    names = {reason.request_id for reason in core.triggers.reasons}
    return [
        entry
        for entry in core.requests.open()
        if entry.request.request_id in names or entry.request.is_own_training
    ]


def _give_up(core: Core, entry: RequestEntry, state: RequestState, reason: str) -> list[Instruction]:
    was_running = entry.state is RequestState.RUNNING
    core.requests.end(entry, state, core.leasing.now, reason)
    request = entry.request
    instructions: list[Instruction] = [ShowRequest(request_id=request.request_id)]
    if request.kind.has_driver:
        _train_instead(core, request)
        instructions += [StopDriver(request_id=request.request_id)] if was_running else []
        instructions += without_jobs(core, request.request_id) + start_drivers(core)
        return instructions + reserve_devices(core)
    if request.kind is RequestKind.RETIREMENT:
        return instructions
    now = core.leasing.now
    if request.is_own_training:
        return instructions + core.triggers.stop_own(now, core.leasing.limits)
    return instructions + core.triggers.drop_request(request.family, request.request_id, now)


def _show_requests(entries: list[RequestEntry]) -> list[Instruction]:
    return [ShowRequest(request_id=entry.request.request_id) for entry in entries]
