"""Kill each kind of process of a real `fleet up` in turn: for `benchmarks.chaos`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents.isa import runnable_levels
from agents.probe import probe
from benchmarks.chaos_children import ChildError
from benchmarks.chaos_real import ROOT, RealFleet

#: Deaths in a row that quarantine a device (`fleet.core.limits.Limits.device_failures`).
_FAILURES = 5


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
        "slow_starts_of_ray": fleet.slow_starts,
        "load_1m": round(os.getloadavg()[0], 1),
        "quarantined_because": reason,
    }


def local_profiles() -> dict[str, Path]:
    """The device file of the least profile of this host: every host can be that."""
    here = probe()
    level = runnable_levels(here.arch, here.isa_flags)[0]
    return {level.name: ROOT / "configs" / "hardware" / f"{level.name}.yaml"}


__all__ = ["local_profiles", "wreck"]
