"""The dataset: a Delta Lake table of records, its state file, and workloads and devices beside them.

One process writes; everything else reads without a lock through `Store.read`. Layout, columns and guarantees:
`docs/store.md`. It knows nothing of Ray, TVM, leases or models.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from agents.files import make_folder
from agents.records import DeviceId, Outcome, Record
from agents.row_file import read_rows
from agents.spool.disk_spool import FILE as SPOOL_FILE
from fleet.errors import StoreError, disk_errors
from fleet.state.questions import StateReader
from fleet.state.rows import results_of_rows
from fleet.state.schema import STATE
from fleet.state.state_file import StateFile
from fleet.state.table import RecordsTable, check_rows
from fleet.store.catalog import check_name
from fleet.store.delta.log import RECORDS, RETENTION_HOURS, load_snapshot, newest_snapshot
from fleet.store.delta.schema import check_columns, check_schema
from fleet.store.lanes import LaneSettings
from fleet.store.reader import DEVICES, WORKLOADS, StoreReader, acquire, check_folder, release
from fleet.store.writer import RowPiece, StoreWriter, pieces_of_rows

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """What became of records that were given to a store. All of them are durable now."""

    appended: int
    #: Records that the store, or the batch itself, held already.
    duplicates: int
    #: The newest version of the table. Rows that wait come with a later one.
    table_version: int
    #: New ones with outcome `ok`, where they came as columns.
    ok: int = 0


@dataclass(slots=True)
class UpkeepResult:
    """What `Store.upkeep` did, or has done so far."""

    merged_files: int = 0
    deleted_files: int = 0


class Store(StoreWriter):
    """The one writer of a store; reads show every record that is durable.

    Promises: what a turn has taken in survives a kill and a power cut once the turn is on the disk; each
    `record_id` is kept once, and the first version of it stays. Not to be shared by threads. Close it, or
    leave its `with` block, to let another process write; the lock ends with the process in any case.
    """

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        settings: LaneSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Store:
        """Open a store for writing, mending what a crash has left.

        Args:
            path: Folder of the store.
            create: Make a new store if the folder is missing or empty.
            settings: When rows go on to the table.
            clock: Seconds that never go back.

        Raises:
            StoreLocked: Another writer has it; the message names its process.
            StoreFull: No room to make it.
            StateDamaged: State file and table do not fit together.
            StoreError: The folder is something else, of another version, or cannot be written.
        """
        folder = Path(path)
        with disk_errors("opening the store for writing", folder):
            check_folder(folder, create=create)
            make_folder(folder)
            lock = acquire(folder)
            try:
                for part in (RECORDS, WORKLOADS, DEVICES):
                    (folder / part).mkdir(exist_ok=True)
                state = StateFile(folder / STATE)
                try:
                    table = RecordsTable(folder / RECORDS, state)
                    store = cls(folder, lock, state, table, settings=settings, clock=clock)
                except BaseException:
                    state.close()
                    raise
            except BaseException:
                release(folder, lock)
                raise
        for note in store.repairs:
            _LOG.warning("%s", note)
        return store

    @staticmethod
    def read(path: str | os.PathLike[str], version: int | None = None) -> StoreReader:
        """Open a store for reading, beside any writer.

        Args:
            path: Folder of the store.
            version: The table alone, as it was at this version; the newest one and what waits if None.

        Raises:
            StoreError: There is no store, or it is damaged, of another layout, or lacks this version.
        """
        folder = Path(path)
        with disk_errors("opening the store for reading", folder):
            check_folder(folder, create=False)
            if not (folder / STATE).exists():
                load_snapshot(folder / RECORDS)  # what is no store of ours is named so
            with StateReader(folder / STATE) as state:
                newest, rows = state.table_version(), state.table_rows()
                waiting = list(state.waiting()) if version is None else []
            if newest is None:
                load_snapshot(folder / RECORDS)
                raise StoreError(f"{folder} is a store that was not made whole; open it for writing once")
            if version is not None and version > newest:
                raise StoreError(
                    f"{folder} has no version {version} of its table; the newest one is {newest}"
                )
            if version is not None and version != newest:
                return StoreReader(folder, load_snapshot(folder / RECORDS, version))
            snapshot = newest_snapshot(folder / RECORDS, newest)
            check_rows(snapshot, rows, folder / RECORDS)
            return StoreReader(folder, snapshot, waiting)

    def append(self, records: Sequence[Record]) -> AppendResult:
        """Keep records; when this returns, all of them are on the disk.

        The batch is kept whole or not at all. Known records, by `record_id`, are left as they are.

        Raises:
            StoreFull: No room. Nothing was kept; the store is whole, and can go on once there is room.
            StoreError: A record cannot be stored, or the disk failed.
        """
        self.settle()
        fresh = self.take(records)
        try:
            self.settle()
        except BaseException:
            self.state.take_back()
            self._lanes.recount(self.state.waiting_sizes(), self._clock())
            raise
        self.move_on()
        return AppendResult(
            appended=len(fresh), duplicates=len(records) - len(fresh), table_version=self.version
        )

    def append_table(self, device_id: str, table: pa.Table) -> AppendResult:
        """Keep many records of one device that are columns already: as `append`, some times faster.

        Args:
            device_id: Device of all rows.
            table: Rows of `fleet.store.delta.schema.FILE_SCHEMA`; ids hashed as `agents.records.Record` says.

        Raises:
            StoreFull: No room. Nothing was kept; the store is whole, and can go on once there is room.
            StoreError: A row is no record, or the disk failed.
        """
        return self.append_tables({device_id: table})

    def append_tables(self, tables: Mapping[str, pa.Table]) -> AppendResult:
        """Keep records of several devices that are columns already, in one turn: see `append_table`."""
        self.settle()
        self._make_way()
        tables_by_device = {
            check_name("device", name): table for name, table in tables.items() if table.num_rows
        }
        for table in tables_by_device.values():
            check_schema(table)
        if tables_by_device:
            check_columns(pa.concat_tables(tables_by_device.values()))
        fresh: dict[str, pa.Table] = {}
        pieces: list[RowPiece] = []
        with self.state.turn() as turn:
            for name, table in tables_by_device.items():
                flags = turn.add_results(results_of_rows(name, table))
                fresh[name] = table if all(flags) else table.filter(pa.array(flags))
                device_id = DeviceId(name)
                pieces += pieces_of_rows(device_id, fresh[name], self._lanes.number(device_id))
            for piece in pieces:
                piece.write(turn)
        for piece in pieces:
            self._note(piece)
        self.move_on()
        appended = sum(table.num_rows for table in fresh.values())
        duplicates = sum(table.num_rows for table in tables_by_device.values()) - appended
        outcomes = [outcome for table in fresh.values() for outcome in table.column("outcome").to_pylist()]
        return AppendResult(
            appended=appended,
            duplicates=duplicates,
            table_version=self.version,
            ok=outcomes.count(Outcome.OK),
        )

    def upkeep(self, *, retention_hours: float = RETENTION_HOURS) -> UpkeepResult:
        """Join small files, write a checkpoint, delete files that no version in use needs.

        Args:
            retention_hours: Age of dead files to delete, in hours in which the host ran. Readers opened
                earlier, and versions older than this, may miss files afterwards.

        Raises:
            StoreFull: No room to join files; the table is as before.
            StoreError: The disk failed.
        """
        return list(self.upkeep_steps(retention_hours=retention_hours))[-1]

    def upkeep_steps(self, *, retention_hours: float = RETENTION_HOURS) -> Iterator[UpkeepResult]:
        """Do the same a step with each `next`: the files of one device, or one of the rest.

        Records may be appended between two steps, and a round may be left unfinished. Yields what was done so
        far; errors as of `upkeep`.
        """
        self._check_open()
        result = UpkeepResult()
        for device_id in self._table.scattered():
            result.merged_files += self._table.compact([device_id])
            yield result
        self._check_open()
        self._checkpoint()
        yield result
        with disk_errors("noting the version of now", self.path):
            self._time.note(self.version, 3600 * max(RETENTION_HOURS, retention_hours))
        needed = self._time.version_before(3600 * retention_hours, self.version)
        if needed is not None:  # else nobody has looked for so long: everything may be in use
            result.deleted_files = self._table.delete_unused(needed)
        yield result

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def records_or_nothing(store: Path, *beside: Path) -> Iterator[None]:
    """Take away what a block has made, where at its end no record is in its store.

    A mistyped name, or a request that cannot be done, leaves no empty dataset to be found by everybody. What
    was there before stays.

    Args:
        store: Folder of the store, which the block makes, opens and closes.
        beside: Folders that it makes beside it; with a finished record in a new one, all stays.
    """
    places = (store, *beside)
    was_there = {path for path in places if path.exists()}
    new_folders = [path for path in places if path not in was_there or not any(path.iterdir())]
    above = [path for path in store.parents if not path.exists()]
    try:
        yield
    finally:
        if store in new_folders and not _has_records(store, new_folders):
            for place in new_folders:
                shutil.rmtree(place, ignore_errors=True)
                if place in was_there:
                    place.mkdir()
            with suppress(OSError):  # somebody else may have put something there meanwhile
                for parent in above:
                    parent.rmdir()


def _has_records(store: Path, folders: list[Path]) -> bool:
    if not store.exists():
        return True  # another process may be about to make it
    if any(read_rows(path) for folder in folders for path in folder.glob(f"*/{SPOOL_FILE}")):
        return True
    try:
        with Store.open(store, create=False) as reader:  # which takes in what waits for the table
            return reader.rows > 0
    except StoreError:
        return True
