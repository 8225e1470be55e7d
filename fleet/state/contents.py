"""What stands in a state file beside results and candidates: events, rows that wait, letters, data files.

Most of it is nowhere else, so each of these rows has a sum of its own.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agents.records import CandidateId, DeviceId
from fleet.errors import StateDamaged
from fleet.state.rows import DeadLetter, TableFile, WaitingRows, checksum
from fleet.state.schema import Labels, damaged, one_line, reading

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
        row = self._row("SELECT number, body, sum FROM snapshot")
        if row is None:
            # A page with one changed bit may hide its row.
            page_faults = list(self._rows("PRAGMA quick_check(snapshot)"))
            self._demand(page_faults == [("ok",)], "the snapshot of the events")
            return None
        number, body, total = row
        self._demand(checksum(str(number), body) == total, "the snapshot of the events")
        return bytes(body)

    def events(self) -> Iterator[bytes]:
        """Yield the groups of events since the snapshot, oldest first."""
        for number, body, total in self._rows("SELECT number, body, sum FROM event ORDER BY number"):
            self._demand(checksum(body) == total, f"events {number}")
            yield body

    def waiting(self, lane: int | None = None) -> Iterator[WaitingRows]:
        """Yield rows that wait for the table, oldest first: all, or those of a lane."""
        for number, of, names, rows, since, body, total in self._rows(
            "SELECT number, lane, devices, rows, since, body, sum FROM waiting"
            f"{'' if lane is None else ' WHERE lane = ?'} ORDER BY number",
            *(() if lane is None else (lane,)),
        ):
            self._demand(checksum(names, str(rows), body) == total, f"waiting rows {number}")
            device_ids = tuple(map(DeviceId, names.split()))
            yield WaitingRows(
                number=number, lane=of, device_ids=device_ids, rows=rows, since=since, body=body
            )

    def waiting_sizes(self) -> list[tuple[int, tuple[DeviceId, ...], int, int]]:
        """Of all rows that wait: lane, devices, rows and packed bytes of each piece; none is decoded."""
        rows = self._rows("SELECT lane, devices, rows, length(body) FROM waiting")
        return [(lane, tuple(map(DeviceId, names.split())), count, size) for lane, names, count, size in rows]

    def letters(self) -> Iterator[DeadLetter]:
        """Yield what was set aside, oldest first."""
        for kind, name, rows, body, total in self._rows(
            "SELECT kind, name, rows, body, sum FROM dead_letter ORDER BY number"
        ):
            self._demand(checksum(kind, name, body) == total, f"the letter {kind}/{name}")
            yield DeadLetter(kind=kind, name=name, rows=rows, body=body)

    def letter_rows(self, kind: str) -> int:
        """Records in what was set aside."""
        return self._number("SELECT coalesce(sum(rows), 0) FROM dead_letter WHERE kind = ?", kind)

    def files(self) -> list[TableFile]:
        """What the data files of the table must be."""
        files: list[TableFile] = []
        for path, device, rows, sha256, total in self._rows(
            "SELECT path, device, rows, sha256, sum FROM data_file ORDER BY path"
        ):
            device_id = DeviceId(self._labels.text(device))
            file = TableFile(path=path, device_id=device_id, rows=rows, sha256=sha256)
            self._demand(file.sum == total, f"what it says of {path!a}")
            files.append(file)
        return files

    def table_version(self) -> int | None:
        """Version of the table that holds all rows which wait no more; None before the first one."""
        row = self._row("SELECT version FROM table_version")
        self._demand(row is None or isinstance(row[0], int), "the version of the table")
        return None if row is None else int(row[0])

    def table_rows(self) -> int:
        """Rows of that version."""
        return self._number("SELECT coalesce(max(rows), 0) FROM table_version")

    def note(self, name: str) -> bytes | None:
        """A small text by its name; None where there is none."""
        row = self._row("SELECT body FROM note WHERE name = ?", name)
        return None if row is None else bytes(row[0])

    def faults(self, *, is_thorough: bool = False) -> Iterator[str]:
        """Yield what is not as it was written: rows that are nowhere else, and the pages of a small file.

        Args:
            is_thorough: Whether to read the pages of a large one too, and compare indexes with their tables.
        """
        checks: list[Callable[[], object]] = [
            lambda: self._check_pages(is_thorough),
            self.snapshot,
            self._check_order,
            # A reading that broke off would hold the file.
            lambda: deque(self.events(), maxlen=0),
            lambda: deque(self.waiting(), maxlen=0),
            lambda: deque(self.letters(), maxlen=0),
            self.files,
            self.table_version,
        ]
        for check in checks:
            try:
                check()
            except StateDamaged as error:
                yield str(error)
            except (TypeError, ValueError, AttributeError):
                yield str(self._damage("rows of it hold other types of values than were written"))

    def _check_pages(self, is_thorough: bool) -> None:
        with reading(self.path):
            if not is_thorough and self.path.stat().st_size > QUICK_BYTES:
                return
        how = "integrity_check" if is_thorough else "quick_check"
        faults = [text for (text,) in self._rows(f"PRAGMA {how}({_NAMED})")]
        self._demand(faults == ["ok"], one_line(" ".join(map(str, faults))))

    def _check_order(self) -> None:
        """Whether no number is missing between the snapshot and the last event."""
        begun = self._number(
            "SELECT coalesce((SELECT number FROM snapshot), (SELECT min(number) - 1 FROM event), 0)"
        )
        [[count, last]] = self._rows("SELECT count(*), coalesce(max(number), ?) FROM event", begun)
        self._demand(last - begun == count, "the order of its events")

    def _rows(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of an answer."""
        with reading(self.path):
            yield from self._connection.execute(query, values)

    def _row(self, query: str, *values: Any) -> tuple[Any, ...] | None:
        """The one row of an answer; None where it has none."""
        with reading(self.path):
            row: tuple[Any, ...] | None = self._connection.execute(query, values).fetchone()
        return row

    def _number(self, query: str, *values: Any) -> int:
        """The answer of a question that has one whole number."""
        [[number]] = self._rows(query, *values)
        return int(number)

    def _ids(self, query: str, *values: Any) -> list[CandidateId]:
        """The answer of a question for ids of candidates."""
        return [CandidateId(value.hex()) for (value,) in self._rows(query, *values)]

    def _demand(self, is_whole: bool, what: str) -> None:
        if not is_whole:
            raise self._damage(what)

    def _damage(self, what: str) -> StateDamaged:
        return damaged(self.path, what)
