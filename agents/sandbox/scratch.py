"""Folders that worker processes may write in: one for each, gone with it. Called by `zygote.py`.

They lie in one folder of the zygote, which holds a lock on that; so the next zygote of the same user knows
which of them were left by one that was killed, and removes those.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX = "tensor-fleet-scratch-"


class ScratchFolders:
    """The scratch folders of the worker processes of one zygote."""

    def __init__(self) -> None:
        for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            if (handle := _lock(left)) is not None:
                _remove(left)
                os.close(handle)
        while True:
            self._root = Path(tempfile.mkdtemp(prefix=_PREFIX))
            handle = _lock(self._root)
            if handle is None:
                continue
            # Another zygote may have taken it for left over in this moment.
            if self._root.exists():
                self._handle = handle
                return
            os.close(handle)

    def make(self, token: int) -> Path | None:
        """Make the folder of a worker process; None where the disk takes none."""
        folder = self._root / str(token)
        try:
            folder.mkdir(mode=0o700)
        except OSError:
            return None
        return folder

    def remove(self, token: int) -> None:
        """Remove the folder of a worker process that is gone."""
        _remove(self._root / str(token))

    def close(self) -> None:
        """Remove all of them."""
        _remove(self._root)
        os.close(self._handle)


def _lock(folder: Path) -> int | None:
    """Hold a folder of this user; None where somebody does, or it is none."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with suppress(BlockingIOError):
        if os.fstat(handle).st_uid == os.geteuid():
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
    os.close(handle)
    return None


def _remove(folder: Path) -> None:
    # A program may have nested folders deeper than Python counts.
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
