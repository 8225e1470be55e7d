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

import contextlib
import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos_children import ChildError, Children
from benchmarks.chaos_faults import DISK_FAULTS
from benchmarks.chaos_real import RealFleet, Wreck
from benchmarks.chaos_run import BATCHES, DEAD, Run, Tally
from benchmarks.fleet_up import LateError
from benchmarks.harness import Figures, benchmark, option

#: Kills of one history, the first at the step whose turn it is, the others at random steps.
KILLS_IN_A_ROW = 4
#: A coordinator's life: turns, and steps on the disk of which one is chosen.
_FLEET_TURNS, _FLEET_STEPS = 120, 800

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
        self.base = base
        self._kills_in_a_row = kills_in_a_row
        self.tally = Tally()
        self._rng = random.Random(seed)
        self.children = Children(base / "errors.txt")

    def close(self) -> None:
        """End all children."""
        self.children.close()

    def history(self, what: str, body: Callable[[Run], None]) -> None:
        """Make one run and judge it; its folder is kept if something is wrong."""
        self.children.hush()
        run = Run(self.base, self.children, self.tally, self._rng.getrandbits(32), what)
        try:
            body(run)
        except (ChildError, LateError) as error:
            words = self.children.last_words()
            self.tally.failures.append(f"{run.what}: {error}; its folder: {run.root}; {words}")
            if not self.children.is_alive:
                self.children.close()
                self.children = Children(self.base / "errors.txt")
            return
        if self.tally.judge(run.root, run.what):
            shutil.rmtree(run.root)

    def _again(self, what: str, body: Callable[[Run], None]) -> Campaign:
        while True:
            self.history(what, body)
            yield

    def sweep(self, load: str, faults: Sequence[str], *, with_power: bool = False) -> Campaign:
        """Die at each step of a life in turn, then a few times at random ones, then look.

        With a full, read-only or failing disk it is mostly a kill some steps later.
        """
        steps = 0

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
                        run.die(load, at=step, fault=run.rng.choice(faults), with_power=with_power)
                    run.live(load)

                what = "disk" if len(faults) > 1 else faults[0]
                self.history(f"{load} {what}{' power' * with_power} at step {at}", body)
                yield

    def moments(self, load: str) -> Campaign:
        """Kill from outside at random moments: that is where Arrow's and deltalake's own writes are hit."""

        def body(run: Run) -> None:
            for _ in range(self._kills_in_a_row):
                after_secs = run.rng.uniform(0, 0.6)
                if self.children.run_and_kill(load, run.arguments(batches=500), after_secs) == DEAD:
                    self.tally.killed(load, "moment")
            run.live(load)

        return self._again(f"{load} moments", body)

    def fleet(self, fault: str, *, with_power: bool = False) -> Campaign:
        """Die as a whole coordinator, at random steps or moments, while trainings run and publish.

        Somebody watches from outside, but where the power is cut: what was seen need not have been durable.
        """

        def body(run: Run) -> None:
            given = self.fleet_arguments(run)
            with contextlib.nullcontext() if with_power else run.observed():
                for _ in range(self._kills_in_a_row):
                    arguments = run.arguments(
                        at=run.rng.randint(1, _FLEET_STEPS), fault=fault, batches=_FLEET_TURNS
                    )
                    after_secs = run.rng.uniform(0.2, 6)
                    pause_at_secs = run.rng.uniform(0, after_secs)
                    code = self.children.run_and_kill(
                        "fleet", arguments | given, after_secs, pause_at_secs=pause_at_secs
                    )
                    run.ended("coordinator", code, fault)
                    if code == DEAD and with_power:
                        run.wait_for_trainings()
                        run.cut_power()
                self.settle(run, given)

        return self._again(f"fleet {fault}{' power' * with_power}", body)

    def fleet_arguments(self, run: Run) -> Figures:
        """What `chaos_load.fleet_load` wants to know beside the arguments of a life."""
        return {
            "recorded": str(self._recorded()),
            "to_the_end": False,
            "is_guilty": run.rng.random() < 0.5,
            "often": 1.0,
        }

    def settle(self, run: Run, given: Figures) -> None:
        """Go on without trouble until nothing is under way, then look."""
        for turns in (40, 0):
            self.children.do("fleet", run.arguments(batches=turns) | given | {"to_the_end": True})
        run.wait_for_trainings()

    def _recorded(self) -> Path:
        """What replay devices answer from; made when it is first asked for."""
        recorded = self.base / "recorded.parquet"
        if not recorded.exists():
            self.children.do("recorded", {"recorded": str(recorded)})
        return recorded

    def real(self, rounds: int) -> Figures:
        """Kill the processes of a real `fleet up`; returns what was measured."""
        recorded = self._recorded()
        measured: Figures = {}

        def body(run: Run) -> None:
            fleet = RealFleet(run.root, recorded)

            def look(disk: Path) -> None:
                self.children.do("look_at_fleet", run.arguments() | {"disk": str(disk)})

            try:
                with run.observed():
                    measured.update(Wreck(fleet, look, self.tally.killed).run(rounds))
            finally:
                fleet.up.kill()

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
        for load in ("spool", "state", "models"):
            made[f"{load} kill"] = (2, self.sweep(load, ["kill"]))
            made[f"{load} torn"] = (2, self.sweep(load, ["torn"]))
            made[f"{load} power"] = (2, self.sweep(load, ["kill"], with_power=True))
            made[f"{load} moments"] = (2, self.moments(load))
            made[f"{load} disk"] = (2, self.sweep(load, sorted(DISK_FAULTS)))
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


@dataclass(frozen=True)
class Options:
    """How much is killed, and where."""

    kills: int = option(1000, "processes to kill", least=0)
    real: int = option(2, "times to kill each process of a real `fleet up`", least=0)
    seed: int = option(0, "of steps and moments")
    only: str = option("", "campaigns whose name begins so (all)")


def measure(options: Options) -> Figures:
    """Run until there were so many kills; those of a real `fleet up` count."""
    base = Path(tempfile.mkdtemp(prefix="chaos-", dir=_fast_folder()))
    bench = Bench(base, options.seed)
    try:
        measured = {"real": bench.real(options.real)} if options.real else {}
        bench.run(options.kills, options.only)
    finally:
        bench.close()
    if not bench.tally.failures:
        shutil.rmtree(base)
    return bench.tally.to_json() | measured


def _fast_folder() -> Path | None:
    """A kill takes nothing from a file system, so one of memory will do, and thousands of kills go faster."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 256 << 20:
        return memory
    return None


main = benchmark("chaos", __doc__, Options, measure, fails=lambda result: result["failures"])

if __name__ == "__main__":
    main()
