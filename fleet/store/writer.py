"""The writing side of the records table: one commit of new rows, merges, checkpoints.

Only `fleet.store.store` builds on it; what may be appended, and when to tidy up, is decided there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from fleet.durable import disk_errors, fsync
from fleet.store.files import (
    ROW_GROUP_ROWS,
    NewFile,
    Written,
    chunks,
    discard,
    merge_data_files,
    stamp_dead,
    write_data_files,
)
from fleet.store.log import (
    DataFile,
    Snapshot,
    commit,
    commit_path,
    delta_errors,
    last_checkpoint,
    remove_action,
)
from fleet.store.reader import RECORDS, StoreReader

#: A file with fewer rows counts as small while appending.
SMALL_ROWS = 8192


class TableWriter(StoreReader):
    """A reader that can also commit; it shows its own commits."""

    def __init__(self, path: Path, snapshot: Snapshot) -> None:
        super().__init__(path, snapshot)
        self._failed = False
        self._checkpointed = last_checkpoint(path / RECORDS)
        #: Small files of each device that has any, so that no commit looks through all files.
        self._small: dict[str, dict[str, DataFile]] = {}
        self._note_small(snapshot.files)

    def _append_tables(self, tables: Mapping[str, pa.Table]) -> None:
        """Make one commit of new rows, one data file a device."""
        folder, version = self._path / RECORDS, self.version + 1
        files = [
            NewFile(device_id=device, version=version, batches=table.to_batches(ROW_GROUP_ROWS))
            for device, table in tables.items()
        ]
        written: list[Written] = []
        with disk_errors("appending records", folder):
            try:
                written = write_data_files(folder, files)
                commit(folder, version, "WRITE", [one.action for one in written])
            except BaseException:
                self._undo(written, version)
                raise
        self._advance(version, added=[one.file for one in written], removed=())

    def _undo(self, written: Iterable[Written], version: int) -> None:
        """After a failure: leave nothing behind, unless the commit is there and so may be durable or not."""
        if commit_path(self._path / RECORDS, version).exists():
            self._failed = True
            return
        discard(self._path / RECORDS, written)

    def _advance(self, version: int, *, added: Sequence[DataFile], removed: Sequence[DataFile]) -> None:
        kept = self._snapshot.files
        if removed:
            gone = {file.path for file in removed}
            kept = tuple(file for file in kept if file.path not in gone)
            for file in removed:
                self._small.get(file.device_id, {}).pop(file.path, None)
        self._note_small(added)
        self._snapshot = replace(self._snapshot, version=version, files=(*kept, *added))

    def _note_small(self, files: Iterable[DataFile]) -> None:
        for file in files:
            if file.rows < SMALL_ROWS:
                self._small.setdefault(file.device_id, {})[file.path] = file

    def _merge(self, files: Sequence[DataFile], target_bytes: int) -> int:
        """Replace small files of one device by larger ones; return how many were replaced."""
        merged = 0
        for group in chunks(sorted(files, key=lambda file: file.path), target_bytes):
            merged += self._merge_groups([group])
        return merged

    def _merge_groups(self, groups: Sequence[Sequence[DataFile]]) -> int:
        """Replace each group of files, of one device each, by one file; all of it is one commit."""
        folder, version = self._path / RECORDS, self.version + 1
        dead = [file for group in groups for file in group]
        with delta_errors("merging files", folder), disk_errors("merging files", folder):
            new = merge_data_files(folder, groups)
            try:
                stamp_dead(folder, dead)
                commit(folder, version, "OPTIMIZE", [*(one.action for one in new), *map(remove_action, dead)])
            except BaseException:
                self._undo(new, version)
                raise
        self._advance(version, added=[one.file for one in new], removed=dead)
        return len(dead)

    def _checkpoint(self) -> None:
        folder = self._path / RECORDS
        log = folder / "_delta_log"
        with delta_errors("writing a checkpoint", folder), disk_errors("writing a checkpoint", folder):
            DeltaTable(folder).create_checkpoint()
            fsync(log / f"{self.version:020d}.checkpoint.parquet")
            fsync(log / "_last_checkpoint")
            fsync(log)
        self._checkpointed = self.version


__all__ = ["SMALL_ROWS", "TableWriter"]
