"""Files that survive a kill and a power cut, and plain words for what a disk says.

The store's modules call it; it knows nothing of records or tables.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from fleet.errors import StoreError, StoreFull

#: What a full disk, a used-up quota and a file size limit say.
FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

#: Threads that wait for the disk.
_SYNC_THREADS = 16

_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def fsync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file in one step: after any crash it is the old one or the new one, whole."""
    write_all_durably({path: data})


def write_all_durably(files: Mapping[Path, bytes]) -> None:
    """Replace several files, each in one step; it takes hardly longer than one.

    Raises:
        OSError: The disk is full or failed; files are old or new, each whole.
    """
    temporaries = {path: path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp") for path in files}
    try:
        for path, data in files.items():
            with temporaries[path].open("xb") as stream:
                stream.write(data)
        # A file system makes many files durable at once, if it is asked for them at once.
        if len(files) == 1:
            fsync(*temporaries.values())
        elif files:
            with ThreadPoolExecutor(min(len(files), _SYNC_THREADS)) as threads:
                list(threads.map(fsync, temporaries.values()))
        for path, temporary in temporaries.items():
            temporary.replace(path)
    except OSError:
        for temporary in temporaries.values():
            temporary.unlink(missing_ok=True)
        raise
    for folder in {path.parent for path in files}:
        fsync(folder)


@contextmanager
def disk_errors(doing: str, where: Path) -> Iterator[None]:
    """Turn the system's errors into the store's, saying what was being done.

    Raises:
        StoreFull: There was no room.
        StoreError: Any other error of the system.
    """
    try:
        yield
    except OSError as error:
        number, reason = _said(error)
        if number in FULL_ERRNOS:
            raise StoreFull(
                f"no room while {doing} in {where}: {reason};"
                " nothing of it was kept; free some space and try again"
            ) from error
        raise StoreError(
            f"error while {doing} in {where}: {reason}; check the folder and its permissions"
        ) from error


def _said(error: OSError) -> tuple[int | None, str]:
    """Number and words of an error of the system.

    deltalake raises `OSError` without a number; its text is coloured lines that end in `(os error N)`.
    """
    found = _OS_ERROR.search(str(error))
    number = error.errno if error.errno is not None or found is None else int(found.group(1))
    if error.strerror:
        return number, error.strerror
    return number, os.strerror(number) if number is not None else (str(error).splitlines() or [""])[0]


__all__ = ["FULL_ERRNOS", "disk_errors", "fsync", "write_all_durably", "write_durably"]
