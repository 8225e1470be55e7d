"""Rows that are acknowledged but not in the table yet: one file of rows beside the table.

`fleet.store.intake` writes it, and `fleet.store.leftovers` takes up what a killed writer has left there. It
knows columns, no `Record`; it decides nothing.

Each row of the file (`agents.row_file`) is a piece: some rows of the table as an Arrow stream. A piece is
removed once the table has all of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from agents.row_file import RowFile, copy_rows
from fleet.durable import disk_errors
from fleet.errors import StoreError
from fleet.histogram import Histogram
from fleet.state.packed_rows import unpack

#: Folder of the log in a store; the file in it, and its own log of pages that are not in it yet.
INTAKE, FILE, PAGES = "intake", "waiting.sqlite", "waiting.sqlite-wal"

#: Pages of 4 KB after which SQLite moves them into the file. A turn of a thousand devices has some hundred.
CHECKPOINT_PAGES = 4096


class IntakeLog:
    """Packed rows kept until they are dropped.

    Promises: when `append` returns, the rows survive a kill and a power cut; they are there as a whole or not
    at all. Only the holder of the store's lock may use one.

    Args:
        folder: Folder of the file; both are made with the first rows.

    Attributes:
        waits: How long the disk took to make rows durable.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.waits = Histogram()
        self._file: RowFile | None = None

    @property
    def held_bytes(self) -> int:
        """Length of the file; it shrinks when it is cleared."""
        return self._path.stat().st_size if self._path.exists() else 0

    def append(self, packed: Sequence[bytes]) -> list[int]:
        """Keep rows that `pack` made, in one transaction; they are on the disk when this returns.

        Returns:
            The number of each piece.

        Raises:
            StoreFull: No room; nothing was kept.
            StoreError: The disk failed; nothing was kept.
        """
        with disk_errors("taking in records", self._path.parent), self.waits.timed():
            return self._opened().change([("", one) for one in packed])

    def drop(self, numbers: Iterable[int]) -> None:
        """Forget pieces whose rows the table has.

        Raises:
            StoreError: The disk failed; the next start finds them, and the table knows their ids.
        """
        with disk_errors("forgetting records that the table has", self._path.parent):
            self._opened().change([], numbers)

    def replay(self, notes: list[str]) -> Iterator[pa.Table]:
        """Yield the rows that an earlier writer has left, in the order of writing.

        Args:
            notes: Gets a line for damage; the damaged file is kept for people as `.corrupt`.

        Raises:
            StoreError: The file cannot be read, or another version wrote it.
        """
        if self._path.exists():
            with disk_errors("reading what was taken in", self._path):
                file = self._opened()
                notes += file.notes
                yield from (unpack(row.body) for row in file.rows())

    def close(self) -> None:
        """Let go of the file; the next use opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def clear(self) -> None:
        """Delete the file: the table has all of its rows."""
        self.close()
        with disk_errors("forgetting records that the table has", self._path.parent):
            for name in (FILE, PAGES):
                self._path.with_name(name).unlink(missing_ok=True)

    def _opened(self) -> RowFile:
        if self._file is None:
            self._file = RowFile(self._path, checkpoint_pages=CHECKPOINT_PAGES)
        return self._file


def copy_log(folder: Path, target: Path) -> bool:
    """Copy the file of a log as it is at one moment, beside whoever writes it.

    Returns:
        Whether there is one.

    Raises:
        StoreError: It changes faster than it can be copied.
        OSError: It cannot be read.
    """
    try:
        return copy_rows(folder / FILE, target / FILE)
    except BlockingIOError as error:
        raise StoreError(f"{folder / FILE} changes faster than it can be copied; try again") from error


def by_device(table: pa.Table) -> dict[str, pa.Table]:
    """Split rows of `TABLE_SCHEMA` into rows of the data files, those of one device in the order given."""
    ordered = table.take(pc.sort_indices(table.column("device_id")))
    names = ordered.column("device_id").combine_chunks()
    rows = ordered.drop_columns(["device_id"])
    found: dict[str, pa.Table] = {}
    start = 0
    for entry in pc.value_counts(names).to_pylist():
        found[entry["values"]] = rows.slice(start, entry["counts"])
        start += entry["counts"]
    return found
