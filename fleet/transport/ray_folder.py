"""The folder of a Ray of our own: its sockets and logs, out of reach of other users.

Ray opens every folder that it makes to everybody (mode 0777), sockets included. So it makes them below a
folder that only this user may enter. The folder goes with its Ray; one that a killed process has left goes
with the next start.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from fleet.errors import disk_errors
from fleet.private_files import check_folder

PREFIX = "fleet-ray-"
#: Old folders that one start deletes: each may hold gigabytes of logs.
_MOST_OLD = 32
_MOST_TRIES = 8
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: The kernel takes paths of sockets of so many bytes; Ray's longest is made of these.
_SOCKET_BYTES = 107
_LONGEST = f"/{PREFIX}12345678/r/session_2000-01-01_00-00-00_000000_4194304/sockets/plasma_store"


class RayFolder:
    """A new folder that only this user may enter; while this process lives, no other one deletes it.

    Args:
        base: Folder to make it in; `RAY_TMPDIR`, `TMPDIR` or `/tmp` where None.

    Raises:
        FleetError: Nothing can be made there, or others could replace it.

    Attributes:
        path: The folder, mode 0700.
        inner: What Ray is told to use: a folder in it that Ray makes.
    """

    def __init__(self, base: Path | None = None) -> None:
        base = base or _base()
        with disk_errors("making a folder for Ray", base):
            check_folder(base)
            _remove_old(base)
            self.path, self._lock = _make(base)
        self.inner = self.path / "r"

    def close(self) -> None:
        """Delete it; Ray must have ended. Twice does no harm."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def ray_default_folder() -> Path:
    """Where `ray start` makes its own folders unless it is told another place; every user may write there."""
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp") / "ray"


def _base() -> Path:
    base = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()).absolute()
    fits = len(os.fsencode(base)) + len(_LONGEST) <= _SOCKET_BYTES
    return base if fits else Path("/tmp")


def _make(base: Path) -> tuple[Path, int]:
    """Make a folder and lock it; the lock ends with this process, however it ends."""
    for _ in range(_MOST_TRIES):
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        # Before it is locked, another start may take it for an old one.
        with suppress(FileNotFoundError, BlockingIOError):
            lock = _lock(path)
            if path.exists():
                return path, lock
            os.close(lock)
    raise OSError(errno.EBUSY, "others delete every new folder there")


def _remove_old(base: Path) -> None:
    """Delete folders of this user whose process has ended, not too many at once."""
    removed = 0
    for path in base.glob(f"{PREFIX}*"):
        try:
            status = path.lstat()
            if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
                continue
            lock = _lock(path)
        except OSError:
            continue  # it is in use, or gone
        try:
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)
        removed += 1
        if removed == _MOST_OLD:
            return


def _lock(path: Path) -> int:
    """Lock a folder.

    Raises:
        BlockingIOError: Another process has.
        OSError: It is no folder, is gone, or no file descriptor is left.
    """
    handle = os.open(path, _OPEN)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle
