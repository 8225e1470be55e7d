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

from agents.errors import LayoutError
from agents.files import fsync, write_all_durably, write_durably
from fleet.errors import StoreError, StoreFull

#: What a full disk, a used-up quota and a file size limit say.
FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def is_full(error: BaseException) -> bool:
    """Whether an error says that there is no room."""
    return isinstance(error, StoreFull) or (isinstance(error, OSError) and error.errno in FULL_ERRNOS)


@contextmanager
def disk_errors(doing: str, where: Path) -> Iterator[None]:
    """Turn the system's errors into the store's, saying what was being done.

    Raises:
        StoreFull: There was no room.
        StoreError: Any other error of the system, or a file of another version.
    """
    try:
        yield
    except LayoutError as error:
        raise StoreError(str(error)) from error
    except OSError as error:
        raise store_error(error, doing, where) from error


def store_error(error: BaseException, doing: str, where: Path) -> StoreError:
    """What the store says of an error of the system, or of a library that met one.

    deltalake gives no number: its text is coloured lines that end in `(os error N)`.
    """
    found = _OS_ERROR.search(str(error))
    number = getattr(error, "errno", None) or (int(found[1]) if found else None)
    reason = os.strerror(number) if number else (str(error).splitlines() or [type(error).__name__])[0]
    if number in FULL_ERRNOS:
        return StoreFull(
            f"no room while {doing} in {where}: {reason};"
            " nothing of it was kept; free some space and try again"
        )
    advice = "; check the folder and its permissions" if number or isinstance(error, OSError) else ""
    return StoreError(f"error while {doing} in {where}: {reason}{advice}")


__all__ = ["FULL_ERRNOS", "disk_errors", "fsync", "is_full", "write_all_durably", "write_durably"]
