"""`fleet up` as it is, on a real profile of this host and replay devices; its processes are killed in turn.

`benchmarks.chaos` runs `wreck`. What the coordinator promises is written down inside of it, so it is started
through this module: `python -m benchmarks.chaos_real HISTORY up ...` is `fleet up ...`.
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
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos_children import ChildError
from benchmarks.chaos_history import HistoryLog

ROOT = Path(__file__).resolve().parents[1]
_SELF = (sys.executable, "-m", "benchmarks.chaos_real")
_READY = "fleet is up"
_START_SECS, _WAIT_SECS, _STOP_SECS = 300.0, 180.0, 180.0
#: Short, so that an agent that was stopped by a signal is past its lease soon; and a wedged device back.
_LEASE_SECS, _QUARANTINE_SECS = 8.0, 20.0
#: Deaths in a row that quarantine a device (`fleet.core.limits.Limits.device_failures`).
_FAILURES = 5


class RealFleet:
    """One fleet on the disk, and its coordinator while there is one.

    Args:
        root: Folder of everything.
        recorded: What the replay devices answer from.
        local: Device files of this host's profiles, by device id.
    """

    def __init__(self, root: Path, recorded: Path, local: dict[str, Path]) -> None:
        self.root, self.disk, self.local = root, root / "disk", sorted(local)
        self.history = root / "history.jsonl"
        self._process: subprocess.Popen[bytes] | None = None
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
            f"daemon: {{root: {self.disk / 'fleet'}, refresh: false, api_port: 0, lease_secs: {_LEASE_SECS},"
            f" quarantine_secs: {_QUARANTINE_SECS}, stop_secs: 20}}\n"
        )

    @property
    def pid(self) -> int:
        """The coordinator's."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Give the command, the same every time; returns the seconds until a device can be used."""
        began = time.monotonic()
        out = self.root / "up.log"
        with out.open("ab") as stream:
            before = stream.tell()
            self._process = subprocess.Popen(
                [*_SELF, str(self.history), "up", "--config", str(self.root / "fleet.yaml")],
                cwd=ROOT,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, "COLUMNS": "200"},
            )
        self._until(lambda: _READY in out.read_text(errors="replace")[before:], "ready", _START_SECS)
        self._until(lambda: any(self.is_usable(name) for name in self.states()), "usable", _START_SECS)
        return time.monotonic() - began

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
        """A living process: `coordinator`, `raylet`, `agent`, `builder` or `timer`."""
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
                or (role == "agent" and is_agent and _has_children(process))
                or (role == "timer" and is_worker and process.pid in timing)
                or (role == "builder" and is_worker and process.pid not in timing)
            ):
                found.append(process)
        return random.choice(found) if found else None

    def kill(self, role: str) -> None:
        """Kill a process of a role; waits for one, for instance until something is timed.

        Raises:
            ChildError: There is none.
        """
        victim: list[psutil.Process] = []

        def found() -> bool:
            process = self.find(role)
            if process is not None:
                process.kill()
                victim.append(process)
            return bool(victim)

        self._until(found, f"a {role} to kill", _WAIT_SECS)
        if role == "coordinator":
            self._ended()

    def agent_back(self, hurt: Callable[[], None]) -> float:
        """Hurt the agent of the first local device; returns the seconds until its next one is up."""
        name = self.local[0]
        self._until(lambda: self.is_usable(name), f"{name}", _WAIT_SECS)
        before = self.states()[name]["incarnation"]
        hurt()
        began = time.monotonic()
        self._until(lambda: self.is_usable(name, before), f"the next agent of {name}", _WAIT_SECS)
        return time.monotonic() - began

    def wedge(self) -> str:
        """Kill the agent of the first local device until it is quarantined; returns the reason shown."""
        name = self.local[0]
        deaths = 0
        ended_at = time.monotonic() + 3 * _WAIT_SECS
        while time.monotonic() < ended_at:
            found = self.states().get(name, {})
            if found.get("state") == "quarantined":
                return str(found["reason"])
            agent = self.find("agent")
            if agent is not None:
                agent.kill()
                deaths += 1
            time.sleep(0.2)
        raise ChildError(f"{name} was not quarantined after {deaths} deaths: {self.states().get(name)}")

    def wait_for_records(self, more: int) -> None:
        """Wait until the real device has some more records."""
        name = self.local[0]
        goal = self.states().get(name, {}).get("records", 0) + more
        self._until(lambda: self.states().get(name, {}).get("records", 0) >= goal, f"{more} records", 120)

    def stop(self) -> int:
        """End it in order; returns its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(_STOP_SECS)
        except subprocess.TimeoutExpired:
            raise ChildError("SIGTERM did not end it") from None
        self._ended()
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

    def raylet_killed(self) -> tuple[float, bool]:
        """Kill the raylet: seconds until all devices can be used again, and whether it took a new start."""
        names = list(self.states())
        before = {name: found["incarnation"] for name, found in self.states().items()}
        self.kill("raylet")
        began = time.monotonic()
        assert self._process is not None
        process = self._process

        def is_over() -> bool:
            return process.poll() is not None or all(self.is_usable(name, before[name]) for name in names)

        self._until(is_over, "the devices after their raylet's end", _WAIT_SECS)
        if process.poll() is None:
            return time.monotonic() - began, False
        self._ended()
        self.start()
        return time.monotonic() - began, True

    def look(self, run: Callable[[Path], None]) -> None:
        """Look at a copy of everything, as the next start would find it; only while nothing runs."""
        copy = self.root / "copy"
        shutil.copytree(self.disk, copy / "disk")
        run(copy / "disk")
        shutil.rmtree(copy)

    def _ended(self) -> None:
        """Wait until all processes are gone: agents end with their raylet, which ends with its driver."""
        assert self._process is not None
        self._process.wait()
        self._until(lambda: not self._left(), "the end of all processes", _WAIT_SECS)

    def _left(self) -> list[int]:
        """Processes of this fleet's agents that still have a spool open."""
        left = []
        mark = str(self.disk / "spool")
        for process in psutil.process_iter():
            try:
                if any(one.path.startswith(mark) for one in process.open_files()):
                    left.append(process.pid)
            except psutil.Error:
                continue
        return left

    def _until(self, is_so: Callable[[], bool], what: str, timeout_secs: float) -> None:
        ends_at = time.monotonic() + timeout_secs
        while not is_so():
            if time.monotonic() > ends_at:
                tail = (self.root / "up.log").read_text(errors="replace")[-1500:]
                raise ChildError(f"waited {timeout_secs:g} s in vain for {what}: {self.states()} {tail}")
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


def wreck(
    fleet: RealFleet, look: Callable[[Path], None], killed: Callable[[str, str], None], rounds: int
) -> dict[str, Any]:
    """Kill each kind of process some times; returns what was measured.

    Args:
        fleet: Not started yet.
        look: Writes down what a folder holds.
        killed: Told of each kill: target and fault.
        rounds: How often each is killed.
    """
    starts, agents, freezes, raylets = [fleet.start()], [], [], []

    def hurt(role: str) -> Callable[[], None]:
        def kill() -> None:
            fleet.kill(role)
            killed(role, "kill")

        return kill

    def freeze() -> None:
        agent = fleet.find("agent")
        if agent is None:
            raise ChildError("there is no agent to stop")
        agent.send_signal(signal.SIGSTOP)
        killed("agent", "SIGSTOP beyond the lease")

    reason = ""
    for number in range(rounds):
        fleet.wait_for_records(1)
        agents.append(fleet.agent_back(hurt("agent")))
        for role in ("builder", "timer"):
            hurt(role)()
            fleet.wait_for_records(1)
        freezes.append(fleet.agent_back(freeze))
        hurt("coordinator")()
        fleet.look(look)
        starts.append(fleet.start())
        raylets.append(fleet.raylet_killed())
        killed("raylet", "kill")
        if number == 0:
            reason = fleet.wedge()
            for _ in range(_FAILURES):
                killed("agent", "kill")
    code = fleet.stop()
    if code != 0:
        raise ChildError(f"SIGTERM ended it with {code}")
    fleet.look(look)
    return {
        "agent_back_secs": [round(one, 1) for one in agents],
        "agent_back_after_sigstop_secs": [round(one, 1) for one in freezes],
        "coordinator_back_secs": [round(one, 1) for one in starts[1:]],
        "coordinator_first_start_secs": round(starts[0], 1),
        "raylet_back_secs": [round(secs, 1) for secs, _ in raylets],
        "new_starts_for_a_raylet": sum(is_new for _, is_new in raylets),
        "load_1m": round(os.getloadavg()[0], 1),
        "quarantined_because": reason,
    }


def main() -> None:
    """Be `fleet`, and write down what is promised."""
    from benchmarks.chaos_watch import Watched
    from fleet.cli.app import main as fleet_main

    Watched(HistoryLog(Path(sys.argv[1]))).install()
    sys.argv = ["fleet", *sys.argv[2:]]
    fleet_main()


__all__ = ["ROOT", "RealFleet", "wreck"]

if __name__ == "__main__":
    main()
