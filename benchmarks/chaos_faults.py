"""Fault points: count a process's steps on the disk, and let it die, or let the disk be full, at one of them.

Only children of `benchmarks.chaos` install them, in themselves: the functions of `os` and `io.open` that
change files are replaced for good, and SQLite writes through `benchmarks.chaos_sqlite`. What Rust or C++ code
writes is not seen here; kills from outside at random moments fall there.

A step is a write, fsync, creation, rename, link, unlink, truncation or change of times below one folder.
The fault happens *before* step `at`, so the sweep over all of them covers what lies between any two. A trace
tells what has reached the disk for certain; `benchmarks.chaos_power` takes away the rest.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import json
import os
import signal
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.chaos_power import names_in
from benchmarks.chaos_sqlite import SqliteFaults

_NEEDS_ROOM = frozenset({"write", "open", "mkdir", "link", "fsync", "fdatasync"})
_ALL = _NEEDS_ROOM | {"replace", "rename", "unlink", "remove", "rmdir", "utime", "truncate", "ftruncate"}
#: Faults of the disk: what the system says then, and of which steps.
DISK_FAULTS = {
    "full": (errno.ENOSPC, _NEEDS_ROOM),
    "read_only": (errno.EROFS, _ALL),
    "failing": (errno.EIO, _NEEDS_ROOM | {"rename"}),
}
#: What may happen at a step. `torn`: a write stops half-way, then the process dies.
FAULTS = ("kill", "torn", *DISK_FAULTS)

_CHANGES = frozenset("wax+")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Where to fail."""

    #: Steps below this folder count.
    folder: str
    #: Where the trace and the files that may come back after a power cut are kept: outside `folder`, on the
    #: same file system. Empty: no trace.
    trace: str = ""
    #: Number of the step, from 1; 0 for none.
    at: int = 0
    #: One of `FAULTS`.
    fault: str = "kill"
    #: Steps for which a fault of the disk lasts.
    fault_steps: int = 1
    #: With a fault of the disk: number of a later step at which the process dies; 0 for none.
    die_at: int = 0


class FaultPoints:
    """The installed fault points of this process.

    Args:
        plan: Where to fail.
        told: Called when a fault of the disk begins.

    Attributes:
        steps: How many steps were counted.
        waits_for_disk: Whether SQLite gets its syncs; not in a system that is to be caught without.
    """

    def __init__(self, plan: Plan, told: Callable[[], None] = lambda: None) -> None:
        self.steps = 0
        self.waits_for_disk = True
        self._plan, self._told, self._has_begun = plan, told, False
        self._root = os.path.realpath(plan.folder)
        self._lock = threading.RLock()
        self._real_write, self._real_kill = os.write, os.kill
        self._real_link, self._real_fsync = os.link, os.fsync
        self._trace = -1
        if plan.trace:
            Path(plan.trace).mkdir(parents=True, exist_ok=True)
            path = Path(plan.trace) / "trace.jsonl"
            self._trace = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def install(self) -> None:
        """Replace what changes files; there is no way back."""
        noted: dict[Callable[..., None], tuple[str, ...]] = {
            self._two_paths: ("replace", "rename", "link"),
            self._unlink: ("unlink", "remove"),
            self._path_of: ("mkdir", "rmdir", "utime", "truncate", "ftruncate"),
            self._os_open: ("open",),
        }
        for before, names in noted.items():
            for name in names:
                setattr(os, name, _after(partial(before, name), getattr(os, name)))
        for name in ("fsync", "fdatasync"):
            setattr(os, name, self._of_fsync(name, getattr(os, name)))
        for name in ("write", "pwrite"):
            setattr(os, name, self._of_write(getattr(os, name)))
        opened = self._of_open(io.open)
        io.open = builtins.open = opened
        self._sqlite = SqliteFaults(self)

    def step(self, what: str, path: str, data: Any = None, write: Callable[[Any], int] | None = None) -> None:
        """Count a step and do what the plan says.

        Args:
            what: Kind of the step.
            path: What it changes.
            data: Of a write: the bytes.
            write: Of a write: what writes bytes for real.

        Raises:
            OSError: The plan says that the disk is full, read-only or broken.
        """
        if not self._counts(path):
            return
        with self._lock:
            self.steps += 1
            at, plan = self.steps, self._plan
            if at == plan.die_at:
                self._real_kill(os.getpid(), signal.SIGKILL)
            if not plan.at or at < plan.at:
                return
            if plan.fault in DISK_FAULTS:
                number, steps = DISK_FAULTS[plan.fault]
                if at < plan.at + plan.fault_steps and what in steps:
                    if not self._has_begun:
                        self._has_begun = True
                        self._told()
                    raise OSError(number, os.strerror(number), path)
                return
            if at > plan.at:
                return
            if plan.fault == "torn" and write is not None and data is not None:
                write(bytes(data)[: len(data) // 2])
            self._real_kill(os.getpid(), signal.SIGKILL)

    def _counts(self, path: str) -> bool:
        return path.startswith(self._root + os.sep) or path == self._root

    def _path(self, path: Any) -> str:
        """Where a path or descriptor really points; names themselves are not followed."""
        if isinstance(path, int):
            try:
                return str(Path(f"/proc/self/fd/{path}").readlink())
            except OSError:
                return ""
        text = Path(os.fsdecode(path)).absolute()
        return str(text.parent.resolve() / text.name)

    def note(self, path: str, **said: Any) -> None:
        """Write to the trace, of a path below the folder."""
        if self._trace >= 0 and self._counts(path):
            self._real_write(self._trace, (json.dumps(said) + "\n").encode())

    def keep(self, path: str) -> None:
        """Give a file that is about to lose its name another one: a power cut may bring it back."""
        if self._trace >= 0 and self._counts(path):
            with contextlib.suppress(OSError):
                inode = os.lstat(path).st_ino
                self._real_link(path, Path(self._plan.trace) / str(inode))

    def _two_paths(self, name: str, _: Any, target: Any, **__: Any) -> None:
        path = self._path(target)
        self.step("link" if name == "link" else "rename", path)
        if name != "link":
            self.keep(path)  # of what it replaces

    def _unlink(self, name: str, path: Any, *, dir_fd: int | None = None) -> None:
        # With `dir_fd` it is `shutil.rmtree`, which no part of the system uses on its own files.
        where = self._path(path) if dir_fd is None else ""
        self.step(name, where)
        self.keep(where)

    def _path_of(self, name: str, path: Any, *_: Any, **__: Any) -> None:
        self.step(name, self._path(path))

    def _os_open(
        self, name: str, path: Any, flags: int, *_: Any, dir_fd: int | None = None, **__: Any
    ) -> None:
        if flags & (os.O_CREAT | os.O_TRUNC) and dir_fd is None:
            self.step(name, self._path(path))

    def _of_fsync(self, name: str, real: Callable[[Any], None]) -> Callable[[Any], None]:
        def call(file: Any) -> None:
            descriptor = file if isinstance(file, int) else file.fileno()
            path = self._path(descriptor)
            self.step(name, path)
            if self._trace < 0 or not self._counts(path):
                return real(descriptor)
            # Before the call: what is written while it runs may or may not be in it.
            found = os.fstat(descriptor)
            names = names_in(path) if stat.S_ISDIR(found.st_mode) else None
            real(descriptor)
            if names is None:
                self.note(path, inode=found.st_ino, size=found.st_size)
            else:
                self.note(path, folder=found.st_ino, names=names)
            return None

        return call

    def _of_write(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(descriptor: int, data: Any, *rest: int) -> int:
            self.step("write", self._path(descriptor), data, lambda part: real(descriptor, part, *rest))
            return real(descriptor, data, *rest)

        return call

    def _of_open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        points = self

        class File(io.FileIO):
            def write(self, data: Any) -> int:
                path = points._path(self.fileno())
                points.step("write", path, data, super().write)
                return int(super().write(data))

        def call(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
            changes = not isinstance(file, int) and _CHANGES & set(mode)
            path = points._path(file) if changes else ""
            if not points._counts(path):
                return real(file, mode, buffering, *args, **kwargs)
            points.step("open", path)
            raw = File(file, mode.replace("b", "").replace("t", ""))
            if buffering == 0:
                return raw
            whole = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return whole if "b" in mode else io.TextIOWrapper(whole, *args, **kwargs)

        return call


def _after(before: Callable[..., None], real: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does something before another one, with the same arguments."""

    def call(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        return real(*args, **kwargs)

    return call
