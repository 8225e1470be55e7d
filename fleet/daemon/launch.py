"""The process of a driver, seen from the coordinator."""

from __future__ import annotations

import gc
import json
import resource
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agents.host.child_process import ChildProcess, discard_folder
from fleet.config.settings import FleetConfig
from fleet.core.words import Request, RequestKind
from fleet.drivers.session import DriverChannel
from fleet.errors import disk_errors
from fleet.requests.work import Work

# Python's search for dead cycles, made seldom: it stops everything, and a coordinator hardly makes any.
#
# `fleet.daemon.daemon` runs in it. With a thousand devices and the usual thresholds it took a quarter of
# the processor time, a tenth of a second at a time.

#: New objects before the youngest are looked through, and how often that before older ones are. At 10,000
#: records a second all are looked through every two minutes or so.
_THRESHOLDS = (200_000, 20, 25)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Look for dead cycles seldom, and never among what is there already."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


# How many files and sockets the daemon may have open: as many as it is allowed to allow itself.
#
# A process begins with the soft limit, 1,024 mostly. Agents, the store and Ray take some each, and so does
# whoever connects to the API (`fleet.api.connections`) or to Ray.

#: More are of no use, and some programs walk through all numbers up to the limit.
MOST_OPEN_FILES = 65_536


def raise_open_files() -> int:
    """Raise the soft limit of this process and of all that it starts to the hard one; returns what holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


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
    root: Path, settings: FleetConfig, models: Path, cores: Callable[[], Sequence[int]]
) -> Callable[[Request], DriverProcess]:
    """Make what starts the drivers of a coordinator; those of an earlier one have ended.

    Args:
        root: Folder for the requests' folders; what a killed coordinator has left in it is deleted.
        settings: Those of the coordinator.
        models: Folder of the model versions.
        cores: Gives the logical CPUs on which work disturbs no timing.
    """
    shutil.rmtree(root, ignore_errors=True)

    def launch(request: Request) -> DriverProcess:
        work = Work(
            kind=request.kind,
            arguments=dict(request.arguments),
            minutes=request.minutes,
            settings=settings,
            models=models.absolute(),
            cores=list(cores()),
        )
        return DriverProcess(work, root / request.request_id)

    return launch
