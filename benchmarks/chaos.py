"""Kill everything, everywhere, and count what is lost: `python -m benchmarks.chaos --kills 1000 --json`.

Real processes are really killed (SIGKILL) at every write, fsync and rename of spool, store and journal, and
at random moments; power cuts take what no fsync has confirmed; acknowledgements get lost or come twice; the
disk is full, by a shim and on a real small file system. Each run writes a history, and `chaos_history.check`
judges it. `kills` counts kills only; `by_fault` also counts what does not kill.

Exit code 1 if anything was lost, counted twice, unaccounted for, or did not come back; the folder of such a
run is kept and named.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.chaos_children import ChildError, Children
from benchmarks.chaos_real import RealFleet
from benchmarks.chaos_run import BATCHES, DEAD, Run, Tally
from benchmarks.chaos_wreck import local_profiles, wreck

#: Kills of one history, the first at the step whose turn it is, the others at random steps.
KILLS_IN_A_ROW = 4
#: A coordinator's life: turns, and steps on the disk of which one is chosen.
_FLEET_TURNS, _FLEET_STEPS = 80, 500
#: A file system and how much of it is taken from the start.
_SMALL_BYTES, _BALLAST_BYTES = 5 << 19, 2 << 20


#: Goes on until it is told to stop; each turn is one history.
Campaign = Iterator[None]


class Bench:
    """All campaigns on one folder.

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
        except ChildError as error:
            self.tally.failures.append(f"{run.what}: {error}; its folder: {run.root}")
            if not self.children.is_alive:
                self.children.close()
                self.children = Children(self.base / "errors.txt")
            return
        if self.tally.judge(run.root, run.what):
            shutil.rmtree(run.root)

    def sweep(self, load: str, fault: str, *, with_power: bool = False) -> Campaign:
        """Die at each step of a life in turn, then a few times at random ones, then look."""
        steps = 0
        while True:
            for at in self._order(steps):

                def body(run: Run, at: int = at) -> None:
                    run.die(load, at=at, fault=fault, with_power=with_power)
                    for _ in range(self._kills_in_a_row - 1):
                        run.die(
                            load, at=run.rng.randint(1, max(steps, 20)), fault=fault, with_power=with_power
                        )
                    run.live(load)

                self.history(f"{load} {fault}{' power' if with_power else ''} at step {at}", body)
                yield

            def whole(run: Run) -> None:
                nonlocal steps
                run.live(load, BATCHES)
                steps = run.steps()

            self.history(f"{load} whole", whole)

    def _order(self, steps: int) -> list[int]:
        """All steps; in an order that soon has been everywhere, for runs that do not get through."""
        order = list(range(1, steps + 1))
        self._rng.shuffle(order)
        return order

    def moments(self, load: str) -> Campaign:
        """Kill from outside at random moments: that is where Arrow's and deltalake's own writes are hit."""

        def body(run: Run) -> None:
            for _ in range(self._kills_in_a_row):
                after_secs = run.rng.uniform(0, 0.6)
                if self.children.run_and_kill(load, run.arguments(batches=500), after_secs) == DEAD:
                    self.tally.killed(load, "moment")
            run.live(load)

        while True:
            self.history(f"{load} moments", body)
            yield

    def full_by_shim(self, load: str, steps: int = 40) -> Campaign:
        """No room at each step in turn, for one to four steps; mostly a kill soon after."""
        while True:
            for at in self._order(steps):

                def body(run: Run, at: int = at) -> None:
                    for step in (at, run.rng.randint(1, steps)):
                        run.die(load, at=step, fault="full")
                    run.live(load)

                self.history(f"{load} full at step {at}", body)
                yield

    def handover(self) -> Campaign:
        """Agent and coordinator, each killed at random; acknowledgements get lost or come twice."""

        def body(run: Run) -> None:
            name = str(run.root)
            agent = self._start(run, "agent", name, batches=0)
            for kill in range(2 * self._kills_in_a_row):
                coordinator = self._start(run, "coordinator", name, batches=500)
                time.sleep(run.rng.uniform(0, 0.5))
                if kill % 2 or run.rng.random() < 0.5:
                    self._kill(agent, "agent")
                    agent = self._start(run, "agent", name, batches=0)
                    time.sleep(run.rng.uniform(0, 0.3))
                self._kill(coordinator, "coordinator")
                if run.rng.random() < 0.2:
                    self._kill(agent, "agent")
                    run.cut_power()
                    agent = self._start(run, "agent", name, batches=0)
            last = self.children.wait(self._start(run, "coordinator", name, batches=4))
            self._kill(agent, "agent")
            if last != 0:
                raise ChildError(f"the coordinator ended with {last}: {self.children.last_words()}")
            run.live("look")

        while True:
            self.history("handover", body)
            self.tally.by_fault["lost and repeated acknowledgements"] += 1
            yield

    def _start(self, run: Run, load: str, name: str, batches: int) -> int:
        return self.children.start(load, {**run.arguments(batches=batches), "socket": name})

    def _kill(self, pid: int, target: str) -> None:
        os.kill(pid, 9)
        code = self.children.wait(pid)
        if code != DEAD:
            raise ChildError(f"{target} had ended with {code}: {self.children.last_words()}")
        self.tally.killed(target, "moment")

    def fleet(self, fault: str, *, with_power: bool = False) -> Campaign:
        """Die as a whole coordinator, at random steps or moments; agents die and freeze beside."""
        recorded = self._recorded()

        def body(run: Run) -> None:
            for _ in range(self._kills_in_a_row):
                arguments = run.arguments(
                    at=run.rng.randint(1, _FLEET_STEPS), fault=fault, batches=_FLEET_TURNS
                )
                arguments |= {"recorded": str(recorded), "to_the_end": False}
                code = self.children.run_and_kill("fleet", arguments, run.rng.uniform(0.2, 6))
                run.ended("coordinator", code, fault)
                if code == DEAD and with_power:
                    run.cut_power()
            for turns in (10, 0):
                arguments = run.arguments(batches=turns) | {"recorded": str(recorded), "to_the_end": True}
                if self.children.run("fleet", arguments) != 0:
                    raise ChildError(f"the coordinator did not go on: {self.children.last_words()}")

        while True:
            self.history(f"fleet {fault}{' power' if with_power else ''}", body)
            yield

    def real(self, rounds: int) -> dict[str, Any]:
        """Kill the processes of a real `fleet up`; returns what was measured."""
        recorded = self._recorded()
        measured: dict[str, Any] = {}

        def body(run: Run) -> None:
            fleet = RealFleet(run.root, recorded, local_profiles())

            def look(disk: Path) -> None:
                arguments = run.arguments() | {"disk": str(disk)}
                if self.children.run("look_at_fleet", arguments) != 0:
                    raise ChildError(f"looking failed: {self.children.last_words()}")

            try:
                measured.update(wreck(fleet, look, self.tally.killed, rounds))
            finally:
                fleet.close()

        self.history("real", body)
        return measured

    def _recorded(self) -> Path:
        """What replay devices answer from; made when it is first asked for."""
        recorded = self.base / "recorded.parquet"
        if not recorded.exists() and self.children.run("recorded", {"recorded": str(recorded)}) != 0:
            raise ChildError(f"no records for the replay devices: {self.children.last_words()}")
        return recorded

    def small_disk(self) -> Campaign:
        """A real file system of some megabytes, full to the brim, and kills on it."""

        def body(run: Run) -> None:
            small = run.root / "disk"
            with Children(self.base / "errors.txt", tmpfs=small, tmpfs_bytes=_SMALL_BYTES) as children:
                for after_secs in (run.rng.uniform(0, 0.8), run.rng.uniform(0, 0.8), None):
                    arguments = run.arguments(batches=500) | {"ballast_bytes": _BALLAST_BYTES}
                    # A power cut cannot be had inside: its mount is not seen from here.
                    arguments["plan"]["trace"] = ""
                    if after_secs is None:
                        code = children.run("full", arguments)
                    elif (code := children.run_and_kill("full", arguments, after_secs)) == DEAD:
                        self.tally.killed("full", "moment")
                    if code not in (0, DEAD):
                        raise ChildError(f"did not take a full disk: {children.last_words()}")
            self.tally.by_fault["full file system"] += 1

        while True:
            self.history("small disk", body)
            yield

    def campaigns(self) -> dict[str, tuple[int, Campaign]]:
        """All of them, with how many turns each gets of a round."""
        made: dict[str, tuple[int, Campaign]] = {"handover": (3, self.handover())}
        for fault, with_power in (("kill", False), ("kill", True), ("torn", True), ("full", False)):
            made[f"fleet {fault}{' power' * with_power}"] = (2, self.fleet(fault, with_power=with_power))
        if self._may_mount():
            made["small disk"] = (1, self.small_disk())
        for load, weight, steps in (
            ("spool", 1, 40),
            ("journal", 1, 40),
            ("intake", 1, 100),
            ("store", 1, 150),
        ):
            made[f"{load} kill"] = (weight, self.sweep(load, "kill"))
            made[f"{load} torn"] = (1, self.sweep(load, "torn"))
            made[f"{load} power"] = (weight, self.sweep(load, "kill", with_power=True))
            made[f"{load} moments"] = (1, self.moments(load))
            made[f"{load} full"] = (1, self.full_by_shim(load, steps))
        return made

    def _may_mount(self) -> bool:
        """Whether this host lets anybody mount a file system of memory in a name space of its own."""
        folder = self.base / "mount"
        folder.mkdir()
        command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(folder)]
        return (
            shutil.which("unshare") is not None
            and not subprocess.run(command, capture_output=True).returncode
        )

    def run(self, kills: int) -> None:
        """Turn by turn until there were so many kills."""
        turns = [campaign for count, campaign in self.campaigns().values() for _ in range(count)]
        self._rng.shuffle(turns)
        for campaign in itertools.cycle(turns):
            if self.tally.kills >= kills:
                return
            next(campaign)


def measure(*, kills: int, real: int, seed: int, folder: Path | None) -> dict[str, Any]:
    """Run until there were so many kills.

    Args:
        kills: How many.
        real: How often each process of a real `fleet up` is killed; these kills count.
        seed: Of the choice of moments and steps.
        folder: Where the runs have their folders; memory if there is room, else the system's default.
    """
    started = time.monotonic()
    base = Path(tempfile.mkdtemp(prefix="chaos-", dir=folder or _fast_folder()))
    bench = Bench(base, seed)
    try:
        measured = {"real": bench.real(real)} if real else {}
        bench.run(kills)
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
    options = parser.parse_args()
    result = measure(kills=options.kills, real=options.real, seed=options.seed, folder=options.folder)
    print(json.dumps(result, indent=None if options.json else 2))
    sys.exit(1 if result["failures"] else 0)


if __name__ == "__main__":
    main()
