"""Kill everything, everywhere, and count what is lost: `python -m benchmarks.chaos --kills 1000 --json`.

Real processes are really killed (SIGKILL) at every write, fsync and rename of spool, store, state file and
model registry, and at random moments, while a fleet measures, trains and publishes; power cuts take what no
fsync has confirmed; acknowledgements get lost or come twice; the disk is full, read-only or failing, by a
shim and on a real small file system; the clock is set, and processes stand still. Each run writes a history,
to which a process outside adds what it sees, and `chaos_history.check` judges it. `kills` counts kills only;
`by_fault` also counts what does not kill.

Exit code 1 if anything was lost, counted twice, unaccounted for or half published, or did not come back; the
folder of such a run is kept and named.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.chaos_campaigns import Campaign, Campaigns
from benchmarks.chaos_children import ChildError
from benchmarks.chaos_real import RealFleet
from benchmarks.chaos_run import Run
from benchmarks.chaos_wreck import Wreck, local_profiles


class Bench(Campaigns):
    """All campaigns, and how they take turns."""

    def real(self, rounds: int) -> dict[str, Any]:
        """Kill the processes of a real `fleet up`; returns what was measured."""
        recorded = self._recorded()
        measured: dict[str, Any] = {}

        def body(run: Run) -> None:
            fleet = RealFleet(run.root, recorded, local_profiles(), trains=True)

            def look(disk: Path) -> None:
                arguments = run.arguments() | {"disk": str(disk)}
                if self.children.run("look_at_fleet", arguments) != 0:
                    raise ChildError(f"looking failed: {self.children.last_words()}")

            try:
                with run.observed():
                    measured.update(Wreck(fleet, look, self.tally.killed).run(rounds))
            finally:
                fleet.close()

        self.history("real", body)
        return measured

    def campaigns(self) -> dict[str, tuple[int, Campaign]]:
        """All of them, with how many turns each gets of a round."""
        made: dict[str, tuple[int, Campaign]] = {"handover": (3, self.handover())}
        for fault, with_power, weight in (
            ("kill", False, 3),
            ("kill", True, 2),
            ("torn", True, 2),
            ("full", False, 1),
            ("read_only", False, 1),
            ("failing", False, 1),
        ):
            name = f"fleet {fault}{' power' * with_power}"
            made[name] = (weight, self.fleet(fault, with_power=with_power))
        if self.may_mount:
            made["small disk"] = (1, self.small_disk())
            made["fleet on a small disk"] = (1, self.fleet_on_a_small_disk())
        for load in ("spool", "state", "store", "models"):
            made[f"{load} kill"] = (1, self.sweep(load, "kill"))
            made[f"{load} torn"] = (1, self.sweep(load, "torn"))
            made[f"{load} power"] = (1, self.sweep(load, "kill", with_power=True))
            made[f"{load} moments"] = (1, self.moments(load))
            made[f"{load} disk"] = (1, self.disk_faults(load, 150 if load == "store" else 100))
        return made

    def run(self, kills: int, only: str = "") -> None:
        """Turn by turn until there were so many kills, all campaigns or those whose name begins so."""
        turns = [
            campaign
            for name, (count, campaign) in self.campaigns().items()
            for _ in range(count)
            if name.startswith(only)
        ]
        self._rng.shuffle(turns)
        for campaign in itertools.cycle(turns):
            if self.tally.kills >= kills:
                return
            next(campaign)


def measure(*, kills: int, real: int, seed: int, folder: Path | None, only: str = "") -> dict[str, Any]:
    """Run until there were so many kills.

    Args:
        kills: How many.
        only: What the names of the campaigns begin with.
        real: How often each process of a real `fleet up` is killed; these kills count.
        seed: Of the choice of moments and steps.
        folder: Where the runs have their folders; memory if there is room, else the system's default.
    """
    started = time.monotonic()
    base = Path(tempfile.mkdtemp(prefix="chaos-", dir=folder or _fast_folder()))
    bench = Bench(base, seed)
    try:
        measured = {"real": bench.real(real)} if real else {}
        bench.run(kills, only)
    finally:
        bench.close()
    if not bench.tally.failures:
        shutil.rmtree(base)
    return bench.tally.to_json(time.monotonic() - started) | measured


def _fast_folder() -> Path | None:
    """A kill takes nothing from a file system, so one of memory will do, and thousands of kills go faster."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 256 << 20:
        return memory
    return None


def main() -> None:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--kills", type=int, default=1000, metavar="N", help="processes to kill (1000)")
    parser.add_argument(
        "--real", type=int, default=2, metavar="N", help="times to kill each process of a real `fleet up` (2)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of steps and moments (0)")
    parser.add_argument("--folder", type=Path, default=None, help="where to work (memory, or the default)")
    parser.add_argument("--only", default="", metavar="NAME", help="campaigns whose name begins so (all)")
    options = parser.parse_args()
    result = measure(
        kills=options.kills,
        real=options.real,
        seed=options.seed,
        folder=options.folder,
        only=options.only,
    )
    print(json.dumps(result, indent=None if options.json else 2))
    sys.exit(1 if result["failures"] else 0)


if __name__ == "__main__":
    main()
