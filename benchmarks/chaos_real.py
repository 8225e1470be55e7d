"""`fleet up` as it is, on a real profile of this host and replay devices; its processes are killed in turn.

`benchmarks.chaos_wreck` kills, `benchmarks.comeback` takes the time. What the coordinator promises is written
down inside of it, so it is started through this module: `python -m benchmarks.chaos_real HISTORY up ...` is
`fleet up ...`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos_children import ChildError
from benchmarks.chaos_history import HistoryLog
from benchmarks.patience import patience

ROOT = Path(__file__).resolve().parents[1]
_SELF = (sys.executable, "-m", "benchmarks.chaos_real")
_READY, _TRAINER = "fleet is up", "fleet.refresh.process"
_START_SECS, WAIT_SECS, _STOP_SECS = 300.0, 180.0, 180.0
#: Short, so that an agent that was stopped by a signal is past its lease soon; and a wedged device back.
LEASE_SECS, _QUARANTINE_SECS = 8.0, 20.0
#: Trainings one after the other, as soon as there is anything new.
_TRAINS = "training_records: 60, training_share: 0.0, reason_records: 20, training_pause_secs: 2"
_REST = "refresh: false"
#: What `fleet up` says when Ray took longer for its start than it allows itself, and how often the command is
#: given again then: on a crowded host it is nobody's fault, and a service would be started again.
_RAY_SLOW, _MOST_STARTS = "timed out during startup", 3


class RealFleet:
    """One fleet on the disk, and its coordinator while there is one.

    Args:
        root: Folder of everything.
        recorded: What the replay devices answer from.
        local: Device files of this host's profiles, by device id.
        trains: Whether it trains and publishes, as often as it can.
    """

    def __init__(self, root: Path, recorded: Path, local: dict[str, Path], *, trains: bool = False) -> None:
        self.root, self.disk, self.local = root, root / "disk", sorted(local)
        self.history = root / "history.jsonl"
        self._process: subprocess.Popen[bytes] | None = None
        #: Starts that Ray was too slow for.
        self.slow_starts = 0
        hardware = root / "hardware"
        hardware.mkdir()
        for path in local.values():
            shutil.copy(path, hardware)
        for name in ("replay-a", "replay-b"):
            device = f"device_id: {name}\nkind: replay\nfamily: cpu\nrecords: {recorded}\ndevice: bench\n"
            (hardware / f"{name}.yaml").write_text(f"schema: 1\n{device}")
        ids = ", ".join([*self.local, "replay-a", "replay-b"])
        (root / "fleet.yaml").write_text(
            f"schema: 1\ndevices: {{folder: {hardware}, ids: [{ids}]}}\n"
            "workloads: {networks: [bert-tiny], count: 3, noise_samples: 0}\n"
            f"store: {{path: {self.disk / 'store'}}}\n"
            "training: {epochs: 1}\n"
            f"daemon: {{root: {self.disk / 'fleet'}, api_port: 0, lease_secs: {LEASE_SECS},"
            f" quarantine_secs: {_QUARANTINE_SECS}, stop_secs: 20, {_TRAINS if trains else _REST}}}\n"
        )

    @property
    def pid(self) -> int:
        """The coordinator's."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Give the command, the same every time; returns the seconds until a device can be used."""
        began = time.monotonic()
        self.begin()
        self.until(lambda: any(self.is_usable(name) for name in self.states()), "usable", _START_SECS)
        return time.monotonic() - began

    def begin(self) -> None:
        """Give the command, and wait until it says that it is up.

        Raises:
            ChildError: It is not, or it ended.
        """
        said = ""
        for _ in range(_MOST_STARTS):
            told = self._launch()
            self.until(partial(self._has_begun, told), "ready", _START_SECS, may_end=True)
            said = told()
            if not self.is_over:
                return
            if _RAY_SLOW not in said:
                break
            self.slow_starts += 1
        raise ChildError(f"the coordinator ended at its start: {said[-1500:]}")

    def _has_begun(self, told: Callable[[], str]) -> bool:
        return self.is_over or _READY in told()

    def _launch(self) -> Callable[[], str]:
        """Give the command; returns what tells what it has said since."""
        out = self.root / "up.log"
        with out.open("ab") as stream:
            before = stream.tell()
            told = ("--config", str(self.root / "fleet.yaml"), "--models", str(self.disk / "models"))
            self._process = subprocess.Popen(
                [*_SELF, str(self.history), "up", *told],
                cwd=ROOT,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, "COLUMNS": "200"},
            )
        return lambda: out.read_bytes()[before:].decode(errors="replace")

    @property
    def is_over(self) -> bool:
        """Whether the coordinator has ended."""
        return self._process is not None and self._process.poll() is not None

    def states(self) -> dict[str, dict[str, Any]]:
        """What the API says of each device; empty while it says nothing."""
        folder = self.disk / "fleet"
        try:
            address = json.loads((folder / "api.json").read_text())["url"]
            token = (folder / "api.token").read_text().strip()
            request = urllib.request.Request(
                f"{address}/v1/status", headers={"Authorization": f"Bearer {token}"}
            )
            with urllib.request.urlopen(request, timeout=5) as answer:
                view = json.load(answer)
        except (OSError, ValueError, KeyError):
            return {}
        return dict(view["devices"]) if view.get("coordinator", {}).get("pid") == self.pid else {}

    def is_usable(self, name: str, after: int = 0) -> bool:
        """Whether a device's agent, a later one than `after`, is up."""
        found = self.states().get(name, {})
        return found.get("state") in ("idle", "leased") and found["incarnation"] > after

    def find(self, role: str) -> psutil.Process | None:
        """A living process: `coordinator`, `raylet`, `agent`, `builder`, `timer` or `trainer`."""
        if role == "coordinator":
            return psutil.Process(self.pid)
        found = []
        timing = _lock_holders()
        for process in psutil.Process(self.pid).children(recursive=True):
            try:
                name = Path(f"/proc/{process.pid}/comm").read_text().strip()
                line = " ".join(process.cmdline())
            except (OSError, psutil.Error):
                continue
            is_agent = line.startswith("ray::AgentHostActor") or name.startswith("ray::AgentHost")
            is_worker = name == "fleet-worker"
            if (
                (role == "raylet" and name == "raylet")
                or (role == "trainer" and _TRAINER in line)
                or (role == "agent" and is_agent and _has_children(process))
                or (role == "timer" and is_worker and process.pid in timing)
                or (role == "builder" and is_worker and process.pid not in timing)
            ):
                found.append(process)
        return random.choice(found) if found else None

    def kill(self, role: str, *, wait: bool = True) -> None:
        """Kill a process of a role; waits for one, for instance until something is timed.

        Args:
            role: As in `find`.
            wait: With the coordinator: until all that ends with it is gone.

        Raises:
            ChildError: There is none.
        """
        self.signal(role, signal.SIGKILL)
        if role == "coordinator":
            self.ended(everything=wait)

    def signal(self, role: str, number: int) -> psutil.Process:
        """Send a signal to a process of a role, and return it; waits for one.

        Raises:
            ChildError: There is none.
        """
        victim: list[psutil.Process] = []

        def found() -> bool:
            process = self.find(role)
            if process is not None:
                process.send_signal(number)
                victim.append(process)
            return bool(victim)

        self.until(found, f"a {role} to send signal {number}", WAIT_SECS)
        return victim[0]

    def agent_back(self, hurt: Callable[[], None]) -> float:
        """Hurt the agent of the first local device; returns the seconds until its next one is up."""
        name = self.local[0]
        self.until(lambda: self.is_usable(name), f"{name}", WAIT_SECS)
        before = self.states()[name]["incarnation"]
        hurt()
        began = time.monotonic()
        self.until(lambda: self.is_usable(name, before), f"the next agent of {name}", WAIT_SECS)
        return time.monotonic() - began

    def measured_after(self, at_secs: float) -> float:
        """Wait until the real device has a record that was measured after a moment; returns when that was.

        Args:
            at_secs: Unix seconds.
        """
        name = self.local[0]

        def last() -> float:
            return float(self.states().get(name, {}).get("last_record_at") or 0.0)

        self.until(lambda: last() > at_secs, f"a record of {name}", WAIT_SECS)
        return last()

    def wait_for_records(self, more: int) -> None:
        """Wait until the real device has some more records."""
        name = self.local[0]
        goal = self.states().get(name, {}).get("records", 0) + more
        self.until(lambda: self.states().get(name, {}).get("records", 0) >= goal, f"{more} records", 120)

    def stop(self) -> int:
        """End it in order; returns its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(patience(_STOP_SECS))
        except subprocess.TimeoutExpired:
            raise ChildError("SIGTERM did not end it") from None
        self.ended()
        return code

    def close(self) -> None:
        """End what is left."""
        if self._process is not None and self._process.poll() is None:
            left = psutil.Process(self.pid).children(recursive=True)
            self._process.kill()
            self._process.wait()
            for process in left:
                if process.is_running():
                    process.kill()

    def look(self, run: Callable[[Path], None]) -> None:
        """Look at a copy of everything, as the next start would find it; only while nothing runs."""
        copy = self.root / "copy"
        shutil.copytree(self.disk, copy / "disk")
        run(copy / "disk")
        shutil.rmtree(copy)

    def ended(self, *, everything: bool = True) -> None:
        """Wait until all processes are gone: agents end with their raylet, which ends with its driver."""
        assert self._process is not None
        self._process.wait()
        if everything:
            self.until(lambda: not self._left(), "the end of all processes", WAIT_SECS, may_end=True)

    def _left(self) -> list[int]:
        """Processes of this fleet's agents that still have a spool open, and of its trainings."""
        left = []
        mark = str(self.disk / "spool")
        for process in psutil.process_iter():
            try:
                is_trainer = _TRAINER in process.cmdline() and str(self.disk) in " ".join(process.cmdline())
                if is_trainer or any(one.path.startswith(mark) for one in process.open_files()):
                    left.append(process.pid)
            except psutil.Error:
                continue
        return left

    def until(
        self, is_so: Callable[[], bool], what: str, timeout_secs: float, *, may_end: bool = False
    ) -> None:
        """Wait for something, longer on a crowded host; in vain at once if the coordinator has ended."""
        began = time.monotonic()
        while not is_so():
            waited = time.monotonic() - began
            is_over = self.is_over and not may_end
            if is_over or waited > patience(timeout_secs):
                why = "; the coordinator has ended" if is_over else ""
                tail = (self.root / "up.log").read_text(errors="replace")[-1500:]
                raise ChildError(f"waited {waited:.0f} s in vain for {what}{why}: {self.states()} {tail}")
            time.sleep(0.05)


def _has_children(process: psutil.Process) -> bool:
    """Whether it is the agent of a device that is measured: replay devices have no worker processes."""
    try:
        return bool(process.children())
    except psutil.Error:
        return False


def _lock_holders() -> set[int]:
    """Processes that hold a file lock; of the workers only the one that times does."""
    lines = Path("/proc/locks").read_text().splitlines()
    return {int(line.split()[4]) for line in lines if " FLOCK " in line and "->" not in line}


def main() -> None:
    """Be `fleet`, and write down what is promised."""
    from benchmarks.chaos_watch import Watched
    from fleet.cli.app import main as fleet_main

    Watched(HistoryLog(Path(sys.argv[1]))).install()
    sys.argv = ["fleet", *sys.argv[2:]]
    fleet_main()


if __name__ == "__main__":
    main()
