"""Who may write to a store: one process, and the folder must be a store or become one.

Only `fleet.store.store` calls it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import filelock

from fleet.errors import StoreError, StoreLocked
from fleet.state.schema import STATE
from fleet.store.delta.log import RECORDS, is_table
from fleet.store.reader import DEVICES, WORKLOADS

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
