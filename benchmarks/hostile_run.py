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
from collections import Counter, defaultdict
from collections.abc import Sequence
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
    "live": 600.0,
}
_POLL_SECS = 0.1
_ERRORS_KEPT = 3_000


@dataclass
class Found:
    """Everything that was seen."""

    #: How often a stage ended how: `ok`, `refused`, `crash`, `unaccounted`, `hang`, `memory`.
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Sums of the counts of cases, by dialect or kind of folder.
    kinds: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    #: One entry a kind of find: stage, what it is, how often, the first case, its text.
    finds: dict[tuple[str, str], JsonDict] = field(default_factory=dict)
    done: int = 0
    #: Of stages with the bound of `LIMIT_SECS`.
    longest_secs: float = 0.0
    peak_memory_mb: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, how: str) -> int:
        """How many stages of any case ended so."""
        return sum(number for (_, end), number in self.ended.items() if end == how)

    def find(self, stage: str, kind: str, case: str, text: str) -> None:
        """Count a find; the text of the first of its kind is kept."""
        first = {"stage": stage, "kind": kind, "times": 0, "case": case, "text": text, "kept": ""}
        self.finds.setdefault((stage, kind), first)["times"] += 1

    def take(self, case: str, event: JsonDict) -> None:
        """Count the end of a stage, or of a case that is through."""
        with self.lock:
            if "ended" in event:
                self._take_end(case, event)
            if "done" in event:
                self.done += 1
                self.kinds[event["done"]].update(event["counts"])

    def _take_end(self, case: str, event: JsonDict) -> None:
        stage, how, text = event["ended"], event["how"], f"{event['secs']:.1f} s: {event['text']}"
        limit_secs = SLOW_STAGES.get(stage, LIMIT_SECS)
        if limit_secs == LIMIT_SECS:
            self.longest_secs = max(self.longest_secs, event["secs"])
        self.peak_memory_mb = max(self.peak_memory_mb, event["peak_mb"])
        if how in ("ok", "refused") and event["secs"] > limit_secs:
            how = "hang"
        elif how in ("ok", "refused") and event["peak_mb"] > TARGET_MB:
            how = "memory"
        self.ended[stage, how] += 1
        if how not in ("ok", "refused"):
            self.find(stage, event["kind"] or how, case, text)


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

    def __init__(self, folder: Path, seed: int, markers: Path, module: str) -> None:
        self._folder, self._module = folder, module
        self._about = {"folder": str(folder), "seed": seed, "markers": str(markers)}
        self._errors = folder / "stderr"
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, question: Question, found: Found) -> None:
        """Take one case through its stages, and count what comes of it."""
        process, stage, event = self._ready(), "making", JsonDict()
        assert process.stdin is not None
        with suppress(OSError):  # it is gone: what comes next says so
            asked = {"case": question.case, "stages": question.stages, **self._about}
            process.stdin.write(json.dumps(asked).encode() + b"\n")
        while "done" not in event:
            event = _next(process, stage)
            stage = event.get("began", stage)
            if event.get("is_over"):
                event["text"] = self._errors.read_bytes()[-_ERRORS_KEPT:].decode(errors="replace")
                self.close()
            found.take(question.case, event)

    def _ready(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
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
        if self._process is not None:
            with self._process:  # which closes its pipes
                if self._process.poll() is None:
                    kill_with_children(self._process.pid)
            self._process = None


def _next(process: subprocess.Popen[bytes], stage: str) -> JsonDict:
    """The next event; where the child ended or has to be, that its stage and its case are over."""
    assert process.stdout is not None
    began, most_secs = own_secs(process.pid), SLOW_STAGES.get(stage, PATIENCE_SECS)
    how, secs, peak_mb = "crash", 0.0, 0.0
    while how == "crash" and not select.select([process.stdout], [], [], _POLL_SECS)[0]:
        secs, peak_mb = own_secs(process.pid) - began, _resident_mb(process.pid)
        how = "hang" if secs > most_secs else "memory" if peak_mb > MOST_MB else how
    if how == "crash" and (line := process.stdout.readline()):
        return dict(json.loads(line))
    kind = how if how != "crash" else f"ended with {process.wait()}"
    about = {"how": how, "kind": kind, "secs": secs, "peak_mb": peak_mb}
    return {"ended": stage, **about, "done": "ended", "counts": {}, "is_over": True}


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
    questions: Sequence[Question],
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
        questions: The cases.
        folder: Where the children work.
        seed: Of generated cases.
        markers: Folder that code in a case would write to.
        found: Takes what is seen.
        workers: Children at once.
        module: What a child runs.
    """
    # Trainings last: they load torch, whose memory is none of what the others take.
    in_order = sorted(questions, key=lambda question: "training" in question.stages)

    def work(number: int) -> None:
        with closing(Child(folder / f"child-{number}", seed, markers, module)) as child:
            for question in in_order[number::workers]:
                child.ask(question, found)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
