"""The writing side of a store: workloads, devices; one commit of new rows, merges, checkpoints.

Only `fleet.store.store` builds on it; what may be appended, and when to tidy up, is decided there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from agents.records import Descriptor, DeviceSpec, Workload
from fleet.durable import FULL_ERRNOS, disk_errors, fsync, write_durably
from fleet.errors import StoreError
from fleet.store.catalog import put_device, put_workloads
from fleet.store.delta.files import (
    ROW_GROUP_ROWS,
    NewFile,
    WrittenFile,
    discard,
    merge_data_files,
    stamp_dead,
    write_data_files,
)
from fleet.store.delta.log import (
    DataFile,
    TableSnapshot,
    commit,
    commit_path,
    delta_errors,
    last_checkpoint,
    load_snapshot,
    remove_action,
    settle,
)
from fleet.store.reader import DEVICES, RECORDS, WORKLOADS, StoreReader
from fleet.store.store_time import StoreTime


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """What became of the records given to `Store.append`. All of them are durable now."""

    appended: int
    #: Records that the table, or the batch itself, held already.
    duplicates: int
    #: Version of the table that holds all of them.
    table_version: int
    #: Rows that are new, by device.
    rows: Mapping[str, pa.Table] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepResult:
    """What `Store.upkeep` did."""

    merged_files: int
    deleted_files: int
    table_version: int


#: A file with fewer rows counts as small while appending.
SMALL_ROWS = 8192


class TableWriter(StoreReader):
    """A reader that can also commit; it shows its own commits."""

    def __init__(self, path: Path, snapshot: TableSnapshot) -> None:
        super().__init__(path, snapshot)
        self._closed = False
        #: Whether nobody knows if the last commit is on the disk, and whether that is for want of room only.
        self._failed = self._lacked_room = False
        self._checkpointed = last_checkpoint(path / RECORDS)
        self._time = StoreTime(path)
        #: Files of each device by path, and the small ones of each that has any, so that nothing that is done
        #: for one device looks through all files.
        self._files: dict[str, dict[str, DataFile]] = {}
        self._small: dict[str, dict[str, DataFile]] = {}
        self._note_files(snapshot.files)

    def put_workloads(self, workloads: Iterable[Workload], *, own: bool = False) -> int:
        """Keep workloads; of one known before, the networks are joined and the module stays.

        A module of our own takes the place of one that only claims the id.

        Args:
            workloads: To keep.
            own: Whether they are as an agent of a live device has just listed them. Whatever came from a log,
                a file or a replay device is not.

        Returns:
            How many were new.

        Raises:
            StoreFull: No room; some may be kept, each whole.
            StoreError: An id is no file name, or the disk failed.
        """
        self._check_usable()
        with disk_errors("storing workloads", self.path):
            return put_workloads(self.path / WORKLOADS, workloads, own=own)

    def put_device(self, spec: DeviceSpec, descriptor: Descriptor | None = None) -> bool:
        """Keep what a device is. The last one wins; the earlier ones stay as its history.

        Returns:
            Whether it differed from the last one.

        Raises:
            StoreFull: No room; the last one stays.
            StoreError: The id is no file name, or the disk failed.
        """
        self._check_usable()
        with disk_errors("storing a device", self.path):
            return put_device(self.path / DEVICES, spec, descriptor)

    def _append_tables(self, tables: Mapping[str, pa.Table]) -> None:
        """Make one commit of new rows, one data file a device."""
        folder, version = self.path / RECORDS, self.version + 1
        files = [
            NewFile(device_id=device, version=version, batches=table.to_batches(ROW_GROUP_ROWS))
            for device, table in tables.items()
        ]
        written: list[WrittenFile] = []
        with disk_errors("appending records", folder):
            try:
                written = write_data_files(folder, files)
                commit(folder, version, "WRITE", [one.action for one in written])
            except BaseException as error:
                self._undo(written, version, error)
                raise
        self._advance(version, added=[one.file for one in written], removed=())

    def _undo(self, written: Iterable[WrittenFile], version: int, error: BaseException) -> None:
        """After a failure: leave nothing behind, unless the commit is there and so may be durable or not."""
        if commit_path(self.path / RECORDS, version).exists():
            self._failed = True
            self._lacked_room = isinstance(error, OSError) and error.errno in FULL_ERRNOS
            return
        discard(self.path / RECORDS, written)

    def _check_usable(self) -> None:
        """Refuse to write what would not be safe.

        Raises:
            StoreFull: There is still no room for a commit that is there but may not be durable.
            StoreError: The store was closed, or the disk failed.
        """
        if self._closed:
            raise StoreError(f"{self.path}: this store was closed; open it again to write")
        if self._failed and self._lacked_room:
            self._recover()
        if self._failed:
            raise StoreError(
                f"{self.path}: an earlier commit ended in an unknown state; open the store again to go on"
            )

    def _files_of(self, device_id: str) -> list[DataFile]:
        """The files of a device in the newest version; refused as `_check_usable` does."""
        self._check_usable()
        return list(self._files.get(device_id, {}).values())

    def _recover(self) -> None:
        """Make a commit durable whose end is not known, and read the table again as it is then."""
        folder = self.path / RECORDS
        path = commit_path(folder, self.version + 1)
        with disk_errors("making the last commit durable", folder):
            if path.exists():
                # As a new file: what became of the name of the old one nobody knows.
                write_durably(path, path.read_bytes())
            settle(folder)
        TableWriter.__init__(self, self.path, load_snapshot(folder))

    def _advance(self, version: int, *, added: Sequence[DataFile], removed: Sequence[DataFile]) -> None:
        kept = self.snapshot.files
        if removed:
            gone = {file.path for file in removed}
            kept = tuple(file for file in kept if file.path not in gone)
            for file in removed:
                self._files[file.device_id].pop(file.path, None)
                self._small.get(file.device_id, {}).pop(file.path, None)
        self._note_files(added)
        self.snapshot = replace(self.snapshot, version=version, files=(*kept, *added))

    def _note_files(self, files: Iterable[DataFile]) -> None:
        for file in files:
            self._files.setdefault(file.device_id, {})[file.path] = file
            if file.rows < SMALL_ROWS:
                self._small.setdefault(file.device_id, {})[file.path] = file

    def _merge_groups(self, groups: Sequence[Sequence[DataFile]]) -> int:
        """Replace each group of files, of one device each, by one file; all of it is one commit.

        Returns:
            How many files were replaced.
        """
        folder, version = self.path / RECORDS, self.version + 1
        dead = [file for group in groups for file in group]
        with delta_errors("merging files", folder), disk_errors("merging files", folder):
            new = merge_data_files(folder, groups)
            try:
                stamp_dead(folder, dead, self._time.now())
                commit(folder, version, "OPTIMIZE", [*(one.action for one in new), *map(remove_action, dead)])
            except BaseException as error:
                self._undo(new, version, error)
                raise
        self._advance(version, added=[one.file for one in new], removed=dead)
        return len(dead)

    def _checkpoint(self) -> None:
        folder = self.path / RECORDS
        log = folder / "_delta_log"
        path, hint = log / f"{self.version:020d}.checkpoint.parquet", log / "_last_checkpoint"
        with delta_errors("writing a checkpoint", folder), disk_errors("writing a checkpoint", folder):
            DeltaTable(folder).create_checkpoint()
            if not path.exists():
                # On a full disk the library loses a file and says nothing of it. Nothing may point there.
                hint.unlink(missing_ok=True)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            for one in (path, hint, log):
                if one.exists():
                    fsync(one)
        self._checkpointed = self.version
