"""One history with its folder and lives, and the tally of all: for the campaigns of `benchmarks.chaos`."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.chaos_children import ALIVE, DISK_FAILED, REFUSED, ChildError, Forks
from benchmarks.chaos_faults import DISK_FAULTS
from benchmarks.chaos_history import HistoryLog, check, read_history
from benchmarks.chaos_power import mark_durable, power_cut
from benchmarks.fleet_up import patience, wait_until
from fleet.json_types import JsonDict

#: Batches of one life: enough to merge files and to begin segments.
BATCHES = 6
#: How a killed process ends.
DEAD = -signal.SIGKILL
#: How else than well a child may end, and under which faults.
_ENDS = {REFUSED: ("full", "read_only", "failing"), DISK_FAILED: ("read_only", "failing")}
#: How long a training may take to end that nobody wants any more.
_END_SECS = 30.0
#: Fields of a verdict that are counted; any other is a failure as well.
BROKEN = ("lost", "duplicated", "unaccounted", "half_published")


class Tally:
    """What was done and what was found, by the histories."""

    def __init__(self) -> None:
        #: By kind and `by` of an event.
        self.events: Counter[tuple[str, str]] = Counter()
        #: Broken promises.
        self.faults = Counter(dict.fromkeys(BROKEN, 0))
        self.histories = self.publications = 0
        self.failures: list[str] = []

    @property
    def kills(self) -> int:
        """Processes that were killed."""
        return sum(self._counts("killed").values())

    def judge(self, root: Path, what: str) -> bool:
        """Check the history of a run; says whether it is clean."""
        history = read_history(root / "history.jsonl")
        verdict = check(history)
        self.histories += 1
        self.events.update((event.kind, event.by) for event in history)
        # As `chaos_models.name_of` puts them: serial, kind, device, version, moment.
        changes = [name.split() for event in history for name in event.places.get("registry", ())]
        self.publications += len({change[3] for change in changes if change[1] == "published"})
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
            "seen_from_outside": self._counts("seen"),
            "failures": self.failures,
            "histories": self.histories,
            "by_fault": self._counts("killed", "trouble"),
        }

    def _counts(self, *kinds: str) -> dict[str, int]:
        return {by: count for (kind, by), count in sorted(self.events.items()) if kind in kinds and by}


class Run:
    """One history in a folder of its own.

    Args:
        base: Where the folder is made.
        forks: Starts the loads.
        seed: Of all that is random in it.
        what: To name it in messages.
    """

    def __init__(self, base: Path, forks: Forks, seed: int, what: str) -> None:
        self.rng = random.Random(seed)
        self.what = f"{what}, seed {seed}"
        self.root = Path(tempfile.mkdtemp(prefix=f"{what.split()[0]}-", dir=base))
        self.disk = self.root / "disk"
        self.disk.mkdir()
        mark_durable(self.disk, self.root / "trace")
        self._forks = forks
        self._log = HistoryLog(self.root / "history.jsonl")
        #: Whether to break a promise on purpose (`benchmarks.chaos_load`).
        self.sabotage = ""
        self._lives = 0

    def arguments(self, *, at: int = 0, fault: str = "kill", batches: int = BATCHES) -> JsonDict:
        """Arguments of the next life; see `chaos_load.Load`."""
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

    def die(self, load: str, *, at: int, fault: str, with_power: bool) -> None:
        """One life that ends at a step, if it has so many."""
        code = self._forks.run(load, self.arguments(at=at, fault=fault))
        self.ended(load, code, fault)
        if code == DEAD and with_power:
            self.cut_power()

    def ended(self, target: str, code: int, fault: str) -> None:
        """Write down a kill.

        Raises:
            ChildError: It ended by itself, and not well.
        """
        if code == DEAD:
            self._log.add("killed", by=f"{target} {fault}")
        elif code and fault not in _ENDS.get(code, ()):
            raise ChildError(f"{target} ended with {code}")

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Have a process look from outside meanwhile."""
        pid = self._forks.start("observer", {"root": str(self.root), "disk": str(self.disk)})
        try:
            yield
        finally:
            os.kill(pid, signal.SIGKILL)
            if (code := self._forks.wait(pid)) != DEAD:
                raise ChildError(f"the observer ended with {code}")

    def wait_for_trainings(self) -> None:
        """Wait until trainings are gone whose coordinator was killed: they end with it, but not at once.

        Raises:
            LateError: They do not.
        """
        with (self.root / ALIVE).open("w") as stream:

            def is_free() -> bool:
                with suppress(BlockingIOError):
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                return False

            wait_until(is_free, "the end of a training", patience(_END_SECS), pause_secs=0.01)

    def cut_power(self) -> None:
        """Take what has not reached the disk."""
        power_cut(self.disk, self.root / "trace", self.rng)
        self._log.add("trouble", by="power cut")

    def live(self, load: str, batches: int = 2) -> None:
        """One life without faults.

        Raises:
            ChildError: It failed.
        """
        self._forks.do(load, self.arguments(batches=batches))

    def steps(self) -> int:
        """Steps of the last life that came to its end."""
        return int((self.root / "steps").read_text())
