"""Names of model versions on disk: one folder a version, numbered, never changed after it appeared.

Knows files only; what is in a version is the business of `transfer.model.checkpoint`, and who it serves that
of `fleet.models.registry`.
"""

from __future__ import annotations

import re
from pathlib import Path

from fleet.errors import FleetError

#: Folder beside the versions for leave-one-device-out scores, as kept by `transfer.auto`.
DEVICE_SCORES = "standings"
_VERSION = re.compile(r"v(\d{6})")


def versions(folder: Path) -> list[str]:
    """List the versions in a folder of models, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if _VERSION.fullmatch(entry.name))


def version_number(name: str) -> int:
    """Number of a version.

    Raises:
        ValueError: The name is no version's.
    """
    found = _VERSION.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is no name of a version, such as v000012")
    return int(found.group(1))


def latest(folder: Path) -> Path:
    """Folder of the newest version.

    Raises:
        FleetError: There is none.
    """
    found = versions(folder)
    if not found:
        raise FleetError(f"no model under {folder}; run `fleet train` first")
    return folder / found[-1]
