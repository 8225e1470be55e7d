"""Make a store of a backup again, and compare what a backup holds with its sums: `fleet store restore`."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from agents.files import make_folder
from fleet.archive.backup_folder import OBJECTS, BackedUp, Manifest, copy_durably, object_path, read_manifest
from fleet.archive.verify import Verified
from fleet.durable import disk_errors, fsync
from fleet.errors import StoreError
from fleet.store.delta.files import file_sum
from fleet.store.reader import DEVICES, RECORDS, WORKLOADS

#: Files that are copied at once: each waits for the disk.
_THREADS = 8


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
            with source.open("rb") as stream:
                found, _ = copy_durably(stream, folder / path)
        except FileNotFoundError as error:
            raise StoreError(f"the backup {backup} lacks {source.name}, which holds {path}") from error
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
