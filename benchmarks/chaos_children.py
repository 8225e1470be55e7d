"""Child processes by the hundred: one process imports what they need, and forks them in milliseconds.

`Forks` holds one end of a pipe, `_serve` the other one, in the process that forks. Only that process, their
parent, reaps the children, so an id that was not waited for is theirs. They die with who asked for them.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from pathlib import Path
from typing import NoReturn

from agents.host.process_control import die_with_parent
from benchmarks.fleet_up import patience
from fleet.json_types import Json, JsonDict

#: How long a child may take in all, and the first answer, which waits for the imports; longer on a full host.
TIMEOUT_SECS = 300.0
#: How a child ends that was refused its start by a full disk, and one that a failing disk has ended in order.
REFUSED, DISK_FAILED = 3, 4
#: File of a history that every training holds locked while it lives.
ALIVE = "alive"
#: How long a child is stopped.
_PAUSE_SECS = 0.05
#: What children need, imported once. Of the last one, `LOADS` are functions of a child's arguments, by name.
_MODULES = (
    "torch._dynamo",
    "torch.utils.tensorboard",
    "xgboost",
    "transfer.adapt.kept",
    "fleet.refresh.freshness_look",
    "fleet.models.training",
    "fleet.refresh.run",
    "benchmarks.chaos_fleet",
)


class ChildError(Exception):
    """A child ended otherwise than it should."""


class Forks:
    """Starts, kills and reaps children.

    Args:
        context: Starts the process that forks: afresh, or, before this process begins a thread, by a fork.
        errors: File that the children print to; else they print where this process does.
    """

    def __init__(self, context: SpawnContext | ForkContext, errors: Path | None = None) -> None:
        self._pipe, theirs = Pipe()
        #: One question at a time: threads that watch processes ask as well.
        self._lock = threading.Lock()
        self._process = context.Process(target=_serve, args=(theirs, errors))
        self._process.start()
        theirs.close()

    def start(self, load: str, arguments: Json) -> int:
        """Fork a process that runs a load; returns its process id."""
        return self._ask((load, dict(arguments)))

    def wait(self, pid: int, most_secs: float | None = None) -> int:
        """Wait for the end of a child: its exit code, or minus the signal.

        Raises:
            ChildError: It does not end in the time; it is killed then.
        """
        if is_late := not _ends_within(pid, most_secs):
            os.kill(pid, signal.SIGKILL)
        code = self._ask(pid)
        if is_late:
            raise ChildError(f"a child did not end within {most_secs:g} s")
        return code

    def run(self, load: str, arguments: Json) -> int:
        """Fork a child, wait for its end; returns its exit code, or minus the signal."""
        return self.wait(self.start(load, arguments), patience(TIMEOUT_SECS))

    def do(self, load: str, arguments: Json) -> None:
        """Fork a child and wait for its end.

        Raises:
            ChildError: It failed.
        """
        if code := self.run(load, arguments):
            raise ChildError(f"{load} ended with {code}")

    def run_and_kill(
        self, load: str, arguments: Json, after_secs: float, pause_at_secs: float | None = None
    ) -> int:
        """Fork a child and kill it after some time, if it still runs.

        Args:
            load: What it does.
            arguments: Of the load.
            after_secs: When.
            pause_at_secs: When to stop it for a moment before.
        """
        pid = self.start(load, arguments)
        if pause_at_secs is not None and not _ends_within(pid, pause_at_secs):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(_PAUSE_SECS)
            os.kill(pid, signal.SIGCONT)
            after_secs -= pause_at_secs
        _ends_within(pid, after_secs)
        os.kill(pid, signal.SIGKILL)
        return self.wait(pid)

    def close(self) -> None:
        """End all children."""
        self._process.kill()
        self._process.join()

    @property
    def is_alive(self) -> bool:
        """Whether there is a process that forks."""
        return self._process.is_alive()

    def _ask(self, question: tuple[str, JsonDict] | int) -> int:
        """Ask for a process that runs a load, or for the exit code of one that has ended.

        Raises:
            ChildError: There is no answer.
        """
        with self._lock:
            try:
                self._pipe.send(question)
                if self._pipe.poll(patience(TIMEOUT_SECS)):
                    return int(self._pipe.recv())
            except (OSError, EOFError):
                pass
        raise ChildError("the process that forks the children is gone")


def _ends_within(pid: int, secs: float | None) -> bool:
    """Wait for the end of a process that nobody has reaped; false if it still runs then."""
    descriptor = os.pidfd_open(pid)
    try:
        return bool(select.select([descriptor], [], [], secs)[0])
    finally:
        os.close(descriptor)


def _serve(pipe: Connection, errors: Path | None) -> None:
    """Fork children as asked, until killed."""
    die_with_parent(os.getppid())
    if errors is not None:
        with errors.open("ab") as stream:
            os.dup2(stream.fileno(), 2)
    os.dup2(2, 1)
    *_, loads = map(importlib.import_module, _MODULES)
    while True:
        question = pipe.recv()
        if isinstance(question, int):
            pipe.send(os.waitstatus_to_exitcode(os.waitpid(question, 0)[1]))
            continue
        load, arguments = question
        if (pid := os.fork()) == 0:
            _be_child(loads.LOADS[load], arguments)
        pipe.send(pid)


def _be_child(load: Callable[[JsonDict], None], arguments: JsonDict) -> NoReturn:
    code = 1
    try:
        die_with_parent(os.getppid())
        load(arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
