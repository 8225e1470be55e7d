"""What a refresh process is asked for, and how often it was tried.

Written by `fleet.refresh.trainer_process`, read by `fleet.refresh.process`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from agents.records import Family
from fleet.durable import write_durably
from fleet.errors import FleetError
from fleet.models.registry import KEEP
from transfer.model.kinds import FLEET_TLP, KINDS

#: Names in the folder of a request: what is asked for, how often it was tried, what was decided before it
#: began, and what each epoch has left.
REQUEST, TRIED, PLAN, EPOCHS = "request.json", "tried", "plan.json", "epochs"
#: Epochs of a warm start over those of a training from nothing.
WARM_EPOCHS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshRequest:
    """What a refresh process is asked for."""

    #: `refresh`; `watch`: one look at fresh records; `standings`: leave-one-device-out scores.
    kind: str
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
    #: What is trained: a key of `transfer.model.kinds.KINDS`.
    model: str = FLEET_TLP
    epochs: int = 24
    seed: int = 0
    #: Logical CPUs to stay on; all where empty.
    cores: tuple[int, ...] = ()
    nice: int = 10
    #: Where to train: `cpu`, `cuda` or `auto`. A GPU that is measured should have no other work.
    compute: str = "cpu"
    #: Newest versions to keep.
    keep: int = KEEP


def request_from_json(text: str) -> RefreshRequest:
    """Read a request.

    Raises:
        FleetError: It is none.
    """
    try:
        value = json.loads(text)
        for name in ("reasons", "device_ids", "cores"):
            value[name] = tuple(value[name])
        request = RefreshRequest(**value)
        Family(request.family)
        if request.kind not in ("refresh", "watch", "standings"):
            raise ValueError(f"kind {request.kind!r}")
        if request.model not in KINDS:
            raise ValueError(f"model {request.model!r}")
        return request
    except (ValueError, TypeError, KeyError) as error:
        raise FleetError(
            f"not a request for a refresh: {error!r}; see fleet.refresh.request.RefreshRequest"
        ) from error


def request_text(request: RefreshRequest) -> str:
    """Inverse of `request_from_json`."""
    return json.dumps(asdict(request), indent=1, sort_keys=True) + "\n"


def tried(folder: Path) -> int:
    """Times that the request of a folder was begun and not stopped in order."""
    try:
        return int((folder / TRIED).read_text())
    except (OSError, ValueError):
        return 0


def count_tried(folder: Path, more: int) -> None:
    """Add to the times that a request was begun, or take one back."""
    write_durably(folder / TRIED, str(max(0, tried(folder) + more)).encode())


def warm_epochs(epochs: int) -> int:
    """Epochs of a training that goes on from a champion."""
    return max(1, round(epochs * WARM_EPOCHS))
