"""Sends hostile cases to child processes, ends those that take too much, and counts what was found.

Called by `benchmarks.hostile` and by the tests.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from agents.host.process_control import environment
from benchmarks.fleet_up import kill_with_children
from fleet.json_types import JsonDict

#: Seconds that a file may take in a stage; above that it hangs. What a crowded host runs instead is left out.
LIMIT_SECS = 10.0
#: Seconds after which a child is ended whose stage has not.
PATIENCE_SECS = 12.0
#: Memory that a child may hold at any moment, in MiB; above that it is ended.
MOST_MB = 3_000.0
#: What importing and training may need, in MiB.
TARGET_MB = 1_024.0
#: Stages that start a Python of their own, and those in which torch starts.
SLOW_STAGES = {
    **dict.fromkeys(("command", "training", "making", "open-dataset", "replay-file", "load-models"), 60.0),
    "reader": 300.0,
}
_POLL_SECS = 0.1
_ERRORS_KEPT = 3_000


@dataclass
class Tally:
    """What was seen of one stage."""

    files: int = 0
    refused: int = 0
    crashes: int = 0
    hangs: int = 0
    longest_secs: float = 0.0
    peak_memory_mb: float = 0.0


@dataclass
class Found:
    """Everything that was seen."""

    stages: dict[str, Tally] = field(default_factory=dict)
    #: Sums of the counts of cases, by dialect.
    dialects: dict[str, Counter[str]] = field(default_factory=dict)
    #: One entry a kind of find: stage, what it is, how often, the first case, its text.
    finds: dict[tuple[str, str], JsonDict] = field(default_factory=dict)
    done: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def stage(self, name: str) -> Tally:
        """The tally of a stage."""
        return self.stages.setdefault(name, Tally())

    def find(self, stage: str, kind: str, case: str, text: str) -> None:
        """Count a find; the text of the first of its kind is kept."""
        known = self.finds.setdefault(
            (stage, kind), {"stage": stage, "kind": kind, "times": 0, "case": case, "text": text, "kept": ""}
        )
        known["times"] += 1

    def take(self, case: str, event: JsonDict) -> None:
        """Count the end of a stage, as a child told it, or as it was ended."""
        name, how, text = event["ended"], event["how"], event["text"]
        tally = self.stage(name)
        tally.files += 1
        tally.refused += how == "refused"
        tally.longest_secs = max(tally.longest_secs, event["secs"])
        tally.peak_memory_mb = max(tally.peak_memory_mb, event["peak_mb"])
        if how in ("crash", "unaccounted"):
            tally.crashes += how == "crash"
            self.find(name, event["kind"], case, text)
        if how == "hang" or event["secs"] > SLOW_STAGES.get(name, LIMIT_SECS):
            tally.hangs += 1
            self.find(name, "hang", case, f"{event['secs']} s {text}")
        if event["peak_mb"] > TARGET_MB:
            self.find(name, "memory", case, f"{event['peak_mb']:,.0f} MiB {text}")

    def finish(self, event: JsonDict) -> None:
        """Count a case that is through."""
        counts = self.dialects.setdefault(event["dialect"], Counter())
        counts["cases"] += 1
        counts.update({key: value for key, value in event.items() if type(value) is int})
        self.done += 1

    def ended(self, case: str, stage: str, why: str, text: str) -> None:
        """Count a case whose child did not live to tell."""
        how = why if why in ("hang", "memory") else "crash"
        secs, peak_mb = PATIENCE_SECS * (how == "hang"), MOST_MB * (how == "memory")
        event = {"ended": stage, "how": how, "kind": why, "text": text, "secs": secs, "peak_mb": peak_mb}
        self.take(case, event)
        self.dialects.setdefault("ended", Counter())["cases"] += 1
        self.done += 1


@dataclass(frozen=True, kw_only=True)
class Question:
    """One case and the stages that it goes through."""

    #: Its name, as of `benchmarks.hostile_child`.
    case: str
    stages: tuple[str, ...]


class Child:
    """One child process.

    Args:
        folder: Where it works; its errors go into a file there.
        seed: Of generated cases.
        markers: Folder that code in a case would write to.
        module: What it runs.
    """

    def __init__(
        self, folder: Path, seed: int, markers: Path, module: str = "benchmarks.hostile_child"
    ) -> None:
        self._folder, self._module = folder, module
        self._about = {"folder": str(folder), "seed": seed, "markers": str(markers)}
        self._errors = folder / "stderr"
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, question: Question, found: Found) -> None:
        """Take one case through its stages, and count what comes of it."""
        process, case, stage = self._ready(), question.case, "making"
        assert process.stdin is not None
        with suppress(OSError):  # it is gone: the loop below sees that
            asked = {"case": case, "stages": question.stages, **self._about}
            process.stdin.write(json.dumps(asked).encode() + b"\n")
        while True:
            event, why = _next(process, stage)
            if event is None:
                text = self._errors.read_bytes()[-_ERRORS_KEPT:].decode(errors="replace")
                self.close()
                with found.lock:
                    found.ended(case, stage, why, text)
                return
            with found.lock:
                if "ended" in event:
                    found.take(case, event)
                elif "done" in event:
                    found.finish(event)
                    return
            stage = event.get("began", stage)

    def _ready(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", self._module],
                bufsize=0,  # what is read ahead would not wake who waits for more
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**environment(), "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"},
                start_new_session=True,
            )
        return self._process

    def close(self) -> None:
        """End the process, and what it started."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            kill_with_children(process.pid)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def _next(process: subprocess.Popen[bytes], stage: str) -> tuple[JsonDict | None, str]:
    """The next event; None where the child ended, or has to be."""
    assert process.stdout is not None
    began, most = own_secs(process.pid), SLOW_STAGES.get(stage, PATIENCE_SECS)
    while not select.select([process.stdout], [], [], _POLL_SECS)[0]:
        if own_secs(process.pid) - began > most:
            return None, "hang"
        if _resident_mb(process.pid) > MOST_MB:
            return None, "memory"
    if line := process.stdout.readline():
        return json.loads(line), ""
    return None, f"ended with {process.wait()}"


def own_secs(pid: int) -> float:
    """A monotonic clock that stands while a process waits for a processor that runs another one.

    Where the system does not tell that, it is the plain clock.
    """
    try:
        waited_ns = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    except (OSError, IndexError):
        waited_ns = 0
    return time.monotonic() - waited_ns / 1e9


def _resident_mb(pid: int) -> float:
    try:
        return float(psutil.Process(pid).memory_info().rss) / 2**20
    except psutil.NoSuchProcess:
        return 0.0


def run(
    questions: Iterable[Question],
    folder: Path,
    *,
    seed: int,
    markers: Path,
    found: Found,
    workers: int = 1,
    module: str = "benchmarks.hostile_child",
) -> None:
    """Take cases through their stages.

    Args:
        questions: The cases; taken one by one as children become free.
        folder: Where the children work.
        seed: Of generated cases.
        markers: Folder that code in a case would write to.
        found: Takes what is seen.
        workers: Children at once.
        module: What a child runs.
    """
    waiting, lock = iter(questions), threading.Lock()

    def work(number: int) -> None:
        with closing(Child(folder / f"child-{number}", seed, markers, module)) as child:
            while True:
                with lock:
                    question = next(waiting, None)
                if question is None:
                    return
                child.ask(question, found)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))


def split_by_training(questions: Sequence[Question]) -> tuple[list[Question], list[Question]]:
    """Cases without and with a training, which loads torch: memory is told apart so."""
    return (
        [one for one in questions if "training" not in one.stages],
        [one for one in questions if "training" in one.stages],
    )
