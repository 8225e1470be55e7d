"""Model versions on disk: one folder a version, numbered, never changed after it appeared.

Knows files only; what is in a version is the business of `transfer.checkpoint`.
"""

from __future__ import annotations

import re
from pathlib import Path

from fleet.errors import FleetError

_VERSION = re.compile(r"v(\d{6})")


def versions(folder: Path) -> list[str]:
    """List the versions in a folder of models, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if _VERSION.fullmatch(entry.name))


def next_version(folder: Path) -> str:
    """Name for the next version."""
    found = versions(folder)
    number = int(found[-1][1:]) + 1 if found else 1
    return f"v{number:06d}"


def latest(folder: Path) -> Path:
    """Folder of the newest version.

    Raises:
        FleetError: There is none.
    """
    found = versions(folder)
    if not found:
        raise FleetError(f"no model under {folder}; run `fleet train` first")
    return folder / found[-1]
