"""Files that survive a kill and a power cut: written beside their place, made durable, and renamed into it.

Standard library only. `agents.row_file` and all of `fleet` call it; it knows nothing of contents.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

#: Threads that wait for the disk.
_SYNC_THREADS = 16


def fsync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_all(paths: Sequence[Path]) -> None:
    """Wait for many at once: a file system makes them durable together, which takes far less time."""
    if len(paths) == 1:
        fsync(paths[0])
    elif paths:
        with ThreadPoolExecutor(min(len(paths), _SYNC_THREADS)) as threads:
            list(threads.map(fsync, paths))


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, durably: else a power cut takes them with all they hold."""
    missing = [parent for parent in folder.parents if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    # Its own name always: a kill may have come between the two steps.
    for created in (folder, *missing):
        fsync(created.parent)


def write_durably(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace a file in one step: after any crash it is the old one or the new one, whole."""
    write_all_durably({path: data}, mode=mode)


def write_all_durably(files: Mapping[Path, bytes], *, mode: int = 0o666) -> None:
    """Replace several files, each in one step; it takes hardly longer than one.

    Args:
        files: What each shall hold.
        mode: Who may do what with them, less what the process takes away (`umask`).

    Raises:
        OSError: The disk is full or failed; files are old or new, each whole.
    """
    temporaries = {path: path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp") for path in files}
    try:
        for path, data in files.items():
            with open(temporaries[path], "xb", opener=partial(os.open, mode=mode)) as stream:
                stream.write(data)
        fsync_all(list(temporaries.values()))
        for path, temporary in temporaries.items():
            temporary.replace(path)
    except OSError:
        for temporary in temporaries.values():
            temporary.unlink(missing_ok=True)
        raise
    for folder in {path.parent for path in files}:
        fsync(folder)


def free_name(path: Path, suffix: str, with_end: str = "") -> Path:
    """A name beside a file that nothing has: `NAME.suffix`, else `NAME.1.suffix` and so on.

    Nothing has it with the other end behind it either.
    """
    free, number = path.with_name(path.name + suffix), 0
    while free.exists() or free.with_name(free.name + with_end).exists():
        number += 1
        free = path.with_name(f"{path.name}.{number}{suffix}")
    return free
