"""What a coordinator needs of whoever trains (`fleet.refresh.refresher.Refresher`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agents.records import DeviceId
from fleet.core.events import Event, TrainingReason


class Trainer(Protocol):
    """Trains in the background; nothing here waits."""

    @property
    def view(self) -> Mapping[str, Any]:
        """What is going on, JSON-ready."""

    def start(self, family: str, reasons: Sequence[TrainingReason]) -> None:
        """Begin a training."""

    def stop(self, family: str) -> None:
        """End the training of a family for good; nothing of it comes out of `poll` any more."""

    def records_stored(self, device_id: DeviceId, family: str, count: int) -> None:
        """Note new records."""

    def poll(self) -> list[Event]:
        """What happened since the last call."""


__all__ = ["Trainer"]
