"""The dataset: a Delta Lake table of records, partitioned by device, with workloads and devices beside it.

The coordinator is the one writer; everything else reads without a lock through `Store.read`. Layout, columns
and guarantees: `docs/store.md`. It knows nothing of Ray, TVM, leases or models.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import filelock
import pyarrow as pa
from deltalake import DeltaTable

from agents.records import Descriptor, DeviceSpec, Record, Workload
from fleet.durable import disk_errors, fsync
from fleet.errors import StoreError
from fleet.store_catalog import check_name, put_device, put_workloads
from fleet.store_columns import check_columns
from fleet.store_files import (
    ROW_GROUP_ROWS,
    chunks,
    delete_unused,
    lost_tables,
    merge_data_files,
    stamp_dead,
    worth_merging,
    write_data_file,
)
from fleet.store_lock import acquire, check_folder, release
from fleet.store_log import (
    RETENTION_HOURS,
    DataFile,
    Snapshot,
    commit,
    commit_path,
    create_table,
    delta_errors,
    is_table,
    last_checkpoint,
    load_snapshot,
    remove_action,
    repair,
)
from fleet.store_migration import migrated
from fleet.store_reader import DEVICES, RECORDS, WORKLOADS, DeviceCounts, StoreReader
from fleet.store_results import AppendResult, UpkeepResult
from fleet.store_schema import RecordIds, records_to_table

_LOG = logging.getLogger(__name__)

#: Commits between two checkpoints. Opening reads the last checkpoint and the commits after it, 0.2 ms each.
CHECKPOINT_EVERY = 100

#: A device's small files are merged when there are this many: each costs some 0.6 ms whenever all are read.
MERGE_FILES = 128
#: A file with fewer rows counts as small while appending.
SMALL_ROWS = 8192
#: Upkeep merges all files smaller than this, up to about twice this size.
TARGET_BYTES = 64 << 20


class Store(StoreReader):
    """The one writer of a store; reads show every record appended so far.

    Promises: when `append` returns, the records survive a kill and a power cut; each `record_id` is kept
    once, and the first version of it stays. Not to be shared by threads. Close it, or leave its `with`
    block, to let another process write; the lock ends with the process in any case.

    Attributes:
        repairs: What had to be mended when the store was opened, one line each; mostly empty.
    """

    def __init__(self, path: Path, snapshot: Snapshot, lock: filelock.BaseFileLock) -> None:
        super().__init__(path, snapshot)
        self._lock = lock
        self._ids = RecordIds()
        self._failed = False
        self._closed = False
        self._merge_files = MERGE_FILES
        self._checkpointed = last_checkpoint(path / RECORDS)
        self.repairs: tuple[str, ...] = ()

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool = True) -> Store:
        """Open a store for writing, mending what a crash has left; an older layout is brought to this one.

        Args:
            path: Folder of the store.
            create: Make a new store if the folder is missing or empty.

        Raises:
            StoreLocked: Another writer has it; the message names its process.
            StoreFull: No room to make it.
            StoreError: The folder is something else, belongs to a newer version, or cannot be written.
        """
        folder = Path(path)
        with disk_errors("opening the store for writing", folder):
            check_folder(folder, create=create)
            folder.mkdir(parents=True, exist_ok=True)
            lock = acquire(folder)
            try:
                return cls._opened(folder, lock)
            except BaseException:
                release(folder, lock)
                raise

    @classmethod
    def _opened(cls, folder: Path, lock: filelock.BaseFileLock) -> Store:
        table = folder / RECORDS
        for part in (table, folder / WORKLOADS, folder / DEVICES):
            part.mkdir(exist_ok=True)
        notes = repair(table) if is_table(table) else []
        if not is_table(table):
            create_table(table)
        store = cls(folder, migrated(table, load_snapshot(table)), lock)
        store._ids.load(batch.column("record_id") for _, batch in store._batches(("record_id",)))
        if any(".json" in note for note in notes):
            notes.append(store._take_up_lost_rows())
        store.repairs = tuple(notes)
        for note in notes:
            _LOG.warning("%s", note)
        return store

    @staticmethod
    def read(path: str | os.PathLike[str], version: int | None = None) -> StoreReader:
        """Open a store for reading, beside any writer.

        Args:
            path: Folder of the store.
            version: The table as it was at this version; the newest if None.

        Raises:
            StoreError: There is no store, or it is damaged, or of a newer layout, or lacks this version.
        """
        folder = Path(path)
        with disk_errors("opening the store for reading", folder):
            check_folder(folder, create=False)
            return StoreReader(folder, load_snapshot(folder / RECORDS, version))

    def append(self, records: Sequence[Record]) -> AppendResult:
        """Keep records; when this returns, all of them are on the disk.

        The batch is kept whole or not at all. Known records, by `record_id`, are left as they are.

        Raises:
            StoreFull: No room. Nothing was kept; the store is whole, and can go on once there is room.
            StoreError: A record cannot be stored, or the disk failed.
        """
        self._check_usable()
        by_id: dict[str, Record] = {}
        for record in records:
            by_id.setdefault(record.record_id, record)
        known = self._ids.known(list(by_id))
        fresh = [one for one, is_known in zip(by_id, known, strict=True) if not is_known]
        if fresh:
            by_device: dict[str, list[Record]] = {}
            for one in fresh:
                by_device.setdefault(by_id[one].device_id, []).append(by_id[one])
            self._append_tables(
                {check_name("device", name): records_to_table(rows) for name, rows in by_device.items()}
            )
            self._ids.add(fresh)
            self._tidy(by_device)
        return AppendResult(
            appended=len(fresh), duplicates=len(records) - len(fresh), table_version=self.version
        )

    def append_table(self, device_id: str, table: pa.Table) -> AppendResult:
        """Keep many records of one device that are columns already: as `append`, some ten times faster.

        Args:
            device_id: Device of all rows.
            table: Rows of `fleet.store_schema.FILE_SCHEMA`; ids hashed as `agents.records.Record` says.

        Raises:
            StoreFull: No room. Nothing was kept; the store is whole, and can go on once there is room.
            StoreError: A row is no record, or the disk failed.
        """
        self._check_usable()
        check_columns(table)
        ids: list[str] = table.column("record_id").to_pylist()
        rows: dict[str, int] = {}
        for row, (one, is_known) in enumerate(zip(ids, self._ids.known(ids), strict=True)):
            if not is_known:
                rows.setdefault(one, row)
        if rows:
            fresh = table if len(rows) == len(ids) else table.take(list(rows.values()))
            self._append_tables({check_name("device", device_id): fresh})
            self._ids.add(rows)
            self._tidy([device_id])
        return AppendResult(appended=len(rows), duplicates=len(ids) - len(rows), table_version=self.version)

    def put_workloads(self, workloads: Iterable[Workload]) -> int:
        """Keep workloads; of one known before, the networks are joined and the module stays.

        Returns:
            How many were new.

        Raises:
            StoreFull: No room; some may be kept, each whole.
            StoreError: An id is no file name, or the disk failed.
        """
        self._check_usable()
        with disk_errors("storing workloads", self._path):
            return put_workloads(self._path / WORKLOADS, workloads)

    def put_device(self, spec: DeviceSpec, descriptor: Descriptor | None = None) -> bool:
        """Keep what a device is. The last one wins; the earlier ones stay as its history.

        Returns:
            Whether it differed from the last one.

        Raises:
            StoreFull: No room; the last one stays.
            StoreError: The id is no file name, or the disk failed.
        """
        self._check_usable()
        with disk_errors("storing a device", self._path):
            return put_device(self._path / DEVICES, spec, descriptor)

    def upkeep(
        self, *, retention_hours: float = RETENTION_HOURS, target_bytes: int = TARGET_BYTES
    ) -> UpkeepResult:
        """Merge small files, write a checkpoint, delete files that no version in use needs.

        Args:
            retention_hours: Age of dead files to delete. Readers opened earlier, and versions older than
                this, may miss files afterwards.
            target_bytes: Files smaller than this are merged, unless one holds more than all others.

        Raises:
            StoreFull: No room to merge; the table is as before.
            StoreError: The disk failed.
        """
        self._check_usable()
        merged = 0
        for device in sorted({file.device_id for file in self._snapshot.files}):
            files = [file for file in self._snapshot.files if file.device_id == device]
            merged += self._merge(worth_merging(files, target_bytes), target_bytes)
        self._checkpoint()
        deleted = delete_unused(self._path / RECORDS, retention_hours)
        return UpkeepResult(merged_files=merged, deleted_files=deleted, table_version=self.version)

    def close(self) -> None:
        """Let another process write. Closing twice does no harm."""
        self._closed = True
        release(self._path, self._lock)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_usable(self) -> None:
        if self._closed:
            raise StoreError(f"{self._path}: this store was closed; open it again to write")
        if self._failed:
            raise StoreError(
                f"{self._path}: an earlier commit ended in an unknown state; open the store again to go on"
            )

    def _append_tables(self, tables: Mapping[str, pa.Table]) -> None:
        """Make one commit of new rows, one data file a device."""
        folder, version = self._path / RECORDS, self.version + 1
        written = []
        with disk_errors("appending records", folder):
            try:
                for device, table in tables.items():
                    written.append(write_data_file(folder, device, version, table.to_batches(ROW_GROUP_ROWS)))
                commit(folder, version, "WRITE", [one.action for one in written])
            except BaseException:
                self._undo([one.file for one in written], version)
                raise
        self._advance(version, added=[one.file for one in written], removed=())

    def _undo(self, files: Iterable[DataFile], version: int) -> None:
        """After a failure: leave nothing behind, unless the commit is there and so may be durable or not."""
        if commit_path(self._path / RECORDS, version).exists():
            self._failed = True
            return
        for file in files:
            (self._path / RECORDS / file.path).unlink(missing_ok=True)

    def _advance(self, version: int, *, added: Sequence[DataFile], removed: Sequence[DataFile]) -> None:
        gone = {file.path for file in removed}
        kept = [file for file in self._snapshot.files if file.path not in gone]
        self._snapshot = replace(self._snapshot, version=version, files=(*kept, *added))

    def _merge(self, files: Sequence[DataFile], target_bytes: int) -> int:
        """Replace small files of one device by larger ones; return how many were replaced."""
        folder = self._path / RECORDS
        merged = 0
        for group in chunks(sorted(files, key=lambda file: file.path), target_bytes):
            version = self.version + 1
            with delta_errors("merging files", folder), disk_errors("merging files", folder):
                new = merge_data_files(folder, group)
                try:
                    stamp_dead(folder, group)
                    commit(folder, version, "OPTIMIZE", [new.action, *map(remove_action, group)])
                except BaseException:
                    self._undo([new.file], version)
                    raise
            self._advance(version, added=[new.file], removed=group)
            merged += len(group)
        return merged

    def _tidy(self, devices: Iterable[str]) -> None:
        """Keep files and commits few; the records are durable already, so a failure is only a warning."""
        try:
            for device in devices:
                small = [f for f in self._snapshot.files if f.device_id == device and f.rows < SMALL_ROWS]
                if len(small) >= self._merge_files:
                    self._merge(small, TARGET_BYTES)
            if self.version - self._checkpointed >= CHECKPOINT_EVERY:
                self._checkpoint()
        except StoreError as error:
            # Not at every append again: a merge that fails for lack of room costs as much as one that works.
            self._merge_files += MERGE_FILES
            _LOG.warning("the records are kept, but tidying up failed: %s", error)

    def _checkpoint(self) -> None:
        folder = self._path / RECORDS
        log = folder / "_delta_log"
        with delta_errors("writing a checkpoint", folder), disk_errors("writing a checkpoint", folder):
            DeltaTable(folder).create_checkpoint()
            fsync(log / f"{self.version:020d}.checkpoint.parquet")
            fsync(log / "_last_checkpoint")
            fsync(log)
        self._checkpointed = self.version

    def _take_up_lost_rows(self) -> str:
        """Append the rows of data files whose commit is damaged; known rows are left out as ever."""
        taken = 0
        for device, table in lost_tables(self._path / RECORDS, self._snapshot.files):
            ids = table.column("record_id").to_pylist()
            fresh = [row for row, is_known in enumerate(self._ids.known(ids)) if not is_known]
            if fresh:
                self._append_tables({device: table.take(fresh)})
                self._ids.add(ids[row] for row in fresh)
                taken += len(fresh)
        return f"{taken} records were taken up again from data files that no whole commit names"


__all__ = ["AppendResult", "DeviceCounts", "Store", "StoreReader", "UpkeepResult"]
