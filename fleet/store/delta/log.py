"""Commits, snapshots and repair of the records table: the part that makes "acknowledged" mean "durable".

`fleet.store.store` and `fleet.store.reader` call it. A commit of a Delta table is one numbered JSON file. It
is written here and not by `deltalake`, because that library publishes a commit before anything is on the disk
(it calls no fsync), and because its commit takes longer with every commit since the last checkpoint (28 ms
after 400; this one takes the same time always). The order here is: data files fsynced, commit written beside
its place and fsynced, linked to its number in one step, folder fsynced. Reading, checkpoints and the list of
dead files are deltalake's.

It knows no `Record`; rows and columns are the business of `fleet.store.delta.schema`.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from fleet.durable import fsync, store_error
from fleet.errors import StoreError
from fleet.store.delta.schema import SCHEMA_KEY, STORE_SCHEMA, TABLE_SCHEMA

#: In `commitInfo`: how many actions the commit has, so that a commit cut at the end of a line shows.
ACTIONS_KEY = "tensorFleetActions"

#: How long upkeep keeps commits that a checkpoint covers, and data files no longer in use; by
#: `fleet.store.store_time`.
RETENTION_HOURS = 7 * 24

#: Ends the name of a damaged file that was set aside.
TORN = ".torn"

#: What the table's metadata says besides its layout. Checkpoints forget a file that went out of use after the
#: last of these: a thousand devices merge some 100,000 files an hour, and upkeep finds dead ones by itself.
TABLE_OPTIONS = {
    "delta.appendOnly": "true",
    "delta.logRetentionDuration": f"interval {RETENTION_HOURS} hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}


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


def create_table(folder: Path) -> None:
    """Make an empty records table, durably."""
    with delta_errors("creating the table", folder):
        DeltaTable.create(
            folder,
            schema=TABLE_SCHEMA,
            partition_by=["device_id"],
            name="tensor-fleet records",
            configuration={**TABLE_OPTIONS, SCHEMA_KEY: str(STORE_SCHEMA)},
            raise_if_key_not_exists=False,
        )
    settle(folder)


def settle(folder: Path) -> None:
    """Wait until the names of a table and of its folders are on the disk; what they lead to goes with them.

    A kill may have come between a new name and its fsync, so every writer does it as it begins.
    """
    for part in (commit_path(folder, 0), folder / "_delta_log", folder, folder.parent):
        if part.exists():
            fsync(part)


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


def commit_path(folder: Path, version: int) -> Path:
    """Where the commit of a version stands."""
    return folder / "_delta_log" / f"{version:020d}.json"


def add_action(
    file: DataFile,
    *,
    data_change: bool,
    measured: tuple[float, float] | None,
    tags: Mapping[str, str],
) -> dict[str, Any]:
    """Say that a file belongs to the table from now on.

    Args:
        file: The file, already on the disk.
        data_change: False if it only holds rows of files that the same commit removes.
        measured: First and last `measured_at` in it, if known.
        tags: What else the log says of it.
    """
    stats: dict[str, Any] = {"numRecords": file.rows}
    if measured is not None:
        stats["minValues"] = {"measured_at": measured[0]}
        stats["maxValues"] = {"measured_at": measured[1]}
    return {
        "add": {
            "path": file.path,
            "partitionValues": {"device_id": file.device_id},
            "size": file.bytes,
            "modificationTime": time.time_ns() // 1_000_000,
            "dataChange": data_change,
            "stats": json.dumps(stats),
            "tags": dict(tags),
        }
    }


def remove_action(file: DataFile) -> dict[str, Any]:
    """Say that the rows of a file are in another one from now on; the file stays until upkeep deletes it."""
    return {
        "remove": {
            "path": file.path,
            "deletionTimestamp": time.time_ns() // 1_000_000,
            "dataChange": False,
            "extendedFileMetadata": True,
            "partitionValues": {"device_id": file.device_id},
            "size": file.bytes,
        }
    }


def commit(folder: Path, version: int, operation: str, actions: Sequence[dict[str, Any]]) -> None:
    """Publish a version in one step, and wait until it is on the disk.

    Args:
        folder: The table.
        version: The new version: one more than the last.
        operation: Delta's word for what was done (`WRITE`, `OPTIMIZE`).
        actions: Added and removed files; added files are on the disk already.

    Raises:
        OSError: Nothing was published.
        StoreError: Somebody else has published this version.
    """
    info = {
        "commitInfo": {
            "timestamp": time.time_ns() // 1_000_000,
            "operation": operation,
            "operationParameters": {},
            "engineInfo": "tensor-fleet",
            ACTIONS_KEY: len(actions),
        }
    }
    text = "".join(json.dumps(action) + "\n" for action in (info, *actions))
    final = commit_path(folder, version)
    temporary = final.with_name(f".{final.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("x") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        final.hardlink_to(temporary)
    except FileExistsError as error:
        raise StoreError(
            f"version {version} of {folder} was written by somebody else, who does not keep to the"
            " store's lock; open the store again"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    fsync(final.parent)


def load_snapshot(folder: Path, version: int | None = None) -> TableSnapshot:
    """Read which files the table consists of, at a version or at the newest.

    Raises:
        StoreError: This is no store, a store of another layout, or one that is damaged.
    """
    if not is_table(folder):
        raise StoreError(f"{folder.parent} is not a tensor-fleet store: it has no table in {folder.name}/")
    torn = torn_commit(folder)
    if torn is not None and (version is None or version >= version_of(torn)):
        raise StoreError(
            f"the last commit of the store is damaged: {torn}; open the store once for writing to repair it,"
            f" or read version {version_of(torn) - 1}"
        )
    with delta_errors("reading the table", folder):
        table = DeltaTable(folder, version=version)
        _check_layout(folder, table.metadata().configuration.get(SCHEMA_KEY))
        actions = pa.table(table.get_add_actions(flatten=True))
    rows = actions.select(["path", "partition.device_id", "num_records", "size_bytes"]).to_pylist()
    files = [
        DataFile(
            path=row["path"],
            device_id=row["partition.device_id"],
            rows=row["num_records"],
            bytes=row["size_bytes"],
        )
        for row in rows
    ]
    # File names grow with the version that wrote them, so this is the order of appending.
    files.sort(key=lambda file: file.path)
    return TableSnapshot(version=table.version(), files=tuple(files))


def _check_layout(folder: Path, layout: str | None) -> None:
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


def version_of(path: Path) -> int:
    """Version in the name of a commit or checkpoint."""
    return int(path.name.split(".")[0])


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a table, newest first."""
    return sorted((folder / "_delta_log").glob("*.checkpoint.parquet"), reverse=True)


def last_checkpoint(folder: Path) -> int:
    """Version of the newest checkpoint; -1 if there is none."""
    return max(map(version_of, checkpoints(folder)), default=-1)


def torn_commit(folder: Path) -> Path | None:
    """The last commit if it is not whole, else None.

    This store publishes whole commits only, so a torn one comes from outside: a failing disk, a bad copy.
    deltalake takes an empty commit file for a commit of nothing, hence this check of our own.
    """
    commits = [path for path in (folder / "_delta_log").glob("*.json") if path.stem.isdigit()]
    if not commits:
        return None
    last = max(commits)
    if last_checkpoint(folder) >= version_of(last):
        return None
    return None if is_whole(last) else last


def is_whole(path: Path) -> bool:
    """Whether a commit says all that it was written to say."""
    try:
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        names = [next(iter(action)) for action in actions]
    except (ValueError, StopIteration, TypeError):
        return False
    if not names or "commitInfo" not in names:
        return False
    info = actions[names.index("commitInfo")]["commitInfo"]
    return bool(info.get(ACTIONS_KEY, len(actions) - 1) == len(actions) - 1)


def repair(folder: Path) -> list[str]:
    """Set damaged files of the log aside so that the table opens, and remove leftovers of killed writers.

    Only the holder of the writer's lock may call it.

    Returns:
        One line for each file set aside. If a commit is among them, rows may be in data files that no commit
        names any more: `fleet.store.leftovers` takes those up again.
    """
    log = folder / "_delta_log"
    notes: list[str] = []
    for leftover in log.glob(".*.tmp"):
        leftover.unlink()
    for checkpoint in checkpoints(folder):
        try:
            pq.read_table(checkpoint)
            break
        except (pa.ArrowException, OSError):
            notes.append(_set_aside(checkpoint))
    hint = log / "_last_checkpoint"
    if hint.exists() and not _hint_holds(hint):
        hint.unlink()
    torn = torn_commit(folder)
    if torn is not None:
        notes.append(_set_aside(torn))
    fsync(log)
    return notes


def _hint_holds(hint: Path) -> bool:
    try:
        version = int(json.loads(hint.read_text())["version"])
    except (ValueError, KeyError, TypeError):
        return False
    return (hint.parent / f"{version:020d}.checkpoint.parquet").exists()


def _set_aside(path: Path) -> str:
    kept = path.with_name(f"{path.name}.{time.time_ns()}{TORN}")
    path.rename(kept)
    return f"{path} was damaged; it is kept as {kept.name}"
