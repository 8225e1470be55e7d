"""Files that survive a kill and a power cut: written beside their place, made durable, and renamed into it.

Standard library only. `agents.row_file` and all of `fleet` call it; it knows nothing of contents.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path

from agents.records import content_hash

# Files of folders that may come from others: regular ones of a bounded size, read to the size they had.
#
# A stranger's folder may hold a pipe, on which a reader waits for ever, or a link to `/dev/zero` or into
# `/proc`, where a read has no end. Links to regular files are followed: git-annex and model hubs keep data
# behind them. Standard library only; every reader of a folder of others calls it.

#: Nobody waits for the other end of a pipe, and no terminal becomes this process's own.
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CHUNK = 1 << 20


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Content of a regular file.

    Raises:
        OSError: It is missing, no regular file, or has more than `most_bytes` bytes.
    """
    return b"".join(regular_chunks(path, most_bytes))


def check_regular(path: Path, most_bytes: int) -> int:
    """Size of a regular file, in bytes, for a library that opens it by its name.

    Raises:
        OSError: As of `read_regular`.
    """
    handle, size = _open(path, most_bytes)
    os.close(handle)
    return size


def regular_chunks(path: Path, most_bytes: int) -> Iterator[bytes]:
    """Yield the content of a regular file in pieces of a MiB, up to the size that it had when it was opened.

    Raises:
        OSError: As of `read_regular`.
    """
    handle, rest = _open(path, most_bytes)
    with os.fdopen(handle, "rb") as file:
        # Files of `/proc` say that they are empty, and are not read.
        while rest and (chunk := file.read(min(rest, _CHUNK))):
            rest -= len(chunk)
            yield chunk


def _open(path: Path, most_bytes: int) -> tuple[int, int]:
    """Handle and size of a regular file."""
    handle = os.open(path, _OPEN)
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode) and status.st_size <= most_bytes:
        return handle, status.st_size
    os.close(handle)
    if stat.S_ISREG(status.st_mode):
        fault = f"has {status.st_size:,} bytes, at most {most_bytes:,} are read"
        raise OSError(errno.EOVERFLOW, fault, str(path))
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder, expected a file", str(path))
    raise OSError(errno.EINVAL, "is no regular file", str(path))


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


@cache
def code_hash(folders: tuple[str, ...]) -> str:
    """Hash of this project's own code in folders beside this file, read once per process."""
    here = Path(__file__).parent
    files = sorted(path for name in folders for path in (here / name).rglob("*.py"))
    return content_hash(*(path.read_text(encoding="utf-8") for path in files))
