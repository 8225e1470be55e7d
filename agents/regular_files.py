"""Files of folders that may come from others: regular ones of a bounded size, read to the size they had.

A stranger's folder may hold a pipe, on which a reader waits for ever, or a link to `/dev/zero` or into
`/proc`, where a read has no end. Links to regular files are followed: git-annex and model hubs keep data
behind them. Standard library only; every reader of a folder of others calls it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

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
