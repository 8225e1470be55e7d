"""What the driver of a request works with. Apart from the kinds, which the command line loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from fleet.config.settings import FleetConfig
from fleet.core.words import RequestKind


class Work(BaseModel):
    """What a driver works with; `fleet.daemon.launch` hands it to a process as JSON."""

    model_config = ConfigDict(frozen=True)

    kind: RequestKind
    arguments: dict[str, Any]
    #: Minutes that it may take; None for no limit.
    minutes: float | None
    #: Of the coordinator; `RequestArguments.settings` goes on top of them.
    settings: FleetConfig
    #: Folder of the model versions.
    models: Path
    #: Logical CPUs that its process may use; all where empty.
    cores: list[int] = []
    #: Of the driver's own; None inside of a command.
    folder: Path | None = None
