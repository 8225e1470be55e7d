"""A real zygote whose worker processes, confined like all others, try what they must not be able to do.

Run as a program it is that zygote; it imports no TVM. `Worker` is the other end.
"""

from __future__ import annotations

import errno
import importlib
import json
import mmap
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from agents.host.process_control import command, environment
from agents.records import as_json_dict
from agents.sandbox.confinement import system_call
from agents.sandbox.core_slot import MoverClient
from agents.sandbox.stages import ChildSettings
from agents.sandbox.wire import Channel
from agents.sandbox.zygote import _Zygote

ROOT = Path(__file__).parent.parent
#: System calls of x86-64 and AArch64.
NUMBERS = {
    "x86_64": {"ptrace": 101, "mount": 165, "setsid": 112, "bpf": 321},
    "aarch64": {"ptrace": 117, "mount": 40, "setsid": 157, "bpf": 280},
}
PTRACE_SEIZE, IO_URING_SETUP = 0x4206, 425
F_SETSIG, MS_REMOUNT, MEMFD_SECRET = 10, 32, 447
DATA = resource.RLIMIT_DATA
#: What attacks use beside the names here.
MODULES = ("ctypes", "fcntl", "mmap", "os", "resource", "socket", "threading")
SHARED, PRIVATE = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def share_zeros() -> None:
    """Map the device of zeros, whose pages are memory that stays while the rest is unmapped."""
    with Path("/dev/zero").open("rb", buffering=0) as zeros:
        mmap.mmap(zeros.fileno(), 1 << 20, mmap.MAP_SHARED, mmap.PROT_READ).close()


def attempt_of(what: str, outside: dict[str, Any]) -> Callable[[], object]:
    """What an expression of a table of attacks does, such as `os.kill(zygote, 0)`.

    Args:
        what: May use this module's names, and `folder`, `kept`, `zygote`, `own` beside those of `outside`.
        outside: `folder`, outside the scratch folder, with the files of `make_folder`; `port`, where somebody
            listens; `stranger`, the id of another process of the same user.
    """
    kept = Path(outside["folder"], "kept")
    words = {"kept": kept, "folder": kept.parent, "zygote": os.getppid(), "own": NUMBERS[os.uname().machine]}
    modules = {name: importlib.import_module(name) for name in MODULES}
    return lambda: eval(what, globals() | modules | outside | words | {"system_call": system_call})


def make_folder(folder: Path) -> None:
    """What attacks need outside."""
    for name in ("kept", "spare"):
        (folder / name).write_text("kept")


def nest(folder: Path, depth: int, kept: Path) -> None:
    """Fill a folder with folders in each other, some with a file and a link to `kept`."""
    handle = os.open(folder, os.O_RDONLY)
    for level in range(depth):
        os.mkdir("n" * 50, dir_fd=handle)
        inner = os.open("n" * 50, os.O_RDONLY, dir_fd=handle)
        if level % 100 == 0:
            os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
            os.symlink(kept, "link", dir_fd=inner)
        os.close(handle)
        handle = inner
    os.close(handle)


def outcome_of(attempt: Callable[[], object]) -> str:
    """`done`, or the name of the error."""
    try:
        attempt()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "done"


def facts() -> dict[str, Any]:
    """What a worker process sees of itself."""
    lines = Path("/proc/self/status").read_text().splitlines()
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "file").write_text("text")
        Path(folder, "file").rename(Path(folder, "renamed"))
        where = folder
    ran = []
    thread = threading.Thread(target=ran.append, args=[1])
    thread.start()
    thread.join()
    files = [int(one.name) for one in Path("/proc/self/fd").iterdir()]
    return {"status": status, "scratch": str(Path(where).parent), "threads": ran, "files": len(files)}


def run(channel: socket.socket, moves: socket.socket, settings: ChildSettings) -> None:
    """Be a worker process: answers one question after the other."""
    jobs, mover = Channel(channel), MoverClient(moves, settings)
    while (message := jobs.receive()) is not None:
        answer: Any
        if message["op"] == "try":
            answer = outcome_of(attempt_of(message["what"], settings.environment))
        elif message["op"] == "pin":
            answer = pinned(mover)
        else:
            answer = facts()
        jobs.send({"answer": answer})


def pinned(mover: MoverClient) -> list[list[int]]:
    """Where the threads of this process may run after it went to its timing cores."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    mover.pin(timing=True)
    tasks = [int(one.name) for one in Path("/proc/self/task").iterdir()]
    found = [sorted(os.sched_getaffinity(task)) for task in tasks]
    done.set()
    thread.join()
    return found


class Worker:
    """One worker process of a zygote of its own; use as a context manager."""

    def __init__(self, settings: ChildSettings, folder: Path, port: int) -> None:
        kept = {"folder": str(folder), "port": port, "stranger": os.getpid()}
        self._settings = replace(settings, environment=kept)

    def __enter__(self) -> Worker:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.zygote = subprocess.Popen(
                command("tests.confinement_fixtures", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                env=environment(),
                cwd=ROOT,
            )
        ours, theirs = socket.socketpair()
        message = {"op": "fork", "token": 0, "settings": as_json_dict(self._settings)}
        with theirs:
            errors = sys.__stderr__.fileno() if sys.__stderr__ else 2
            socket.send_fds(self._control, [json.dumps(message).encode()], [theirs.fileno(), errors])
        self._channel = Channel(ours)
        return self

    def __exit__(self, *exc: object) -> None:
        self._control.close()
        self._channel.close()
        self.zygote.wait(20)

    def ask(self, **message: Any) -> Any:
        """Put a question and give its answer."""
        self._channel.send(message)
        answer = self._channel.receive()
        assert answer is not None, "the worker process died"
        return answer["answer"]


if __name__ == "__main__":
    _Zygote(socket.socket(fileno=int(sys.argv[1])), run).serve()
