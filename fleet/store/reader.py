"""Read the store: no lock, one moment of it, bounded memory.

What was acknowledged stands in the table, or waits for it in the state file: a reader shows both as one.

Called by training, export, reports and status; `fleet.store.store` builds the writer on it. It never writes.
Who needs whole records reads `records`; who counts or filters reads `columns`, some fifty times faster.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import filelock
import pyarrow as pa
import pyarrow.compute as pc

from agents.records import IMPORTED, DeviceId, Outcome, Record, Workload, WorkloadId, claimed_id
from fleet.errors import StoreError, StoreLocked, disk_errors
from fleet.state.rows import WaitingRows, rows_of
from fleet.state.schema import STATE
from fleet.store.catalog import DeviceEntry, read_devices, read_workloads
from fleet.store.delta.log import RECORDS, DataFile, TableSnapshot, delta_errors, is_table, load_snapshot
from fleet.store.delta.schema import (
    BATCH_ROWS,
    FILE_SCHEMA,
    RECORD_COLUMNS,
    batch_to_records,
    check_layout,
    read_batches,
)

#: Folders of a store beside the table's.
WORKLOADS, DEVICES = "workloads", "devices"

#: Rows that are decoded at once where only short columns are read.
_SHORT_ROWS = 65_536

#: Column that tells which version of the project wrote a row.
_LAYOUT = "schema"
_ENVIRONMENT, _BEFORE = "environment_id", "@before"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCounts:
    """How much is known of one device."""

    records: int
    ok: int
    #: Records with another outcome than `ok`, by outcome; outcomes that never occurred are left out.
    failed: Mapping[Outcome, int]
    #: Unix seconds of the first and last measurement.
    first_at: float
    last_at: float


class StoreReader:
    """The dataset as it was at one moment.

    Promises: a reader needs no lock and is never in a writer's way; what it returns does not change while
    others append; upkeep leaves the files of its version in place for
    `fleet.store.delta.log.RETENTION_HOURS`. A reader may be shared by threads.

    Args:
        path: Folder of the store.
        snapshot: The table at one version.
        waiting: Rows that were acknowledged and not in that version, oldest first.

    Attributes:
        path: As it was given.
    """

    def __init__(self, path: Path, snapshot: TableSnapshot, waiting: Sequence[WaitingRows] = ()) -> None:
        self.path = path
        self._snapshot = snapshot
        self._waiting = tuple(waiting)
        #: Unix seconds by device: what was measured before then is shown as of another environment.
        self._since: dict[str, float] = {}

    @property
    def snapshot(self) -> TableSnapshot:
        """The files of the table; not to be changed by others."""
        return self._snapshot

    def waiting(self) -> Sequence[WaitingRows]:
        """Rows that wait for the table, oldest first."""
        return self._waiting

    @property
    def moment(self) -> tuple[int, int]:
        """Names the moment that is shown: version of the table, and number of the last row that waits."""
        waiting = self.waiting()
        return self.version, waiting[-1].number if waiting else 0

    def parted(self, since: Mapping[str, float]) -> StoreReader:
        """The same records, of which the older ones of devices are shown as of environments of their own.

        A device that drifted has the environment that it had, and yet its numbers of before are not to be
        compared with those of now.

        Args:
            since: Unix seconds by device; the environment of what was measured before is named by
                `environment_before`.
        """
        reader = StoreReader(self.path, self.snapshot, self.waiting())
        reader._since = {**self._since, **since}
        return reader

    @property
    def version(self) -> int:
        """Version of the records table; `Store.read` shows it again, without the rows that wait."""
        return self.snapshot.version

    @property
    def rows(self) -> int:
        """How many records there are."""
        return self.snapshot.rows + sum(piece.rows for piece in self.waiting())

    def records(self, device_id: str | None = None) -> Iterator[Record]:
        """Yield records, device by device in the order of the ids, always in the same order for one version.

        Raises:
            StoreError: Upkeep has deleted files of this version, one is damaged, or a newer version wrote it.
        """
        only = None if device_id is None else [device_id]
        for device, batch in self._batches(RECORD_COLUMNS, only):
            yield from batch_to_records(device, batch)

    def columns(
        self,
        names: Sequence[str],
        *,
        device_ids: Collection[str] | None = None,
        version: int | None = None,
        files: Collection[str] | None = None,
    ) -> Iterator[tuple[DeviceId, pa.RecordBatch]]:
        """Yield some columns of the records, in the order of `records`, without making a `Record` of any row.

        Nothing but these columns is read and decoded. A later scan of the same version gives the same rows in
        the same order, so that a row may be known by its number.

        Args:
            names: Columns of `fleet.store.delta.schema.FILE_SCHEMA`.
            device_ids: Only of these devices; of all if None.
            version: The table alone, as it was at this version; this reader's own and what waits if None.
            files: Only these files of the table, by their paths; all if None.

        Yields:
            A device, and 1 to `fleet.store.delta.schema.BATCH_ROWS` of its rows with exactly these columns in
            this order.

        Raises:
            StoreError: There is no such column, the version does not exist any more, a file is damaged, or a
                newer version wrote it.
        """
        unknown = sorted(set(names) - set(FILE_SCHEMA.names))
        if unknown:
            raise StoreError(f"records have no column {unknown[0]!r}; known: {', '.join(FILE_SCHEMA.names)}")
        chosen = tuple(dict.fromkeys((*names, _LAYOUT)))
        for device, batch in self._batches(chosen, device_ids, version, files=files):
            for layout in pc.unique(batch.column(_LAYOUT)).to_pylist():
                check_layout(device, layout)
            yield DeviceId(device), batch.select(list(names))

    def workloads(self, workload_ids: Collection[WorkloadId] | None = None) -> dict[WorkloadId, Workload]:
        """Workloads by id: all, of which an import may have brought thousands, or the wanted ones."""
        with disk_errors("reading the workloads", self.path):
            return read_workloads(self.path / WORKLOADS, workload_ids)

    def own_workloads(self, workload_ids: Collection[WorkloadId] | None = None) -> dict[WorkloadId, Workload]:
        """Workloads by id whose modules agents of ours have made: TVM may be given these and no others."""
        with disk_errors("reading the workloads", self.path):
            return read_workloads(self.path / WORKLOADS, workload_ids, only_own=True)

    def has_imported_workloads(self, workload_ids: Collection[WorkloadId]) -> bool:
        """Whether any record may be of an imported workload that claims to be one of these of ours."""
        with disk_errors("reading the workloads", self.path):
            names = [path.stem for path in (self.path / WORKLOADS).glob(f"{IMPORTED}-*.json")]
        return any(claimed_id(name) in workload_ids for name in names)

    def devices(self) -> dict[DeviceId, DeviceEntry]:
        """The last thing known of each device, by device."""
        with disk_errors("reading the devices", self.path):
            return read_devices(self.path / DEVICES)

    def counts(self) -> dict[DeviceId, DeviceCounts]:
        """Count the records of each device that has any, sorted by device."""
        counts: dict[DeviceId, DeviceCounts] = {}
        every = self._batches(("outcome", "measured_at"), rows=_SHORT_ROWS)
        for device, batches in groupby(every, key=lambda pair: pair[0]):
            by_outcome: Counter[str] = Counter()
            first, last = float("inf"), float("-inf")
            for _, batch in batches:
                for entry in pc.value_counts(batch.column("outcome")).to_pylist():
                    by_outcome[entry["values"]] += entry["counts"]
                times = pc.min_max(batch.column("measured_at")).as_py()
                first, last = min(first, times["min"]), max(last, times["max"])
            failed = {outcome: by_outcome[outcome] for outcome in Outcome if outcome in by_outcome}
            failed.pop(Outcome.OK, None)
            counts[DeviceId(device)] = DeviceCounts(
                records=by_outcome.total(),
                ok=by_outcome[Outcome.OK],
                failed=failed,
                first_at=first,
                last_at=last,
            )
        return counts

    @property
    def device_ids(self) -> list[DeviceId]:
        """Devices that have records, sorted."""
        names = {file.device_id for file in self.snapshot.files}
        return sorted(map(DeviceId, names.union(*(piece.device_ids for piece in self.waiting()))))

    def data_files(self, device_id: str | None = None) -> list[Path]:
        """The Parquet files of the table, of all devices or one: for DuckDB, pandas, polars, or a copy.

        They lack the rows that wait, until the store is closed or flushed.
        """
        return [
            self.path / RECORDS / file.path
            for file in self.snapshot.files
            if device_id is None or file.device_id == device_id
        ]

    def _batches(
        self,
        columns: Sequence[str],
        device_ids: Collection[str] | None = None,
        version: int | None = None,
        rows: int = BATCH_ROWS,
        files: Collection[str] | None = None,
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield (device, up to so many rows) with some columns, a few MB at a time."""
        snapshot, waiting = self.snapshot, self.waiting() if version is None else ()
        if version is not None and version != snapshot.version:
            snapshot = load_snapshot(self.path / RECORDS, version)
        by_device: dict[str, list[DataFile]] = {}
        for file in snapshot.files:
            by_device.setdefault(file.device_id, []).append(file)
        for piece in waiting:
            for device_id in piece.device_ids:
                by_device.setdefault(device_id, [])
        doing = f"reading version {snapshot.version}"
        for device in sorted(by_device):
            if device_ids is not None and device not in device_ids:
                continue
            since = self._since.get(device) if _ENVIRONMENT in columns else None
            chosen = columns if since is None else tuple(dict.fromkeys((*columns, "measured_at")))
            for file in by_device[device]:
                if files is not None and file.path not in files:
                    continue
                path = self.path / RECORDS / file.path
                batches = read_batches(path, chosen, rows)
                while True:
                    # The `yield` stays outside of this block: the caller's own errors must pass unchanged.
                    with delta_errors(doing, path), disk_errors(doing, path):
                        batch = next(batches, None)
                    if batch is None:
                        break
                    if batch.num_rows:
                        yield device, batch if since is None else _parted(batch, since)
            for piece in waiting:
                of_device = device in piece.device_ids
                for batch in rows_of(piece.body, device, chosen).to_batches(rows) if of_device else ():
                    yield device, batch if since is None else _parted(batch, since)


def environment_before(environment_id: str) -> str:
    """How `StoreReader.parted` calls an environment in what was measured before its moment."""
    return f"{environment_id}{_BEFORE}"


def _parted(batch: pa.RecordBatch, since: float) -> pa.RecordBatch:
    environments = batch.column(_ENVIRONMENT)
    is_older = pc.less(batch.column("measured_at"), since)
    renamed = pc.binary_join_element_wise(environments, _BEFORE, "")
    place = batch.schema.get_field_index(_ENVIRONMENT)
    chosen = pc.if_else(is_older, renamed, environments)
    return batch.set_column(place, batch.schema.field(place), chosen.cast(environments.type))


# Who may write to a store: one process, and the folder must be a store or become one.
#
# Only `fleet.store.store` calls it.

#: Names in the store's folder: the lock, and the process id of its holder.
LOCK, HOLDER = "writer.lock", "writer.pid"
#: What SQLite has beside a file.
_ENDS = ("", "-wal", "-shm", "-journal")


def check_folder(folder: Path, *, create: bool) -> None:
    """Refuse a folder that is no store and should not become one.

    Raises:
        StoreError: It is a file, is missing, or holds other things.
    """
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file, expected the folder of a store; give another path")
    if is_table(folder / RECORDS):
        return
    if not create:
        raise StoreError(f"there is no store at {folder}; `fleet init` and `fleet collect` make one")
    # The state file comes before the table: a kill may fall between them.
    ours = {RECORDS, WORKLOADS, DEVICES, LOCK, HOLDER, *(f"{STATE}{end}" for end in _ENDS)}
    others = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    # A file that was on its way when the disk failed, or the process: `.NAME.something`.
    halves = tuple(f".{name}." for name in ours)
    others = [name for name in others if name not in ours and not name.startswith(halves)]
    if others:
        raise StoreError(
            f"{folder} is no store but holds {', '.join(others[:3])}; give an empty or a new folder"
        )


def acquire(folder: Path) -> filelock.BaseFileLock:
    """Become the writer; the lock ends with this process, however it ends.

    Raises:
        StoreLocked: Another writer is at work.
    """
    lock = filelock.FileLock(folder / LOCK, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise StoreLocked(
            f"{folder} is being written by {_holder(folder)}; stop that process, or read without a lock"
        ) from error
    try:
        # A file of its own: some versions of filelock empty the lock file as they try for it.
        (folder / HOLDER).write_text(f"{os.getpid()}\n")
    except OSError:
        lock.release()
        raise
    return lock


def _holder(folder: Path) -> str:
    try:
        text = (folder / HOLDER).read_text().strip()
    except OSError:
        text = ""
    return f"process {text}" if text.isdigit() else "another process"


def release(folder: Path, lock: filelock.BaseFileLock) -> None:
    """Let another process write; doing it twice does no harm."""
    if lock.is_locked:
        # On a disk that became read-only it stays, and names a process that is gone: it is for people only.
        with suppress(OSError):
            (folder / HOLDER).unlink(missing_ok=True)
        lock.release()
