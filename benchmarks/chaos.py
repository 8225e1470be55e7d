"""Kill everything, everywhere, and count what is lost: `python -m benchmarks.chaos --kills 1000 --json`.

Real processes are really killed (SIGKILL) at every write, fsync and rename of spool, state file, table and
model registry, and at random moments, while a fleet measures, trains and publishes; power cuts take what no
fsync has confirmed, acknowledgements on their way among it; the disk is full, read-only or failing; the clock
is set, and processes stand still. Each run writes a history, to which a process outside adds what it sees,
and `chaos_history.check` judges it. `kills` counts kills only; `by_fault` also counts what does not kill.

Exit code 1 if anything was lost, counted twice, unaccounted for or half published, or did not come back; the
folder of such a run is kept and named.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos_children import ChildError, Forks
from benchmarks.chaos_faults import DISK_FAULTS
from benchmarks.chaos_real import RealFleet
from benchmarks.chaos_run import BATCHES, DEAD, Run, Tally
from benchmarks.fleet_up import LateError
from benchmarks.harness import Figures, benchmark, option

#: Kills of one history, the first at the step whose turn it is, the others at random steps.
KILLS_IN_A_ROW = 4
#: A coordinator's life: turns, and steps on the disk of which one is chosen.
_FLEET_TURNS, _FLEET_STEPS = 120, 800
#: Faults of a coordinator, and how many turns each gets of a round.
_OF_FLEETS = {"kill": 3, "kill power": 2, "torn power": 2, "full": 1, "read_only": 1, "failing": 1}
#: Faults of a part, by the name of their sweep; each gets two turns.
_OF_PARTS = {"kill": ("kill",), "torn": ("torn",), "power": ("kill",), "disk": tuple(sorted(DISK_FAULTS))}
_PARTS = ("spool", "state", "models")

#: Goes on until it is told to stop; each turn is one history.
Campaign = Iterator[None]


class Bench:
    """All campaigns, on one folder.

    Args:
        base: Where runs have their folders.
        seed: Of everything.
        kills_in_a_row: Kills of one history.
    """

    def __init__(self, base: Path, seed: int, kills_in_a_row: int = KILLS_IN_A_ROW) -> None:
        self.base, self.tally = base, Tally()
        self._kills_in_a_row = kills_in_a_row
        self._rng = random.Random(seed)
        self._errors = base / "errors.txt"
        self.forks = Forks(multiprocessing.get_context("spawn"), self._errors)

    def history(self, what: str, body: Callable[[Run], None]) -> None:
        """Make one run and judge it; its folder is kept if something is wrong."""
        self._errors.write_text("")
        run = Run(self.base, self.forks, self._rng.getrandbits(32), what)
        try:
            body(run)
        except (ChildError, LateError) as error:
            words = self._errors.read_text(errors="replace")[-1500:].strip()
            self.tally.failures.append(f"{run.what}: {error}; its folder: {run.root}; {words}")
            return
        if self.tally.judge(run.root, run.what):
            shutil.rmtree(run.root)

    def sweep(self, load: str, name: str) -> Campaign:
        """Die at each step of a life in turn, then a few times at random ones, then look.

        With a full, read-only or failing disk it is mostly a kill some steps later.
        """
        steps = 1

        def whole(run: Run) -> None:
            nonlocal steps
            run.live(load, BATCHES)
            steps = run.steps()

        while True:
            self.history(f"{load} whole", whole)
            # In an order that soon has been everywhere, for runs that do not get through.
            for at in self._rng.sample(range(1, steps + 1), steps):

                def body(run: Run, at: int = at) -> None:
                    others = [run.rng.randint(1, max(steps, 20)) for _ in range(self._kills_in_a_row - 1)]
                    for step in (at, *others):
                        fault = run.rng.choice(_OF_PARTS[name])
                        run.die(load, at=step, fault=fault, with_power=name == "power")
                    run.live(load)

                self.history(f"{load} {name} at step {at}", body)
                yield

    def moments(self, load: str) -> Campaign:
        """Kill from outside at random moments: that is where Arrow's and deltalake's own writes are hit."""

        def body(run: Run) -> None:
            for _ in range(self._kills_in_a_row):
                code = self.forks.run_and_kill(load, run.arguments(batches=500), run.rng.uniform(0, 0.6))
                run.ended(load, code, "moment")
            run.live(load)

        while True:
            self.history(f"{load} moments", body)
            yield

    def fleet(self, name: str) -> Campaign:
        """Die as a whole coordinator, at random steps or moments, while trainings run and publish.

        Somebody watches from outside, but where the power is cut: what was seen need not have been durable.
        """
        fault, _, power = name.partition(" ")

        def body(run: Run) -> None:
            more = self.fleet_arguments(run)
            with nullcontext() if power else run.observed():
                for _ in range(self._kills_in_a_row):
                    at = run.rng.randint(1, _FLEET_STEPS)
                    arguments = run.arguments(at=at, fault=fault, batches=_FLEET_TURNS) | more
                    after_secs = run.rng.uniform(0.2, 6)
                    pause_at_secs = run.rng.uniform(0, after_secs)
                    code = self.forks.run_and_kill("fleet", arguments, after_secs, pause_at_secs)
                    run.ended("coordinator", code, fault)
                    if code == DEAD and power:
                        run.wait_for_trainings()
                        run.cut_power()
                self.settle(run, more)

        while True:
            self.history(f"fleet {name}", body)
            yield

    def fleet_arguments(self, run: Run) -> Figures:
        """What `chaos_fleet.fleet_load` wants to know beside the arguments of a life."""
        guilt = run.rng.random() < 0.5
        return {"recorded": str(self._recorded()), "to_the_end": False, "is_guilty": guilt, "often": 1.0}

    def settle(self, run: Run, more: Figures) -> None:
        """Go on without trouble until nothing is under way, then look."""
        for turns in (40, 0):
            self.forks.do("fleet", run.arguments(batches=turns) | more | {"to_the_end": True})
        run.wait_for_trainings()

    def _recorded(self) -> Path:
        """What replay devices answer from; made when it is first asked for."""
        recorded = self.base / "recorded.parquet"
        if not recorded.exists():
            self.forks.do("recorded", {"recorded": str(recorded)})
        return recorded

    def real(self, rounds: int) -> Figures:
        """Kill the processes of a real `fleet up`; returns what was measured."""
        recorded = self._recorded()
        measured: Figures = {}

        def body(run: Run) -> None:
            def look(disk: Path) -> None:
                self.forks.do("look_at_fleet", run.arguments() | {"disk": str(disk)})

            with run.observed():
                measured.update(RealFleet(run.root, recorded, look).wreck(rounds))

        self.history("real", body)
        return measured

    def campaigns(self) -> dict[str, tuple[int, Campaign]]:
        """All of them, with how many turns each gets of a round."""
        campaigns = {f"fleet {name}": (turns, self.fleet(name)) for name, turns in _OF_FLEETS.items()}
        for part in _PARTS:
            campaigns |= {f"{part} {name}": (2, self.sweep(part, name)) for name in _OF_PARTS}
            campaigns[f"{part} moments"] = (2, self.moments(part))
        return campaigns

    def run(self, kills: int, only: str = "") -> None:
        """Turn by turn until there were so many kills, all campaigns or those whose name begins so."""
        chosen = [pair for name, pair in self.campaigns().items() if name.startswith(only)]
        turns = [campaign for count, campaign in chosen for _ in range(count)]
        self._rng.shuffle(turns)
        for campaign in itertools.cycle(turns):
            if self.tally.kills >= kills or not self.forks.is_alive:
                return
            next(campaign)


@dataclass(frozen=True)
class Options:
    """How much is killed, and where."""

    kills: int = option(1000, "processes to kill", least=0)
    real: int = option(2, "times to kill each process of a real `fleet up`", least=0)
    seed: int = option(0, "of steps and moments")
    only: str = option("", "campaigns whose name begins so (all)")


def measure(options: Options) -> Figures:
    """Run until there were so many kills; those of a real `fleet up` count."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # children are forked of what it has begun
    base = Path(tempfile.mkdtemp(prefix="chaos-", dir=_fast_folder()))
    bench = Bench(base, options.seed)
    try:
        measured = {"real": bench.real(options.real)} if options.real else {}
        bench.run(options.kills, options.only)
    finally:
        bench.forks.close()
    if not bench.tally.failures:
        shutil.rmtree(base)
    return bench.tally.to_json() | measured


def _fast_folder() -> Path | None:
    """A kill takes nothing from a file system, so one of memory will do, and thousands of kills go faster."""
    memory = Path("/dev/shm")
    is_usable = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 256 << 20
    return memory if is_usable else None


main = benchmark("chaos", __doc__, Options, measure, fails=lambda result: result["failures"])

if __name__ == "__main__":
    main()
