"""Fault points: count a process's steps on the disk, and let it die, or let the disk be full, at one of them.

Only children of `benchmarks.chaos` install them, in themselves: the functions of `os` and `io.open` that
change files are replaced for good. SQLite, which writes in C, gets a file system layer of its own around the
usual one (a VFS: https://www.sqlite.org/vfs.html). What Rust or C++ code writes is not seen here; kills from
outside at random moments fall there.

A step is a write, fsync, creation, rename, link, unlink, truncation or change of times below one folder.
The fault happens *before* step `at`, so the sweep over all of them covers what lies between any two. A trace
tells what has reached the disk for certain; `benchmarks.chaos_power` takes away the rest.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import errno
import io
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.chaos_power import content_of, copy_path

_NEEDS_ROOM = frozenset({"write", "pwrite", "open", "mkdir", "link", "fsync", "fdatasync"})
_RENAMES, _REMOVALS = frozenset({"replace", "rename"}), frozenset({"unlink", "remove"})
_OTHERS = frozenset({"rmdir", "utime", "truncate", "ftruncate"})
#: Faults of the disk: what the system says then, and of which steps.
DISK_FAULTS = {
    "full": (errno.ENOSPC, _NEEDS_ROOM),
    "read_only": (errno.EROFS, _NEEDS_ROOM | _RENAMES | _REMOVALS | _OTHERS),
    "failing": (errno.EIO, _NEEDS_ROOM | _RENAMES),
}
_CREATES = os.O_CREAT | os.O_TRUNC

_Code = TypeVar("_Code")


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
    #: `kill`, one of `DISK_FAULTS`, or `torn`: a write stops half-way, then the process dies.
    fault: str = "kill"
    #: Steps for which a fault of the disk lasts.
    fault_steps: int = 1
    #: With a fault of the disk: number of a later step at which the process dies; 0 for none.
    die_at: int = 0


class FaultPoints:
    """The installed fault points of this process.

    Args:
        plan: Where to fail.
        notify: Called when a fault of the disk begins.

    Attributes:
        steps: How many steps were counted.
        waits_for_disk: Whether SQLite gets its syncs; not in a system that is to be caught without.
    """

    def __init__(self, plan: Plan, notify: Callable[[], None] = lambda: None) -> None:
        self.steps = 0
        self.waits_for_disk = True
        self._plan, self._notify, self._has_begun = plan, notify, False
        self._root = os.path.realpath(plan.folder)
        self._lock = threading.RLock()
        self._real_kill, self._real_link = os.kill, os.link

    def install(self) -> None:
        """Replace what changes files; there is no way back."""
        wrappers: dict[Callable[..., Any], Collection[str]] = {
            self._change: (*_RENAMES, *_REMOVALS, *_OTHERS, "link", "mkdir", "open"),
            self._fsync: ("fsync", "fdatasync"),
            self._write: ("write", "pwrite"),
        }
        for wrapper, names in wrappers.items():
            for name in names:
                setattr(os, name, partial(wrapper, name, getattr(os, name)))
        opened: Any = partial(self._open, io.open)
        io.open = builtins.open = opened
        self._sqlite = SqliteFaults(self)

    def step(self, what: str, path: str, data: Any = None, write: Callable[[Any], int] | None = None) -> None:
        """Count a step and do what the plan says.

        Args:
            what: Kind of the step: name of a function of `os`.
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
                        self._notify()
                    raise OSError(number, os.strerror(number), path)
            elif at == plan.at:
                if plan.fault == "torn" and write is not None:
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

    def sync(
        self, path: str, source: Path, real: Callable[[], _Code], read: Callable[[Path], bytes] = content_of
    ) -> _Code:
        """Sync a file or folder, and copy to the trace what has reached the disk for certain then.

        Args:
            path: What is synced.
            source: Leads there, even if it has lost its name.
            real: Does it.
            read: Reads it.
        """
        if not self._plan.trace or not self._counts(path):
            return real()
        # Before the call: what is written while it runs may or may not be in it.
        target, content = copy_path(source.stat().st_ino, Path(self._plan.trace)), read(source)
        code = real()
        fresh = target.with_suffix(f".{threading.get_ident()}")  # whole, whenever a kill comes
        fresh.write_bytes(content)
        fresh.replace(target)
        return code

    def keep(self, path: str) -> None:
        """Give a file that is about to lose its name another one: a power cut may bring it back."""
        if self._plan.trace and self._counts(path):
            with contextlib.suppress(OSError):
                self._real_link(path, Path(self._plan.trace) / str(os.lstat(path).st_ino))

    def _change(self, name: str, real: Callable[..., Any], *args: Any, **options: Any) -> Any:
        is_read = name == "open" and not args[1] & _CREATES
        # With `dir_fd` it is `shutil.rmtree`, which no part of the system uses on its own files.
        if not is_read and options.get("dir_fd") is None:
            path = self._path(args[1] if name in _RENAMES or name == "link" else args[0])
            self.step(name, path)
            if name in _RENAMES | _REMOVALS:  # of a rename what it replaces
                self.keep(path)
        return real(*args, **options)

    def _fsync(self, name: str, real: Callable[[Any], None], file: Any) -> None:
        descriptor = file if isinstance(file, int) else file.fileno()
        path = self._path(descriptor)
        self.step(name, path)
        self.sync(path, Path(f"/proc/self/fd/{descriptor}"), lambda: real(descriptor))

    def _write(self, _: str, real: Callable[..., int], descriptor: int, data: Any, *rest: int) -> int:
        self.step("write", self._path(descriptor), data, lambda part: real(descriptor, part, *rest))
        return real(descriptor, data, *rest)

    def _open(
        self,
        real: Callable[..., Any],
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        *more: Any,
        **options: Any,
    ) -> Any:
        changes = not isinstance(file, int) and set("wax+") & set(mode)
        path = self._path(file) if changes else ""
        if not self._counts(path):
            return real(file, mode, buffering, *more, **options)
        self.step("open", path)
        raw = _File(file, mode.replace("b", "").replace("t", ""))
        raw.points = self
        if buffering == 0:
            return raw
        whole = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return whole if "b" in mode else io.TextIOWrapper(whole, *more, **options)


class _File(io.FileIO):
    """A file whose writes are steps."""

    points: FaultPoints

    def write(self, data: Any) -> int:
        self.points.step("write", self.points._path(self.fileno()), data, super().write)
        return int(super().write(data))


_CREATE, _LOGS = 0x4, 0x800 | 0x4000 | 0x80000  # of a journal, a super journal, a log
_INT, _INT64, _PTR, _TEXT = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p
_OPEN = ctypes.CFUNCTYPE(_INT, _PTR, _PTR, _PTR, _INT, _PTR)
_DELETE = ctypes.CFUNCTYPE(_INT, _PTR, _PTR, _INT)
_MOVE = ctypes.CFUNCTYPE(_INT, _PTR, _PTR, _INT, _INT64)
_RESIZE, _SYNC = ctypes.CFUNCTYPE(_INT, _PTR, _INT64), ctypes.CFUNCTYPE(_INT, _PTR, _INT)


class _Vfs(ctypes.Structure):
    """`sqlite3_vfs`, with those methods that stay as they are as one block."""

    _fields_ = (
        *(("version", _INT), ("file_bytes", _INT), ("most_path", _INT), ("next", _PTR), ("name", _TEXT)),
        *(("data", _PTR), ("open", _OPEN), ("delete", _DELETE), ("others", _PTR * 14)),
    )


class _Methods(ctypes.Structure):
    """`sqlite3_io_methods`, of the third version."""

    _fields_ = (
        *(("version", _INT), ("close", _PTR), ("read", _MOVE), ("write", _MOVE), ("truncate", _RESIZE)),
        *(("sync", _SYNC), ("others", _PTR * 13)),
    )


class SqliteFaults:
    """The layer; the newest one is the default of every connection that is opened from then on.

    Args:
        points: Counts the steps and writes the trace.
    """

    def __init__(self, points: FaultPoints) -> None:
        self._points = points
        with Path("/proc/self/maps").open() as stream:
            paths = [line.split()[-1] for line in stream if "libsqlite3" in line]
        self._library = ctypes.CDLL(paths[0] if paths else sqlite3._sqlite3.__file__)  # type: ignore[attr-defined]
        self._library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        self._real: _Vfs = self._library.sqlite3_vfs_find(None).contents
        self._vfs = _Vfs.from_buffer_copy(self._real)
        self._vfs.name, self._vfs.open, self._vfs.delete = b"chaos", _OPEN(self._open), _DELETE(self._delete)
        #: By address: path of an open file, its real methods, and whether its name is not durable yet.
        self._files: dict[int, tuple[str, _Methods, bool]] = {}
        #: By address of the real ones: methods that count.
        self._methods: dict[int, _Methods] = {}
        if self._library.sqlite3_vfs_register(ctypes.byref(self._vfs), 1):
            raise RuntimeError("SQLite does not take the layer with the fault points")

    def _open(self, _: int, name: int | None, file: int, flags: int, out_flags: int) -> int:
        # SQLite keeps the address of the name, so that goes on as it came.
        path = os.fsdecode(ctypes.string_at(name)) if name else ""
        is_new = bool(flags & _CREATE) and not os.path.lexists(path)
        if is_new and (code := self._step("open", path)):
            return code
        code = self._real.open(ctypes.addressof(self._real), name, file, flags, out_flags)
        pointer = _PTR.from_address(file)
        if code == 0 and path and pointer.value:
            real = _Methods.from_address(pointer.value)
            self._files[file] = (path, real, is_new and bool(flags & _LOGS))
            ours = self._methods.get(pointer.value)
            if ours is None:
                ours = self._methods[pointer.value] = _Methods.from_buffer_copy(real)
                ours.write, ours.truncate = _MOVE(self._write), _RESIZE(self._truncate)
                ours.sync = _SYNC(self._sync)
            pointer.value = ctypes.addressof(ours)
        return int(code)

    def _write(self, file: int, data: int, count: int, offset: int) -> int:
        path, real, _ = self._files[file]

        def part(some: bytes) -> int:
            return int(real.write(file, data, len(some), offset))

        if code := self._step("write", path, ctypes.string_at(data, count), part):
            return code
        return int(real.write(file, data, count, offset))

    def _truncate(self, file: int, size: int) -> int:
        path, real, _ = self._files[file]
        if code := self._step("truncate", path):
            return code
        return int(real.truncate(file, size))

    def _sync(self, file: int, flags: int) -> int:
        path, real, is_unnamed = self._files[file]
        code = self._step("fsync", path)
        if code == 0 and self._points.waits_for_disk:
            # Whoever opens and closes the file himself takes SQLite's locks away.
            code = self._points.sync(
                path, Path(path), lambda: int(real.sync(file, flags)), lambda _: self._content(file)
            )
            if is_unnamed:  # SQLite syncs the folder of a new log with it
                self._sync_folder(path)
                self._files[file] = (path, real, False)
        return code

    def _content(self, file: int) -> bytes:
        path, real, _ = self._files[file]
        content = ctypes.create_string_buffer(Path(path).stat().st_size)
        real.read(file, ctypes.addressof(content), len(content), 0)
        return content.raw

    def _sync_folder(self, path: str) -> None:
        folder = Path(path).parent
        self._points.sync(str(folder), folder, lambda: 0)

    def _delete(self, _: int, name: int, wants_sync: int) -> int:
        path = os.fsdecode(ctypes.string_at(name))
        if os.path.lexists(path):
            if code := self._step("unlink", path):
                return code
            self._points.keep(path)
        code = int(self._real.delete(ctypes.addressof(self._real), name, wants_sync))
        if code == 0 and wants_sync and self._points.waits_for_disk:
            self._sync_folder(path)
        return code

    def _step(self, what: str, path: str, data: Any = None, write: Callable[[Any], int] | None = None) -> int:
        """Count a step; the code of SQLite for what the plan has the disk say."""
        try:
            self._points.step(what, path, data, write)
        except OSError as error:
            codes = {errno.ENOSPC: sqlite3.SQLITE_FULL, errno.EROFS: sqlite3.SQLITE_READONLY}
            return codes.get(error.errno or 0, sqlite3.SQLITE_IOERR)
        return 0
