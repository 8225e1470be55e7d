"""A process that has imported TVM and forks worker processes from itself, in milliseconds instead of seconds.

Importing TVM takes 3 to 4 s of a core; a fork of a process that has done so takes 10 ms and shares its
memory. So a worker process that its candidate killed is replaced before anybody notices. `process.py` is the
other end; the messages are JSON, one a packet, with the new process's two files attached (SCM_RIGHTS):

    {"op": "fork", "token": n} + [its end of a socket, its stderr]    ->  {"event": "exited", "token": n, ...}
    {"op": "kill", "token": n}                                        ->  the same

Only the zygote, as their parent, can learn how its processes ended, and only it may kill them: until it has
reaped one, that process id belongs to nobody else. The zygote itself runs nothing but this loop. It makes no
CUDA context and starts no thread, for neither survives a fork.
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
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PACKET_BYTES = 1 << 16
#: Files that come with a request to fork: the socket and stderr of the new process.
_FILES = 2
#: Above every other process: memory that runs out is the fault of what a worker process runs.
_OOM_SCORE = "1000"


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to end this process when its parent does, so that no orphan keeps the timing lock."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the call
        os._exit(1)


def _name_process(name: bytes) -> None:
    """Show what a process is in `top` and `ps -o comm`: all of them have the same command line."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name)


class _Zygote:
    """The loop: forks, kills, tells who ended."""

    def __init__(self, control: socket.socket, run: Callable[[int], None]) -> None:
        self._control = control
        self._run = run
        self._pids: dict[int, int] = {}
        # A byte arrives here with every SIGCHLD, which wakes the selector.
        self._woken, self._wakeup = socket.socketpair()
        for end in (self._woken, self._wakeup):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Answer until the other end closes; then end every process."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._woken in ready:
                    with contextlib.suppress(BlockingIOError):
                        self._woken.recv(4096)
                    self._reap()
                if self._control in ready:
                    packet, files, _, _ = socket.recv_fds(self._control, _PACKET_BYTES, _FILES)
                    if not packet:
                        for token in list(self._pids):
                            self._kill(token)
                        return
                    request = json.loads(packet)
                    if request["op"] == "fork":
                        self._fork(request["token"], files)
                    else:
                        self._kill(request["token"])

    def _fork(self, token: int, files: list[int]) -> None:
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_worker(zygote, files)
        for file in files:
            os.close(file)
        self._pids[token] = pid

    def _become_worker(self, zygote: int, files: list[int]) -> None:
        """Never returns: whatever happens in the new process, it must not come back to the loop."""
        status = 1
        try:
            os.setsid()
            die_with_parent(zygote)
            _name_process(b"fleet-worker")
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._control, self._woken, self._wakeup):
                end.close()
            channel, stderr = files
            os.dup2(stderr, 1)
            os.dup2(stderr, 2)
            os.close(stderr)
            with contextlib.suppress(OSError):  # a container may forbid it
                Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
            self._run(channel)
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.flush()
            os._exit(status)

    def _kill(self, token: int) -> None:
        pid = self._pids.get(token)
        if pid is None:
            return  # it has ended, and its end was told
        for end in (os.killpg, os.kill):  # before its setsid it has no group yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                end(pid, signal.SIGKILL)

    def _reap(self) -> None:
        for token, pid in list(self._pids.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._pids[token]
                # What it started is in its group and ends with it.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
                self._tell({"event": "exited", "token": token, "code": os.waitstatus_to_exitcode(status)})

    def _tell(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the other end is gone; the next read says so
            self._control.send(json.dumps(message).encode())


def main(arguments: list[str]) -> None:
    """Take control socket, parent, cores and timing lock from the command line; import; serve."""
    control_file, parent_pid, cores, lock_path = arguments
    die_with_parent(int(parent_pid))
    _name_process(b"fleet-zygote")
    os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    from agents import child
    from agents.measure import timing_lock

    with ExitStack() as held:
        if lock_path:  # it imports where something is timed
            held.enter_context(timing_lock(Path(lock_path)))
        import tvm  # noqa: F401  # what the worker processes inherit
    # Objects that are never collected are never written to, so their pages stay shared.
    gc.collect()
    gc.freeze()
    _Zygote(socket.socket(fileno=int(control_file)), child.run).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
