"""Kill everything, everywhere, and count what is lost: `python -m benchmarks.chaos --kills 1000 --json`.

Real processes are really killed (SIGKILL) at every write, fsync and rename of spool, state file, table and
model registry, and at random moments, while a fleet measures, trains and publishes; power cuts take what no
fsync has confirmed, acknowledgements on their way among it; the disk is full, read-only or failing, by a shim
and on a real small file system; the clock is set, and processes stand still. Each run writes a history,
to which a process outside adds what it sees, and `chaos_history.check` judges it. `kills` counts kills only;
`by_fault` also counts what does not kill.

Exit code 1 if anything was lost, counted twice, unaccounted for or half published, or did not come back; the
folder of such a run is kept and named.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from benchmarks.chaos_campaigns import Campaign, Campaigns
from benchmarks.chaos_children import ChildError
from benchmarks.chaos_real import RealFleet
from benchmarks.chaos_run import Run
from benchmarks.chaos_wreck import Wreck, local_profiles
from benchmarks.harness import Figures, Option, benchmark


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
        made: dict[str, tuple[int, Campaign]] = {}
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
            made["fleet on a small disk"] = (1, self.fleet_on_a_small_disk())
        for load in ("spool", "state", "models"):
            made[f"{load} kill"] = (2, self.sweep(load, "kill"))
            made[f"{load} torn"] = (2, self.sweep(load, "torn"))
            made[f"{load} power"] = (2, self.sweep(load, "kill", with_power=True))
            made[f"{load} moments"] = (2, self.moments(load))
            made[f"{load} disk"] = (2, self.disk_faults(load))
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


@dataclass(frozen=True, slots=True)
class Options:
    """How much is killed, and where."""

    kills: Annotated[int, Option("processes to kill", least=0, metavar="N")] = 1000
    real: Annotated[int, Option("times to kill each process of a real `fleet up`", least=0, metavar="N")] = 2
    seed: Annotated[int, Option("of steps and moments")] = 0
    folder: Annotated[Path | None, Option("where to work (memory if there is room, or the default)")] = None
    only: Annotated[str, Option("campaigns whose name begins so (all)", metavar="NAME")] = ""


def measure(options: Options) -> Figures:
    """Run until there were so many kills; those of a real `fleet up` count."""
    started = time.monotonic()
    base = Path(tempfile.mkdtemp(prefix="chaos-", dir=options.folder or _fast_folder()))
    bench = Bench(base, options.seed)
    try:
        measured = {"real": bench.real(options.real)} if options.real else {}
        bench.run(options.kills, options.only)
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


main = benchmark("chaos", __doc__, Options, measure, fails=lambda result: result["failures"])

if __name__ == "__main__":
    main()
