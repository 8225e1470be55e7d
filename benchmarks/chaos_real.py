"""`fleet up` as it is, on a real profile of this host and replay devices; its processes are killed in turn.

`RealFleet.wreck` kills and takes the time. What the coordinator promises is written down inside of it, so it
is started through this module: `python -m benchmarks.chaos_real HISTORY up ...` is `fleet up ...`.
"""

from __future__ import annotations

import random
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
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
WAIT_SECS = 180.0
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
    """One fleet on the disk, and its coordinator while there is one; its processes are stopped and killed.

    Args:
        root: Folder of everything.
        recorded: What the replay devices answer from.
        look: Writes down what a folder holds.
    """

    def __init__(self, root: Path, recorded: Path, look: Callable[[Path], None]) -> None:
        self._root, self._disk, self._look = root, root / "disk", look
        self._log = HistoryLog(root / "history.jsonl")
        #: The real device.
        self._local, profile = least_profile()
        replay = replay_device(recorded, "bench")
        settings = write_fleet(
            root,
            {self._local: profile, "replay-a": replay, "replay-b": replay},
            self._disk,
            workloads={"networks": ["bert-tiny"], "count": 3, "noise_samples": 0},
            training={"epochs": 1},
            daemon=_DAEMON,
        )
        options = ("--config", str(settings), "--models", str(self._disk / "models"))
        self._up = Program(watched_up(self._log.path, *options), root / "up.log")
        #: Seconds of each kind, by key of the JSON.
        self._secs: dict[str, list[float]] = defaultdict(list)

    def wreck(self, rounds: int) -> JsonDict:
        """Stop each kind of process, then kill each kind, some times; returns what was measured."""
        try:
            self._start()
            for role in ("coordinator", "trainer", "raylet"):
                self._wait_for_record()
                self._pause(role)
            # So far no agent has died of anything: what is quarantined now was blamed for a pause.
            self._kill_coordinator()
            self._log.add("guilty")
            for _ in range(rounds):
                self._kill_each()
            code = self._up.stop(patience(WAIT_SECS))
            self._look_at_rest()
        finally:
            self._up.kill()
        if code:
            raise LateError(f"SIGTERM ended it with {code}")
        return self._secs

    def _kill_each(self) -> None:
        self._wait_for_record()
        at_secs = time.time()
        self._secs["agent_back_secs"].append(self._agent_back(lambda: self._kill("agent")))
        self._secs["agent_measures_secs"].append(self._measured_after(at_secs))
        self._kill("worker")
        self._wait_for_record()
        # Stopped for good, an agent is ended, and another one takes its place.
        self._agent_back(lambda: self._stop("agent"))
        self._kill("trainer")
        self._kill_coordinator()
        self._kill_raylet()

    def _start(self) -> float:
        """Give the command, the same every time; returns the seconds until a device can be used."""
        elapsed = stopwatch()
        for _ in range(_MOST_STARTS):
            self._up.start()
            self._until(lambda: self._is_over or READY in self._up.told(), "start", START_SECS, may_end=True)
            if not self._is_over or _RAY_SLOW not in self._up.told():
                break
        self._until(lambda: any(map(self._is_usable, self._states())), "usable device", START_SECS)
        return elapsed()

    @property
    def _is_over(self) -> bool:
        """Whether the coordinator has ended."""
        return self._up.code is not None

    def _states(self) -> dict[str, JsonDict]:
        """What the API says of each device; empty while it says nothing."""
        try:
            view = ask(self._disk / "fleet", "/v1/status") or {}
        except FleetError:
            return {}
        return dict(view["devices"]) if view.get("coordinator", {}).get("pid") == self._up.pid else {}

    def _of_local(self, name: str) -> Any:
        """What the API says of the real device; 0 while it says nothing."""
        return self._states().get(self._local, {}).get(name) or 0

    def _is_usable(self, name: str, after: int = 0) -> bool:
        """Whether a device's agent, a later one than `after`, is up."""
        device = self._states().get(name, {})
        return device.get("state") in ("idle", "leased") and device["incarnation"] > after

    def _find(self, role: str) -> psutil.Process | None:
        """A living process: `coordinator`, `raylet`, `agent`, `worker` or `trainer`."""
        top = psutil.Process(self._up.pid)
        if role == "coordinator":
            return top
        processes = [process for process in top.children(recursive=True) if _role_of(process) == role]
        return random.choice(processes) if processes else None

    def _signal(self, role: str, number: int) -> psutil.Process:
        """Send a signal to a process of a role, and return it; waits for one."""
        process = self._until(lambda: self._find(role), f"{role} to send signal {number}")
        assert process is not None
        process.send_signal(number)
        return process

    def _kill(self, role: str) -> None:
        self._signal(role, signal.SIGKILL)
        self._log.add("killed", by=f"{role} kill")

    def _stop(self, role: str) -> psutil.Process:
        self._log.add("trouble", by="pause")
        return self._signal(role, signal.SIGSTOP)

    def _pause(self, role: str) -> None:
        """Stop a process until it is past any lease; then all goes on."""
        process = self._stop(role)
        time.sleep(LEASE_SECS + 2)
        try:
            process.send_signal(signal.SIGCONT)
        except psutil.NoSuchProcess:
            raise LateError(f"the {role} has ended while it was stopped") from None
        self._until(lambda: self._is_usable(self._local), "device after a pause")

    def _agent_back(self, hurt: Callable[[], object]) -> float:
        """Hurt the agent of the real device; returns the seconds until its next one is up."""
        self._until(lambda: self._is_usable(self._local), "device")
        before = self._of_local("incarnation")
        hurt()
        elapsed = stopwatch()
        self._until(lambda: self._is_usable(self._local, before), "next agent")
        return elapsed()

    def _measured_after(self, at_secs: float) -> float:
        """Wait for a record that was measured after a moment, in Unix seconds; the seconds until it."""
        self._until(lambda: self._of_local("last_record_at") > at_secs, "record")
        return float(self._of_local("last_record_at")) - at_secs

    def _wait_for_record(self) -> None:
        """Wait until the real device has one more record."""
        before = self._of_local("records")
        self._until(lambda: self._of_local("records") > before, "further record")

    def _kill_coordinator(self) -> None:
        self._kill("coordinator")
        self._look_at_rest()
        at_secs = time.time()
        self._secs["coordinator_back_secs"].append(self._start())
        self._secs["coordinator_measures_secs"].append(self._measured_after(at_secs))

    def _kill_raylet(self) -> None:
        """Kill the raylet, and wait for all devices, after a new start if need be."""
        before = {name: device["incarnation"] for name, device in self._states().items()}
        self._kill("raylet")
        elapsed = stopwatch()
        self._until(
            lambda: self._is_over or all(self._is_usable(*pair) for pair in before.items()),
            "devices after their raylet's end",
            may_end=True,
        )
        if self._is_over:
            self._rest()
            self._start()
        self._secs["raylet_back_secs"].append(elapsed())

    def _look_at_rest(self) -> None:
        """Look at a copy of everything, as the next start would find it, once nothing runs any more."""
        self._rest()
        copy = self._root / "copy"
        shutil.copytree(self._disk, copy)
        self._look(copy)
        shutil.rmtree(copy)

    def _rest(self) -> None:
        """Wait until all processes are gone: agents end with their raylet, which ends with its driver."""
        self._until(lambda: self._is_over and not self._is_left(), "end of all processes", may_end=True)

    def _is_left(self) -> bool:
        """Whether an agent of this fleet still has a spool open, or one of its trainings runs."""
        spools = str(self._disk / "spool")
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                line = " ".join(process.cmdline())
                paths = [file.path for file in process.open_files()]
                if (_TRAINER in line and str(self._disk) in line) or any(
                    path.startswith(spools) for path in paths
                ):
                    return True
        return False

    def _until(
        self, look: Callable[[], _Answer], what: str, secs: float = WAIT_SECS, *, may_end: bool = False
    ) -> _Answer:
        """Wait for something, longer on a crowded host; in vain at once if the coordinator has ended.

        Raises:
            LateError: It did not come.
        """

        def not_over() -> None:
            if self._is_over and not may_end:
                raise LateError("the coordinator has ended")

        try:
            return wait_until(look, what, patience(secs), meanwhile=not_over, pause_secs=0.05)
        except LateError as error:
            raise LateError(f"no {what}: {error}: {self._states()} {self._up.told()[-1500:]}") from None


def _role_of(process: psutil.Process) -> str:
    """What a process of a fleet is, as `RealFleet` names it; empty of any other."""
    try:
        name, line = Path(f"/proc/{process.pid}/comm").read_text().strip(), " ".join(process.cmdline())
        if _TRAINER in line:
            return "trainer"
        is_agent = line.startswith("ray::AgentHostActor") or name.startswith("ray::AgentHost")
        if is_agent and process.children():  # agents of replay devices have no worker processes
            return "agent"
    except (OSError, psutil.Error):
        return ""
    return {"raylet": "raylet", "fleet-worker": "worker"}.get(name, "")


def main() -> None:
    """Be `fleet`, and write down what is promised."""
    from benchmarks.chaos_watch import Watched
    from fleet.cli.app import main as fleet_main

    Watched(HistoryLog(Path(sys.argv[1]))).install()
    sys.argv = ["fleet", *sys.argv[2:]]
    fleet_main()


if __name__ == "__main__":
    main()
