"""What a refresh process is asked for: `fleet.refresh.refresh_child` writes it, `process.py` reads it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import msgspec

from fleet.models.registry import KEEP
from transfer.model.kinds import FLEET_TLP

#: Names in the folder of a request: what is asked for, and what was decided before it began.
REQUEST, PLAN = "request.json", "plan.json"
#: Epochs of a warm start over those of a training from nothing.
WARM_EPOCHS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingChoices:
    """How a refresh trains: the same in the coordinator's settings and in each request."""

    #: What is trained: a key of `transfer.model.kinds.KINDS`.
    model: str = FLEET_TLP
    epochs: int = 24
    seed: int = 0
    nice: int = 10
    #: Where to train: `cpu`, `cuda` or `auto`. A GPU that is measured should have no other work.
    compute: str = "cpu"
    #: Whether the shipped model is a candidate for champion (`onboarding.shipped`).
    shipped: bool = True
    #: Newest model versions to keep, besides those that serve or may be gone back to.
    keep: int = KEEP

    def as_dict(self) -> dict[str, Any]:
        """By name, what a request takes over from settings."""
        return {field.name: getattr(self, field.name) for field in fields(TrainingChoices)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshRequest(TrainingChoices):
    """What a refresh process is asked for."""

    #: `watch` is a look at fresh records, `start` makes the start of meta-learning of a version.
    kind: Literal["refresh", "watch", "start"]
    #: A value of `Family`.
    family: str
    store: str
    models: str
    #: Folder of its own, for what a killed one leaves.
    folder: str
    #: Tells this request from others.
    request_id: str
    reasons: tuple[str, ...] = ()
    #: Devices to train or to look at; all of the family where empty.
    device_ids: tuple[str, ...] = ()
    #: Logical CPUs to stay on; all where empty.
    cores: tuple[int, ...] = ()
    #: Version that a start is made of.
    version: str = ""


def read_request(path: Path) -> RefreshRequest:
    """Read a request, which was written as JSON.

    Raises:
        OSError: There is no such file.
        ValueError: It is no request.
    """
    return msgspec.json.decode(path.read_bytes(), type=RefreshRequest)


def warm_epochs(epochs: int) -> int:
    """Epochs of a training that goes on from a champion."""
    return max(1, round(epochs * WARM_EPOCHS))
