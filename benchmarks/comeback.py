"""How soon a killed agent, and a killed coordinator, measure again: `python -m benchmarks.comeback --json`.

A real `fleet up` with a profile of this host and two replay devices; SIGKILL in the middle of the work, then
for the coordinator the same command at once. Times are from the kill: until the next agent is up, until
`fleet up` says that it is ready, and until a program that was begun after the kill has been measured. That
last one holds what any batch takes: drawing, compiling, and a first part of some candidates that is handed
over when all of them are done.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from benchmarks.chaos_children import Children
from benchmarks.chaos_real import RealFleet
from benchmarks.harness import Figures, Option, benchmark


@dataclass(frozen=True, slots=True)
class Options:
    """What is done."""

    times: Annotated[int, Option("kills of each", least=1)] = 5


def measure(options: Options) -> Figures:
    """Kill each so often.

    Returns:
        Seconds, as lists in the order of the kills; median and worst of each.
    """
    base = Path(tempfile.mkdtemp(prefix="comeback-"))
    with Children(base / "errors.txt") as children:
        recorded = base / "recorded.parquet"
        if children.run("recorded", {"recorded": str(recorded)}) != 0:
            raise SystemExit(children.last_words())
    fleet = RealFleet(base, recorded)
    found: dict[str, list[float]] = {
        "agent_up_secs": [],
        "agent_measures_secs": [],
        "coordinator_ready_secs": [],
        "coordinator_measures_secs": [],
    }
    try:
        fleet.start()
        for _ in range(options.times):
            fleet.measured_after(time.time())
            at_secs = time.time()
            found["agent_up_secs"].append(fleet.agent_back(lambda: fleet.kill("agent")))
            found["agent_measures_secs"].append(fleet.measured_after(at_secs) - at_secs)
        for _ in range(options.times):
            fleet.measured_after(time.time())
            at_secs = time.time()
            fleet.kill("coordinator", wait=False)
            fleet.begin()
            found["coordinator_ready_secs"].append(time.time() - at_secs)
            found["coordinator_measures_secs"].append(fleet.measured_after(at_secs) - at_secs)
        fleet.stop()
    finally:
        fleet.up.kill()
    shutil.rmtree(base)
    worst = {name: {"median": statistics.median(secs), "worst": max(secs)} for name, secs in found.items()}
    return {
        "benchmark": "comeback",
        "times": options.times,
        **found,
        "summary": worst,
        "slow_starts_of_ray": fleet.slow_starts,
        "cores": len(os.sched_getaffinity(0)),
        "load_1m": os.getloadavg()[0],
    }


main = benchmark("comeback", __doc__, Options, measure)

if __name__ == "__main__":
    main()
