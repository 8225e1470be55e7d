"""What stands in a state file beside results and candidates: events, rows that wait, letters, data files.

Most of it is nowhere else, so each of these rows has a sum of its own.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from agents.records import DeviceId
from fleet.errors import StateDamaged
from fleet.state.labels import Labels
from fleet.state.rows import DeadLetter, TableFile, WaitingRows, checksum
from fleet.state.schema import state_errors

#: Files up to this size are read as a whole when they are looked through quickly: half a second.
QUICK_BYTES = 256 << 20
#: Damage of pages that is named.
_NAMED = 10
#: Kinds of letters.
LATE, REFUSED = "late", "refused"


class Contents:
    """The rows of a state file that are read as a whole.

    Args:
        connection: Of the file.
        labels: Its labels.
        path: The file, for messages.
    """

    def __init__(self, connection: sqlite3.Connection, labels: Labels, path: Path) -> None:
        self._connection = connection
        self._labels = labels
        self.path = path

    def snapshot(self) -> bytes | None:
        """The state that the events come on top of; None before the first one."""
        with state_errors("reading the state file", self.path):
            row = self._connection.execute("SELECT number, body, sum FROM snapshot").fetchone()
        if row is None:
            return None
        number, body, total = row
        self._demand(checksum(str(number), body) == total, "the snapshot of the events")
        assert isinstance(body, bytes)
        return body

    def events(self) -> Iterator[bytes]:
        """Yield the groups of events since the snapshot, oldest first."""
        with state_errors("reading the state file", self.path):
            for number, body, total in self._connection.execute(
                "SELECT number, body, sum FROM event ORDER BY number"
            ):
                self._demand(checksum(body) == total, f"events {number}")
                yield body

    def waiting(self, device_id: DeviceId | None = None) -> Iterator[WaitingRows]:
        """Yield rows that wait for the table, oldest first: all, or those of a device."""
        with state_errors("reading the state file", self.path):
            for number, device, rows, since, body, total in self._connection.execute(
                "SELECT number, device, rows, since, body, sum FROM waiting WHERE ?1 IS NULL OR device = ?1"
                " ORDER BY number",
                (None if device_id is None else self._labels.find(device_id),),
            ):
                name = DeviceId(self._labels.text(device))
                self._demand(checksum(str(rows), body) == total, f"waiting rows {number}")
                yield WaitingRows(number=number, device_id=name, rows=rows, since=since, body=body)

    def waiting_counts(self) -> dict[DeviceId, tuple[int, float]]:
        """Rows that wait for the table by device, and since when the oldest of them does."""
        with state_errors("reading the state file", self.path):
            return {
                DeviceId(self._labels.text(device)): (rows, since)
                for device, rows, since in self._connection.execute(
                    "SELECT device, sum(rows), min(since) FROM waiting GROUP BY device"
                )
            }

    def letters(self, kind: str) -> Iterator[DeadLetter]:
        """Yield what was set aside, oldest first."""
        with state_errors("reading the state file", self.path):
            for name, rows, body, total in self._connection.execute(
                "SELECT name, rows, body, sum FROM dead_letter WHERE kind = ? ORDER BY number", (kind,)
            ):
                self._demand(checksum(kind, name, body) == total, f"the letter {kind}/{name}")
                yield DeadLetter(kind=kind, name=name, rows=rows, body=body)

    def letter_rows(self, kind: str) -> int:
        """Records in what was set aside."""
        with state_errors("reading the state file", self.path):
            [rows] = self._connection.execute(
                "SELECT coalesce(sum(rows), 0) FROM dead_letter WHERE kind = ?", (kind,)
            ).fetchone()
        return int(rows)

    def files(self) -> list[TableFile]:
        """What the data files of the table must be."""
        with state_errors("reading the state file", self.path):
            return [
                TableFile(path=path, device_id=DeviceId(self._labels.text(device)), rows=rows, sha256=sha256)
                for path, device, rows, sha256 in self._connection.execute(
                    "SELECT path, device, rows, sha256 FROM data_file ORDER BY path"
                )
            ]

    def table_version(self) -> int | None:
        """Version of the table that holds all rows which wait no more; None before the first one."""
        with state_errors("reading the state file", self.path):
            row = self._connection.execute("SELECT version FROM table_version").fetchone()
        return None if row is None else int(row[0])

    def note(self, name: str) -> bytes | None:
        """A small text by its name; None where there is none."""
        with state_errors("reading the state file", self.path):
            row = self._connection.execute("SELECT body FROM note WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def faults(self) -> Iterator[str]:
        """Yield what is not as it was written: rows that are nowhere else, and the pages of a small file."""
        checks: list[Callable[[], object]] = [
            self._check_pages,
            self.snapshot,
            self._check_order,
            # A reading that broke off would hold the file.
            lambda: deque(self.events(), maxlen=0),
            lambda: deque(self.waiting(), maxlen=0),
            lambda: deque(self.letters(LATE), maxlen=0),
            lambda: deque(self.letters(REFUSED), maxlen=0),
        ]
        for check in checks:
            try:
                check()
            except StateDamaged as error:
                yield str(error)

    def _check_pages(self) -> None:
        with state_errors("reading the state file", self.path):
            if self.path.stat().st_size <= QUICK_BYTES:
                faults = [text for (text,) in self._connection.execute(f"PRAGMA quick_check({_NAMED})")]
                self._demand(faults == ["ok"], "; ".join(map(str, faults)))

    def _check_order(self) -> None:
        """Whether no number is missing between the snapshot and the last event."""
        with state_errors("reading the state file", self.path):
            [begun] = self._connection.execute(
                "SELECT coalesce((SELECT number FROM snapshot), (SELECT min(number) - 1 FROM event), 0)"
            ).fetchone()
            [count, last] = self._connection.execute(
                "SELECT count(*), coalesce(max(number), ?) FROM event", (begun,)
            ).fetchone()
            self._demand(last - begun == count, "the order of its events")

    def _demand(self, is_whole: bool, what: str) -> None:
        if not is_whole:
            raise self._damage(what)

    def _damage(self, what: str) -> StateDamaged:
        return StateDamaged(
            f"{self.path} is damaged: {what}; `fleet store verify --rebuild` makes it again from what can be"
            " read"
        )
