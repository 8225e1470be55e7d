"""Kill and stop each kind of process of a real `fleet up` in turn: for `benchmarks.chaos`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos_history import Event, HistoryLog
from benchmarks.chaos_real import LEASE_SECS, WAIT_SECS, RealFleet
from benchmarks.fleet_up import LateError, patience

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
        self._starts: list[float] = []
        self._agents: list[float] = []
        #: Seconds until a program was measured that was begun after a kill, by who was killed.
        self._measured: dict[str, list[float]] = {"agent": [], "coordinator": []}
        self._freezes: list[float] = []
        self._raylets: list[float] = []

    def run(self, rounds: int) -> dict[str, Any]:
        """Stop each kind of process, then kill each kind, some times; returns what was measured."""
        fleet = self._fleet
        self._starts.append(fleet.start())
        for _ in range(rounds):
            fleet.wait_for_records(1)
            for role in ("coordinator", "trainer", "raylet"):
                self._pause(role)
        # So far no agent has died of anything: what is quarantined now was blamed for a pause.
        self._kill_coordinator()
        self._log.add(Event(kind="guilty"))
        for number in range(rounds):
            fleet.wait_for_records(1)
            at_secs = time.time()
            self._agents.append(fleet.agent_back(lambda: self._kill("agent")))
            self._note("agent", at_secs)
            for role in ("builder", "timer"):
                self._kill(role)
                fleet.wait_for_records(1)
            self._freezes.append(fleet.agent_back(self._freeze))
            self._kill("trainer")
            self._kill_coordinator()
            self._raylets.append(self._kill_raylet())
            if number == 0:
                self._wedge()
        code = fleet.stop()
        if code != 0:
            raise LateError(f"SIGTERM ended it with {code}")
        fleet.look(self._look)
        return self._figures()

    def _figures(self) -> dict[str, Any]:
        return {
            "agent_back_secs": self._agents,
            "agent_measures_secs": self._measured["agent"],
            "agent_back_after_sigstop_secs": self._freezes,
            "coordinator_back_secs": self._starts[1:],
            "coordinator_measures_secs": self._measured["coordinator"],
            "raylet_back_secs": self._raylets,
            "slow_starts_of_ray": self._fleet.slow_starts,
            "load_1m": os.getloadavg()[0],
        }

    def _kill(self, role: str) -> None:
        self._fleet.kill(role)
        self._killed(role, "kill")

    def _kill_coordinator(self) -> None:
        self._kill("coordinator")
        self._fleet.look(self._look)
        at_secs = time.time()
        self._starts.append(self._fleet.start())
        self._note("coordinator", at_secs)

    def _note(self, who: str, at_secs: float) -> None:
        self._measured[who].append(self._fleet.measured_after(at_secs) - at_secs)

    def _freeze(self) -> None:
        """Stop an agent for good: it is ended, and another one takes its place."""
        self._fleet.signal("agent", signal.SIGSTOP)
        self._killed("agent", "SIGSTOP beyond the lease")
        self._log.add(Event(kind="trouble", by="pause"))

    def _pause(self, role: str) -> None:
        """Stop a process until it is past any lease; then all goes on."""
        fleet = self._fleet
        process = fleet.signal(role, signal.SIGSTOP)
        self._log.add(Event(kind="trouble", by="pause"))
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
            if self._fleet.states().get(name, {}).get("state") == "quarantined":
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
        began = time.monotonic()

        def is_back() -> bool:
            return self._fleet.is_over or all(self._fleet.is_usable(name, before[name]) for name in names)

        self._fleet.until(is_back, "the devices after their raylet's end", WAIT_SECS, may_end=True)
        if self._fleet.is_over:
            self._fleet.ended()
            self._fleet.start()
        return time.monotonic() - began
