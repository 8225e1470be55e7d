"""The folder of a backup: objects named by the SHA-256 of what they hold, and the list of what they are.

`fleet.archive.backup` writes and reads it. Objects never change and the list is replaced in one step, so the
folder holds a whole backup at any moment after the first: the earlier one until the new one is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import filelock
from msgspec import Meta, Struct, ValidationError, convert, field, to_builtins

from agents.codec import bounded_json
from agents.files import make_folder, read_regular, regular_chunks, write_durably
from agents.records import canonical_json, content_hash
from fleet.errors import StoreError
from fleet.state.schema import STATE
from fleet.store.delta.log import RECORDS, file_sum
from fleet.store.reader import DEVICES, WORKLOADS
from fleet.terminal_text import visible

#: Names in the folder of a backup.
MANIFEST, OBJECTS, LOCK = "backup.json", "objects", "backup.lock"
#: Layout of it.
BACKUP_SCHEMA = 2

#: Folders and files of a store that are in a backup. The rest is made again, or is a lock.
IMPORTS = "imports"
_PARTS = frozenset({RECORDS, WORKLOADS, DEVICES, IMPORTS})
#: Bytes of the list at most, some 150 a file; and of one file of a store.
_MOST_LIST_BYTES, _MOST_FILE_BYTES = 64 << 20, 1 << 40


class BackedUpFile(Struct, frozen=True, array_like=True):
    """One file of the store in the backup."""

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    bytes: Annotated[int, Meta(ge=0)]


class BackedUp(Struct, kw_only=True, forbid_unknown_fields=True):
    """What is in a backup, or was restored from one."""

    version: int
    records: int
    #: Records that wait for the table.
    waiting: int
    made_at: float
    #: Of the table; another store has another one.
    table_id: str
    files: int = 0
    bytes: int = 0
    #: Bytes that the earlier backup in the folder did not have.
    copied_bytes: int = 0
    secs: float = 0.0


#: A path below a store, with no control character and nothing that UTF-8 lacks.
_Path = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f\ud800-\udfff]{1,1024}$")]


class Manifest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which file of the store is which object: the list as it stands on the disk."""

    about: BackedUp
    files: dict[_Path, BackedUpFile] = field(default_factory=dict)


def is_backup(folder: Path) -> bool:
    """Whether a folder holds a whole backup."""
    return (folder / MANIFEST).is_file()


@contextmanager
def held(store: Path, folder: Path) -> Iterator[None]:
    """Be the one who writes a backup, into a folder that may become one.

    Raises:
        StoreError: It is something else, or somebody else does.
    """
    if store.resolve() in (folder.resolve(), *folder.resolve().parents):
        raise StoreError(f"{folder} is inside the store; give a folder elsewhere, best on another disk")
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file, expected a folder for the backup")
    ours = {MANIFEST, OBJECTS, LOCK}
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    others = sorted(name for name in names if name not in ours and not name.startswith(f".{MANIFEST}."))
    if others:
        raise StoreError(
            f"{folder} holds {', '.join(others[:3])}, which is no backup; give an empty or a new folder"
        )
    make_folder(folder)
    lock = filelock.FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise StoreError(f"another `fleet store backup` writes {folder}; wait for it") from error
    try:
        yield
    finally:
        lock.release()


def keep_file(folder: Path, path: Path, known_sum: str | None) -> BackedUpFile:
    """Have a file as an object.

    If its SHA-256 is known, an object that is there already is not looked into.

    Raises:
        StoreError: It is not what the log says.
    """
    if known_sum is not None:
        size = path.stat().st_size
        stored = object_path(folder, known_sum)
        if stored.exists() and stored.stat().st_size == size:
            return BackedUpFile(known_sum, size)
    if path.suffix == ".jsonl":
        data = path.read_bytes()
        # A line that is being written is not there yet.
        return _keep(folder, [data[: data.rfind(b"\n") + 1]])
    return _keep(folder, regular_chunks(path, _MOST_FILE_BYTES), path, known_sum)


def _keep(
    folder: Path, source: Iterable[bytes], path: Path | None = None, known_sum: str | None = None
) -> BackedUpFile:
    """Copy pieces into a file, and give that the name of its content unless there is one."""
    with new_file(folder) as temporary:
        copied_sum, size = copy_durably(source, temporary)
        if known_sum is not None and copied_sum != known_sum:
            raise StoreError(
                f"{path} is damaged: its SHA-256 is {copied_sum[:12]}..., expected {known_sum[:12]}...; "
                "`fleet store verify` says what else is. The backup that was there is as it was"
            )
        return _name_by_content(folder, temporary, BackedUpFile(copied_sum, size))


def keep_new_file(folder: Path, temporary: Path) -> BackedUpFile:
    """Have a file of `new_file`, which is on the disk, as an object."""
    return _name_by_content(folder, temporary, BackedUpFile(file_sum(temporary), temporary.stat().st_size))


@contextmanager
def new_file(folder: Path) -> Iterator[Path]:
    """Name of a file that may become an object; what is left of it at the end goes."""
    temporary = folder / OBJECTS / f".{uuid.uuid4().hex}.tmp"
    temporary.parent.mkdir(exist_ok=True)
    try:
        yield temporary
    finally:
        for path in temporary.parent.glob(f"{temporary.name}*"):
            path.unlink()


def _name_by_content(folder: Path, temporary: Path, file: BackedUpFile) -> BackedUpFile:
    stored = object_path(folder, file.sha256)
    stored.parent.mkdir(exist_ok=True)
    if not stored.exists() or stored.stat().st_size != file.bytes:
        temporary.replace(stored)
    return file


def copy_durably(source: Iterable[bytes], target: Path) -> tuple[str, int]:
    """Copy pieces into a new file; return the SHA-256 and the bytes of what is on the disk then."""
    digest, size = hashlib.sha256(), 0
    with target.open("xb") as stream:
        for chunk in source:
            digest.update(chunk)
            size += stream.write(chunk)
        stream.flush()
        os.fsync(stream.fileno())
    return digest.hexdigest(), size


def object_path(folder: Path, sha256: str) -> Path:
    """Where an object stands."""
    return folder / OBJECTS / sha256[:2] / sha256


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Make a backup the one that the folder holds; all of its objects are on the disk."""
    value = {"schema": BACKUP_SCHEMA, **to_builtins(manifest, order="sorted")}
    write_durably(folder / MANIFEST, json.dumps({**value, "sum": _sum_of(value)}).encode())


def read_manifest(folder: Path) -> Manifest:
    """Read the list of a backup.

    Raises:
        StoreError: There is none, it is damaged, or another version wrote it.
    """
    path = folder / MANIFEST
    try:
        value = bounded_json(read_regular(path, _MOST_LIST_BYTES).decode())
        if value["schema"] != BACKUP_SCHEMA:
            raise StoreError(
                f"{path} has layout {value['schema']}, this version reads {BACKUP_SCHEMA}; make the backup "
                "again in another folder, or use the version that wrote it"
            )
        if value.pop("sum") != _sum_of(value):
            raise ValueError("its sum is another one")
        manifest = convert({key: value[key] for key in value.keys() - {"schema"}}, Manifest)
        for name in manifest.files:
            parts = PurePosixPath(name).parts
            is_inside = len(parts) >= 2 and parts[0] in _PARTS and ".." not in parts
            if name != STATE and not is_inside:
                raise ValueError(f"{name!r} is no file of a store")
        if STATE not in manifest.files:
            raise ValueError(f"it lacks {STATE}")
        return manifest
    except FileNotFoundError as error:
        raise StoreError(
            f"there is no whole backup in {folder}; `fleet store backup {folder}` makes one"
        ) from error
    except OSError as error:
        raise _damaged(path, str(error.strerror)) from error
    except (ValidationError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, visible(f"{error!s:.200}")) from error


def _damaged(path: Path, why: str) -> StoreError:
    return StoreError(f"{path} is damaged: {why}; use another backup, or delete it and make the backup again")


def _sum_of(value: Mapping[str, Any]) -> str:
    return content_hash(canonical_json(value))


def sweep(folder: Path, manifest: Manifest) -> None:
    """Delete objects that only earlier backups had, and what a kill has left."""
    named = {file.sha256 for file in manifest.files.values()}
    for path in (folder / OBJECTS).glob("*/*"):
        if path.name not in named:
            path.unlink(missing_ok=True)
    for path in (folder / OBJECTS).glob(".*.tmp*"):
        path.unlink(missing_ok=True)
