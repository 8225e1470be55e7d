"""What asks for a training: reasons ripen with records of their device, and survive a restart in order."""

from __future__ import annotations

from typing import Any

from agents.records import DeviceId
from fleet.core.events import ReasonKind, TrainingReason
from fleet.core.limits import Limits
from fleet.core.refresh_triggers import Triggers

LIMITS = Limits(training_records=1000, training_pause_secs=10.0, training_retry_secs=5.0)


def reason(device: str, kind: ReasonKind = ReasonKind.NEW_DEVICE) -> TrainingReason:
    return TrainingReason(kind=kind, device_id=device, text=f"{device} {kind}")


def asked(triggers: Triggers, now: float = 100.0) -> list[str]:
    return [one.text for start in triggers.ask(now, LIMITS) for one in start.reasons]


def again(triggers: Triggers) -> Triggers:
    """The same after a restart."""
    value: dict[str, Any] = triggers.to_json()
    made = Triggers.from_json(value)
    assert made.to_json() == value
    return made


def test_a_reason_waits_for_the_records_of_its_own_device() -> None:
    triggers = Triggers()
    for name in ("a", "b", "c"):
        triggers.expect("cpu", reason(name), 10)
    triggers.expect("cpu", reason("b"), 0)  # it is expected already
    triggers.stored("cpu", DeviceId("c"), 9)
    triggers.stored("cpu", DeviceId("x"), 99)
    assert asked(triggers) == []
    triggers = again(triggers)
    triggers.stored("cpu", DeviceId("c"), 1)
    triggers.expect("cpu", reason("c"), 0)  # it is due already
    triggers.expect("cpu", reason("c", ReasonKind.DRIFT), 0)
    triggers.stored("cpu", DeviceId("a"), 10)
    assert asked(again(triggers)) == ["c new_device", "c drift", "a new_device"]


def test_reasons_of_a_device_are_forgotten() -> None:
    triggers = Triggers()
    for name in ("a", "b"):
        triggers.expect("cpu", reason(name), 5)
        triggers.expect("cpu", reason(name, ReasonKind.DRIFT), 0)
    triggers.drop(DeviceId("a"), frozenset({ReasonKind.DRIFT}))
    triggers.drop(DeviceId("b"), frozenset({ReasonKind.NEW_DEVICE}))
    for name in ("a", "b"):
        triggers.stored("cpu", DeviceId(name), 5)
    assert asked(triggers) == ["b drift", "a new_device"]


def test_reasons_of_a_training_that_failed_come_first_and_once() -> None:
    triggers = Triggers()
    triggers.expect("cpu", reason("a"), 0)
    triggers.expect("cpu", reason("b"), 0)
    assert asked(triggers) == ["a new_device", "b new_device"]
    triggers.expect("cpu", reason("c"), 0)
    triggers.expect("cpu", reason("b"), 0)  # again, while the training runs
    triggers.failed(100.0, "no memory", LIMITS)
    assert asked(triggers, 104.0) == []
    assert asked(again(triggers), 105.0) == ["a new_device", "c new_device", "b new_device"]
