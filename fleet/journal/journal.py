"""What happened, in order and on the disk: the coordinator's memory across kills and power cuts.

`fleet.engine.coordinator` writes it and replays it into `fleet.core.state`. It keeps JSON objects, whatever
they mean.

A journal is a folder with one file of rows (`agents.row_file`): first a snapshot, then groups of events in
the order in which they were added. A newer snapshot takes the place of all rows in one transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agents.files import free_name
from agents.row_file import RowFile
from agents.spool.frames import scan
from fleet.durable import disk_errors
from fleet.errors import FleetError
from fleet.histogram import Histogram

#: Layout of the rows. 1: first published layout.
JOURNAL_SCHEMA = 1
#: A journal that has grown by this much since its snapshot is worth a new snapshot.
COMPACT_BYTES = 16 << 20

_SNAPSHOT, _EVENTS = "snapshot", "events"


class Journal:
    """Events that survive, in groups that survive whole or not at all.

    Promises: when `append` returns, its events survive a kill and a power cut. One process may have it open;
    the coordinator's lock sees to that. What stands behind damage does not count: what it builds on is gone.

    Args:
        folder: Folder; made if missing.
        compact_bytes: Growth after which `is_long` says so.

    Raises:
        StoreFull: No room to begin.
        StoreError: The folder cannot be used.
        FleetError: A newer version wrote it.

    Attributes:
        path: The file.
        snapshot: The state that the events come on top of; empty in a journal that began without one.
        size_bytes: Bytes of snapshot and events.
        notes: Damage that was found, one line each; mostly empty.
        waits: How long the disk took to make events durable.
    """

    def __init__(self, folder: Path, *, compact_bytes: int = COMPACT_BYTES) -> None:
        self.path = folder / "journal.sqlite"
        self._compact_bytes = compact_bytes
        self.snapshot: dict[str, Any] = {}
        self.waits = Histogram()
        with disk_errors("opening the journal", folder):
            self._rows = RowFile(self.path, layout=JOURNAL_SCHEMA)
            self.notes = self._rows.notes
            try:
                self._open(folder)
            except BaseException:
                self._rows.close()
                raise

    @property
    def is_long(self) -> bool:
        """Whether it is time for `compact`: reading the events back takes longer than reading a snapshot."""
        return self.size_bytes - self._began > max(self._compact_bytes, self._began)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events that were added since the snapshot, oldest first."""
        with disk_errors("reading the journal", self.path.parent):
            for row in self._rows.rows():
                if row.key == _EVENTS:
                    yield from json.loads(row.body)

    def append(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Add events; they are on the disk when this returns, all of them or, after a kill, none.

        Raises:
            StoreFull: No room; none of them was kept, and they may be added again once there is room.
            StoreError: The disk failed; whether they were kept is not known, so open the journal again.
        """
        if not events:
            return
        body = _packed(list(events))
        with disk_errors("writing the journal", self.path.parent), self.waits.timed():
            [self._last] = self._rows.change([(_EVENTS, body)])
        self.size_bytes += len(body)

    def compact(self, snapshot: Mapping[str, Any]) -> None:
        """Put the state after all events so far in their place.

        Raises:
            StoreFull: No room; the journal is as it was.
            StoreError: The disk failed.
        """
        with disk_errors("compacting the journal", self.path.parent):
            self._begin(snapshot, [])

    def close(self) -> None:
        """Let another one open it."""
        self._rows.close()

    def _open(self, folder: Path) -> None:
        if self._rows.layout != JOURNAL_SCHEMA:
            raise _newer(self.path, self._rows.layout)
        self._first = self._last = self._began = self.size_bytes = 0
        behind: list[int] = []
        for number, key, size in self._rows.sizes():
            # Numbers have no gap but where rows were lost to damage.
            if behind or not (number == self._last + 1 if self._began else key == _SNAPSHOT):
                behind.append(number)
                continue
            if key == _SNAPSHOT:
                self._first, self._began = number, size
            self._last = number
            self.size_bytes += size
        for row in self._rows.get([self._first] if self._began else []):
            self.snapshot = json.loads(row.body)
        if behind:
            self._rows.change([], behind)
            self.notes.append(f"{self.path}: {len(behind)} groups of events behind the damage do not count")
        if not self._began:
            self.snapshot, groups, damaged = _earlier(folder)
            self._begin(self.snapshot, groups)
            for path in damaged:
                aside = free_name(path, ".corrupt")
                path.replace(aside)
                self.notes.append(f"{path} is damaged: kept as {aside.name}, what stands before goes on")
        # Moved over, and on the disk.
        for path in folder.glob("[0-9]*.journal"):
            path.unlink()

    def _begin(self, snapshot: Mapping[str, Any], groups: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        first, *others = map(_packed, (dict(snapshot), *groups))
        added = [(_SNAPSHOT, first), *((_EVENTS, one) for one in others)]
        numbers = self._rows.change(added, range(self._first, self._last + 1))
        self._first, self._last, self._began = numbers[0], numbers[-1], len(first)
        self.size_bytes = self._began + sum(map(len, others))


def _packed(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _newer(path: Path, layout: object) -> FleetError:
    return FleetError(
        f"{path} has layout {layout}, this version knows {JOURNAL_SCHEMA}; upgrade tensor-fleet"
    )


def _earlier(folder: Path) -> tuple[dict[str, Any], list[list[dict[str, Any]]], list[Path]]:
    """Snapshot and groups of events of an earlier version's journal, if there is one, and damaged files.

    That was a file `NUMBER.journal` of frames, the newest one that began with a whole snapshot.
    """
    damaged: list[Path] = []
    for path in sorted(folder.glob("[0-9]*.journal"), reverse=True):
        data = path.read_bytes()
        found = scan(data)
        # Events after a gap cannot be applied: the events that they build on are missing.
        values = [
            json.loads(data[offset : offset + length])
            for offset, length in found.frames
            if not found.holes or offset < found.holes[0]
        ]
        if found.holes or not values:
            damaged.append(path)
        if values:
            if values[0].get("schema") != JOURNAL_SCHEMA or "snapshot" not in values[0]:
                raise _newer(path, values[0].get("schema"))
            return values[0]["snapshot"], [one["events"] for one in values[1:]], damaged
    return {}, [], damaged
