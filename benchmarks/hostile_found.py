"""What was seen of hostile cases: tallies of stages, counts of dialects, and the finds.

Filled by `benchmarks.hostile_run`, printed by `benchmarks.hostile`.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(slots=True)
class Tally:
    """What was seen of one stage."""

    files: int = 0
    refused: int = 0
    crashes: int = 0
    hangs: int = 0
    over_memory: int = 0
    #: Of the children's processors, all files together.
    cpu_secs: float = 0.0
    longest_secs: float = 0.0
    longest_case: str = ""
    peak_memory_mb: float = 0.0
    peak_case: str = ""


@dataclass(slots=True)
class Found:
    """Everything that was seen."""

    stages: dict[str, Tally] = field(default_factory=dict)
    #: Sums of the counts of cases, by dialect.
    dialects: dict[str, Counter[str]] = field(default_factory=dict)
    #: One entry a kind of find: stage, what it is, how often, the first case, its text.
    finds: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
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

    def take(self, case: str, event: dict[str, Any]) -> None:
        """Count the end of a stage, as a child told it."""
        tally, name = self.stage(event["ended"]), event["ended"]
        tally.files += 1
        tally.refused += event["how"] == "refused"
        tally.cpu_secs += event["cpu_secs"]
        if event["secs"] > tally.longest_secs:
            tally.longest_secs, tally.longest_case = event["secs"], case
        if event["peak_mb"] > tally.peak_memory_mb:
            tally.peak_memory_mb, tally.peak_case = event["peak_mb"], case
        if event["how"] == "crash":
            tally.crashes += 1
            self.find(name, event["kind"], case, event["text"])
        elif event["how"] == "unaccounted":
            self.find(name, event["kind"], case, event["text"])
        if event["secs"] > SLOW_STAGES.get(name, LIMIT_SECS):
            tally.hangs += 1
            self.find(name, "hang", case, f"{event['secs']} s")
        if event["peak_mb"] > TARGET_MB:
            tally.over_memory += 1
            self.find(name, "memory", case, f"{event['peak_mb']:,.0f} MiB")

    def finish(self, case: str, event: dict[str, Any]) -> None:
        """Count a case that is through."""
        counts = self.dialects.setdefault(event["dialect"], Counter())
        counts["cases"] += 1
        counts.update({key: value for key, value in event.items() if type(value) is int})
        self.done += 1

    def ended(self, case: str, stage: str, why: str, text: str) -> None:
        """Count a case whose child did not live to tell."""
        tally = self.stage(stage)
        tally.files += 1
        if why == "hang":
            tally.hangs += 1
            tally.longest_secs = max(tally.longest_secs, PATIENCE_SECS)
            tally.longest_case = case
        elif why == "memory":
            tally.over_memory += 1
            tally.peak_memory_mb, tally.peak_case = max(tally.peak_memory_mb, MOST_MB), case
        else:
            tally.crashes += 1
        self.find(stage, why, case, text)
        self.dialects.setdefault("ended", Counter())["cases"] += 1
        self.done += 1

    def merge(self, part: Found) -> None:
        """Add what a round saw to what was seen before."""
        for name, tally in part.stages.items():
            known = self.stage(name)
            if tally.longest_secs > known.longest_secs:
                known.longest_secs, known.longest_case = tally.longest_secs, tally.longest_case
            if tally.peak_memory_mb > known.peak_memory_mb:
                known.peak_memory_mb, known.peak_case = tally.peak_memory_mb, tally.peak_case
            for count in ("files", "refused", "crashes", "hangs", "over_memory", "cpu_secs"):
                setattr(known, count, getattr(known, count) + getattr(tally, count))
        for dialect, counts in part.dialects.items():
            self.dialects.setdefault(dialect, Counter()).update(counts)
        for key, find in part.finds.items():
            if key in self.finds:
                self.finds[key]["times"] += find["times"]
            else:
                self.finds[key] = find
        self.done += part.done
