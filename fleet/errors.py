"""Errors of the fleet package, with one root for whoever catches all of them; a disk's errors become such."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agents.errors import LayoutError

#: What a full disk, a used-up quota and a file size limit say.
FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_OS_ERROR = re.compile(r"\(os error (\d+)\)")


class FleetError(RuntimeError):
    """A failure of the deciding and keeping program itself (a failed candidate is a record instead).

    The message says what failed, where, what was found and expected, and what to do next.
    """


class UsageError(FleetError):
    """A command, or a setting that it was given, is wrong; the command line ends with exit code 2."""


class TooFewRecordsError(FleetError):
    """There is too little to learn from yet; more records mend it."""


class StoreError(FleetError):
    """The store cannot be opened, read or written as asked."""


class StoreLocked(StoreError):  # noqa: N818 - a state of the store, named so
    """Another process writes to the store; readers need no lock."""


class StoreFull(StoreError):  # noqa: N818 - a state of the disk, named so
    """The disk is full: nothing of the refused batch was kept, and the table is whole and readable."""


class StateDamaged(StoreError):  # noqa: N818 - a state of the file, named so
    """The state file does not hold what was written; the table can give most of it back."""


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
    match = _OS_ERROR.search(str(error))
    number = getattr(error, "errno", None) or (int(match[1]) if match else None)
    reason = os.strerror(number) if number else (str(error).splitlines() or [type(error).__name__])[0]
    if number in FULL_ERRNOS:
        return StoreFull(
            f"no room while {doing} in {where}: {reason};"
            " nothing of it was kept; free some space and try again"
        )
    advice = "; check the folder and its permissions" if number or isinstance(error, OSError) else ""
    return StoreError(f"error while {doing} in {where}: {reason}{advice}")
