"""Timing cores are lent to one builder while nothing is timed, and taken back the moment something is.

Called by `child.py`, and for what a worker process may not do by itself by `zygote.py`. Compiling takes some
four times as long as timing, so on a host of two cores a timing core that only times would idle most of the
time. A builder therefore may move onto the timing cores; whoever begins to time has it moved to the quiet
cores, and onto the timing cores again afterwards. It never stops building, and no timing ever shares a core
with it. Drawing candidates counts as building. One slot a host, like the timing lock: a lock that the builder
holds. Who that is, only the kernel says, so nobody can have another process moved.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agents.errors import AgentError
from agents.host.host_lock import holder_of, holder_words, not_timing, take_lock
from agents.host.priority import Priority, lower_priority, raise_priority
from agents.host.process_control import pin_process
from agents.sandbox.stages import ChildSettings

#: Name of worker processes, which `zygote.py` gives them; longer ones are cut by the kernel.
WORKER_NAME = "fleet-worker"
#: How often to look whether a builder that may not be moved from here is done.
_POLL_SECS = 0.005
#: Longest wait for a builder: everybody else on the host waits for the timing lock meanwhile.
_MOST_SECS = 120.0
_REQUEST_BYTES = 16


class CoresHeldError(AgentError):
    """The timing cores do not come free."""


class ProcessCores:
    """Moves one worker process and the builder in its way, from outside, and lets it go before others.

    It goes before them only on its timing cores. A worker process may not set its own priority: a candidate
    would run with it while nothing is timed.
    """

    def __init__(self, pid: int, settings: ChildSettings) -> None:
        self._pid, self._settings = pid, settings
        self._moved = 0

    def pin(self, *, timing: bool, first: bool = False) -> Priority:
        """Bind the worker process to its timing cores, or to those that it builds on.

        Only one that times there goes before others (`first`); returns how.
        """
        if not first:
            lower_priority(self._pid)
        pin_process(self._settings.timing_cores if timing else self._settings.build_cores, self._pid)
        return raise_priority(self._pid) if first else Priority.USUAL

    def move_out(self) -> bool:
        """Have the builder in the slot leave the timing cores; false where it may not be moved."""
        builder = self._builder()
        if not builder:
            return False
        pin_process(self._settings.build_cores, builder)
        self._moved = builder
        return True

    def move_back(self) -> None:
        """Have that builder come back, if it still builds."""
        builder, self._moved = self._moved, 0
        if builder and self._builder() == builder:
            pin_process(self._settings.timing_cores, builder)
            if self._builder() != builder:  # it was just leaving
                pin_process(self._settings.build_cores, builder)

    def answer(self, request: bytes) -> bytes:
        """Do what a worker process asks for through `MoverClient`; never raises."""
        with suppress(OSError):  # it ended meanwhile, or has no such cores
            if request in (b"time", b"lent", b"build"):
                return self.pin(timing=request != b"build", first=request == b"time").encode()
            if request == b"out":
                return b"done" if self.move_out() else b"refused"
            if request == b"back":
                self.move_back()
                return b"done"
        return b"refused"

    def _builder(self) -> int:
        """Process id of the builder in the slot if it is a worker process of this user, else 0."""
        pid = holder_of(Path(self._settings.slot_path)) if self._settings.slot_path else 0
        with suppress(OSError):
            folder = Path(f"/proc/{pid}")
            name = folder.joinpath("comm").read_text().strip()
            if pid and name == WORKER_NAME and folder.stat().st_uid == os.geteuid():
                return pid
        return 0


class MoverClient:
    """Moves a worker process from inside, by asking its zygote.

    `end` takes packets to `ProcessCores.answer`.
    """

    def __init__(self, end: socket.socket, settings: ChildSettings) -> None:
        self._end, self._settings = end, settings

    def pin(self, *, timing: bool, first: bool = False) -> Priority:
        """See `ProcessCores.pin`.

        Raises:
            OSError: There are no such cores.
        """
        answer = self._ask((b"time" if first else b"lent") if timing else b"build")
        try:
            return Priority(answer.decode())
        except ValueError:
            cores = self._settings.timing_cores if timing else self._settings.build_cores
            raise OSError(f"this process could not be bound to cores {list(cores)}") from None

    def move_out(self) -> bool:
        """See `ProcessCores.move_out`."""
        return self._ask(b"out") == b"done"

    def move_back(self) -> None:
        """See `ProcessCores.move_back`."""
        self._ask(b"back")

    def _ask(self, request: bytes) -> bytes:
        self._end.send(request)
        return self._end.recv(_REQUEST_BYTES)


class CoreSlot:
    """The slot of a host, as one worker process uses it: two locks (of the slot, of timing) and its mover.

    The builder in the slot holds the lock of the slot.
    """

    def __init__(self, path: Path, timing_lock: Path, mover: MoverClient) -> None:
        self._path, self._timing_lock, self._mover = path, timing_lock, mover

    @contextmanager
    def building(self) -> Iterator[bool]:
        """Build on the timing cores if nobody times or builds there; yields whether that is so.

        The block may be moved to the quiet cores and back at any time, and ends on them.

        Raises:
            HostLockError: One of the two locks cannot be used.
        """
        handle = self._enter()
        try:
            yield handle is not None
        finally:
            if handle is not None:
                self._mover.pin(timing=False)
                self._leave(handle)

    @contextmanager
    def cleared(self) -> Iterator[None]:
        """Have the timing cores to oneself; the caller holds the timing lock.

        Raises:
            CoresHeldError: A builder that may not be moved from here stays on them for minutes.
            HostLockError: The slot's lock cannot be used.
        """
        is_moved = self._clear()
        try:
            yield
        finally:
            if is_moved:
                self._mover.move_back()

    def _enter(self) -> int | None:
        """Take the slot and move onto the timing cores; None where that may not be."""
        try:
            handle = take_lock(self._path, wait_secs=0.0)
        except (BlockingIOError, FileNotFoundError):
            return None  # without its file the slot is closed; the next worker process finds it made again
        is_lent = False
        try:
            # Held until we are where the next timing will look for us.
            with suppress(FileNotFoundError), not_timing(self._timing_lock) as is_free:
                if is_free:
                    self._mover.pin(timing=True)
                    is_lent = True
        finally:
            if not is_lent:
                self._leave(handle)
        return handle if is_lent else None

    def _leave(self, handle: int) -> None:
        os.close(handle)
        # A timing that ended just before may have called us back.
        self._mover.pin(timing=False)

    def _clear(self) -> bool:
        """Wait until no builder is on the timing cores; returns whether one was moved away."""
        end = time.monotonic() + _MOST_SECS
        while not self._is_empty():
            if self._mover.move_out():
                return True
            if time.monotonic() > end:
                raise CoresHeldError(
                    f"a builder has stayed on the timing cores for {_MOST_SECS:g} s and may not be moved "
                    f"from here ({self._path}): {holder_words(self._path)}"
                )
            time.sleep(_POLL_SECS)
        return False

    def _is_empty(self) -> bool:
        try:
            os.close(take_lock(self._path, wait_secs=0.0, is_shared=True))
        except BlockingIOError:
            return False
        except FileNotFoundError:
            pass
        return True
