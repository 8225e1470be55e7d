"""What asks for a training: reasons ripen with records of their device, and survive a restart in order."""

from __future__ import annotations

from typing import Any

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
