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
from typing import TYPE_CHECKING

from agents.host.own_program import command, environment
from fleet.core.request_words import Request
from fleet.durable import disk_errors
from fleet.requests.channel import DriverChannel

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig

_TAIL_CHARS = 2000
_END_SECS = 5.0


class DriverProcess:
    """A driver at work in a process; implements `fleet.engine.request_drivers.Driver`.

    Args:
        request: What it is for.
        folder: Of its own; made anew.
        settings: Of the coordinator.
        models: Folder of the model versions.
        cores: Logical CPUs that it may use; all where empty.
    """

    def __init__(
        self,
        request: Request,
        folder: Path,
        settings: FleetConfig,
        models: Path,
        cores: Sequence[int],
    ) -> None:
        self._folder, self._failure = folder, ""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = self._started(request, settings, models, cores, theirs)
        except BaseException:
            ours.close()
            self._remove_folder()
            raise
        self.channel = DriverChannel(ours)

    def _started(
        self,
        request: Request,
        settings: FleetConfig,
        models: Path,
        cores: Sequence[int],
        theirs: socket.socket,
    ) -> subprocess.Popen[bytes]:
        folder = self._folder
        with disk_errors("starting the driver of a request", folder):
            self._remove_folder()
            folder.mkdir(parents=True)
            value = {
                "kind": request.kind.value,
                "arguments": dict(request.arguments),
                "minutes": request.minutes,
                "settings": settings.model_dump(mode="json"),
                "models": str(models.absolute()),
                "cores": list(cores),
            }
            path = folder / "request.json"
            path.write_text(json.dumps(value))
            with (folder / "stderr").open("wb") as err:
                arguments = (str(path), str(theirs.fileno()), str(os.getpid()))
                return subprocess.Popen(
                    command("fleet.drivers.process", *arguments),
                    stdin=subprocess.DEVNULL,
                    stdout=err,
                    stderr=err,
                    env={**environment(), "OMP_NUM_THREADS": str(max(1, len(cores)))},
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
    return lambda one: DriverProcess(one, root / one.request_id, settings(), models, cores())
