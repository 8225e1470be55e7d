"""The process of a driver, seen from the coordinator."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from agents.host.child_process import ChildProcess, discard_folder
from fleet.config.settings import FleetConfig
from fleet.core.request_words import Request, RequestKind
from fleet.drivers.session import DriverChannel
from fleet.durable import disk_errors
from fleet.requests.work import Work

_MODULE = "fleet.daemon.driver_process"
#: A collection waits most of the time, a search computes: neither must disturb a timing.
_NICE = 5


class DriverProcess:
    """A driver at work in a process; implements `fleet.engine.request_drivers.Driver`.

    The folder is its own, and made anew.
    """

    def __init__(self, work: Work, folder: Path) -> None:
        self._folder = folder
        ours, theirs = socket.socketpair()
        try:
            with theirs, disk_errors("starting the driver of a request", folder):
                self._process = self._started(work, theirs)
        except BaseException:
            ours.close()
            discard_folder(folder)
            raise
        self.channel = DriverChannel(ours)

    def _started(self, work: Work, theirs: socket.socket) -> ChildProcess:
        discard_folder(self._folder)
        self._folder.mkdir(parents=True)
        path = self._folder / "request.json"
        path.write_text(json.dumps(work.model_dump(mode="json")))
        is_waited_for = work.kind is RequestKind.ONBOARDING  # its devices do nothing until the head is made
        return ChildProcess(
            [_MODULE, str(path), str(theirs.fileno())],
            self._folder,
            variables={"OMP_NUM_THREADS": str(max(1, len(work.cores)))},
            cores=work.cores,
            nice=0 if is_waited_for else _NICE,
            pass_fds=[theirs.fileno()],
        )

    def stop(self) -> None:
        """End it and what it started, and let go of its folder; nothing is waited for."""
        self.channel.close()
        self._process.discard()

    def is_over(self, timeout_secs: float = 0.0) -> bool:
        """Whether it has ended; waits for that."""
        return self._process.wait(timeout_secs)

    def failure(self) -> str:
        """How it ended, with the end of its standard error; once it is over."""
        return self._process.failure()


def launcher(
    root: Path, settings: Callable[[], FleetConfig], models: Path, cores: Callable[[], Sequence[int]]
) -> Callable[[Request], DriverProcess]:
    """Make what starts the drivers of a coordinator; those of an earlier one have ended.

    Args:
        root: Folder for the requests' folders; what a killed coordinator has left in it is deleted.
        settings: Gives those of the coordinator.
        models: Folder of the model versions.
        cores: Gives the logical CPUs on which work disturbs no timing.
    """
    shutil.rmtree(root, ignore_errors=True)

    def launch(request: Request) -> DriverProcess:
        work = Work(
            kind=request.kind,
            arguments=dict(request.arguments),
            minutes=request.minutes,
            settings=settings(),
            models=models.absolute(),
            cores=list(cores()),
        )
        return DriverProcess(work, root / request.request_id)

    return launch
