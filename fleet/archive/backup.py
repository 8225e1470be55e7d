"""Copy a store as it is at one moment, beside whoever writes it, and make a store of the copy again.

Promise: every record that was acknowledged before `back_up` began is in what `restore` makes of the
copy. What an earlier backup in the folder has is not copied again.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path, PurePosixPath

from deltalake import DeltaTable

from agents.files import make_folder
from agents.regular_files import regular_chunks
from fleet.archive.backup_folder import (
    IMPORTS,
    OBJECTS,
    BackedUp,
    BackedUpFile,
    Manifest,
    copy_durably,
    held,
    is_backup,
    keep_bytes,
    keep_file,
    object_path,
    read_manifest,
    sweep,
    write_manifest,
)
from fleet.archive.verify import Verified
from fleet.durable import FULL_ERRNOS, disk_errors, fsync
from fleet.errors import StoreError
from fleet.state.schema import STATE
from fleet.state.state_file import back_up as back_up_state
from fleet.store.delta.files import file_sum, known_sums
from fleet.store.delta.log import checkpoints, commit_path, delta_errors, load_snapshot, version_of
from fleet.store.intake_log import FILE, INTAKE, PAGES, IntakeLog, copy_log
from fleet.store.lock import check_folder
from fleet.store.reader import DEVICES, RECORDS, WORKLOADS

#: Files that are copied at once: each waits for the disk.
_THREADS = 8
#: How often a snapshot is taken anew because upkeep has deleted files of it meanwhile.
_TRIES = 3


class _GoneError(Exception):
    """A file of the snapshot was deleted while it was copied."""


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
                        f"{error} is missing in the store; `fleet store verify` says more. An earlier backup "
                        f"in {folder} is as it was"
                    ) from error
        for path in sorted({folder / OBJECTS / one.sha256[:2] for one in manifest.files.values()}):
            fsync(path)
        fsync(folder / OBJECTS)
        about = manifest.about
        about.files, about.bytes = len(manifest.files), sum(one.bytes for one in manifest.files.values())
        about.secs = round(time.monotonic() - began, 3)
        write_manifest(folder, manifest)
        sweep(folder, manifest)
    return about


def _copy(store: Path, folder: Path, earlier: Manifest | None) -> Manifest:
    """Copy what the newest snapshot consists of; the order of the steps is what makes it whole."""
    # First: what leaves the log meanwhile is in the table by then, and so in the snapshot.
    files, copied, waiting = _copy_intake(store, folder)
    if (store / STATE).exists():
        with tempfile.TemporaryDirectory(dir=folder) as made:
            back_up_state(store / STATE, Path(made, STATE))
            files[STATE], new = keep_file(folder, Path(made, STATE), None)
        copied += new
    # Likewise: a log that is noted as read to its end has all of its rows in the table by then.
    for noted in sorted((store / IMPORTS).glob("[!.]*")):
        with suppress(FileNotFoundError):  # anybody may delete it
            kept, new = keep_file(folder, noted, None)
            files[f"{IMPORTS}/{noted.name}"] = kept
            copied += new
    snapshot = load_snapshot(store / RECORDS)
    table_id = _table_id(store / RECORDS, snapshot.version)
    if earlier is not None and earlier.about.table_id != table_id:
        raise StoreError(f"{folder} is the backup of another store than {store}; give another folder")
    sums = known_sums(store / RECORDS, snapshot.version)
    wanted: dict[str, str | None] = {f"{RECORDS}/{one.path}": sums.get(one.path) for one in snapshot.files}
    others = _log_of(store / RECORDS, snapshot.version)
    for name in (WORKLOADS, DEVICES):
        others += sorted((store / name).glob("[!.]*"))
    wanted |= {str(one.relative_to(store)): None for one in others}

    def keep(path: str) -> tuple[BackedUpFile, int]:
        try:
            return keep_file(folder, store / path, wanted[path])
        except FileNotFoundError as error:
            raise _GoneError(path) from error

    with ThreadPoolExecutor(_THREADS) as threads:
        for path, (kept, new) in zip(wanted, threads.map(keep, wanted), strict=True):
            files[path] = kept
            copied += new
    about = BackedUp(
        version=snapshot.version,
        records=snapshot.rows,
        waiting=waiting,
        made_at=time.time(),
        table_id=table_id,
        copied_bytes=copied,
    )
    return Manifest(about=about, files=files)


def _copy_intake(store: Path, folder: Path) -> tuple[dict[str, BackedUpFile], int, int]:
    """Copy what is acknowledged and not in the table yet.

    Returns:
        The files, the bytes that were copied, and how many records there are.
    """
    files: dict[str, BackedUpFile] = {}
    copied = waiting = 0
    with tempfile.TemporaryDirectory() as made:
        moment = Path(made)
        copy_log(store / INTAKE, moment)
        others = [path for path in (store / INTAKE).glob("*") if path.name not in (FILE, PAGES)]
        for path in sorted([*moment.iterdir(), *others]):
            with suppress(FileNotFoundError):  # its rows are in the table now
                kept, new = keep_bytes(folder, path.read_bytes())
                files[f"{INTAKE}/{path.name}"] = kept
                copied += new
        with closing(IntakeLog(moment)) as log:
            waiting += sum(rows.num_rows for rows in log.replay([]))
    return files, copied, waiting


def _log_of(table: Path, version: int) -> list[Path]:
    """The files of the log that make a version: a checkpoint and the commits after it."""
    found = [path for path in checkpoints(table) if version_of(path) <= version][:1]
    start = version_of(found[0]) if found else -1
    found += [commit_path(table, number) for number in range(start + 1, version + 1)]
    # The commit of the version itself, which caches of the table compare.
    if start == version and commit_path(table, version).exists():
        found.append(commit_path(table, version))
    return found


def _table_id(table: Path, version: int) -> str:
    with delta_errors("reading the table", table):
        return str(DeltaTable(table, version=version).metadata().id)


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
        found = Verified(version=about.version, records=about.records, waiting=about.waiting)
        found.files, found.bytes = len(manifest.files), about.bytes
        places = [PurePosixPath(path).parts[0] for path in manifest.files]
        found.devices, found.workloads = places.count(DEVICES), places.count(WORKLOADS)
        for path, kept in manifest.files.items():
            try:
                is_good = file_sum(object_path(folder, kept.sha256)) == kept.sha256
                what = "" if is_good else "bits have changed"
            except OSError as error:
                what = error.strerror or type(error).__name__
            if what:
                step = (
                    "make the backup again: `fleet store backup` copies it anew once this object is deleted"
                )
                found.add(f"{OBJECTS}/{kept.sha256[:2]}/{kept.sha256}", f"{what}; it holds {path}", step)
    found.secs = round(time.monotonic() - began, 3)
    return found


def _restore_files(backup: Path, manifest: Manifest, folder: Path) -> None:
    folders = {folder / PurePosixPath(path).parent for path in manifest.files}
    for one in sorted(folders | {folder / part for part in (RECORDS, WORKLOADS, DEVICES)}):
        one.mkdir(parents=True, exist_ok=True)

    def put(path: str) -> None:
        kept = manifest.files[path]
        source = object_path(backup, kept.sha256)
        try:
            found, _ = copy_durably(regular_chunks(source, kept.bytes), folder / path)
        except FileNotFoundError as error:
            raise StoreError(f"the backup {backup} lacks {source.name}, which holds {path}") from error
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                raise
            raise StoreError(
                f"the backup {backup}: {source.name}, which holds {path}: {error.strerror}"
            ) from error
        if found != kept.sha256:
            raise StoreError(
                f"the backup {backup} is damaged: {source} holds other bits than {path} had; "
                f"`fleet store verify --store {backup}` says what else is"
            )

    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(put, manifest.files))
    for one in sorted(path for path in folder.rglob("*") if path.is_dir()):
        fsync(one)
    fsync(folder)
