"""Rows that survive a kill and a power cut: one SQLite file with exactly one owning connection.

`agents.spool.disk_spool` keeps finished records in it. It knows nothing of what a row means. Standard
library only.

SQLite writes ahead (WAL) with `synchronous=FULL`, so a transaction waits for the disk once. The lock is
exclusive: no second connection, no shared memory. SQLite has sums over the log but none over the pages of the
file, hence each row has a sum of its own.
"""

from __future__ import annotations

import errno
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agents.errors import LayoutError
from agents.files import fsync, make_folder
from agents.sqlite_files import (
    ERRNOS,
    copy_aside,
    ends_in_log,
    finish_rebuild,
    gone_after_errors,
    has_lost_turns,
    is_damage,
    log_of,
    os_error,
    rebuilt_of,
    sqlite_code,
    write_ahead,
)

#: Pages of the log after which SQLite moves them into the file. The log starts over then, and writing over it
#: takes half as long as making it longer; with fewer pages, large transactions wait for the file too often.
CHECKPOINT_PAGES = 250
#: An empty file that is longer gives its room back.
_SHRINK_BYTES = 4 << 20
#: Most ids that are tried one by one behind the last row that can be read.
_RESCUE_IDS = 10_000
#: Head of a log of pages: it changes when the log starts over. And how often a copy is tried.
_HEAD_BYTES, _COPY_TRIES = 32, 100

_TABLE = (
    "CREATE TABLE IF NOT EXISTS rows"
    " (id INTEGER PRIMARY KEY, key TEXT NOT NULL, body BLOB NOT NULL, sum INTEGER NOT NULL)"
)
_INSERT = "INSERT INTO rows (id, key, body, sum) VALUES (?, ?, ?, ?)"
_SELECT = "SELECT id, key, body, sum FROM rows WHERE id >= ? ORDER BY id"


@dataclass(frozen=True, slots=True)
class FileRow:
    """One row."""

    #: Ascends in the order of adding.
    number: int
    key: str
    body: bytes


class RowFile:
    """Rows in the order of adding.

    Promises: when `change` returns, all of it survives a kill and a power cut; after a kill in the middle,
    all of it or nothing is there. Damage that is found at the opening is told in `notes`: the damaged file is
    copied aside, and the rows that can be read go on.

    Args:
        path: The file; made if missing, with its folder.
        layout: Number of the layout of the rows.

    Raises:
        BlockingIOError: Another connection has it.
        OSError: The disk is full or failed.
        LayoutError: The file was made with another layout.

    Attributes:
        notes: Damage that was found, one line each; mostly empty.
    """

    def __init__(self, path: Path, *, layout: int = 1) -> None:
        self.path = path
        self.notes: list[str] = []
        make_folder(path.parent)
        finish_rebuild(self.path)
        try:
            self._open(layout)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise os_error(error, path) from error
            self._rescue()
            with _os_errors(path):
                self._open(layout)

    def _open(self, layout: int) -> None:
        ends = ends_in_log(self.path)
        connection = sqlite3.connect(self.path, timeout=0.0, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            write_ahead(
                connection,
                self.path,
                [_TABLE, f"PRAGMA user_version={layout}"],
                checkpoint_pages=CHECKPOINT_PAGES,
                log_bytes=_SHRINK_BYTES,
            )
            if has_lost_turns(connection, ends):
                self._copy_aside(" in its log", [log_of(self.path)])
            [written] = connection.execute("PRAGMA user_version").fetchone()
            if written != layout:
                raise LayoutError(
                    f"{self.path} has layout {written}, this version reads {layout}; open it with the "
                    "version that wrote it, or move it away"
                )
            # A reading that broke off holds the file, also of a closed connection, until it is closed itself.
            with closing(connection.execute(_SELECT, (0,))) as rows:
                bad = [number for number, key, body, total in rows if not _is_whole(key, body, total)]
            if bad:
                raise _damage(f"rows {', '.join(map(str, bad))}")
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def rows(self) -> Iterator[FileRow]:
        """Yield all rows, oldest first, as the opening found them whole; nothing may be changed meanwhile.

        Raises:
            OSError: The disk failed.
        """
        with _os_errors(self.path):
            for row in self._connection.execute("SELECT id, key, body FROM rows ORDER BY id"):
                yield FileRow(*row)

    def get(self, numbers: Iterable[int]) -> Iterator[FileRow]:
        """Yield some rows, in the order of the numbers.

        Raises:
            OSError: The disk failed or changed behind the owner's back, or there is no such row.
        """
        select = "SELECT key, body, sum FROM rows WHERE id = ?"
        with _os_errors(self.path):
            for number in numbers:
                row = self._connection.execute(select, (number,)).fetchone()
                if row is None or not _is_whole(*row):
                    raise OSError(errno.EIO, f"row {number} is damaged", str(self.path))
                yield FileRow(number, *row[:2])

    def change(self, added: Sequence[tuple[str, bytes]], removed: Iterable[int] = ()) -> list[int]:
        """Add rows and remove others, all of it or nothing; it is on the disk when this returns.

        Args:
            added: Key and body of each.
            removed: Numbers of rows; unknown ones are ignored.

        Returns:
            The numbers of the added rows.

        Raises:
            OSError: The disk is full or failed; nothing of it was kept.
        """
        connection = self._connection
        with _os_errors(self.path):
            try:
                connection.execute("BEGIN IMMEDIATE")
                # The numbers of removed rows must not come again: the order goes by them.
                [last] = connection.execute("SELECT coalesce(max(id), 0) FROM rows").fetchone()
                numbers = list(range(last + 1, last + 1 + len(added)))
                connection.executemany(
                    _INSERT,
                    (
                        (number, key, body, _sum(key, body))
                        for number, (key, body) in zip(numbers, added, strict=True)
                    ),
                )
                connection.executemany("DELETE FROM rows WHERE id = ?", ((number,) for number in removed))
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
        return numbers

    def shrink(self) -> None:
        """Give the room of an empty file back to the disk, if it is worth it; no error if that fails."""
        with suppress(sqlite3.Error, OSError):
            [pages] = self._connection.execute("PRAGMA page_count").fetchone()
            [page_bytes] = self._connection.execute("PRAGMA page_size").fetchone()
            if pages * page_bytes > _SHRINK_BYTES:
                self._connection.execute("VACUUM")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Let go of the file."""
        with suppress(sqlite3.Error):
            self._connection.close()

    def _copy_aside(self, where: str, files: Sequence[Path]) -> list[Path]:
        """Copy damaged files for people, and note it; gives the copies."""
        aside, copies = copy_aside(self.path, files)
        self.notes.append(f"{self.path} is damaged{where}: kept as {aside.name}, what can be read goes on")
        return copies

    def _rescue(self) -> None:
        """Copy the file aside, and put one with its good rows in its place."""
        copies = self._copy_aside("", [self.path, log_of(self.path)])
        # The damaged file is still in its place: the next opening copies it again.
        with gone_after_errors(copies):
            self._rebuild()
        # From here on the copy is all that is left of it.
        fsync(self.path.parent)
        finish_rebuild(self.path)

    def _rebuild(self) -> None:
        """Write a file with the good rows, which waits to be taken."""
        with _os_errors(self.path):
            rows, layout = _readable(self.path)
        path = rebuilt_of(self.path)
        rebuilt = path.with_name(path.name + ".tmp")
        rebuilt.unlink(missing_ok=True)
        with _os_errors(self.path):
            fresh = sqlite3.connect(rebuilt, isolation_level=None)
            try:
                fresh.execute("PRAGMA journal_mode=OFF")
                fresh.execute("BEGIN")
                fresh.execute(_TABLE)
                fresh.execute(f"PRAGMA user_version={layout}")
                fresh.executemany(_INSERT, rows)
                fresh.execute("COMMIT")
            finally:
                fresh.close()
        fsync(rebuilt)
        rebuilt.replace(path)


def read_rows(path: Path) -> list[FileRow]:
    """Read the rows of a file that another process may have open, from a copy; none if there is no file."""
    with tempfile.TemporaryDirectory() as folder:
        _copy_rows(path, Path(folder, "copy"))
        with _os_errors(path):
            return [FileRow(*row[:3]) for row in _readable(Path(folder, "copy"))[0]]


def _copy_rows(path: Path, target: Path) -> None:
    """Copy a file and its log of pages as they are at one moment, beside whoever writes them.

    The copy of the log stands beside that of the file, which is `target`.

    Raises:
        BlockingIOError: It changes faster than it can be copied.
        OSError: It cannot be read.
    """
    pages = Path(f"{path}-wal")
    copies = {path: target, pages: Path(f"{target}-wal")}
    for _ in range(_COPY_TRIES):
        before = _head(pages)
        for source, copy in copies.items():
            with suppress(FileNotFoundError):
                shutil.copyfile(source, copy)
        # The same log of pages still: it has all that has come into the file meanwhile.
        if _head(pages) == before:
            return
        for copy in copies.values():
            copy.unlink(missing_ok=True)
    raise BlockingIOError(errno.EAGAIN, "changes faster than it can be copied; try again", str(path))


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(_HEAD_BYTES)
    except FileNotFoundError:
        return b""


def _readable(path: Path) -> tuple[list[tuple[int, str, bytes, int]], int]:
    """Rows of a file that can be read, and its layout (1 if that cannot).

    Raises:
        sqlite3.DatabaseError: It is not damaged: another connection has it, or the disk is full or read-only.
    """
    rows: list[tuple[int, str, bytes, int]] = []
    layout, number, last = 1, 0, None
    connection = sqlite3.connect(path, timeout=0.0)
    try:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        try:
            [layout] = connection.execute("PRAGMA user_version").fetchone()
            [last] = connection.execute("SELECT max(id) FROM rows").fetchone()
        except sqlite3.DatabaseError as error:
            _raise_no_damage(error)
        while number <= (_presumed_last(rows) if last is None else last):
            try:
                for row in connection.execute(_SELECT, (number,)):
                    number = row[0] + 1
                    if _is_whole(*row[1:]):
                        rows.append(row)
                break
            except sqlite3.DatabaseError as error:
                _raise_no_damage(error)
                number += 1
    finally:
        connection.close()
    return rows, layout


def _presumed_last(rows: Sequence[tuple[int, str, bytes, int]]) -> int:
    """The last number to look for where the file does not say: some way behind the last row that was read."""
    return (rows[-1][0] if rows else 0) + _RESCUE_IDS


def _sum(key: str, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(key.encode()))


def _is_whole(key: object, body: object, total: object) -> bool:
    return isinstance(key, str) and isinstance(body, bytes) and _sum(key, body) == total


def _damage(what: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(what)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _raise_no_damage(error: sqlite3.Error) -> None:
    """Raise what says nothing of the file: rows that could not be read now must not be taken for lost."""
    if sqlite_code(error) in ERRNOS:
        raise error


@contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    """Turn the errors of SQLite into those of the system."""
    try:
        yield
    except sqlite3.Error as error:
        raise os_error(error, path) from error
