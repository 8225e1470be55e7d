"""Whether there is room on the disk: what is said when there is none, and how room is found out again.

Told by `fleet.engine.ingest` and `fleet.engine.coordinator` of every write that found no room. While the
disk is full no lease is granted; what arrives waits, and agents keep what nobody acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agents.files import fsync
from fleet.core.events import DiskFreed, DiskFull
from fleet.engine.event_log import EventLog
from fleet.engine.notices import Notices
from fleet.errors import disk_errors

#: Least seconds between two tries.
RETRY_SECS = 2.0
#: Bytes whose writing shows that there is room: more than a turn writes.
_PROBE_BYTES = 4 << 20


class DiskWatch:
    """Tells the state of a full disk, and of room.

    Attributes:
        folder: Where room is looked for.
        is_full: Whether the last write found no room.
    """

    def __init__(
        self, folder: Path, event_log: EventLog, notices: Notices, clock: Callable[[], float]
    ) -> None:
        self._event_log, self._notices, self._clock = event_log, notices, clock
        self._retry_at = 0.0
        self.folder, self.is_full = folder, False

    @property
    def may_try(self) -> bool:
        """Whether a write is worth trying."""
        return not self.is_full or self._clock() >= self._retry_at

    def full(self, error: Exception) -> None:
        """Note that a write found no room."""
        self._retry_at = self._clock() + RETRY_SECS
        if not self.is_full:
            self.is_full = True
            self._notices.alarm("", f"no lease is granted until there is room on the disk: {error}", "disk")
            self._event_log.append(DiskFull(text=str(error)))

    def probe(self) -> None:
        """Look for room, if there was none.

        Raises:
            StoreFull: There is none.
        """
        if not self.is_full:
            return
        path = self.folder / "room.tmp"
        with disk_errors("looking for room", self.folder):
            try:
                path.write_bytes(bytes(_PROBE_BYTES))
                fsync(path)
            finally:
                path.unlink(missing_ok=True)

    def freed(self) -> None:
        """Note that what found no room is on the disk now."""
        if self.is_full:
            self.is_full = False
            self._event_log.append(DiskFreed())
            self._notices.alarm("", "there is room on the disk again; leases are granted", "disk")
