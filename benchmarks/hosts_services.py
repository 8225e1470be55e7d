"""Programs that somebody starts again whenever they end, as systemd does with `Restart=always`.

For `benchmarks.hosts`: what `docs/cluster.md` has as units, without systemd.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.hosts_network import TwoHosts

#: As `RestartSec` of the units.
_RESTART_SECS = 2.0
ROOT = Path(__file__).resolve().parents[1]


class Service:
    """One of them.

    Args:
        hosts: Where it runs.
        side: On which of the two.
        command: What is run, the same every time.
        environment: For it.
        log: File that gets all that it prints.
        stale: Folder that is deleted before each start; None for none.

    Attributes:
        starts: How often it was started.
    """

    def __init__(
        self,
        hosts: TwoHosts,
        side: str,
        command: Sequence[str],
        *,
        environment: dict[str, str],
        log: Path,
        stale: Path | None = None,
    ) -> None:
        self._hosts, self._side, self._command = hosts, side, list(command)
        self._environment, self._log, self._stale = environment, log, stale
        self._process: subprocess.Popen[bytes] | None = None
        self._ended_at: float | None = None
        self._told_from = 0
        self.starts = 0

    def start(self) -> None:
        """Start it now."""
        if self._stale is not None:
            shutil.rmtree(self._stale, ignore_errors=True)
        with self._log.open("ab") as out:
            self._told_from = out.tell()
            self._process = self._hosts.start(
                self._side, self._command, environment=self._environment, folder=ROOT, out=out
            )
        self.starts += 1
        self._ended_at = None

    def tend(self) -> None:
        """Start it again if it has ended, after a short pause; to be called often."""
        if self._process is None or self._process.poll() is None:
            return
        now = time.monotonic()
        if self._ended_at is None:
            self._ended_at = now
        elif now > self._ended_at + _RESTART_SECS:
            self.start()

    def told(self) -> str:
        """What it has printed since its last start."""
        return self._log.read_bytes()[self._told_from :].decode(errors="replace")

    def kill(self) -> None:
        """Kill it with all that it has started, at once; `tend` starts it again."""
        if self._process is None or self._process.poll() is not None:
            return
        with suppress(psutil.NoSuchProcess):
            top = psutil.Process(self._process.pid)
            # Stopped, none of them starts another one meanwhile.
            top.suspend()
            every = [*top.children(recursive=True), top]
            for process in every:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(every[:-1], 20)
        self._process.wait()

    def stop(self, number: int, timeout_secs: float) -> int:
        """End it by a signal, for good; returns its exit code.

        Raises:
            TimeoutExpired: It does not end in the time.
        """
        assert self._process is not None
        process, self._process = self._process, None
        os.kill(process.pid, number)
        return process.wait(timeout_secs)


def wait_until(
    is_so: Callable[[], bool], what: str, timeout_secs: float, *, meanwhile: Callable[[], None]
) -> float:
    """Wait for something; returns the seconds that it took.

    Raises:
        TimeoutError: It did not come in the time.
    """
    began = time.monotonic()
    while True:
        meanwhile()
        if is_so():
            return time.monotonic() - began
        if time.monotonic() > began + timeout_secs:
            raise TimeoutError(f"waited {timeout_secs:.0f} s in vain for {what}")
        time.sleep(0.1)
