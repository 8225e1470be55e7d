"""What every SQLite file of ours does: write ahead durably, notice lost transactions, give way to a new file.

`agents.row_file` and `fleet.state` build on it. It knows no table. Standard library only.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from agents.files import free_name, fsync, write_durably

#: Where the file says how long its pages are; SQLite has none that are shorter than this.
_PAGE_SIZE, _LEAST_PAGE_BYTES = slice(16, 18), 512
#: Head of the log: two salts are the fifth and sixth number. Head of a frame: page, pages of the file after a
#: transaction that ends here (else 0), and the salts of its log.
_LOG_HEAD, _FRAME_HEAD = struct.Struct(">8I"), struct.Struct(">6I")

#: What the system says for codes of SQLite.
ERRNOS = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_BUSY: errno.EAGAIN,
}


def log_of(path: Path) -> Path:
    """The log of pages of a file."""
    return path.with_name(path.name + "-wal")


def rebuilt_of(path: Path) -> Path:
    """The name of a whole new file that is to take the place of a damaged one."""
    return path.with_name(path.name + ".rebuilt")


def write_ahead(
    connection: sqlite3.Connection,
    path: Path,
    create: Iterable[str],
    *,
    checkpoint_pages: int,
    log_bytes: int,
) -> None:
    """Have a connection write ahead, with one wait for the disk a transaction; its name is durable then.

    Args:
        connection: Of the file, which is made if it is missing.
        path: The file.
        create: Statements that a new file begins with.
        checkpoint_pages: As `CHECKPOINT_PAGES`.
        log_bytes: The log gives room back beyond this.

    Raises:
        sqlite3.Error: The file is damaged, locked, or the disk is full or failed.
        OSError: The disk failed.
    """
    if connection.execute("PRAGMA journal_mode=WAL").fetchone() != ("wal",):
        raise OSError(errno.EIO, "SQLite cannot write ahead here", str(path))
    for pragma in (
        *("synchronous=FULL", "secure_delete=OFF"),
        *(f"wal_autocheckpoint={checkpoint_pages}", f"journal_size_limit={log_bytes}"),
    ):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("BEGIN IMMEDIATE")
    if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        for statement in create:
            connection.execute(statement)
    connection.execute("COMMIT")
    # A rollback journal that could not be deleted as the file began to write ahead stays, without an error:
    # the next start would roll back all that is written from here on.
    path.with_name(path.name + "-journal").unlink(missing_ok=True)
    # SQLite itself does not make the name of the file durable.
    fsync(path.parent)


def ends_in_log(file: Path) -> list[bool]:
    """Whether each frame of a log file ends a transaction; frames of older logs do not count.

    The page size is that of the file, and one salt of two is enough: a flipped bit in a head must not hide
    what the log has. The file format: https://www.sqlite.org/fileformat2.html#walformat
    """
    log = log_of(file)
    if not log.exists() or not file.exists():
        return []
    with file.open("rb") as stream:
        page_bytes = int.from_bytes(stream.read(_PAGE_SIZE.stop)[_PAGE_SIZE], "big")
    data = log.read_bytes()
    if len(data) < _LOG_HEAD.size or page_bytes < _LEAST_PAGE_BYTES:
        return []
    salts = _LOG_HEAD.unpack_from(data)[4:6]
    frames = range(_LOG_HEAD.size, len(data) - _FRAME_HEAD.size + 1, _FRAME_HEAD.size + page_bytes)
    heads = [_FRAME_HEAD.unpack_from(data, offset) for offset in frames]
    is_ours = [head[2] == salts[0] or head[3] == salts[1] for head in heads]
    count = max((number for number, mine in enumerate(is_ours, 1) if mine), default=0)
    return [bool(head[1]) and mine for head, mine in zip(heads[:count], is_ours, strict=False)]


def has_lost_turns(connection: sqlite3.Connection, ends: Sequence[bool]) -> bool:
    """Whether transactions stand behind damage in the log, where SQLite does not see them.

    Only the last transaction may be torn: those before it were waited for.

    Args:
        connection: Of the file, just opened.
        ends: What `ends_in_log` gave before.
    """
    _, used, _ = connection.execute("PRAGMA wal_checkpoint").fetchone()
    return any(ends[max(used, 0) : -1])


def copy_aside(path: Path, files: Iterable[Path]) -> tuple[Path, list[Path]]:
    """Copy a damaged file, its log, or both, beside it for people; nothing is left where the system fails.

    Returns:
        The name that the file's copy has or would have, and the copies.

    Raises:
        OSError: The disk is full or failed.
    """
    # A log may have been kept alone before.
    aside = free_name(path, ".corrupt", "-wal")
    end = len(path.name)
    copies = {file: aside.with_name(aside.name + file.name[end:]) for file in files if file.exists()}
    with gone_after_errors(copies.values()):
        for file, copy in copies.items():
            shutil.copyfile(file, copy)
            fsync(copy)
        fsync(path.parent)
    return aside, list(copies.values())


def finish_rebuild(path: Path) -> None:
    """Let a whole new file, if there is one, take the place of a damaged one.

    Raises:
        OSError: The disk failed; the next call goes on.
    """
    if rebuilt_of(path).exists():
        # First the log of the old file: its pages are others.
        log_of(path).unlink(missing_ok=True)
        fsync(path.parent)
        rebuilt_of(path).replace(path)
        fsync(path.parent)


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error of SQLite says that the file does not hold what was written."""
    # A key with a flipped bit is mostly no text any more: Python's own error, which has no code of SQLite.
    if isinstance(error, sqlite3.OperationalError) and "decode to UTF-8" in str(error):
        return True
    return sqlite_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def sqlite_code(error: sqlite3.Error) -> int:
    """The primary code of an error of SQLite; 0 where Python itself made it."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


@contextmanager
def gone_after_errors(copies: Iterable[Path]) -> Iterator[None]:
    """Remove copies where the system fails, for each further try would leave others."""
    try:
        yield
    except OSError:
        for copy in copies:
            with suppress(OSError):
                copy.unlink()
        raise


def os_error(error: sqlite3.Error, path: Path) -> OSError:
    """The error of the system that stands behind an error of SQLite."""
    number = ERRNOS.get(sqlite_code(error))
    if number is None:
        try:
            # SQLite keeps the system's own word to itself: a quota that is used up reads as a broken disk.
            write_durably(path.with_name(f".{path.name}.probe"), bytes(4096))
            path.with_name(f".{path.name}.probe").unlink()
        except OSError as probe_error:
            return probe_error
        return OSError(errno.EIO, str(error), str(path))
    return OSError(number, os.strerror(number), str(path))
