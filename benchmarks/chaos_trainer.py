"""The process of a refresh, forked instead of started: a training takes a second and can be killed often.

For `benchmarks.chaos_fleet`. What runs in it is `fleet.refresh.process` as it is, under fault points of its
own; only its model is smaller. `agents.host.child_process` deals with a `ForkedProcess` as with any other.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agents.host import child_process as child
from benchmarks.chaos_children import Spawner
from benchmarks.chaos_faults import FaultPoints, Plan
from benchmarks.chaos_history import Event, HistoryLog
from benchmarks.chaos_models import SIZES, watch_registry
from benchmarks.chaos_trouble import ALIVE
from fleet.refresh.process import main
from transfer.train.config import TrainConfig

_TREES = 8
#: Steps on the disk of a short training, of which one is chosen.
_STEPS = 120
#: Share of the trainings that meet their fault.
_UNLUCKY = 0.5


class ForkedProcess:
    """What `agents.host.child_process` asks of a `subprocess.Popen`.

    Args:
        command: Of a refresh: its last part is the request.
        stdout, stderr: Where to write.
        spawner: Forks it.
        arguments: More for `trainer_load`: `history`, `alive`, `plan`.
        log: Told when it was killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdout: FileIO,
        stderr: FileIO,
        spawner: Spawner,
        arguments: Mapping[str, Any],
        log: HistoryLog,
        **_: Any,
    ) -> None:
        self._spawner, self._log = spawner, log
        # It opens the files anew: those of this process are not there where it is forked.
        given = {**arguments, "request": command[-1], "stdout": _path_of(stdout), "stderr": _path_of(stderr)}
        self.pid = spawner.start("trainer", given)

    def wait(self) -> int:
        """Wait for its end: its exit code."""
        while (code := self._spawner.poll(self.pid)) is None:
            time.sleep(0.005)
        if code == -signal.SIGKILL:
            self._log.add(Event(kind="killed", by="trainer"))
        return code

    def kill(self) -> None:
        """End it at once."""
        os.kill(self.pid, signal.SIGKILL)


def _path_of(stream: FileIO) -> str:
    return str(Path(f"/proc/self/fd/{stream.fileno()}").readlink())


def fork_trainings(
    spawner: Spawner, root: Path, plan: Mapping[str, Any], log: HistoryLog, rng: random.Random
) -> None:
    """Let every training of this process be forked, half of them with the fault of a plan at some step."""
    places = {"history": str(root / "history.jsonl"), "alive": str(root / ALIVE)}

    def opened(command: Sequence[str], **options: Any) -> ForkedProcess:
        at = rng.randint(1, _STEPS) if plan["at"] and rng.random() < _UNLUCKY else 0
        given = {**places, "plan": {**plan, "at": at, "die_at": 0}}
        return ForkedProcess(command, spawner=spawner, arguments=given, log=log, **options)

    made = SimpleNamespace(Popen=opened, DEVNULL=subprocess.DEVNULL)
    setattr(child, "subprocess", made)  # noqa: B010  # for the type checker it is a module


def trainer_load(arguments: dict[str, Any]) -> None:
    """Be the process of a refresh; the arguments are those of `ForkedProcess`."""
    os.setsid()
    for name, number in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(arguments[name], os.O_WRONLY | os.O_APPEND), number)
    # Who cuts the power waits until nobody holds it any more.
    fcntl.flock(os.open(arguments["alive"], os.O_RDWR | os.O_CREAT), fcntl.LOCK_SH)
    defaults = TrainConfig.__init__.__kwdefaults__
    assert defaults is not None
    defaults.update(trees=_TREES, sizes=SIZES)
    log = HistoryLog(Path(arguments["history"]))
    watch_registry(log)
    told: Callable[[], None] = partial(log.add, Event(kind="trouble", by="disk fault"))
    FaultPoints(Plan(**arguments["plan"]), told).install()
    code = main([arguments["request"]])
    os._exit(code)
