"""The process of a driver, seen from the coordinator."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from agents.host.own_program import command, environment
from fleet.config.settings import FleetConfig
from fleet.core.request_words import Request
from fleet.drivers.work import Work
from fleet.durable import disk_errors
from fleet.requests.channel import DriverChannel

_TAIL_CHARS = 2000
_END_SECS = 5.0


class DriverProcess:
    """A driver at work in a process; implements `fleet.engine.request_drivers.Driver`.

    The folder is its own, and made anew.
    """

    def __init__(self, work: Work, folder: Path) -> None:
        self._folder, self._failure = folder, ""
        ours, theirs = socket.socketpair()
        try:
            with theirs, disk_errors("starting the driver of a request", folder):
                self._process = self._started(work, theirs)
        except BaseException:
            ours.close()
            self._remove_folder()
            raise
        self.channel = DriverChannel(ours)

    def _started(self, work: Work, theirs: socket.socket) -> subprocess.Popen[bytes]:
        self._remove_folder()
        self._folder.mkdir(parents=True)
        path = self._folder / "request.json"
        path.write_text(json.dumps(work.model_dump(mode="json")))
        with (self._folder / "stderr").open("wb") as err:
            arguments = (str(path), str(theirs.fileno()), str(os.getpid()))
            return subprocess.Popen(
                command("fleet.drivers.process", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=err,
                stderr=err,
                env={**environment(), "OMP_NUM_THREADS": str(max(1, len(work.cores)))},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def stop(self) -> None:
        """End it and what it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECS)
        self._failure = self._how_it_ended()
        self.close()

    def close(self) -> None:
        """Let go of it, and of its folder: it has said its end, and does nothing more."""
        self.channel.close()
        self._remove_folder()

    def failure(self) -> str:
        """How it ended, with the end of its standard error; after `stop`."""
        return self._failure

    def _how_it_ended(self) -> str:
        code = self._process.poll()
        how = f"signal {-code} ended its process" if code is not None and code < 0 else f"exit code {code}"
        with suppress(OSError):
            tail = (self._folder / "stderr").read_text(errors="replace").strip()[-_TAIL_CHARS:]
            how += f": {tail}" if tail else ""
        return how

    def _remove_folder(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


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
