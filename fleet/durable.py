"""Plain words for what a disk says, as the store's errors; and the helpers of `agents.files`.

Whatever writes to the disk calls it; it knows nothing of records or tables.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agents.files import fsync, write_all_durably, write_durably
from fleet.errors import StoreError, StoreFull

#: What a full disk, a used-up quota and a file size limit say.
FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_OS_ERROR = re.compile(r"\(os error (\d+)\)")


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
