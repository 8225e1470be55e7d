"""One history with its folder and lives, and the tally of all: for the campaigns of `benchmarks.chaos`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.chaos_children import (
    ALIVE,
    DISK_FAILED,
    REFUSED,
    STILL,
    ChildError,
    Children,
    wake_training,
)
from benchmarks.chaos_faults import DISK_FAULTS
from benchmarks.chaos_history import HistoryLog, check, read_history
from benchmarks.chaos_power import mark_durable, power_cut
from benchmarks.fleet_up import patience
from fleet.json_types import JsonDict

#: Batches of one life: enough to merge files and to begin segments.
BATCHES = 6
#: How a killed process ends.
DEAD = -9
#: How long a training may take to end that nobody wants any more.
_END_SECS = 30.0


#: Fields of a verdict that are counted; any other is a failure as well.
BROKEN = ("lost", "duplicated", "unaccounted", "half_published")


class Tally:
    """What was done and what was found."""

    def __init__(self) -> None:
        self.kills = 0
        self.by_target: Counter[str] = Counter()
        self.by_fault: Counter[str] = Counter()
        #: Broken promises.
        self.faults = Counter(dict.fromkeys(BROKEN, 0))
        self.histories = 0
        #: By kind and `by` of an event.
        self.events: Counter[tuple[str, str]] = Counter()
        self.publications = 0
        self.failures: list[str] = []

    def killed(self, target: str, fault: str) -> None:
        """Count a kill."""
        self.kills += 1
        self.by_target[target] += 1
        self.by_fault[fault] += 1

    def judge(self, root: Path, what: str) -> bool:
        """Check the history of a run; says whether it is clean."""
        history = read_history(root / "history.jsonl")
        verdict = check(history)
        self.histories += 1
        for event in history:
            self.events[event.kind, event.by] += 1
            if event.kind == "killed":
                self.killed(event.by, "kill")
        # As `chaos_models.name_of` puts them: serial, kind, device, version, moment.
        changes = {tuple(one.split()) for event in history for one in event.places.get("registry", ())}
        self.publications += len({one[3] for one in changes if one[1] == "published"})
        for name in BROKEN:
            self.faults[name] += len(getattr(verdict, name))
        if not verdict.is_clean:
            self.failures.append(f"{what}: {verdict}; its folder: {root}")
        return verdict.is_clean

    def to_json(self) -> JsonDict:
        """The result of the benchmark."""
        return {
            "kills": self.kills,
            **self.faults,
            "clock_steps": self.events["trouble", "clock step"],
            "pauses": self.events["trouble", "pause"],
            "disk_faults": self.events["trouble", "disk fault"],
            "trainings": self.events["training", "begun"],
            "trainings_finished": self.events["training", "finished"],
            "publications": self.publications,
            "seen_from_outside": {
                by: count for (kind, by), count in sorted(self.events.items()) if kind == "seen" and by
            },
            "failures": self.failures,
            "histories": self.histories,
            "by_target": dict(sorted(self.by_target.items())),
            "by_fault": dict(sorted(self.by_fault.items())),
        }


class Run:
    """One history in a folder of its own.

    Args:
        base: Where the folder is made.
        children: Starts the loads.
        tally: Where kills are counted.
        seed: Of all that is random in it.
        what: To name it in messages.
    """

    def __init__(self, base: Path, children: Children, tally: Tally, seed: int, what: str) -> None:
        self.rng = random.Random(seed)
        self.what = f"{what}, seed {seed}"
        self.root = Path(tempfile.mkdtemp(prefix=f"{what.split()[0]}-", dir=base))
        self.disk = self.root / "disk"
        self.disk.mkdir()
        mark_durable(self.disk, self.root / "trace")
        self._children = children
        self._tally = tally
        self.log = HistoryLog(self.root / "history.jsonl")
        #: Whether to break a promise on purpose (`benchmarks.chaos_load`).
        self.sabotage = ""
        self._lives = 0

    def arguments(self, *, at: int = 0, fault: str = "kill", batches: int = BATCHES) -> JsonDict:
        """Arguments of the next life; see `benchmarks.chaos_load`."""
        self._lives += 1
        plan = {"folder": str(self.disk), "trace": str(self.root / "trace"), "at": at, "fault": fault}
        if fault in DISK_FAULTS:
            plan["fault_steps"] = self.rng.randint(1, 4)
            plan["die_at"] = at + self.rng.randint(1, 12) if self.rng.random() < 0.7 else 0
        return {
            "root": str(self.root),
            "disk": str(self.disk),
            "first": self._lives * 1000,
            "batches": batches,
            "seed": self.rng.random(),
            "plan": plan,
            "sabotage": self.sabotage,
        }

    def die(self, load: str, *, at: int, fault: str, with_power: bool = False) -> None:
        """One life that ends at a step, if it has so many."""
        code = self._children.run(load, self.arguments(at=at, fault=fault))
        self.ended(load, code, fault)
        if code == DEAD and with_power:
            self.cut_power()

    def ended(self, target: str, code: int, fault: str) -> None:
        """Count a kill.

        Raises:
            ChildError: It ended by itself, and not well.
        """
        if code == DEAD:
            self._tally.killed(target, fault)
        elif code == REFUSED and fault in DISK_FAULTS:
            self._tally.by_fault[f"{fault} at the start"] += 1
        elif code == DISK_FAILED and fault in DISK_FAULTS and fault != "full":
            self._tally.by_fault[f"{fault}, ended in order"] += 1
        elif code != 0:
            raise ChildError(f"{target} ended with {code}")
        elif fault in DISK_FAULTS:
            self._tally.by_fault[f"{fault}, alive"] += 1

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Have a process look from outside meanwhile."""
        pid = self._children.start("observer", {"root": str(self.root), "disk": str(self.disk)})
        try:
            yield
        finally:
            os.kill(pid, signal.SIGKILL)
            if (code := self._children.wait(pid)) != DEAD:
                raise ChildError(f"the observer ended with {code}")

    def wait_for_trainings(self) -> None:
        """Wait until trainings are gone whose coordinator was killed: they end with it, but not at once.

        Raises:
            ChildError: They do not.
        """
        wake_training(self.root / STILL)
        with (self.root / ALIVE).open("w") as stream:
            ends_at = time.monotonic() + patience(_END_SECS)
            while True:
                with contextlib.suppress(BlockingIOError):
                    return fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.monotonic() > ends_at:
                    raise ChildError("a training goes on without its coordinator")
                time.sleep(0.01)

    def cut_power(self) -> None:
        """Take what has not reached the disk."""
        power_cut(self.disk, self.root / "trace", self.rng)
        self._tally.by_fault["power_cut"] += 1

    def live(self, load: str, batches: int = 2) -> None:
        """One life without faults.

        Raises:
            ChildError: It failed.
        """
        self._children.do(load, self.arguments(batches=batches))

    def steps(self) -> int:
        """Steps of the last life that came to its end."""
        return int((self.root / "steps").read_text())
