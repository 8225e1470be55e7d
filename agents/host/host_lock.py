"""Locks that all users of a host share: empty files, opened for reading only and never believed.

One process of a host times under one of them (`timing_lock`); `core_slot.py` has another. Any user may have
made such a file, in a folder where nobody can remove another's. Nothing is written to it or read from it, so
whoever made it can do no more than hold it; whoever does is found in `/proc/locks`. A lock falls with its
process, however that dies.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agents.errors import AgentError

#: Where such files lie: the first of these in which every user may make files and remove only their own.
_FOLDERS = (Path("/run/lock"), Path("/tmp"))
_ROOT = 0
#: Never through a link, and at once also where the name belongs to a pipe or a device.
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_ALL_MAY_READ = 0o644
#: Whoever waits longer for the timing lock is told who holds it. Many devices may take turns at it, with
#: programs that take minutes each; their parent gives up a minute later (`agents.sandbox.process`).
LOCK_WAIT_SECS = 540.0


class HostLockError(AgentError):
    """A shared lock cannot be used, or does not come free."""


def shared_folder() -> Path:
    """The folder of the locks: the same for all users of a host, whatever their `TMPDIR`."""
    return next((folder for folder in _FOLDERS if _is_shared(folder)), Path(tempfile.gettempdir()))


def host_lock_path(device: str = "") -> Path:
    """Where a timing lock lies: one a host for its CPU, one for each other device, whoever runs the fleet."""
    return shared_folder() / f"tensor-fleet-timing{device and '-'}{device}.lock"


def make_lock(path: Path) -> None:
    """Make the file of a lock, which every user may read, unless there is one.

    Raises:
        OSError: The folder is missing or takes no file.
    """
    # In a sticky folder the kernel may refuse O_CREAT for other users' files, so only a new one is made so.
    with suppress(FileExistsError):
        handle = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, _ALL_MAY_READ)
        os.fchmod(handle, _ALL_MAY_READ)  # whatever the umask says
        os.close(handle)


def open_lock(path: Path) -> int:
    """Open the file of a lock; gives the descriptor.

    Raises:
        FileNotFoundError: There is none.
        HostLockError: What has the name is no file of its own, or may not be read.
    """
    try:
        handle = os.open(path, _OPEN)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise HostLockError(
            f"the lock file {path} cannot be opened ({error.strerror}): {_cure(path)}"
        ) from error
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return handle
    os.close(handle)
    # A second name may belong to a file that another program locks for its own ends.
    what = "has a second name" if stat.S_ISREG(status.st_mode) else "is no ordinary file"
    raise HostLockError(f"the lock file {path} {what}: {_cure(path)}")


def take_lock(path: Path, *, wait_secs: float, is_shared: bool = False) -> int:
    """Wait for a lock; gives the descriptor that holds it. From the main thread only: it sets an alarm.

    `flock` blocks in the kernel, so the next holder starts at once.

    Args:
        path: File of the lock.
        wait_secs: For how long; with 0 not at all.
        is_shared: Hold it beside others who share it.

    Raises:
        BlockingIOError: Somebody holds it, and `wait_secs` is 0.
        FileNotFoundError: There is no such file.
        HostLockError: As `open_lock`; or somebody held it all the while, who is named.
    """
    operation = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    while True:
        handle = open_lock(path)
        try:
            _flock(handle, operation, path, wait_secs)
            if _is_named(handle, path):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # it was removed meanwhile, as cleaners of temporary folders do


@contextmanager
def timing_lock(path: Path, wait_secs: float = LOCK_WAIT_SECS) -> Iterator[float]:
    """Hold the host's timing lock, which `make_lock` made; yields the seconds that were spent waiting for it.

    Raises:
        FileNotFoundError: There is no such file.
        HostLockError: It cannot be used, or somebody else held it for `wait_secs`.
    """
    started = time.perf_counter()
    handle = take_lock(path, wait_secs=wait_secs)
    try:
        yield time.perf_counter() - started
    finally:
        os.close(handle)


@contextmanager
def not_timing(path: Path) -> Iterator[bool]:
    """Keep anybody from beginning to time; yields False where somebody does already.

    Raises:
        FileNotFoundError: Nobody has ever timed here.
        HostLockError: The lock cannot be used.
    """
    try:
        handle = take_lock(path, wait_secs=0.0, is_shared=True)
    except BlockingIOError:
        yield False
        return
    try:
        yield True
    finally:
        os.close(handle)


def holder_of(path: Path) -> int:
    """Process id of who holds a lock; 0 where nobody does or the kernel does not say."""
    try:
        status = path.stat(follow_symlinks=False)
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return 0
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    others = 0
    for line in lines:
        words = line.split()
        # `1: FLOCK  ADVISORY  WRITE 708 fe:00:131090 0 EOF`; who only waits has `->` behind the number.
        if len(words) < 6 or words[1] != "FLOCK" or not words[4].isdecimal():
            continue
        place, _, inode = words[5].rpartition(":")
        if inode != str(status.st_ino):
            continue
        if place == device:
            return int(words[4])
        others = int(words[4])
    # Some file systems show another device here than a file's status does: overlays, Btrfs.
    return others


def holder_words(path: Path) -> str:
    """Say who holds a lock."""
    pid = holder_of(path)
    if not pid:
        return "/proc/locks does not show who holds it; it may be a process of another container"
    try:
        folder = Path(f"/proc/{pid}")
        name, user = folder.joinpath("comm").read_text().strip(), user_name(folder.stat().st_uid)
    except OSError:
        return f"process {pid} took it, and has ended; one that it started may hold it"
    return f"process {pid} ({name!a}) of user {user} holds it: wait for it, or end it"


def user_name(uid: int) -> str:
    """Name of a user, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _is_shared(folder: Path) -> bool:
    """Whether every user may make files there, remove only their own, and find the folder as it was."""
    try:
        status = folder.stat()
    except OSError:
        return False
    mode_bits = stat.S_ISVTX | stat.S_IWOTH | stat.S_IXOTH
    return stat.S_ISDIR(status.st_mode) and status.st_mode & mode_bits == mode_bits and status.st_uid == _ROOT


def _cure(path: Path) -> str:
    try:
        owner = user_name(path.stat(follow_symlinks=False).st_uid)
    except OSError:
        return "look at its folder"
    return f"it belongs to user {owner}; remove it, the next start makes a new one"


def _flock(handle: int, operation: int, path: Path, wait_secs: float) -> None:
    try:
        fcntl.flock(handle, operation | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        if not wait_secs:
            raise
    try:
        with _alarm(wait_secs):
            fcntl.flock(handle, operation)
    except TimeoutError:
        raise HostLockError(
            f"the lock {path} did not come free for {wait_secs:g} s: {holder_words(path)}"
        ) from None


@contextmanager
def _alarm(secs: float) -> Iterator[None]:
    """Raise `TimeoutError` in the block when it takes longer: `flock` itself knows no time-out."""

    def ring(*_: object) -> None:
        raise TimeoutError

    handler = signal.signal(signal.SIGALRM, ring)
    others = signal.setitimer(signal.ITIMER_REAL, secs)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *others)
        signal.signal(signal.SIGALRM, handler)


def _is_named(handle: int, path: Path) -> bool:
    """Whether the open file is still the one that has the name."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False
