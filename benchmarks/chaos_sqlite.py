"""Fault points below SQLite, which writes in C: a file system layer of its own (a VFS) around the usual one.

`benchmarks.chaos_faults` installs it. SQLite asks the layer for every creation, write, truncation, sync and
deletion of a file; each becomes a step there. What a write or truncation takes away is written to the trace
until the file is synced, for a power cut may bring it back. Methods: https://www.sqlite.org/vfs.html
"""

from __future__ import annotations

import ctypes
import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.chaos_power import names_in

if TYPE_CHECKING:
    from benchmarks.chaos_faults import FaultPoints

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
        self._keep_bytes(file, offset, count)
        return int(real.write(file, data, count, offset))

    def _truncate(self, file: int, size: int) -> int:
        path, real, _ = self._files[file]
        if code := self._step("truncate", path):
            return code
        self._keep_bytes(file, size, max(0, Path(path).stat().st_size - size))
        return int(real.truncate(file, size))

    def _sync(self, file: int, flags: int) -> int:
        path, real, is_unnamed = self._files[file]
        if code := self._step("fsync", path):
            return code
        if not self._points.waits_for_disk:
            return 0
        # Before the call: what is written while it runs may or may not be in it.
        status, folder = Path(path).stat(), Path(path).parent
        names = names_in(str(folder)) if is_unnamed else None
        code = int(real.sync(file, flags))
        if code == 0:
            self._points.note_synced(path, status)
            if names is not None:  # SQLite syncs the folder of a new log with it
                self._points.note_synced(path, folder.stat(), names)
                self._files[file] = (path, real, False)
        return code

    def _delete(self, _: int, name: int, wants_sync: int) -> int:
        path = os.fsdecode(ctypes.string_at(name))
        if os.path.lexists(path):
            if code := self._step("unlink", path):
                return code
            self._points.keep(path)
        code = int(self._real.delete(ctypes.addressof(self._real), name, wants_sync))
        folder = Path(path).parent
        if code == 0 and wants_sync and self._points.waits_for_disk:
            self._points.note_synced(path, folder.stat(), names_in(str(folder)))
        return code

    def _step(self, what: str, path: str, data: Any = None, write: Callable[[Any], int] | None = None) -> int:
        """Count a step; the code of SQLite for what the plan has the disk say."""
        try:
            self._points.step(what, path, data, write)
        except OSError as error:
            codes = {errno.ENOSPC: sqlite3.SQLITE_FULL, errno.EROFS: sqlite3.SQLITE_READONLY}
            return codes.get(error.errno or 0, sqlite3.SQLITE_IOERR)
        return 0

    def _keep_bytes(self, file: int, offset: int, count: int) -> None:
        """Write what is about to be overwritten or cut off to the trace."""
        path, real, _ = self._files[file]
        status = Path(path).stat()
        count = min(count, status.st_size - offset)
        if count > 0:
            was = ctypes.create_string_buffer(count)
            if real.read(file, ctypes.addressof(was), count, offset) == 0:
                self._points.note(path, inode=status.st_ino, offset=offset, was=was.raw.hex())
