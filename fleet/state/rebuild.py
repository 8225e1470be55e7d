"""A damaged or missing state file made again from its readable rows and the table; the old one is kept.

Called by `fleet store verify --rebuild`, with the store's lock. Events count up to the first one that is
damaged or missing, for later ones build on it. All other rows count each for itself. Results and their sums
come from the table and the rows that wait for it: see `fleet.state.rebuilt_table`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from agents.files import free_name, fsync
from agents.sqlite_files import finish_rebuild, is_damage, rebuilt_of
from fleet.state.rebuilt_table import RebuiltTable
from fleet.state.rows import checksum, whole_candidates
from fleet.state.schema import state_errors
from fleet.state.state_file import StateFile
from fleet.store.delta.log import RECORDS

#: Numbers that are tried behind the last row that can be read.
_RESCUE_NUMBERS = 10_000
#: Tables whose rows have numbers, in the order in which they are made again.
_NUMBERED = ("label", "candidate", "waiting", "event", "dead_letter")


def rebuild(path: Path, families: Mapping[str, str] | None = None) -> list[str]:
    """Make a state file again, beside its table.

    Args:
        path: The file, which may be missing.
        families: Name by device under which candidates are shared: such candidates come back from records.

    Returns:
        What was kept of it and what came from the table, and the name of the damaged file, one line each.

    Raises:
        StoreFull: No room; the damaged file is in its place.
        StoreError: The table's log cannot be read, or the disk failed; the damaged file is in its place.
    """
    doing = "making the state file again"
    with state_errors(doing, path):
        finish_rebuild(path)
        aside = free_name(path, ".corrupt", "-wal")
        is_there = path.exists()
        rows = _readable(path) if is_there else {}
        temporary = rebuilt_of(path).with_name(f"{rebuilt_of(path).name}.tmp")
        for part in (temporary, Path(f"{temporary}-wal")):
            part.unlink(missing_ok=True)
    with closing(StateFile(temporary)) as fresh, fresh.turn():
        for table, some in rows.items():
            for row in some:
                marks = ", ".join("?" * len(row))
                fresh._connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row)
    with closing(StateFile(temporary)) as fresh:
        table_part = RebuiltTable(path.parent / RECORDS, fresh, families or {})
        table_part.take_in()
    with state_errors(doing, path):
        for name in ("", "-wal"):
            with suppress(FileNotFoundError):
                os.link(f"{path}{name}", f"{aside}{name}")
        fsync(temporary)
        temporary.rename(rebuilt_of(path))
        fsync(path.parent)
        finish_rebuild(path)
    rescued = ", ".join(f"{len(some)} of {table}" for table, some in rows.items() if some) or "nothing"
    first = f"the damaged file is kept as {aside.name}" if is_there else f"{path.name} was missing"
    return [first, f"rows that could be read: {rescued}", *table_part.notes]


def _readable(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Rows that are whole, by table."""
    reading = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(reading, uri=True, isolation_level=None)) as connection:
        rows_by_table = {table: list(_numbered_rows(connection, table)) for table in _NUMBERED}
        snapshot = list(_rows(connection, "SELECT * FROM snapshot"))
        rows_by_table["table_version"] = list(_rows(connection, "SELECT * FROM table_version"))
        for table in ("data_file", "note"):
            rows_by_table[table] = list(_rows(connection, f"SELECT * FROM {table}"))
    rows_by_table["waiting"] = [
        (*row[:4], row[4] if isinstance(row[4], float) else 0.0, *row[5:])
        for row in rows_by_table["waiting"]
        if _is_sum(row[6], row[2], str(row[3]), row[5])
    ]
    numbers = {text: number for number, text in reversed(rows_by_table["label"]) if isinstance(text, str)}
    labels = {number: text for text, number in numbers.items()}
    rows_by_table["label"] = list(labels.items())
    rows_by_table["candidate"] = list(whole_candidates(rows_by_table["candidate"], labels))
    rows_by_table["data_file"] = [
        row
        for row in rows_by_table["data_file"]
        if _is_sum(row[4], row[0], str(row[2]), row[3]) and row[1] in labels
    ]
    rows_by_table["dead_letter"] = [
        row for row in rows_by_table["dead_letter"] if _is_sum(row[5], row[1], row[2], row[4])
    ]
    rows_by_table["snapshot"] = [row for row in snapshot if _is_sum(row[3], str(row[1]), row[2])]
    begun = rows_by_table["snapshot"][0][1] if rows_by_table["snapshot"] else 0
    rows_by_table["event"] = list(_whole_events(rows_by_table["event"], begun))
    return rows_by_table


def _whole_events(rows: Iterable[tuple[Any, ...]], begun: int) -> Iterator[tuple[Any, ...]]:
    for count, row in enumerate((row for row in rows if row[0] > begun), begun + 1):
        if row[0] != count or not _is_sum(row[2], row[1]):
            return
        yield row


def _is_sum(total: object, *parts: object) -> bool:
    if not all(isinstance(part, str | bytes) for part in parts):
        return False
    return checksum(*(part for part in parts if isinstance(part, str | bytes))) == total


def _numbered_rows(connection: sqlite3.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that can be read, by their numbers, those behind damage too."""
    next_number, last = 0, _RESCUE_NUMBERS
    for (number,) in _rows(connection, f"SELECT max(number) FROM {table}"):
        last = number or 0
    while next_number <= last:
        query = f"SELECT * FROM {table} WHERE number >= ? ORDER BY number"
        for row in _rows(connection, query, next_number):
            next_number = row[0] + 1
            yield row
        next_number += 1


def _rows(connection: sqlite3.Connection, query: str, *values: int) -> Iterator[tuple[Any, ...]]:
    """Yield rows up to the first that cannot be read.

    Raises:
        sqlite3.Error: The file is not damaged: another process has it, or the disk failed.
    """
    try:
        yield from connection.execute(query, values)
    except sqlite3.Error as error:
        # A damaged head hides the tables themselves.
        if not is_damage(error) and "no such table" not in str(error):
            raise
    except UnicodeDecodeError:
        return  # a column's name is no text any more
