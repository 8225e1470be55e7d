"""The Delta table `records/`, behind a state file: rows that wait there come here in large pieces.

deltalake writes data files and commits. It waits for no disk, so a version counts when its files are durable
and the state file says so, in the transaction in which the rows leave. A kill before that leaves one version
that the state file does not know. Its rows wait still, as its transaction identifiers tell, so it is taken
back: what of it has reached the disk nobody knows. See decision 65.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import (
    ColumnProperties,
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import DeltaError

from agents.files import fsync_all
from agents.records import DeviceId
from fleet.errors import StateDamaged, StoreError, disk_errors
from fleet.state.contents import Contents
from fleet.state.rows import WaitingRows, unpack
from fleet.state.state_file import StateFile
from fleet.state.table_log import Action, TableLog, added, removed
from fleet.store.delta.log import (
    TableSnapshot,
    check_layout,
    damaged_log,
    delta_errors,
    file_sum,
    load_snapshot,
    log_errors,
    snapshot_of,
)
from fleet.store.delta.schema import DICTIONARY_COLUMNS, SCHEMA_KEY, STORE_SCHEMA, TABLE_SCHEMA

#: Packed bytes of the rows of one commit, or a little more: in memory they are some ten times as many.
_PART_BYTES: Final = 16 << 20
#: Files up to this size are joined with others.
_JOINED_BYTES: Final = 64 << 20
#: Key of the writer's name in what a commit says of itself.
WRITER_KEY = "tensorFleet.writer"
#: The table's metadata says this beside its layout. Statistics over long texts would fill the log.
_OPTIONS: Final = {
    "delta.appendOnly": "true",
    # With each checkpoint the library would delete commits whose files have dates of a month ago.
    "delta.enableExpiredLogCleanup": "false",
    "delta.dataSkippingStatsColumns": "workload_id,outcome,latency_secs,measured_at",
}
#: Checkpoints are made with a wait for the disk, by `checkpoint`.
_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_WRITER: Final = WriterProperties(
    compression="ZSTD",
    max_row_group_size=2048,
    default_column_properties=ColumnProperties(dictionary_enabled=False),
    column_properties={name: ColumnProperties(dictionary_enabled=True) for name in DICTIONARY_COLUMNS},
)


class RecordsTable:
    """The table, for the one process that writes.

    Args:
        folder: The table's folder; made with an empty table if there is none.
        state: State file of the same store.

    Raises:
        StateDamaged: The state file names a version that the table does not have.
        StoreError: Somebody else wrote a version, it has another layout, or the disk failed.

    Attributes:
        notes: Torn files of the log that were set aside, one line each; mostly empty.
    """

    def __init__(self, folder: Path, state: StateFile) -> None:
        self.folder = folder
        self._state = state
        self._log = TableLog(folder)
        self.notes = self._log.notes
        self._open()

    def _open(self) -> None:
        with disk_errors("opening the table", self.folder), delta_errors("opening the table", self.folder):
            self._settle()
            with log_errors(self.folder):
                self._table = DeltaTable(self.folder)
                check_layout(self.folder, self._table)
                snapshot = snapshot_of(self._table)
            check_rows(snapshot, self._state.table_rows(), self.folder)
            self._confirmed = snapshot

    @property
    def version(self) -> int:
        """The newest version that counts: all rows but those that wait."""
        return self._confirmed.version

    @property
    def checkpointed(self) -> int:
        """Version of the newest checkpoint; -1 for none."""
        return max(self._log.checkpoints(), default=-1)

    def snapshot(self) -> TableSnapshot:
        """The files of the newest version that counts."""
        return self._confirmed

    def scattered(self) -> list[DeviceId]:
        """Devices with small files that are worth joining.

        A file is joined with at least as many rows of others: a row is written again log2(n) times.
        """
        small: dict[DeviceId, list[int]] = {}
        for file in self.snapshot().files:
            if file.bytes < _JOINED_BYTES:
                small.setdefault(DeviceId(file.device_id), []).append(file.rows)
        return sorted(name for name, rows in small.items() if len(rows) > 1 and 2 * max(rows) <= sum(rows))

    def flush(self, lanes: Collection[int]) -> int:
        """Move the rows of lanes that wait into the table; they are durable all the time.

        It is one commit, or several of some `_PART_BYTES`.

        Returns:
            How many rows went.

        Raises:
            StoreFull: No room; the rows wait on.
            StoreError: Somebody else writes to the table, or the disk failed; the rows wait on.
        """
        self._check_confirmed()
        pieces = [rows for lane in sorted(lanes) for rows in self._state.waiting(lane)]
        return sum(self._append(waiting) for waiting in _in_parts(pieces))

    def _append(self, waiting: Sequence[WaitingRows]) -> int:
        doing, expected = "writing the table", self.version + 1
        with disk_errors(doing, self.folder), delta_errors(doing, self.folder):
            write_deltalake(
                self._table,
                # The library would write the pieces of a table in any order.
                pa.concat_tables(unpack(rows.body) for rows in waiting).combine_chunks(),
                mode="append",
                partition_by=["device_id"],
                writer_properties=_WRITER,
                commit_properties=_commit_properties(waiting),
                post_commithook_properties=_NO_HOOKS,
            )
            if self._table.version() != expected:
                raise self._foreign(expected)
            self._confirm(expected, [rows.number for rows in waiting])
        return sum(rows.rows for rows in waiting)

    def checkpoint(self) -> None:
        """Sum up all commits so far, so that the table opens soon.

        Raises:
            StoreFull: No room; the table is as it was.
            StoreError: The disk failed.
        """
        self._check_confirmed()
        doing = "writing a checkpoint of the table"
        with disk_errors(doing, self.folder), delta_errors(doing, self.folder):
            self._table.create_checkpoint()
            hint = self._log.folder / "_last_checkpoint"
            fsync_all([path for path in (self._log.checkpoint_path(self.version), hint) if path.exists()])
            fsync_all([self._log.folder])

    def compact(self, device_ids: Collection[DeviceId]) -> int:
        """Join the small files of devices, in one commit; the rows stay as they are.

        Returns:
            How many files others have taken the place of.

        Raises:
            StoreFull: No room; the table is as it was.
            StoreError: Somebody else writes to the table, or the disk failed; the table is as it was.
        """
        self._check_confirmed()
        doing, expected = "joining files of the table", self.version + 1
        with disk_errors(doing, self.folder), delta_errors(doing, self.folder):
            figures = self._table.optimize.compact(
                partition_filters=[("device_id", "in", sorted(device_ids))],
                target_size=_JOINED_BYTES,
                max_concurrent_tasks=1,
                writer_properties=_WRITER,
                commit_properties=CommitProperties(custom_metadata={WRITER_KEY: "compact"}),
                post_commithook_properties=_NO_HOOKS,
            )
            if self._table.version() == expected - 1:
                return 0
            if self._table.version() != expected:
                raise self._foreign(expected)
            self._confirm(expected, [])
        return int(figures["numFilesRemoved"])

    def delete_unused(self, version: int) -> int:
        """Delete what no version from a given one on needs: data files, commits and checkpoints.

        Data files of which no commit came go too: a kill or a full disk has left them.

        Args:
            version: The oldest one that somebody may still read.

        Returns:
            How many data files went.

        Raises:
            StoreError: The disk failed, or that version cannot be read any more.
        """
        self._check_confirmed()
        doing = "deleting files that no version needs"
        with disk_errors(doing, self.folder), delta_errors(doing, self.folder):
            needed = {file.path for file in load_snapshot(self.folder, version).files}
            for later in range(version + 1, self.version + 1):
                needed.update(file.path for file in added(self._log.actions(later)))
            files = {file.path for file in self._state.files()}
            dead = sorted(files - needed)
            on_disk = {str(path.relative_to(self.folder)) for path in self.folder.glob("device_id=*/*")}
            for path in (*dead, *sorted(on_disk - files - needed)):
                (self.folder / path).unlink(missing_ok=True)
            if dead:
                with self._state.turn() as turn:
                    turn.drop_files(dead)
            self._log.forget_before(version)
        return len(dead)

    def _check_confirmed(self) -> None:
        """Take back a version that was written before the disk failed: its rows would come twice."""
        if self._table.version() != self._state.table_version():
            self._open()

    def _settle(self) -> None:
        """Take back what a killed writer has left, and make the table if there is none."""
        confirmed = self._state.table_version()
        self._log.check_checkpoints()
        last = self._log.last()
        if confirmed is None:
            is_ours = last >= 0 and self._is_ours()
            if last > 0:
                raise self._unlike(last, "none")
            for version in self._log.versions():
                self._log.take_back(version, ()) if is_ours else self._log.set_aside(version)
            self._create()
            return
        if not confirmed <= last <= confirmed + 1:
            raise self._unlike(last, str(confirmed))
        if last > confirmed:
            self._take_back(last, confirmed)

    def _is_ours(self) -> bool:
        """Whether there is a table of ours, and not a torn one; that of somebody else is refused."""
        try:
            table = DeltaTable(self.folder)
        except (DeltaError, OSError):
            return False
        check_layout(self.folder, table)
        return True

    def _create(self) -> None:
        self._table = DeltaTable.create(
            self.folder,
            schema=TABLE_SCHEMA,
            partition_by=["device_id"],
            name="tensor-fleet records",
            configuration={**_OPTIONS, SCHEMA_KEY: str(STORE_SCHEMA)},
            commit_properties=CommitProperties(custom_metadata={WRITER_KEY: "create"}),
            raise_if_key_not_exists=False,
        )
        self._confirm(0, [])

    def _take_back(self, version: int, confirmed: int) -> None:
        """Undo a version whose rows wait still, or that joined files; a torn one gets another name."""
        try:
            actions = self._log.actions(version)
        except (OSError, ValueError, LookupError, TypeError):
            return self._log.set_aside(version)
        if not is_ours(actions):
            raise self._foreign(version)
        if not is_left_over(actions, self._state):
            raise self._unlike(version, str(confirmed))
        self._log.take_back(version, actions)
        return None

    def _confirm(self, version: int, numbers: Iterable[int]) -> None:
        """Wait for a version to be on the disk, then let its rows go."""
        files = [
            replace(file, sha256=file_sum(self.folder / file.path))
            for file in added(self._log.actions(version))
        ]
        paths = [self.folder / file.path for file in files]
        fsync_all([*paths, self._log.commit_path(version)])
        folders = {self._log.folder, self.folder, self.folder.parent}
        fsync_all(sorted({path.parent for path in paths} | folders))
        snapshot = snapshot_of(self._table)
        with self._state.turn() as turn:
            turn.drop_waiting(numbers, files, version=version, table_rows=snapshot.rows)
        self._confirmed = snapshot

    def _unlike(self, version: int, confirmed: str) -> StateDamaged:
        return StateDamaged(
            f"{self.folder} ends with version {version}, its state file names version {confirmed}; restore"
            " both from one backup, or make the state file again: `fleet store verify --rebuild`"
        )

    def _foreign(self, version: int) -> StoreError:
        return StoreError(
            f"version {version} of {self.folder} was written by somebody else; `fleet store verify --rebuild`"
            " takes over what the table says"
        )


def check_rows(snapshot: TableSnapshot, expected: int, folder: Path) -> None:
    """Refuse a table whose log lost or gained something; the library takes an empty commit for a whole one.

    Raises:
        StateDamaged: It has another number of rows than its state file says.
    """
    if snapshot.rows != expected:
        rows = f"version {snapshot.version} has {snapshot.rows} rows, its state file names {expected}"
        raise damaged_log(folder, rows)


def _in_parts(pieces: Iterable[WaitingRows]) -> Iterator[list[WaitingRows]]:
    """Cut rows into what is held in memory at once; those of a lane stay in their order."""
    part: list[WaitingRows] = []
    size = 0
    for piece in pieces:
        part.append(piece)
        size += len(piece.body)
        if size >= _PART_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def is_ours(actions: Iterable[Action]) -> bool:
    """Whether this project wrote a version, of which the commit is given."""
    return any(WRITER_KEY in action["commitInfo"] for action in actions if "commitInfo" in action)


def is_left_over(actions: Collection[Action], state: Contents) -> bool:
    """Whether all rows of a version that a state file does not name are there without it, or wait."""
    last = {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
    waiting = sum(
        rows.rows for rows in state.waiting() if rows.number <= last.get(_application(rows.lane), 0)
    )
    old = set(removed(actions))
    before = sum(file.rows for file in state.files() if file.path in old)
    return waiting + before == sum(file.rows for file in added(actions))


def _application(lane: int) -> str:
    return f"tensor-fleet/{lane}"


def _commit_properties(waiting: Sequence[WaitingRows]) -> CommitProperties:
    """Say of each lane up to which number its rows are in this commit."""
    last = {rows.lane: rows.number for rows in sorted(waiting, key=lambda rows: rows.number)}
    now = int(1000 * time.time())
    return CommitProperties(
        custom_metadata={WRITER_KEY: "append"},
        app_transactions=[Transaction(_application(lane), number, now) for lane, number in last.items()],
    )
