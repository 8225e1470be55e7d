"""What happened, in order and on the disk: the coordinator's memory across kills and power cuts.

`fleet.engine.coordinator` writes it and replays it into `fleet.core.state`. It keeps JSON objects, whatever
they mean.

A journal is a folder with one file that counts, `NUMBER.journal`, of frames as in the agents' spools: first a
snapshot, then groups of events in the order in which they were added. A new file begins with a newer snapshot
and takes the place of the old one by its rename, so at any moment there is one whole journal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agents.spool.frames import Scan, frame, make_folder, scan, set_aside, truncate
from fleet.durable import FULL_ERRNOS, disk_errors, fsync
from fleet.errors import FleetError, StoreError
from fleet.histogram import Histogram

#: Layout of the frames. 1: first published layout.
JOURNAL_SCHEMA = 1
#: A file that has grown by this much since its snapshot is worth a new snapshot.
COMPACT_BYTES = 16 << 20

_SUFFIX = ".journal"


class Journal:
    """Events that survive, in groups that survive whole or not at all.

    Promises: when `append` returns, its events survive a kill and a power cut; what a kill has cut off at the
    end was never promised, and is dropped with a word in `notes`. One process may have it open; the
    coordinator's lock sees to that.

    Args:
        folder: Folder; made if missing.
        compact_bytes: Growth after which `is_long` says so.

    Raises:
        StoreFull: No room to begin.
        StoreError: The folder cannot be used.
        FleetError: A newer version wrote it.

    Attributes:
        snapshot: The state that the events come on top of; empty in a journal that began without one.
        notes: What had to be mended, one line each; mostly empty.
        waits: How long the disk took to make events durable.
    """

    def __init__(self, folder: Path, *, compact_bytes: int = COMPACT_BYTES) -> None:
        self._folder = folder
        self._compact_bytes = compact_bytes
        self._failed = False
        self._is_named = False
        #: Whether something may stand behind what was promised, because there was no room to make it durable.
        self._has_tail = False
        self.snapshot: dict[str, Any] = {}
        self.notes: list[str] = []
        self.waits = Histogram()
        self._events: list[tuple[int, int]] = []
        with disk_errors("opening the journal", folder):
            make_folder(folder)
            for leftover in folder.glob("*.tmp"):
                leftover.unlink()
            self._open()

    @property
    def path(self) -> Path:
        """The file that counts."""
        return self._path

    @property
    def size_bytes(self) -> int:
        """Length of that file."""
        return self._size

    @property
    def is_long(self) -> bool:
        """Whether it is time for `compact`: reading the events back takes longer than reading a snapshot."""
        return self._size - self._began > max(self._compact_bytes, self._began)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events that were there when the journal was opened, oldest first."""
        with disk_errors("reading the journal", self._folder), self._path.open("rb") as stream:
            for offset, length in self._events:
                stream.seek(offset)
                yield from json.loads(stream.read(length))["events"]

    def append(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Add events; they are on the disk when this returns, all of them or, after a kill, none.

        Raises:
            StoreFull: No room; none of them was kept, and they may be added again once there is room.
            StoreError: The disk failed; whether they were kept is not known, so open the journal again.
        """
        if not events:
            return
        if self._failed:
            raise StoreError(f"{self._path}: the disk failed while this was written; start again to go on")
        data = frame({"events": list(events)})
        with disk_errors("writing the journal", self._folder):
            self._settle()
            self._write(data)
        self._size += len(data)

    def compact(self, snapshot: Mapping[str, Any]) -> None:
        """Begin a new file with the state after all events so far; the old file goes.

        Raises:
            StoreFull: No room; the old file goes on.
            StoreError: The disk failed.
        """
        with disk_errors("compacting the journal", self._folder):
            old = self._path
            self._begin(int(old.stem) + 1, snapshot)
            old.unlink(missing_ok=True)

    def _open(self) -> None:
        """Take the newest whole file; older ones are what a kill left of a compaction."""
        is_taken = False
        for path in sorted(self._folder.glob(f"[0-9]*{_SUFFIX}"), reverse=True):
            if is_taken:
                path.unlink()
            else:
                is_taken = self._take(path)
        if not is_taken:
            self._begin(0, {})

    def _take(self, path: Path) -> bool:
        """Read the frames of a file up to its first damage; whether it begins with a snapshot."""
        data = path.read_bytes()
        found = scan(data)
        if found.holes:
            # What comes after a gap cannot be applied: what it builds on is not there.
            kept = [one for one in found.frames if one[0] < found.holes[0]]
            self.notes.append(set_aside(path, data, Scan(frames=kept, end=0, holes=found.holes)))
            data = path.read_bytes()
            found = scan(data)
        if found.end < len(data):
            self.notes.append(f"{path}: dropped {len(data) - found.end} bytes that a kill had cut off")
            truncate(path, found.end)
        if not found.frames:
            aside = path.with_suffix(".corrupt")
            path.replace(aside)
            self.notes.append(
                f"{path} begins with no whole snapshot: kept as {aside.name}, it does not count"
            )
            return False
        # What a killed append has left is acted upon from now on, so it must not go with the power.
        fsync(path)
        self._settle()
        (offset, length), *events = found.frames
        first = json.loads(data[offset : offset + length])
        if first.get("schema") != JOURNAL_SCHEMA or "snapshot" not in first:
            raise FleetError(
                f"{path} has layout {first.get('schema')}, this version knows {JOURNAL_SCHEMA}; "
                "upgrade tensor-fleet"
            )
        self.snapshot, self._events = first["snapshot"], events
        self._path, self._size, self._began = path, found.end, offset + length
        return True

    def _begin(self, number: int, snapshot: Mapping[str, Any]) -> None:
        path = self._folder / f"{number:010d}{_SUFFIX}"
        temporary = path.with_suffix(".tmp")
        data = frame({"schema": JOURNAL_SCHEMA, "snapshot": dict(snapshot)})
        try:
            with temporary.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        # From here on it is the file that the next start takes, whatever becomes of the next step.
        self._path, self._size, self._began = path, len(data), len(data)
        self._failed = self._has_tail = self._is_named = False
        self._settle()

    def _settle(self) -> None:
        """Wait until the name of the file is on the disk: else what it holds could go with it."""
        if not self._is_named:
            fsync(self._folder)
            self._is_named = True

    def _write(self, data: bytes) -> None:
        if self._has_tail:
            truncate(self._path, self._size)
            self._has_tail = False
        descriptor = os.open(self._path, os.O_WRONLY)
        try:
            try:
                done = 0
                while done < len(data):
                    done += os.pwrite(descriptor, data[done:], self._size + done)
            except OSError:
                os.ftruncate(descriptor, self._size)
                raise
            try:
                with self.waits.timed():
                    os.fsync(descriptor)
            except OSError as error:
                # The system may have dropped the bytes, or written them: nobody knows.
                if error.errno in FULL_ERRNOS:
                    self._has_tail = True
                else:
                    self._failed = True
                raise
        finally:
            os.close(descriptor)


__all__ = ["COMPACT_BYTES", "JOURNAL_SCHEMA", "Journal"]
