"""The Delta table `records/`, behind a state file: rows that wait there come here in large pieces.

deltalake writes data files and commits. It waits for no disk, so a version counts when its files are durable
and the state file says so, in the transaction in which the rows leave. A kill before that leaves one version
that the state file does not know. Its rows wait still, as its transaction identifiers tell, so it is taken
back: what of it has reached the disk nobody knows. See decision 65.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
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

from agents.files import fsync_all
from agents.records import DeviceId
from fleet.durable import disk_errors
from fleet.errors import StateDamaged, StoreError
from fleet.state.packed_rows import unpack
from fleet.state.rows import WaitingRows
from fleet.state.state_file import StateFile
from fleet.state.table_log import TableLog, added, removed
from fleet.store.delta.files import file_sum, forget_old_commits
from fleet.store.delta.log import delta_errors, load_snapshot
from fleet.store.delta.schema import DICTIONARY_COLUMNS, STORE_SCHEMA, TABLE_SCHEMA

#: Folder of the table in a store.
RECORDS: Final = "records"
#: A device's rows go on when there are so many, or when the oldest has waited so long.
LARGE_ROWS, LONG_SECS = 2000, 600.0
#: Files up to this size are joined with others.
_JOINED_BYTES: Final = 64 << 20
#: Key of the layout in the table's metadata, and of the writer's name in what a commit says of itself.
SCHEMA_KEY, WRITER_KEY = "tensorFleet.storeSchema", "tensorFleet.writer"
#: The table's metadata says this beside its layout. Statistics over long texts would fill the log.
_OPTIONS: Final = {
    "delta.appendOnly": "true",
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
            self._table = DeltaTable(self.folder)
            self._check_layout()

    @property
    def version(self) -> int:
        """The newest version: all rows but those that wait."""
        return int(self._table.version())

    def due(self, now: float) -> list[DeviceId]:
        """Devices whose rows are to go on: there are many of them, or the oldest has waited long.

        Args:
            now: Unix seconds.
        """
        counts = self._state.waiting_counts()
        return [
            one for one, (rows, since) in counts.items() if rows >= LARGE_ROWS or now - since >= LONG_SECS
        ]

    def flush(self, device_ids: Collection[DeviceId]) -> int:
        """Move the rows of devices that wait into the table, in one commit; they are durable all the time.

        Returns:
            How many rows went.

        Raises:
            StoreFull: No room; the rows wait on.
            StoreError: Somebody else writes to the table, or the disk failed; the rows wait on.
        """
        self._check_confirmed()
        waiting = [rows for one in device_ids for rows in self._state.waiting(one)]
        if not waiting:
            return 0
        doing, expected = "writing the table", self.version + 1
        with disk_errors(doing, self.folder), delta_errors(doing, self.folder):
            write_deltalake(
                self._table,
                pa.concat_tables(unpack(rows.body) for rows in waiting),
                mode="append",
                partition_by=["device_id"],
                writer_properties=_WRITER,
                commit_properties=_commit_properties(waiting),
                post_commithook_properties=_NO_HOOKS,
            )
            if self.version != expected:
                raise self._foreign(expected)
            self._confirm(expected, [rows.number for rows in waiting])
        return sum(rows.rows for rows in waiting)

    def checkpoint(self) -> None:
        """Sum up all commits so far, so that the table opens soon.

        Raises:
            StoreFull: No room; the table is as it was.
            StoreError: The disk failed.
        """
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
            if self.version == expected - 1:
                return 0
            if self.version != expected:
                raise self._foreign(expected)
            self._confirm(expected, [])
        return int(figures["numFilesRemoved"])

    def delete_unused(self, version: int) -> int:
        """Delete what no version from a given one on needs: data files, commits and checkpoints.

        Args:
            version: The oldest one that somebody may still read.

        Returns:
            How many data files went.

        Raises:
            StoreError: The disk failed, or that version cannot be read any more.
        """
        doing = "deleting files that no version needs"
        with disk_errors(doing, self.folder), delta_errors(doing, self.folder):
            needed = {file.path for file in load_snapshot(self.folder, version).files}
            for later in range(version + 1, self.version + 1):
                needed.update(file.path for file in added(self._log.actions(later)))
            dead = [file.path for file in self._state.files() if file.path not in needed]
            for path in dead:
                (self.folder / path).unlink(missing_ok=True)
            if dead:
                with self._state.turn() as turn:
                    turn.drop_files(dead)
            forget_old_commits(self.folder, version)
        return len(dead)

    def _check_confirmed(self) -> None:
        """Take back a version that was written before the disk failed: its rows would come twice."""
        if self.version != self._state.table_version():
            self._open()

    def _settle(self) -> None:
        """Take back what a killed writer has left, and make the table if there is none."""
        confirmed = self._state.table_version()
        self._log.check_checkpoints()
        last = self._log.last()
        if confirmed is None:
            if last > 0:
                raise self._unlike(last, "none")
            for version in self._log.versions():
                self._log.set_aside(version)
            self._create()
            return
        if not confirmed <= last <= confirmed + 1:
            raise self._unlike(last, str(confirmed))
        if last > confirmed:
            self._take_back(last, confirmed)

    def _create(self) -> None:
        DeltaTable.create(
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
        if not any(WRITER_KEY in one["commitInfo"] for one in actions if "commitInfo" in one):
            raise self._foreign(version)
        last = {one["txn"]["appId"]: one["txn"]["version"] for one in actions if "txn" in one}
        waiting = sum(
            rows.rows
            for rows in self._state.waiting()
            if rows.number <= last.get(_application(rows.device_id), 0)
        )
        files, old = added(actions), set(removed(actions))
        before = sum(file.rows for file in self._state.files() if file.path in old)
        if waiting + before != sum(file.rows for file in files):
            raise self._unlike(version, str(confirmed))
        self._log.take_back(version)
        for file in files:
            (self.folder / file.path).unlink(missing_ok=True)
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
        with self._state.turn() as turn:
            turn.drop_waiting(numbers, files, version=version)

    def _check_layout(self) -> None:
        layout = self._table.metadata().configuration.get(SCHEMA_KEY)
        if layout != str(STORE_SCHEMA):
            raise StoreError(
                f"{self.folder} has layout {layout}, this version reads {STORE_SCHEMA}; use the version that"
                " wrote it"
            )

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


def _application(device_id: str) -> str:
    return f"tensor-fleet/{device_id}"


def _commit_properties(waiting: Sequence[WaitingRows]) -> CommitProperties:
    """Say of each device up to which number its rows are in this commit."""
    last = {rows.device_id: rows.number for rows in sorted(waiting, key=lambda rows: rows.number)}
    now = int(1000 * time.time())
    return CommitProperties(
        custom_metadata={WRITER_KEY: "append"},
        app_transactions=[Transaction(_application(one), number, now) for one, number in last.items()],
    )
