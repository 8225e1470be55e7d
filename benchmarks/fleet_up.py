"""A real `fleet up`, and what else runs for a while beside a benchmark: its files, its start, its end.

Called by whatever kills, crowds or watches a daemon that a user could have started. A wait must end some
time, or nothing would ever be found broken; but a time that fits an idle host says nothing of one with ten
programs a core (`patience`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TypeVar

import psutil
import yaml

from agents.host.cpu_features import runnable_levels
from agents.host.probe import probe
from fleet.errors import FleetError
from fleet.json_types import Json, JsonDict

#: Longest wait over that on an idle host.
_MOST = 10.0


def patience(secs: float) -> float:
    """Seconds to wait for what takes some on an idle host, by how many programs each core has to run now."""
    crowd = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    return secs * min(_MOST, max(1.0, crowd))


ROOT = Path(__file__).resolve().parents[1]
#: What `fleet up` prints once its API answers.
READY = "fleet is up"
START_SECS = 300.0
_VERB_SECS, _STOP_SECS = 3600.0, 120.0

_Answer = TypeVar("_Answer")


class LateError(FleetError):
    """What was waited for did not come."""


#: Starts a program from its command, environment and folder; its output goes to a file.
Launch = Callable[[Sequence[str], Mapping[str, str], Path, IO[bytes]], subprocess.Popen[bytes]]


def launch_here(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, out: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a program as a child of this process."""
    return subprocess.Popen(command, cwd=folder, env=dict(environment), stdout=out, stderr=subprocess.STDOUT)


class Program:
    """A program with a log, which may be started again and again by the same command.

    Args:
        command: What is run.
        log: File that gets all that it prints.
        folder: Where it runs.
        environment: Beside that of this process.
        launch: Starts it.

    Attributes:
        starts: How often it was started.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        folder: Path = ROOT,
        environment: Mapping[str, str] | None = None,
        launch: Launch = launch_here,
    ) -> None:
        self._command, self._log, self._folder, self._launch = command, log, folder, launch
        self._environment = {**os.environ, "COLUMNS": "200", **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._told_from = 0
        self.starts = 0

    def start(self) -> None:
        """Start it now."""
        with self._log.open("ab") as out:
            self._told_from = out.tell()
            self._process = self._launch(self._command, self._environment, self._folder, out)
        self.starts += 1

    @property
    def pid(self) -> int:
        """Of its last start."""
        assert self._process is not None
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs, or before its first start."""
        return None if self._process is None else self._process.poll()

    def told(self) -> str:
        """What it has printed since its last start."""
        return self._log.read_bytes()[self._told_from :].decode(errors="replace")

    def stop(self, secs: float) -> int:
        """End it in order; returns its exit code.

        Raises:
            LateError: It does not end in the time.
        """
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(secs)
        except subprocess.TimeoutExpired:
            raise LateError(f"SIGTERM did not end {' '.join(self._command)} within {secs:.0f} s") from None

    def kill(self) -> None:
        """Kill it with all that it has started, if it runs."""
        if self._process is None or self._process.poll() is not None:
            return
        kill_with_children(self._process.pid)
        self._process.wait()


def kill_with_children(pid: int) -> None:
    """Kill a process and all that it has started."""
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        # Stopped, none of them starts another one meanwhile.
        top.suspend()
        every = [*top.children(recursive=True), top]
        for process in every:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(every[:-1], 20)


def verb(*arguments: str) -> list[str]:
    """A command line of `fleet`."""
    return [sys.executable, "-m", "fleet.cli", *arguments]


@contextmanager
def running(program: Program) -> Iterator[Program]:
    """`fleet up` until the block ends, which begins once its API answers."""
    program.start()
    try:
        wait_until(lambda: READY in program.told(), "`fleet up`", patience(START_SECS))
        yield program
        with suppress(LateError):
            program.stop(_STOP_SECS)
    finally:
        program.kill()


def run_verb(folder: Path, *arguments: str) -> None:
    """Run a command of `fleet` in a folder; ends the program if it fails."""
    done = subprocess.run(
        verb(*arguments), cwd=folder, capture_output=True, text=True, timeout=_VERB_SECS, check=False
    )
    if done.returncode:
        raise SystemExit(f"fleet {' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2000:]}")


def wait_until(
    look: Callable[[], _Answer],
    what: str,
    secs: float,
    *,
    meanwhile: Callable[[], object] = lambda: None,
    pause_secs: float = 0.1,
) -> _Answer:
    """Ask until the answer is true, and return it.

    Args:
        look: The question.
        what: Is waited for, for the error.
        secs: How long at most.
        meanwhile: Done before each question.
        pause_secs: Between two questions.

    Raises:
        LateError: It did not come in the time.
    """
    began = time.monotonic()
    while True:
        meanwhile()
        if answer := look():
            return answer
        if time.monotonic() > began + secs:
            raise LateError(f"waited {secs:.0f} s in vain for {what}")
        time.sleep(pause_secs)


def write_fleet(folder: Path, devices: Mapping[str, Json], disk: Path, **sections: Json) -> Path:
    """Write the files of a fleet that trains nothing; returns that of its settings.

    Args:
        folder: Gets `fleet.yaml`, and `hardware` with a file a device.
        devices: What each file says, by id.
        disk: Gets store and daemon.
        sections: Settings beside that.
    """
    hardware = folder / "hardware"
    hardware.mkdir()
    for name, values in devices.items():
        text = yaml.safe_dump({"schema": 1, **values, "device_id": name}, sort_keys=False)
        (hardware / f"{name}.yaml").write_text(text)
    daemon = {"root": str(disk / "fleet"), "api_port": 0, "refresh": False, **sections.pop("daemon", {})}
    settings = {
        "schema": 1,
        "devices": {"folder": str(hardware), "ids": list(devices)},
        "store": {"path": str(disk / "store")},
        "daemon": daemon,
        **sections,
    }
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def replay_device(records: Path, device: str, seed: int = 0) -> JsonDict:
    """What the file of a device says that answers from an exported file."""
    return {"kind": "replay", "family": "cpu", "records": str(records), "device": device, "seed": seed}


def least_profile() -> tuple[str, JsonDict]:
    """Id and file of the least profile of this host: every host can be that."""
    here = probe()
    level = runnable_levels(here.arch, here.isa_flags)[0]
    return level.name, yaml.safe_load(profile_file(level.name).read_text())


def profile_file(name: str) -> Path:
    """The device file of a profile."""
    return ROOT / "configs" / "hardware" / f"{name}.yaml"
