"""Events of records and models: what each changes, and whether a training is due. Pure.

Called by `state.py`, which has one function here for each event; the rules are in `refresh_triggers.py`.
"""

from __future__ import annotations

from fleet.core import events as ev
from fleet.core.device_state import Device
from fleet.core.events import Event, Instruction, ReasonKind
from fleet.core.refresh_triggers import Phase
from fleet.core.request_events import (
    fingerprint_devices,
    onboard_arrivals,
    onboard_drifted,
    training_broke,
    training_is_judged,
    training_runs,
)
from fleet.core.state_core import Core


def records_stored(core: Core, event: ev.RecordsStored) -> list[Instruction]:
    """Count new records of a device and of its family."""
    device = core.device(event)
    device.records += event.count
    device.ok += event.ok
    core.triggers.stored(device.family, device.device_id, event.count)
    return onboard_drifted(core, device) if device.drifted_at is not None else []


def drift_alarm(core: Core, event: ev.DriftAlarm) -> list[Instruction]:
    """Ask for a training as soon as there are records from after it.

    A head from new samples is asked for when the device is steady again: what it measures until then is
    disturbed, often by a training beside it, and tells of no other device.
    """
    device = core.device(event)
    device.drift = event.text or "drift"
    device.is_unsteady = device.is_unsteady or event.is_unsteady
    _expect(core, device, ReasonKind.DRIFT, f"{device.device_id}: {device.drift}")
    return []


def drift_ended(core: Core, event: ev.DriftEnded) -> list[Instruction]:
    """The device is steady, as it was or at a new level: a head that was made meanwhile may be of neither."""
    device = core.device(event)
    has_drifted, device.drift, device.is_unsteady = bool(device.drift), "", False
    if not has_drifted:
        return []
    device.drifted_at = core.leasing.now
    return onboard_drifted(core, device)


def training_started(core: Core, event: ev.TrainingStarted) -> list[Instruction]:
    """The training that was asked for runs."""
    _check_training(core, event, event.family, Phase.ASKED)
    core.triggers.started(core.leasing.now)
    return training_runs(core)


def training_finished(core: Core, event: ev.TrainingFinished) -> list[Instruction]:
    """Its reasons are dealt with; the next may come after a pause."""
    _check_training(core, event, event.family, Phase.ASKED, Phase.RUNNING)
    text = event.text or (f"made {event.version}" if event.version else "kept no model")
    instructions = training_is_judged(core, event)
    core.triggers.finished(core.leasing.now, text, core.leasing.limits)
    return instructions


def training_failed(core: Core, event: ev.TrainingFailed) -> list[Instruction]:
    """Its reasons stand, unless they are hopeless; the next may come after a back-off."""
    _check_training(core, event, event.family, Phase.ASKED, Phase.RUNNING)
    instructions = training_broke(core, event.reason)
    text = f"{'waits for records' if event.wants_records else 'failed'}: {event.reason}"
    core.triggers.failed(core.leasing.now, text, core.leasing.limits, is_hopeless=event.is_hopeless)
    return instructions


def model_published(core: Core, event: ev.ModelPublished) -> list[Instruction]:
    """Note the champion of devices."""
    for device_id in event.device_ids:
        device = core.leasing.devices.get(device_id)
        if device is not None:  # a model has heads of devices that only the store knows, too
            device.champion = event.version
            # Every start tells of the champions that there are, and what was learnt meanwhile is disturbed.
            if not device.is_unsteady:
                device.drift = ""
            device.onboarded_in = device.onboarded_in or device.environment_id
            core.triggers.drop(device_id, frozenset({ReasonKind.NEW_DEVICE}))
    return onboard_arrivals(core) + fingerprint_devices(core)


def model_rolled_back(core: Core, event: ev.ModelRolledBack) -> list[Instruction]:
    """Note the champion of a device."""
    device = core.leasing.devices.get(event.device_id)
    if device is not None:
        device.champion = event.version
    return []


def enter_environment(core: Core, device: Device, environment_id: str) -> None:
    """Note the environment of a device; another one than before asks for a training."""
    if device.environment_id and device.environment_id != environment_id:
        text = f"{device.device_id} went from environment {device.environment_id} to {environment_id}"
        _expect(core, device, ReasonKind.NEW_ENVIRONMENT, text)
        device.drifted_at = None  # this asks for a head as well
    device.environment_id = environment_id


def _expect(core: Core, device: Device, kind: ReasonKind, text: str) -> None:
    """Ask for a training because of a device, once there are records that tell of it."""
    reason = ev.TrainingReason(kind=kind, device_id=device.device_id, text=text)
    core.triggers.expect(device.family, reason, core.leasing.limits.reason_records)


def _check_training(core: Core, event: Event, family: str, *phases: Phase) -> None:
    if core.triggers.phase not in phases or core.triggers.family != family:
        now = core.triggers
        raise core.impossible(event, f"the training is {now.phase} {now.family}".rstrip())
