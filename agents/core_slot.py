"""Timing cores are lent to one builder while nothing is timed, and taken back the moment something is.

Called by `child.py`. Compiling takes some four times as long as timing, so on a host of two cores a timing
core that only times would idle most of the time. A builder therefore may move onto the timing cores; whoever
begins to time moves it back to the cores that it came from, and onto the timing cores again afterwards. It
never stops building, and no timing ever shares a core with it. One slot a host, like the timing lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agents.errors import AgentError
from agents.keeper import ProcessName, is_alive
from agents.measure import not_timing

#: How often to look whether a builder of another user, which we may not move, is done.
_POLL_SEC = 0.005
#: How long it may take: everybody else on the host waits for the timing lock meanwhile.
_MOST_SECS = 120.0
_STATE_BYTES = 1 << 16


class CoresHeldError(AgentError):
    """The timing cores do not come free."""


class CoreSlot:
    """The slot of a host, as one worker process uses it.

    Args:
        path: File of the slot; it holds who is in it, and is locked for the moments in which that changes.
        timing_lock: File of the host's timing lock (`agents.measure.timing_lock`).
        timing_cores: Logical CPUs that are lent.
        quiet_cores: Logical CPUs that this process builds on otherwise.
    """

    def __init__(
        self, path: Path, timing_lock: Path, timing_cores: Sequence[int], quiet_cores: Sequence[int]
    ) -> None:
        self._path, self._timing_lock = path, timing_lock
        self._timing_cores, self._quiet_cores = list(timing_cores), list(quiet_cores)
        self._turns = 0

    @contextmanager
    def building(self) -> Iterator[bool]:
        """Build on the timing cores if nobody times or builds there; yields whether that is so.

        The block may be moved to the quiet cores and back at any time, and ends on them.
        """
        token = self._enter()
        try:
            yield token is not None
        finally:
            if token is not None:
                self._leave(token)

    @contextmanager
    def cleared(self) -> Iterator[None]:
        """Have the timing cores to oneself; the caller holds the timing lock.

        Raises:
            CoresHeldError: A builder of another user stays on them for minutes.
        """
        moved = self._move_out()
        try:
            yield
        finally:
            if moved is not None:
                self._move_back(moved)

    def _enter(self) -> list[int] | None:
        with self._state() as state:
            if state.is_held:
                return None
            # Held until we are where the next timing will look for us. Where nobody has ever timed there is
            # no lock yet: the next build will find it.
            with suppress(FileNotFoundError), not_timing(self._timing_lock) as is_free:
                if is_free:
                    self._turns += 1
                    token = [os.getpid(), ProcessName.of(os.getpid()).started, self._turns]
                    state.write({"token": token, "timing": self._timing_cores, "quiet": self._quiet_cores})
                    _move(os.getpid(), self._timing_cores)
                    return token
        return None

    def _leave(self, token: list[int]) -> None:
        with self._state() as state:
            if state.value and state.value["token"] == token:
                state.write({})
            _move(os.getpid(), self._quiet_cores)

    def _move_out(self) -> list[int] | None:
        end = time.monotonic() + _MOST_SECS
        while True:
            with self._state() as state:
                if not state.is_held:
                    return None
                token: list[int] = state.value["token"]
                try:
                    _move(token[0], state.value["quiet"])
                except PermissionError:
                    pass  # another user's; it leaves by itself
                else:
                    return token
            if time.monotonic() > end:
                raise CoresHeldError(
                    f"process {token[0]} of another user has built on timing cores {self._timing_cores} for "
                    f"{_MOST_SECS:g} s and may not be moved from here: end it"
                )
            time.sleep(_POLL_SEC)

    def _move_back(self, token: list[int]) -> None:
        with self._state() as state, suppress(PermissionError):
            if state.is_held and state.value["token"] == token:
                _move(token[0], state.value["timing"])

    @contextmanager
    def _state(self) -> Iterator[_State]:
        handle = _open_shared(self._path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield _State(handle)
        finally:
            os.close(handle)


class _State:
    """Content of the slot's file while it is locked; empty or torn content means that nobody is in."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self.value: dict[str, Any] = {}
        with suppress(ValueError, KeyError, TypeError):
            found = json.loads(os.pread(handle, _STATE_BYTES, 0))
            pid, started, turn = map(int, found["token"])
            self.value = {**found, "token": [pid, started, turn]}

    @property
    def is_held(self) -> bool:
        """Whether who is named there lives; a later process with its number was never in."""
        if not self.value:
            return False
        pid, started, _ = self.value["token"]
        return is_alive(ProcessName(pid=pid, started=started))

    def write(self, value: dict[str, Any]) -> None:
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, json.dumps(value).encode(), 0)


def _open_shared(path: Path) -> int:
    """Open for every user of the host: in folders such as /tmp only the first one may create it."""
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            with suppress(FileExistsError):
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                os.fchmod(handle, 0o666)  # whatever the umask says
                os.close(handle)


def _move(pid: int, cores: Sequence[int]) -> None:
    """Bind every thread of a process; on return none of them runs elsewhere.

    Raises:
        PermissionError: It is another user's.
    """
    with suppress(FileNotFoundError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cores)
