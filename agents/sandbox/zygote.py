"""A process that has imported TVM and forks worker processes from itself, in milliseconds instead of seconds.

Importing TVM takes 3 to 4 s of a core; a fork of a process that has done so takes 10 ms and shares its
memory. So a worker process that its candidate killed is replaced before anybody notices. `process.py` is the
other end; the messages are JSON, one a packet, with the new process's two files attached (SCM_RIGHTS):

    {"op": "fork", "token": n, "settings": {...}} + [its end of a socket, its stderr]
                                                              ->  {"event": "exited", "token": n, ...}
    {"op": "kill", "token": n}                                ->  the same

Only the zygote, as their parent, can learn how its processes ended, and only it may kill them: until it has
reaped one, that process id belongs to nobody else. Each is confined before it meets a candidate
(`confinement.py`); what it may not do by itself from then on, moving threads to other cores, the zygote does
for it (`core_slot.py`). The zygote itself runs nothing but this loop. It makes no CUDA context and starts no
thread, for neither survives a fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from agents.host.cuda import make_device_files
from agents.host.host_lock import make_lock, timing_lock
from agents.host.process_control import close_all_but, die_with_parent, leave_out_torch
from agents.host.rpc_tracker import reachable
from agents.sandbox.confinement import confine, needs_of
from agents.sandbox.core_slot import WORKER_NAME, ProcessCores
from agents.sandbox.scratch import ScratchFolders
from agents.sandbox.stages import ChildSettings

_PR_SET_NAME = 15
_PACKET_BYTES = 1 << 16
#: Files that come with a request to fork: the socket and stderr of the new process.
_FILES = 2
#: Above every other process: memory that runs out is the fault of what a worker process runs.
_OOM_SCORE = "1000"
#: To wait for the timing lock: its parent gives up soon after, and would not say who holds it.
_LOCK_WAIT_SECS = 100.0
#: The work of a worker process: called with its socket to the pool, that to the zygote, and its settings.
_Run = Callable[[socket.socket, socket.socket, ChildSettings], None]


@dataclass(frozen=True, slots=True)
class _Forked:
    """A worker process that lives."""

    pid: int
    #: Socket for its requests to be moved to other cores.
    moves: socket.socket
    cores: ProcessCores


def _name_process(name: bytes) -> None:
    """Show what a process is in `top` and `ps -o comm`: all of them have the same command line."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name)


class _Zygote:
    """The loop: forks, kills, tells who ended."""

    def __init__(self, control: socket.socket, run: _Run) -> None:
        self._control = control
        self._run = run
        self._forked: dict[int, _Forked] = {}
        self._scratch = ScratchFolders()
        self._selector = selectors.DefaultSelector()
        # A byte arrives here with every SIGCHLD, which wakes the selector.
        self._woken, self._wakeup = socket.socketpair()
        for end in (self._woken, self._wakeup):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Answer until the other end closes; then end every process."""
        for end in (self._control, self._woken):
            self._selector.register(end, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj: key.data for key, _ in self._selector.select()}
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
                self._reap()
            for token in ready.values():
                if token in self._forked:
                    self._move(self._forked[token])
            if self._control in ready:
                packet, files, _, _ = socket.recv_fds(self._control, _PACKET_BYTES, _FILES)
                if not packet:
                    for token in list(self._forked):
                        self._kill(token)
                    self._scratch.close()
                    return
                request = json.loads(packet)
                if request["op"] == "fork":
                    settings = msgspec.convert(request["settings"], ChildSettings)
                    self._fork(request["token"], settings, files)
                else:
                    self._kill(request["token"])

    def _fork(self, token: int, settings: ChildSettings, files: list[int]) -> None:
        zygote = os.getpid()
        for path in filter(None, (settings.lock_path, settings.slot_path)):
            with contextlib.suppress(OSError):  # who needs the lock will say that there is none
                make_lock(Path(path))
        if settings.gpu_index is not None:
            make_device_files()
        scratch = self._scratch.make(token)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError as error:
            # The host has no process left to give. The others go on: their jobs must not be blamed for it.
            os.write(files[-1], f"no process could be started: {error}\n".encode())
            for file in (*files, ours.detach(), theirs.detach()):
                os.close(file)
            self._scratch.remove(token)
            self._send({"event": "exited", "token": token, "code": 1})
            return
        if pid == 0:
            self._become_worker(zygote, files, theirs.detach(), settings, scratch)
        for file in (*files, theirs.detach()):
            os.close(file)
        ours.setblocking(False)
        self._forked[token] = _Forked(pid, ours, ProcessCores(pid, settings))
        self._selector.register(ours, selectors.EVENT_READ, token)

    def _become_worker(
        self, zygote: int, files: list[int], moves: int, settings: ChildSettings, scratch: Path | None
    ) -> None:
        """Never returns: whatever happens in the new process, it must not come back to the loop."""
        status = 1
        try:
            os.setsid()
            die_with_parent(zygote)
            _name_process(WORKER_NAME.encode())
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            channel, stderr = files
            os.dup2(stderr, 1)
            os.dup2(stderr, 2)
            # The worker must not reach the zygote's open files, above all other processes' sockets.
            close_all_but(channel, moves)
            with contextlib.suppress(OSError):  # a container may forbid it
                Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
            if settings.tracker:
                # Names may come from services of the host, which are out of reach from here on.
                settings = replace(settings, tracker=reachable(settings.tracker))
            if scratch is not None:
                os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
            confine(scratch, needs_of(settings))
            self._run(socket.socket(fileno=channel), socket.socket(fileno=moves), settings)
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.flush()
            os._exit(status)

    def _move(self, forked: _Forked) -> None:
        """Do what a worker process asks for; one that does not read its answers gets none."""
        try:
            request = forked.moves.recv(64)
        except OSError:
            request = b""
        if not request:
            self._selector.unregister(forked.moves)  # it is about to end
            return
        with contextlib.suppress(OSError):
            forked.moves.send(forked.cores.answer(request))

    def _kill(self, token: int) -> None:
        forked = self._forked.get(token)
        if forked is None:
            return  # it has ended, and its end was told
        for end in (os.killpg, os.kill):  # before its setsid it has no group yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                end(forked.pid, signal.SIGKILL)

    def _reap(self) -> None:
        for token, forked in list(self._forked.items()):
            ended, status = os.waitpid(forked.pid, os.WNOHANG)
            if ended:
                del self._forked[token]
                # Processes that the worker started are in its group and end with it.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(forked.pid, signal.SIGKILL)
                with contextlib.suppress(KeyError):
                    self._selector.unregister(forked.moves)
                forked.moves.close()
                self._scratch.remove(token)
                self._send({"event": "exited", "token": token, "code": os.waitstatus_to_exitcode(status)})

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the other end is gone; the next read says so
            self._control.send(json.dumps(message).encode())


def main(arguments: list[str]) -> None:
    """Take control socket, parent, cores and timing lock from the command line; import; serve."""
    control_file, parent_pid, cores, lock_path = arguments
    die_with_parent(int(parent_pid))
    _name_process(b"fleet-zygote")
    os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    with ExitStack() as held:
        if lock_path:  # it imports where something is timed
            make_lock(Path(lock_path))
            held.enter_context(timing_lock(Path(lock_path), _LOCK_WAIT_SECS))
        # What the worker processes inherit.
        from agents.programs.gate import compiled_probe
        from agents.sandbox import child

        probe = compiled_probe()
    # Objects that are never collected are never written to, so their pages stay shared.
    gc.collect()
    gc.freeze()
    _Zygote(socket.socket(fileno=int(control_file)), partial(child.run, probe=probe)).serve()


if __name__ == "__main__":
    leave_out_torch()
    main(sys.argv[1:])
