"""The dataset: a Delta Lake table of records, partitioned by device, with workloads and devices beside it.

The coordinator is the one writer; everything else reads without a lock through `Store.read`. Layout, columns
and guarantees: `docs/store.md`. It knows nothing of Ray, TVM, leases or models.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import filelock
import pyarrow as pa

from agents.files import make_folder
from agents.records import Record
from fleet.durable import disk_errors
from fleet.errors import StoreError
from fleet.store.catalog import check_name
from fleet.store.delta.columns import check_columns, check_schema
from fleet.store.delta.files import chunks, delete_unused, forget_old_commits, worth_merging
from fleet.store.delta.index import IdIndex
from fleet.store.delta.log import (
    RETENTION_HOURS,
    TableSnapshot,
    create_table,
    delta_errors,
    is_table,
    load_snapshot,
    repair,
    settle,
)
from fleet.store.delta.schema import read_batches, records_to_table
from fleet.store.leftovers import take_up_intake, take_up_lost_rows
from fleet.store.lock import acquire, check_folder, release
from fleet.store.reader import DEVICES, RECORDS, WORKLOADS, StoreReader
from fleet.store.writer import AppendResult, TableWriter, UpkeepResult

_LOG = logging.getLogger(__name__)

#: Commits between two checkpoints. Opening reads the last checkpoint and the commits after it, 0.2 ms each.
CHECKPOINT_EVERY = 100

#: A device's small files are merged when there are this many: each costs some 0.6 ms whenever all are read.
MERGE_FILES = 128
#: With many devices they are merged sooner: at so many small files in the whole table, if a device has
#: `LEAST_MERGED`.
MOST_SMALL_FILES = 16_384
LEAST_MERGED = 16
#: Devices whose small files are merged after one append at most, so that no append takes long.
MERGED_AT_ONCE = 8
#: Ids that are read from the data files at once.
_ID_ROWS = 65_536


class Store(TableWriter):
    """The one writer of a store; reads show every record appended so far.

    Promises: when `append` returns, the records survive a kill and a power cut; each `record_id` is kept
    once, and the first version of it stays. Not to be shared by threads. Close it, or leave its `with`
    block, to let another process write; the lock ends with the process in any case.

    Attributes:
        repairs: What had to be mended when the store was opened, one line each; mostly empty.
    """

    def __init__(self, path: Path, snapshot: TableSnapshot, lock: filelock.BaseFileLock) -> None:
        super().__init__(path, snapshot)
        self._lock = lock
        self._index = IdIndex(path, path / RECORDS)
        self._merge_files = MERGE_FILES
        self.repairs: tuple[str, ...] = ()

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool = True) -> Store:
        """Open a store for writing, mending what a crash has left.

        Args:
            path: Folder of the store.
            create: Make a new store if the folder is missing or empty.

        Raises:
            StoreLocked: Another writer has it; the message names its process.
            StoreFull: No room to make it.
            StoreError: The folder is something else, of another version, or cannot be written.
        """
        folder = Path(path)
        with disk_errors("opening the store for writing", folder):
            check_folder(folder, create=create)
            make_folder(folder)
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
        settle(table)
        store = cls(folder, load_snapshot(table), lock)
        store._index = IdIndex.open(folder, table, store.snapshot, store._read_ids)
        take_up_lost_rows(table, store.snapshot.files, store._append_checked, notes)
        take_up_intake(folder, store.append_tables, notes)
        store.repairs = tuple(notes)
        for note in notes:
            _LOG.warning("%s", note)
        return store

    @staticmethod
    def read(path: str | os.PathLike[str], version: int | None = None) -> StoreReader:
        """Open a store for reading, beside any writer, at a version or at the newest.

        Raises:
            StoreError: There is no store, or it is damaged, of another layout, or lacks this version.
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
        named: dict[str, dict[str, Record]] = {}
        for record in records:
            name = check_name("device", record.device_id)
            named.setdefault(name, {}).setdefault(record.record_id, record)
        done = self._append_checked(
            {name: records_to_table(list(some.values()), list(some)) for name, some in named.items()}
        )
        return replace(done, duplicates=len(records) - done.appended)

    def append_table(self, device_id: str, table: pa.Table) -> AppendResult:
        """Keep many records of one device that are columns already: as `append`, some ten times faster.

        Args:
            device_id: Device of all rows.
            table: Rows of `fleet.store.delta.schema.FILE_SCHEMA`; ids hashed as `agents.records.Record` says.

        Raises:
            StoreFull: No room. Nothing was kept; the store is whole, and can go on once there is room.
            StoreError: A row is no record, or the disk failed.
        """
        return self.append_tables({device_id: table})

    def append_tables(self, tables: Mapping[str, pa.Table], *, is_checked: bool = False) -> AppendResult:
        """Keep records of several devices that are columns already, in one commit: see `append_table`.

        Args:
            tables: Rows of each device.
            is_checked: Whether the caller has checked them as `fleet.store.delta.columns.check_columns` does.
        """
        self._check_usable()
        wanted = {check_name("device", name): table for name, table in tables.items() if table.num_rows}
        if not wanted:
            return AppendResult(appended=0, duplicates=0, table_version=self.version)
        if not is_checked:
            for table in wanted.values():
                check_schema(table)
            check_columns(pa.concat_tables(wanted.values()))
        return self._append_checked(wanted)

    def _append_checked(self, tables: Mapping[str, pa.Table]) -> AppendResult:
        """Keep rows that can be read back for sure."""
        seen: set[str] = set()
        fresh: dict[str, pa.Table] = {}
        ids: dict[str, list[str]] = {
            name: table.column("record_id").to_pylist() for name, table in tables.items()
        }
        # All at once: a search takes as long for a thousand as for one.
        known = iter(self._index.ids.known([one for some in ids.values() for one in some]))
        for name, table in tables.items():
            rows = []
            for row, one in enumerate(ids[name]):
                if not next(known) and one not in seen:
                    seen.add(one)
                    rows.append(row)
            if rows:
                fresh[name] = table if len(rows) == table.num_rows else table.take(rows)
        if fresh:
            self._append_tables(fresh)
            self._index.ids.add(seen)
            self._tidy(fresh)
        given = sum(table.num_rows for table in tables.values())
        return AppendResult(
            appended=len(seen), duplicates=given - len(seen), table_version=self.version, rows=fresh
        )

    def known(self, record_ids: Sequence[str]) -> list[bool]:
        """Say of each id whether the table has a record with it.

        Raises:
            StoreError: The store was closed, or must be opened again.
        """
        self._check_usable()
        return self._index.ids.known(record_ids)

    def upkeep(self, *, retention_hours: float = RETENTION_HOURS) -> UpkeepResult:
        """Merge small files, write a checkpoint, delete files that no version in use needs.

        Args:
            retention_hours: Age of dead files to delete, in hours in which the host ran. Readers opened
                earlier, and versions older than this, may miss files afterwards.

        Raises:
            StoreFull: No room to merge; the table is as before.
            StoreError: The disk failed.
        """
        return list(self.upkeep_steps(retention_hours=retention_hours))[-1]

    def upkeep_steps(self, *, retention_hours: float = RETENTION_HOURS) -> Iterator[UpkeepResult]:
        """Do the same a step with each `next`: the files of one device, or one of the rest.

        Records may be appended between two steps, and a round may be left unfinished. Yields what was done so
        far; errors as of `upkeep`.
        """
        self._check_usable()
        merged = 0
        for name in sorted(self._files):
            files = worth_merging(self._files_of(name))
            if files:
                merged += sum(self._merge_groups([group]) for group in chunks(files))
                yield UpkeepResult(merged_files=merged, deleted_files=0, table_version=self.version)
        self._check_usable()
        self._checkpoint()
        self._save_ids()
        yield UpkeepResult(merged_files=merged, deleted_files=0, table_version=self.version)
        with disk_errors("noting the version of now", self.path):
            self._time.note(self.version, 3600 * max(RETENTION_HOURS, retention_hours))
        needed = self._time.version_before(3600 * RETENTION_HOURS, self.version)
        if needed is not None:
            forget_old_commits(self.path / RECORDS, needed)
        deleted = 0
        yield UpkeepResult(merged_files=merged, deleted_files=deleted, table_version=self.version)
        if self._time.version_before(3600 * retention_hours, self.version) is None:
            return  # nobody has looked for so long: everything may have died since
        for count in delete_unused(
            self.path / RECORDS, self._files_of, self._time.now, 3600 * retention_hours
        ):
            deleted += count
            yield UpkeepResult(merged_files=merged, deleted_files=deleted, table_version=self.version)

    def close(self) -> None:
        """Let another process write. Closing twice does no harm."""
        if not self._closed and not self._failed:
            try:
                self._save_ids()
            except StoreError as error:
                _LOG.warning("the records are kept, but the index of their ids was not written: %s", error)
        self._closed = True
        release(self.path, self._lock)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _recover(self) -> None:
        super()._recover()
        # Until the ids of that commit are known nothing may be appended: its records would come twice.
        self._failed = self._lacked_room = True
        self._index = IdIndex.open(self.path, self.path / RECORDS, self.snapshot, self._read_ids)
        self._failed = self._lacked_room = False

    def _tidy(self, devices: Iterable[str]) -> None:
        """Keep files and commits few; the records are durable already, so a failure is only a warning."""
        most = min(self._merge_files, max(LEAST_MERGED, MOST_SMALL_FILES // max(1, len(self._small))))
        try:
            due = [device for device in devices if len(self._small.get(device, ())) >= most]
            # Devices with the most files first; the others are merged after a later append.
            due.sort(key=lambda device: -len(self._small[device]))
            groups = [sorted(self._small[one].values(), key=lambda file: file.path) for one in due]
            if groups:
                self._merge_groups(groups[:MERGED_AT_ONCE])
            if self.version - self._checkpointed >= CHECKPOINT_EVERY:
                self._checkpoint()
            if self._index.is_due(self.version):
                self._save_ids(due=True)
        except StoreError as error:
            # The next try waits: a merge that fails for lack of room costs as much as one that works.
            self._merge_files += MERGE_FILES
            _LOG.warning("the records are kept, but tidying up failed: %s", error)

    def _save_ids(self, *, due: bool = False) -> None:
        """Write the index of the ids where that pays: it is a cache, so small stores have none."""
        if due or self._index.is_worth_it(self.version):
            with disk_errors("writing the index of the ids", self.path):
                self._index.save(self.snapshot)

    def _read_ids(self, paths: Iterable[str]) -> Iterator[pa.Array]:
        for path in paths:
            absolute = self.path / RECORDS / path
            with delta_errors("reading the ids", absolute), disk_errors("reading the ids", absolute):
                for batch in read_batches(absolute, ("record_id",), rows=_ID_ROWS):
                    yield batch.column("record_id")
