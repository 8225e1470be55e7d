"""Copy a store as it is at one moment, beside whoever writes it, and make a store of the copy again.

Promise: every record that was acknowledged before `back_up` began is in what `restore` makes of the
copy. What an earlier backup in the folder has is not copied again.
"""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from deltalake import DeltaTable

from agents.files import fsync, make_folder, regular_chunks
from fleet.archive.backup_folder import (
    IMPORTS,
    OBJECTS,
    BackedUp,
    BackedUpFile,
    Manifest,
    copy_durably,
    held,
    is_backup,
    keep_file,
    keep_new_file,
    new_file,
    object_path,
    read_manifest,
    sweep,
    write_manifest,
)
from fleet.archive.verify import Verified
from fleet.errors import FULL_ERRNOS, StoreError, disk_errors
from fleet.state.questions import StateReader
from fleet.state.schema import STATE
from fleet.state.state_file import back_up as back_up_state
from fleet.state.table_log import TableLog
from fleet.store.delta.log import (
    RECORDS,
    TableSnapshot,
    delta_errors,
    file_sum,
    load_snapshot,
)
from fleet.store.reader import DEVICES, WORKLOADS, check_folder

#: Files that are copied at once: each waits for the disk.
_THREADS = 8
#: How often all begins anew because files of the version were deleted meanwhile.
_TRIES = 3
_MORE: Final = "`fleet store verify` says more; no backup was made"


class _GoneError(Exception):
    """A file of the version was deleted before it was copied."""


def back_up(store: Path, folder: Path) -> BackedUp:
    """Copy a store, to which a daemon may write, into a folder, which is made if missing.

    Raises:
        StoreFull: No room; an earlier backup in the folder is as it was.
        StoreError: There is no store, the folder is something else, or a file is not what the store wrote.
    """
    began = time.monotonic()
    with disk_errors("reading the store", store):
        check_folder(store, create=False)
    with disk_errors("backing up", folder), held(store, folder):
        earlier = read_manifest(folder) if is_backup(folder) else None
        for number in range(_TRIES):
            try:
                manifest = _copy(store, folder, earlier)
                break
            except _GoneError as error:
                if number == _TRIES - 1:
                    raise StoreError(
                        f"{error}; `fleet store verify` says more. An earlier backup in {folder} is as it was"
                    ) from error
        for path in sorted({folder / OBJECTS / file.sha256[:2] for file in manifest.files.values()}):
            fsync(path)
        fsync(folder / OBJECTS)
        about = manifest.about
        about.files, about.bytes = len(manifest.files), sum(file.bytes for file in manifest.files.values())
        present = set(earlier.files.values() if earlier is not None else ())
        about.copied_bytes = sum(file.bytes for file in set(manifest.files.values()) - present)
        about.secs = round(time.monotonic() - began, 3)
        write_manifest(folder, manifest)
        sweep(folder, manifest)
    return about


def _copy(store: Path, folder: Path, earlier: Manifest | None) -> Manifest:
    """Copy what the store consists of at one moment; the order of the steps is what makes it whole."""
    table = store / RECORDS
    # First: a log that is noted as read to its end has all of its rows in the store by then.
    files = _copy_imports(store, folder)
    state, files[STATE] = _copy_state(store, folder)
    snapshot, table_id = _snapshot(table, state.version)
    if earlier is not None and earlier.about.table_id != table_id:
        raise StoreError(f"{folder} is the backup of another store than {store}; give another folder")
    sums: dict[str, str | None] = {}
    for file in snapshot.files:
        if file.path not in state.sums:
            raise StoreError(f"{store / STATE} does not say what {file.path} must be; {_MORE}")
        sums[f"{RECORDS}/{file.path}"] = state.sums[file.path]
    others = TableLog(table).files_of(state.version)
    for name in (WORKLOADS, DEVICES):
        others += sorted((store / name).glob("[!.]*"))
    sums |= {str(path.relative_to(store)): None for path in others}

    def keep(path: str) -> BackedUpFile:
        try:
            return keep_file(folder, store / path, sums[path])
        except FileNotFoundError as error:
            raise _GoneError(f"{path} is missing in the store") from error

    with ThreadPoolExecutor(_THREADS) as threads:
        files.update(zip(sums, threads.map(keep, sums), strict=True))
    about = BackedUp(
        version=state.version,
        records=snapshot.rows,
        waiting=state.waiting,
        made_at=time.time(),
        table_id=table_id,
    )
    return Manifest(about=about, files=files)


def _copy_imports(store: Path, folder: Path) -> dict[str, BackedUpFile]:
    """Copy which logs were imported."""
    files: dict[str, BackedUpFile] = {}
    for noted in sorted((store / IMPORTS).glob("[!.]*")):
        with suppress(FileNotFoundError):  # anybody may delete it
            files[f"{IMPORTS}/{noted.name}"] = keep_file(folder, noted, None)
    return files


class _State(NamedTuple):
    """What the copy of a state file says of the table."""

    version: int
    #: SHA-256 of data files by path.
    sums: dict[str, str]
    #: Records that wait for the table.
    waiting: int


def _copy_state(store: Path, folder: Path) -> tuple[_State, BackedUpFile]:
    """Copy the state file as it is at one moment."""
    with new_file(folder) as copy:
        back_up_state(store / STATE, copy)
        with StateReader(copy) as reader:
            version = reader.table_version()
            if any(reader.faults()) or version is None:
                raise StoreError(f"{store / STATE} is damaged; {_MORE}")
            state = _State(
                version,
                {file.path: file.sha256 for file in reader.files()},
                sum(rows for _, _, rows, _ in reader.waiting_sizes()),
            )
        return state, keep_new_file(folder, copy)


def _snapshot(table: Path, version: int) -> tuple[TableSnapshot, str]:
    """The table at a version, and its id."""
    try:
        with delta_errors("reading the table", table):
            return load_snapshot(table, version), str(DeltaTable(table, version=version).metadata().id)
    except StoreError as error:
        # Its commits may have gone meanwhile.
        raise _GoneError(f"version {version} of the table cannot be read: {error}") from error


def restore(backup: Path, folder: Path) -> BackedUp:
    """Make a store of a backup. It has its name only when all of it is there.

    Raises:
        StoreFull: No room; nothing is left.
        StoreError: There is no whole backup, or the folder holds something.
    """
    began = time.monotonic()
    with disk_errors("restoring", folder):
        manifest = read_manifest(backup)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise StoreError(f"{folder} is not empty, and nothing is overwritten; give a new folder")
        partial = folder.with_name(f".{folder.name}.restoring")
        shutil.rmtree(partial, ignore_errors=True)
        make_folder(folder.parent)
        try:
            _restore_files(backup, manifest, partial)
            if folder.exists():
                folder.rmdir()
            partial.rename(folder)
            fsync(folder.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    manifest.about.secs = round(time.monotonic() - began, 3)
    return manifest.about


def verify_backup(folder: Path) -> Verified:
    """Compare every sum of a backup.

    Raises:
        StoreError: It is none, or its list is damaged.
    """
    began = time.monotonic()
    with disk_errors("verifying the backup", folder):
        manifest = read_manifest(folder)
        about = manifest.about
        verified = Verified(version=about.version, records=about.records, waiting=about.waiting)
        verified.files, verified.bytes = len(manifest.files), about.bytes
        places = [PurePosixPath(path).parts[0] for path in manifest.files]
        verified.devices, verified.workloads = places.count(DEVICES), places.count(WORKLOADS)
        for path, file in manifest.files.items():
            try:
                is_good = file_sum(object_path(folder, file.sha256)) == file.sha256
                what = "" if is_good else "bits have changed"
            except OSError as error:
                what = error.strerror or type(error).__name__
            if what:
                step = (
                    "make the backup again: `fleet store backup` copies it anew once this object is deleted"
                )
                verified.add(f"{OBJECTS}/{file.sha256[:2]}/{file.sha256}", f"{what}; it holds {path}", step)
    verified.secs = round(time.monotonic() - began, 3)
    return verified


def _restore_files(backup: Path, manifest: Manifest, folder: Path) -> None:
    folders = {folder / PurePosixPath(path).parent for path in manifest.files}
    for directory in sorted(folders | {folder / part for part in (RECORDS, WORKLOADS, DEVICES)}):
        directory.mkdir(parents=True, exist_ok=True)

    def put(path: str) -> None:
        file = manifest.files[path]
        source = object_path(backup, file.sha256)
        try:
            copied_sum, _ = copy_durably(regular_chunks(source, file.bytes), folder / path)
        except FileNotFoundError as error:
            raise StoreError(f"the backup {backup} lacks {source.name}, which holds {path}") from error
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                raise
            raise StoreError(
                f"the backup {backup}: {source.name}, which holds {path}: {error.strerror}"
            ) from error
        if copied_sum != file.sha256:
            raise StoreError(
                f"the backup {backup} is damaged: {source} holds other bits than {path} had; "
                f"`fleet store verify --store {backup}` says what else is"
            )

    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(put, manifest.files))
    for directory in sorted(path for path in folder.rglob("*") if path.is_dir()):
        fsync(directory)
    fsync(folder)
