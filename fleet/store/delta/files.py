"""Data files of the records table: write them durably, merge and sum them, find lost ones, delete dead ones.

Only the writer of a store changes them. Nothing is committed here: a file counts from the commit that names
it. The commit says its SHA-256 too, so that a flipped bit anywhere in it is found: `fleet.archive.verify`
and `fleet.archive.backup` compare.
"""

from __future__ import annotations

import hashlib
import math
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agents.files import fsync_all
from agents.regular_files import regular_chunks
from fleet.durable import disk_errors, fsync
from fleet.errors import StoreError
from fleet.store.delta.changes import StaleError, file_actions
from fleet.store.delta.log import DataFile, add_action, checkpoints, commit_path, delta_errors, version_of
from fleet.store.delta.schema import DICTIONARY_COLUMNS, FILE_SCHEMA, STATISTICS_COLUMNS, read_batches

#: Rows of one Parquet row group: what a reader must decode at least.
ROW_GROUP_ROWS = 2048

#: Upkeep merges all files smaller than this, up to about twice this size.
TARGET_BYTES = 64 << 20

#: Bytes of a file at most whose sum is taken: what a pipe or a device gives has no end.
_MOST_SUMMED_BYTES = 1 << 40

#: Key among the tags of a file in the log, which every reader and checkpoint of a Delta table passes on.
SUM_TAG = "tensorFleet.sha256"

_PARTITION = "device_id="


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file on the disk, and the action that makes it part of the table."""

    file: DataFile
    action: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """What a data file shall hold."""

    device_id: str
    #: Version that first held the rows; files are read in this order.
    version: int
    #: Rows of `FILE_SCHEMA`.
    batches: Iterable[pa.RecordBatch]


def write_data_files(
    folder: Path, files: Collection[NewFile], *, data_change: bool = True
) -> list[WrittenFile]:
    """Write Parquet files, of rows that are new to the table (`data_change`) or not, and wait for the disk.

    Raises:
        OSError: The disk is full or failed; nothing is left behind.
    """
    written: list[WrittenFile] = []
    try:
        _make_partitions(folder, {file.device_id for file in files})
        for file in files:
            written.append(_write(folder, file, data_change=data_change))
        fsync_all([folder / one.file.path for one in written])
        fsync_all(sorted({(folder / one.file.path).parent for one in written}))
    except BaseException:
        discard(folder, written)
        raise
    return written


def discard(folder: Path, written: Iterable[WrittenFile]) -> None:
    """Take files back that no commit names."""
    for one in written:
        (folder / one.file.path).unlink(missing_ok=True)


def _make_partitions(folder: Path, device_ids: Iterable[str]) -> None:
    made: list[Path] = []
    try:
        for path in (folder / f"{_PARTITION}{one}" for one in device_ids):
            if not path.exists():
                path.mkdir()
                made.append(path)
        if made:
            fsync(folder)
    except OSError:
        # Otherwise the next append would find the folders and take them for durable.
        for path in made:
            path.rmdir()
        raise


def _write(folder: Path, new: NewFile, *, data_change: bool) -> WrittenFile:
    path = f"{_PARTITION}{new.device_id}/part-{new.version:020d}-{uuid.uuid4().hex}.parquet"
    absolute = folder / path
    rows, first, last = 0, math.inf, -math.inf
    try:
        with pq.ParquetWriter(
            absolute,
            FILE_SCHEMA,
            compression="zstd",
            use_dictionary=list(DICTIONARY_COLUMNS),
            write_statistics=list(STATISTICS_COLUMNS),
        ) as writer:
            for table in _row_groups(new.batches):
                writer.write_table(table)
                rows += table.num_rows
                times = pc.min_max(table.column("measured_at")).as_py()
                first, last = min(first, times["min"]), max(last, times["max"])
        tags = {SUM_TAG: file_sum(absolute)}
    except BaseException:
        absolute.unlink(missing_ok=True)
        raise
    file = DataFile(path=path, device_id=new.device_id, rows=rows, bytes=absolute.stat().st_size)
    measured = (first, last) if math.isfinite(first) and math.isfinite(last) else None
    action = add_action(file, data_change=data_change, measured=measured, tags=tags)
    return WrittenFile(file=file, action=action)


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Join small batches, so that many small files become few row groups."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= ROW_GROUP_ROWS:
            yield pa.Table.from_batches(waiting, schema=FILE_SCHEMA)
            waiting, rows = [], 0
    if rows:
        yield pa.Table.from_batches(waiting, schema=FILE_SCHEMA)


def merge_data_files(folder: Path, groups: Sequence[Sequence[DataFile]]) -> list[WrittenFile]:
    """Write the rows of several files of one device into one, for one or several groups, in bounded memory.

    Raises:
        StoreError: The rows do not add up: a file is not what the table says.
    """
    files = [
        NewFile(
            device_id=group[0].device_id,
            version=min(map(version_in_name, group)),
            batches=_rows_of(folder, group),
        )
        for group in groups
    ]
    written = write_data_files(folder, files, data_change=False)
    for one, group in zip(written, groups, strict=True):
        expected = sum(file.rows for file in group)
        if one.file.rows != expected:
            discard(folder, written)
            raise StoreError(
                f"merging {len(group)} files of device {one.file.device_id} in {folder} gave {one.file.rows}"
                f" records, expected {expected}; the table is as before, check the disk"
            )
    return written


def _rows_of(folder: Path, files: Iterable[DataFile]) -> Iterator[pa.RecordBatch]:
    for file in files:
        yield from read_batches(folder / file.path)


def version_in_name(file: DataFile) -> int:
    """Version that first held the rows of a file; 0 for a file that somebody else wrote."""
    parts = Path(file.path).name.split("-")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else 0


def worth_merging(files: Iterable[DataFile]) -> list[DataFile]:
    """Choose small files of one device, in order, each to be merged with at least as many rows of others.

    So a record is rewritten about log2(n) times at most, however often upkeep runs.
    """
    small = sorted((file for file in files if file.bytes < TARGET_BYTES), key=lambda file: file.rows)
    while small and small[-1].rows > sum(file.rows for file in small[:-1]):
        small.pop()
    return sorted(small, key=lambda file: file.path)


def chunks(files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """Split files, in order, into groups worth a merge: two or more, some `TARGET_BYTES` together."""
    group: list[DataFile] = []
    for file in files:
        group.append(file)
        if sum(one.bytes for one in group) >= TARGET_BYTES:
            if len(group) > 1:
                yield group
            group = []
    if len(group) > 1:
        yield group


def stamp_dead(folder: Path, files: Iterable[DataFile], now: float) -> None:
    """Note on files that the next commit will no longer name when they died, by `fleet.store.store_time`.

    `delete_unused` counts their age from here.
    """
    for file in files:
        os.utime(folder / file.path, (now, now))


def forget_old_commits(folder: Path, version: int) -> None:
    """Delete commits and checkpoints that no version from a given one on needs.

    deltalake would go by the dates of the files, and so by the wall clock.

    Raises:
        StoreError: The disk failed.
    """
    log = folder / "_delta_log"
    with disk_errors("deleting old commits", folder):
        older = [path for path in checkpoints(folder) if version_of(path) <= version]
        first = next((version_of(path) for path in older if _is_readable(path)), 0)
        commits = [path for path in log.glob("*.json") if path.stem.isdigit()]
        for path in (*commits, *older):
            if version_of(path) < first:
                path.unlink()


def _is_readable(checkpoint: Path) -> bool:
    try:
        pq.read_metadata(checkpoint)
    except (pa.ArrowException, OSError):
        return False
    return True


def delete_unused(
    folder: Path,
    named: Callable[[str], Iterable[DataFile]],
    clock: Callable[[], float],
    retention_secs: float,
) -> Iterator[int]:
    """Delete files that are in no version since some time, one device with each `next`.

    deltalake would list all files at once, and go by whole hours and the age of the file; here the time since
    it went out of use counts.

    Args:
        folder: The table.
        named: Gives the files of a device in the newest version.
        clock: Gives the time of `fleet.store.store_time`.
        retention_secs: How long they have been dead at least.

    Yields:
        How many files of a device were deleted, for each device that had any.

    Raises:
        StoreError: The disk failed.
    """
    for partition in sorted(folder.glob(f"{_PARTITION}*")):
        kept = {folder / file.path for file in named(partition.name.removeprefix(_PARTITION))}
        now = clock()
        with disk_errors("deleting old files", partition):
            others = [path for path in partition.glob("*.parquet") if path not in kept]
            dead = [path for path in others if _dead_since(path, now) <= now - retention_secs]
            for path in dead:
                path.unlink()
        if dead:
            yield len(dead)


def _dead_since(path: Path, now: float) -> float:
    """When a file out of use died. One from the future was dated by another clock: its age begins now."""
    at = path.stat().st_mtime
    if at > now:
        os.utime(path, (now, now))
    return min(at, now)


def lost_tables(folder: Path, named: Iterable[DataFile]) -> Iterator[tuple[str, pa.Table]]:
    """Yield (device, rows) of each whole data file that no commit names."""
    known = {file.path for file in named}
    for path in sorted(folder.glob(f"{_PARTITION}*/*.parquet")):
        if str(path.relative_to(folder)) in known:
            continue
        try:
            table = pa.Table.from_batches(read_batches(path), schema=FILE_SCHEMA)
        except (pa.ArrowException, OSError, StoreError):
            # Partly written when its writer was killed, and so never acknowledged; or not from here.
            continue
        yield path.parent.name.removeprefix(_PARTITION), table


def file_sum(path: Path) -> str:
    """SHA-256 of a regular file, in hexadecimal digits.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    digest = hashlib.sha256()
    for chunk in regular_chunks(path, _MOST_SUMMED_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def known_sums(table: Path, version: int) -> dict[str, str]:
    """Sums that the log knows, by path below the table; of files that are gone by this version, too.

    Raises:
        StoreError: A checkpoint or commit cannot be read.
    """
    sums: dict[str, str] = {}
    start = -1
    for checkpoint in checkpoints(table):
        if (start := version_of(checkpoint)) <= version:
            with delta_errors("reading the checkpoint", checkpoint):
                added = pq.read_table(checkpoint, columns=["add"]).column("add")
            for one in filter(None, added.to_pylist()):
                _take_sum(sums, one["path"], dict(one["tags"] or ()))
            break
        start = -1
    for number in range(start + 1, version + 1):
        path = commit_path(table, number)
        try:
            for one in file_actions(path)[0]:
                _take_sum(sums, str(one["path"]), one.get("tags") or {})
        except (StaleError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(
                f"the commit {path} cannot be read: {error}; `fleet store verify` says more"
            ) from error
    return sums


def _take_sum(sums: dict[str, str], path: str, tags: dict[str, str]) -> None:
    if found := tags.get(SUM_TAG):
        sums[path] = found
