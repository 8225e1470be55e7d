"""`fleet up` as it is, on a real profile of this host and replay devices; its processes are killed in turn.

`Wreck` kills and takes the time. What the coordinator promises is written down inside of it, so it is started
through this module: `python -m benchmarks.chaos_real HISTORY up ...` is `fleet up ...`.
"""

from __future__ import annotations

import random
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from benchmarks.chaos_history import HistoryLog
from benchmarks.fleet_up import (
    READY,
    START_SECS,
    LateError,
    Program,
    least_profile,
    patience,
    replay_device,
    wait_until,
    write_fleet,
)
from benchmarks.harness import stopwatch
from fleet.api.client import ask
from fleet.errors import FleetError
from fleet.json_types import JsonDict

_TRAINER = "fleet.refresh.process"
WAIT_SECS, _STOP_SECS = 180.0, 180.0
#: Short, so that an agent that was stopped by a signal is past its lease soon; and a wedged device back.
LEASE_SECS = 8.0
_DAEMON = {
    "lease_secs": LEASE_SECS,
    "quarantine_secs": 20.0,
    "stop_secs": 20,
    # Trainings one after the other, as soon as there is anything new.
    "refresh": True,
    "training_records": 60,
    "training_share": 0.0,
    "reason_records": 20,
    "training_pause_secs": 2,
}
#: What `fleet up` says when Ray took longer for its start than it allows itself, and how often the command is
#: given again then: on a crowded host it is nobody's fault, and a service would be started again.
_RAY_SLOW, _MOST_STARTS = "timed out during startup", 3

_Answer = TypeVar("_Answer")


def watched_up(history: Path, *arguments: str) -> Sequence[str]:
    """The command of a `fleet up` that writes down what it promises."""
    return (sys.executable, "-m", "benchmarks.chaos_real", str(history), "up", *arguments)


class RealFleet:
    """One fleet on the disk, and its coordinator while there is one.

    Args:
        root: Folder of everything.
        recorded: What the replay devices answer from.

    Attributes:
        local: Id of the real device.
        slow_starts: Starts that Ray was too slow for.
    """

    def __init__(self, root: Path, recorded: Path) -> None:
        self.root, self.disk, self.history = root, root / "disk", root / "history.jsonl"
        self.slow_starts = 0
        self.local, profile = least_profile()
        replay = replay_device(recorded, "bench")
        settings = write_fleet(
            root,
            {self.local: profile, "replay-a": replay, "replay-b": replay},
            self.disk,
            workloads={"networks": ["bert-tiny"], "count": 3, "noise_samples": 0},
            training={"epochs": 1},
            daemon=_DAEMON,
        )
        told = ("--config", str(settings), "--models", str(self.disk / "models"))
        self.up = Program(watched_up(self.history, *told), root / "up.log")

    def start(self) -> float:
        """Give the command, the same every time; returns the seconds until a device can be used."""
        elapsed = stopwatch()
        self.begin()
        self.until(lambda: any(self.is_usable(name) for name in self.states()), "usable", START_SECS)
        return elapsed()

    def begin(self) -> None:
        """Give the command, and wait until it says that it is up.

        Raises:
            LateError: It is not, or it ended.
        """
        for _ in range(_MOST_STARTS):
            self.up.start()
            self.until(lambda: self.is_over or READY in self.up.told(), "ready", START_SECS, may_end=True)
            if not self.is_over:
                return
            if _RAY_SLOW not in self.up.told():
                break
            self.slow_starts += 1
        raise LateError(f"the coordinator ended at its start: {self.up.told()[-1500:]}")

    @property
    def is_over(self) -> bool:
        """Whether the coordinator has ended."""
        return self.up.code is not None

    def of_local(self, name: str) -> Any:
        """What the API says of the real device; 0 while it says nothing."""
        return self.states().get(self.local, {}).get(name) or 0

    def states(self) -> dict[str, JsonDict]:
        """What the API says of each device; empty while it says nothing."""
        try:
            view = ask(self.disk / "fleet", "/v1/status") or {}
        except FleetError:
            return {}
        return dict(view["devices"]) if view.get("coordinator", {}).get("pid") == self.up.pid else {}

    def is_usable(self, name: str, after: int = 0) -> bool:
        """Whether a device's agent, a later one than `after`, is up."""
        found = self.states().get(name, {})
        return found.get("state") in ("idle", "leased") and found["incarnation"] > after

    def find(self, role: str) -> psutil.Process | None:
        """A living process: `coordinator`, `raylet`, `agent`, `builder`, `timer` or `trainer`."""
        if role == "coordinator":
            return psutil.Process(self.up.pid)
        found = []
        timing = _lock_holders()
        for process in psutil.Process(self.up.pid).children(recursive=True):
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

    def kill(self, role: str) -> None:
        """Kill a process of a role; with the coordinator until all that ends with it is gone."""
        self.signal(role, signal.SIGKILL)
        if role == "coordinator":
            self.ended()

    def signal(self, role: str, number: int) -> psutil.Process:
        """Send a signal to a process of a role, and return it; waits for one.

        Raises:
            LateError: There is none.
        """
        process = self.until(lambda: self.find(role), f"a {role} to send signal {number}", WAIT_SECS)
        assert process is not None
        process.send_signal(number)
        return process

    def agent_back(self, hurt: Callable[[], None]) -> float:
        """Hurt the agent of the real device; returns the seconds until its next one is up."""
        name = self.local
        self.until(lambda: self.is_usable(name), name, WAIT_SECS)
        before = self.states()[name]["incarnation"]
        hurt()
        elapsed = stopwatch()
        self.until(lambda: self.is_usable(name, before), f"the next agent of {name}", WAIT_SECS)
        return elapsed()

    def measured_after(self, at_secs: float) -> float:
        """Wait until the real device has a record that was measured after a moment; returns when that was.

        Args:
            at_secs: Unix seconds.
        """

        def last() -> float:
            found = float(self.of_local("last_record_at"))
            return found if found > at_secs else 0.0

        return self.until(last, f"a record of {self.local}", WAIT_SECS)

    def wait_for_records(self, more: int) -> None:
        """Wait until the real device has some more records."""
        goal = self.of_local("records") + more
        self.until(lambda: self.of_local("records") >= goal, f"{more} records", 120)

    def stop(self) -> int:
        """End it in order; returns its exit code."""
        code = self.up.stop(patience(_STOP_SECS))
        self.ended()
        return code

    def look(self, run: Callable[[Path], None]) -> None:
        """Look at a copy of everything, as the next start would find it; only while nothing runs."""
        copy = self.root / "copy"
        shutil.copytree(self.disk, copy / "disk")
        run(copy / "disk")
        shutil.rmtree(copy)

    def ended(self) -> None:
        """Wait until all processes are gone: agents end with their raylet, which ends with its driver."""
        what = "the end of all processes"
        self.until(lambda: self.is_over and not self._left(), what, WAIT_SECS, may_end=True)

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

    def until(self, look: Callable[[], _Answer], what: str, secs: float, *, may_end: bool = False) -> _Answer:
        """Wait for something, longer on a crowded host; in vain at once if the coordinator has ended."""

        def not_over() -> None:
            if self.is_over and not may_end:
                raise LateError(f"no {what}: the coordinator has ended")

        try:
            return wait_until(look, what, patience(secs), meanwhile=not_over, pause_secs=0.05)
        except LateError as error:
            raise LateError(f"{error}: {self.states()} {self.up.told()[-1500:]}") from None


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


#: How long a process is stopped: beyond its lease.
_PAUSE_SECS = LEASE_SECS + 2


class Wreck:
    """Hurts a fleet, and takes the time until all is back.

    Args:
        fleet: Not started yet.
        look: Writes down what a folder holds.
        killed: Told of each kill: target and fault.
    """

    def __init__(
        self, fleet: RealFleet, look: Callable[[Path], None], killed: Callable[[str, str], None]
    ) -> None:
        self._fleet, self._look, self._killed = fleet, look, killed
        self._log = HistoryLog(fleet.history)
        #: Seconds of each kind, by key of the JSON.
        self._secs: dict[str, list[float]] = defaultdict(list)

    def run(self, rounds: int) -> JsonDict:
        """Stop each kind of process, then kill each kind, some times; returns what was measured."""
        fleet, secs = self._fleet, self._secs
        fleet.start()
        for _ in range(rounds):
            fleet.wait_for_records(1)
            for role in ("coordinator", "trainer", "raylet"):
                self._pause(role)
        # So far no agent has died of anything: what is quarantined now was blamed for a pause.
        self._kill_coordinator()
        self._log.add("guilty")
        for number in range(rounds):
            fleet.wait_for_records(1)
            at_secs = time.time()
            secs["agent_back_secs"].append(fleet.agent_back(lambda: self._kill("agent")))
            secs["agent_measures_secs"].append(fleet.measured_after(at_secs) - at_secs)
            for role in ("builder", "timer"):
                self._kill(role)
                fleet.wait_for_records(1)
            secs["agent_back_after_sigstop_secs"].append(fleet.agent_back(self._freeze))
            self._kill("trainer")
            self._kill_coordinator()
            secs["raylet_back_secs"].append(self._kill_raylet())
            if number == 0:
                self._wedge()
        code = fleet.stop()
        if code != 0:
            raise LateError(f"SIGTERM ended it with {code}")
        fleet.look(self._look)
        return {**secs, "slow_starts_of_ray": fleet.slow_starts}

    def _kill(self, role: str) -> None:
        self._fleet.kill(role)
        self._killed(role, "kill")

    def _kill_coordinator(self) -> None:
        self._kill("coordinator")
        self._fleet.look(self._look)
        at_secs = time.time()
        self._secs["coordinator_back_secs"].append(self._fleet.start())
        self._secs["coordinator_measures_secs"].append(self._fleet.measured_after(at_secs) - at_secs)

    def _freeze(self) -> None:
        """Stop an agent for good: it is ended, and another one takes its place."""
        self._fleet.signal("agent", signal.SIGSTOP)
        self._killed("agent", "SIGSTOP beyond the lease")
        self._log.add("trouble", by="pause")

    def _pause(self, role: str) -> None:
        """Stop a process until it is past any lease; then all goes on."""
        fleet = self._fleet
        process = fleet.signal(role, signal.SIGSTOP)
        self._log.add("trouble", by="pause")
        time.sleep(_PAUSE_SECS)
        try:
            process.send_signal(signal.SIGCONT)
        except psutil.NoSuchProcess:
            raise LateError(f"the {role} has ended while it was stopped") from None
        fleet.until(lambda: fleet.is_usable(fleet.local), f"{fleet.local} after a pause", WAIT_SECS)
        fleet.wait_for_records(1)

    def _wedge(self) -> None:
        """Kill the agent of the real device until it is quarantined."""
        name, deaths = self._fleet.local, 0
        began = time.monotonic()
        while time.monotonic() < began + patience(3 * WAIT_SECS):
            if self._fleet.of_local("state") == "quarantined":
                return
            agent = self._fleet.find("agent")
            if agent is not None:
                agent.kill()
                self._killed("agent", "kill")
                deaths += 1
            time.sleep(0.2)
        raise LateError(f"{name} was not quarantined after {deaths} deaths: {self._fleet.states().get(name)}")

    def _kill_raylet(self) -> float:
        """Kill the raylet: seconds until all devices can be used again, after a new start if need be."""
        names = list(self._fleet.states())
        before = {name: found["incarnation"] for name, found in self._fleet.states().items()}
        self._kill("raylet")
        elapsed = stopwatch()

        def is_back() -> bool:
            return self._fleet.is_over or all(self._fleet.is_usable(name, before[name]) for name in names)

        self._fleet.until(is_back, "the devices after their raylet's end", WAIT_SECS, may_end=True)
        if self._fleet.is_over:
            self._fleet.ended()
            self._fleet.start()
        return elapsed()


def main() -> None:
    """Be `fleet`, and write down what is promised."""
    from benchmarks.chaos_watch import Watched
    from fleet.cli.app import main as fleet_main

    Watched(HistoryLog(Path(sys.argv[1]))).install()
    sys.argv = ["fleet", *sys.argv[2:]]
    fleet_main()


if __name__ == "__main__":
    main()
