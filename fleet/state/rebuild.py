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
from itertools import takewhile
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
_OTHERS = ("table_version", "data_file", "note", "snapshot")
#: Of each table whose rows have sums: the column of the sum, and those that it is over.
_SUMS = {
    "waiting": (6, (2, 3, 5)),
    "event": (2, (1,)),
    "dead_letter": (5, (1, 2, 4)),
    "data_file": (4, (0, 2, 3)),
    "snapshot": (3, (1, 2)),
}


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
        rows = {table: list(_numbered_rows(connection, table)) for table in _NUMBERED}
        rows |= {table: list(_rows(connection, f"SELECT * FROM {table}")) for table in _OTHERS}
    for table, (total, places) in _SUMS.items():
        rows[table] = [row for row in rows[table] if _sum_of(row[place] for place in places) == row[total]]
    rows["waiting"] = [
        (*row[:4], row[4] if isinstance(row[4], float) else 0.0, *row[5:]) for row in rows["waiting"]
    ]
    numbers = {text: number for number, text in reversed(rows["label"]) if isinstance(text, str)}
    labels = {number: text for text, number in numbers.items()}
    rows["label"] = list(labels.items())
    rows["candidate"] = list(whole_candidates(rows["candidate"], labels))
    rows["data_file"] = [row for row in rows["data_file"] if row[1] in labels]
    begun = rows["snapshot"][0][1] if rows["snapshot"] else 0
    later = enumerate((row for row in rows["event"] if row[0] > begun), begun + 1)
    rows["event"] = [row for _, row in takewhile(lambda pair: pair[1][0] == pair[0], later)]
    return rows


def _sum_of(parts: Iterable[object]) -> int:
    """As the sum of a row is made; numbers go in as texts."""
    return checksum(*(part if isinstance(part, str | bytes) else str(part) for part in parts))


def _numbered_rows(connection: sqlite3.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that can be read, by their numbers, those behind damage too."""
    next_number, last = 0, _RESCUE_NUMBERS
    # The name of a column, or its type, may be what is damaged: a row's own number is not.
    for (number,) in _rows(connection, f"SELECT max(rowid) FROM {table}"):
        last = number or 0
    while next_number <= last:
        query = f"SELECT rowid, * FROM {table} WHERE rowid >= ? ORDER BY rowid"
        for number, _, *others in _rows(connection, query, next_number):
            next_number = number + 1
            yield number, *others
        next_number += 1


def _rows(connection: sqlite3.Connection, query: str, *values: int) -> Iterator[tuple[Any, ...]]:
    """Yield rows up to the first that cannot be read.

    Raises:
        sqlite3.Error: The file is not damaged: another process has it, or the disk failed.
    """
    try:
        yield from connection.execute(query, values)
    except sqlite3.Error as error:
        # A damaged head hides the tables themselves, or their columns.
        if not is_damage(error) and "no such" not in str(error):
            raise
    except UnicodeDecodeError:
        return  # a column's name is no text any more
