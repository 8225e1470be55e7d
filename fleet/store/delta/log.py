"""The records table as a reader sees it: which files each version consists of.

`fleet.state.table` writes the table. This module knows no `Record`; rows and columns are the business of
`fleet.store.delta.schema`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from agents.files import regular_chunks
from fleet.errors import StateDamaged, StoreError, store_error
from fleet.store.delta.schema import SCHEMA_KEY, STORE_SCHEMA

#: How long upkeep keeps commits that a checkpoint covers, and data files no longer in use; by
#: `fleet.store.store_time`.
RETENTION_HOURS = 7 * 24

#: Folder of the table in a store.
RECORDS: Final = "records"
#: Bytes of a file at most whose sum is taken: what a pipe or a device gives has no end.
_MOST_SUMMED_BYTES = 1 << 40
#: Column of the library's list of files: when the first of a file's rows was measured.
_FIRST_AT = "min.measured_at"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One Parquet file that the table consists of."""

    #: Below the table's folder.
    path: str
    device_id: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshot:
    """The table at one version: it never changes, whatever a writer does meanwhile."""

    version: int
    files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        """Records in it."""
        return sum(file.rows for file in self.files)


@contextmanager
def delta_errors(doing: str, folder: Path) -> Iterator[None]:
    """Turn errors of deltalake and Arrow into the store's without the library's stack trace.

    Raises:
        StoreFull: The library met a full disk.
        StoreError: Any other error.
    """
    try:
        yield
    except (DeltaError, pa.ArrowException) as error:
        raise store_error(error, doing, folder) from error


@contextmanager
def log_errors(folder: Path) -> Iterator[None]:
    """Say of a damaged log of a version that counts what mends it.

    Raises:
        StateDamaged: The library cannot read it.
        StoreError: The disk failed.
    """
    try:
        yield
    except (DeltaError, pa.ArrowException) as error:
        if "(os error " in str(error):
            raise store_error(error, "reading the table", folder) from error
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise damaged_log(folder, reason) from error


def damaged_log(folder: Path, reason: str) -> StateDamaged:
    """The error of a log that lost or gained something."""
    return StateDamaged(
        f"the log of {folder} is damaged ({reason}); `fleet store verify --rebuild` mends it from the data"
        " files"
    )


def load_snapshot(folder: Path, version: int | None = None) -> TableSnapshot:
    """Read which files the table consists of, at a version or at the newest.

    Raises:
        StoreError: This is no store, a store of another layout, or one that is damaged.
    """
    if not is_table(folder):
        raise StoreError(f"{folder.parent} is not a tensor-fleet store: it has no table in {folder.name}/")
    with delta_errors("reading the table", folder):
        return _snapshot(folder, version)


def newest_snapshot(folder: Path, version: int) -> TableSnapshot:
    """Read which files the table consists of at the version that its state file names.

    Raises:
        StateDamaged: Its log is damaged.
        StoreError: It is of another layout, or cannot be read.
    """
    with log_errors(folder):
        return _snapshot(folder, version)


def _snapshot(folder: Path, version: int | None) -> TableSnapshot:
    table = DeltaTable(folder, version=version)
    check_layout(folder, table)
    return snapshot_of(table)


def snapshot_of(table: DeltaTable) -> TableSnapshot:
    """The files of an open table."""
    # `pa.table` would import pandas, in half a second, to see whether this is a data frame.
    actions = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
    names = ["path", "partition.device_id", "num_records", "size_bytes", _FIRST_AT]
    rows = actions.select([name for name in names if name in actions.column_names]).to_pylist()
    # Oldest first, as far as the log knows.
    rows.sort(key=lambda row: (row.get(_FIRST_AT) or 0.0, row["path"]))
    files = [
        DataFile(
            path=row["path"],
            device_id=row["partition.device_id"],
            rows=row["num_records"],
            bytes=row["size_bytes"],
        )
        for row in rows
    ]
    return TableSnapshot(version=table.version(), files=tuple(files))


def check_layout(folder: Path, table: DeltaTable) -> None:
    """Refuse a table that this version did not write.

    Raises:
        StoreError: It is somebody else's, or of another layout.
    """
    layout = table.metadata().configuration.get(SCHEMA_KEY)
    if layout is None:
        raise StoreError(f"{folder} is a Delta table, but tensor-fleet did not write it; give another folder")
    if layout != str(STORE_SCHEMA):
        raise StoreError(
            f"{folder} has store layout {layout}, this version reads {STORE_SCHEMA}; open it with the "
            "version that wrote it, or give another folder"
        )


def is_table(folder: Path) -> bool:
    """Whether at least one commit or checkpoint is there."""
    return any((folder / "_delta_log").glob("*.json")) or any((folder / "_delta_log").glob("*.parquet"))


def file_sum(path: Path) -> str:
    """SHA-256 of a regular file, in hexadecimal digits.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    digest = hashlib.sha256()
    for chunk in regular_chunks(path, _MOST_SUMMED_BYTES):
        digest.update(chunk)
    return digest.hexdigest()
