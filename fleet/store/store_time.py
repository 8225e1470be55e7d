"""Time by which upkeep counts how long something has been out of use: seconds in which the host ran.

Only `fleet.store.store`, the writer, uses it. Readers go on reading what was in use when they opened the
store. So what they may still need must not age because a clock is set, or while the host sleeps or is off.

The count is kept in `upkeep.json` in the store's folder, with the versions that were the newest at some
times. Without that file nothing is old enough to be deleted until it has been out of use for that long again.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from agents.files import write_durably

UPKEEP = "upkeep.json"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Least seconds between two versions that are noted.
_NOTE_SECS = 600.0


def running_secs() -> float:
    """Seconds that the host has run since it was started, without those in which it slept."""
    return time.monotonic()


def boot_id() -> str:
    """Which start of the host this is; empty where nobody knows."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


class _Upkeep(Struct, frozen=True, kw_only=True):
    """What the file says: the count, which start of the host it is of, and how long that had run."""

    schema: Literal[1] = 1
    boot_id: str
    running_secs: float
    secs: float
    noted: list[tuple[float, int]]


class StoreTime:
    """The count of one store.

    It begins at what the wall clock shows. Between two processes of one start of the host it goes on; what
    lies between two starts is not counted.

    Args:
        folder: The store.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / UPKEEP
        self._boot_id, self._began = boot_id(), running_secs()
        self._secs = time.time()
        #: (time, newest version then), oldest first.
        self._noted: list[tuple[float, int]] = []
        try:
            before = msgspec.json.decode(self._path.read_bytes(), type=_Upkeep)
        except (OSError, ValueError):
            return
        self._secs, self._noted = before.secs, before.noted
        if self._boot_id and before.boot_id == self._boot_id:
            self._secs += max(0.0, self._began - before.running_secs)

    def now(self) -> float:
        """The time, in seconds."""
        return self._secs + max(0.0, running_secs() - self._began)

    def note(self, version: int, keep_secs: float) -> None:
        """Note the newest version of now, durably; `version_before` will be asked so many seconds back.

        Raises:
            OSError: The disk is full or failed.
        """
        now = self.now()
        if not self._noted or now - self._noted[-1][0] >= _NOTE_SECS:
            self._noted.append((now, version))
        while len(self._noted) > 1 and self._noted[1][0] <= now - keep_secs:
            del self._noted[0]
        upkeep = _Upkeep(boot_id=self._boot_id, running_secs=running_secs(), secs=now, noted=self._noted)
        write_durably(self._path, msgspec.json.encode(upkeep))

    def version_before(self, secs: float, newest: int) -> int | None:
        """A version that was the newest so long ago; who opened the store later sees it or a later one.

        Returns:
            None where nobody looked so long ago: then everything may be in use.
        """
        now = self.now()
        noted = [*self._noted, (now, newest)]
        return max((version for at, version in noted if at <= now - secs), default=None)
