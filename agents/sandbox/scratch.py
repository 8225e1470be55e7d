"""Folders that confined processes may write in: one for each, gone with it.

Those of worker processes lie in one folder of their zygote, which holds a lock on that; so the next zygote of
the same user knows which of them were left by one that was killed, and removes those. A process that reads a
network gets its folder from `scratch_folder`. What a program leaves in one may be anything: `remove_tree`.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import logging
import mmap
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agents.errors import AgentError
from agents.host.process_control import close_all_but

_LOG = logging.getLogger(__name__)
_PREFIX = "tensor-fleet-scratch-"


class ScratchFolders:
    """The scratch folders of the worker processes of one zygote."""

    def __init__(self) -> None:
        #: Processes that remove a folder.
        self._removers: list[int] = []
        for leftover in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            if (handle := _lock(leftover)) is not None:
                self._remove_aside(leftover, handle)
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
        """Remove the folder of a worker process that is gone; returns at once."""
        self._removers = [pid for pid in self._removers if os.waitpid(pid, os.WNOHANG) == (0, 0)]
        folder = self._root / str(token)
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            self._remove_aside(folder, self._handle)

    def _remove_aside(self, folder: Path, handle: int) -> None:
        """Remove a folder in a process of its own: a million files would hold up every other fork.

        Args:
            folder: It lies in a folder that is locked.
            handle: The lock, which is held until all is gone.
        """
        try:
            pid = os.fork()
        except OSError:  # the host has no process left to give
            _remove(folder)
            return
        if pid:
            self._removers.append(pid)
            return
        try:
            close_all_but(handle)
            _remove(folder)
        finally:
            os._exit(0)

    def close(self) -> None:
        """Remove all of them."""
        for pid in self._removers:
            os.waitpid(pid, 0)
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
    try:
        remove_tree(folder)
    except OSError as error:
        _LOG.warning("the scratch folder %s stays: %s", folder, error)


@contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """A temporary folder for a process that nobody trusts; removed afterwards, whatever lies in it."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        _remove(folder)


def remove_tree(folder: Path) -> None:
    """Remove a folder and all that a program left in it, however deep and of whatever mode; follows no link.

    Three file descriptors and no recursion are enough: what lies in a folder within is moved up to the top.

    Raises:
        OSError: Something in it cannot be removed. All the rest is gone.
    """
    try:
        top = _open_folder(folder)
    except FileNotFoundError:
        return
    removal = _Removal(top)
    try:
        removal.run()
    finally:
        os.close(top)
    folder.rmdir()


class _Removal:
    """Empties one folder, `top`, by sweeps over it."""

    def __init__(self, top: int) -> None:
        self._top = top
        # Nobody can have guessed these names, so no move meets something else.
        self._names = (f"{secrets.token_hex(8)}-{number}" for number in itertools.count())
        self._failure: OSError | None = None

    def run(self) -> None:
        """Sweep until nothing is there, or nothing more goes.

        Raises:
            OSError: Why that stays.
        """
        while self._sweep(self._top):
            self._failure = None
        if self._failure is not None:
            raise self._failure

    def _sweep(self, folder: int) -> int:
        """Remove what one look into a folder shows, or move it to the top; returns the number of steps."""
        steps = 0
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.name, dir_fd=folder)
                    elif folder == self._top:
                        steps += self._sweep_inner(entry.name)
                        os.rmdir(entry.name, dir_fd=folder)
                    else:
                        os.close(_open_folder(entry.name, folder))  # it is moved only if it may be written
                        os.rename(entry.name, next(self._names), src_dir_fd=folder, dst_dir_fd=self._top)
                except FileNotFoundError:  # a look may show what is gone
                    continue
                except OSError as error:
                    self._failure = self._failure or error  # the first is the cause of the others
                    continue
                steps += 1
        return steps

    def _sweep_inner(self, name: str) -> int:
        inner = _open_folder(name, self._top)
        try:
            return self._sweep(inner)
        finally:
            os.close(inner)


def _open_folder(path: Path | str, within: int | None = None) -> int:
    """Open a folder of this user and let its user do everything in it; never through a link."""
    handle = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    try:
        own = Path(f"/proc/self/fd/{handle}")
        if os.fstat(handle).st_mode & 0o700 != 0o700:
            own.chmod(0o700)
        return os.open(own, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)


def require_executable(folder: Path) -> None:
    """Make sure that a library which is written into a folder can be loaded from there.

    Raises:
        AgentError: Its file system is mounted `noexec`, or it takes no file; the message names the way out.
    """
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(b"\0" * mmap.PAGESIZE)
            # What the loader of libraries does first.
            mmap.mmap(file.fileno(), mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC).close()
    except OSError as error:
        reason = f"cannot be written ({error.strerror})"
        if error.errno in (errno.EPERM, errno.EACCES) and os.statvfs(folder).f_flag & os.ST_NOEXEC:
            reason = "is mounted noexec, so no compiled library can be loaded from it"
        raise AgentError(
            f"the folder for temporary files {folder} {reason}: set TMPDIR to a folder where programs may run"
        ) from error
