"""What is asked of the worker processes and how it ended. Values only; `pool.py` carries them out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, field
from msgspec.structs import replace

from agents.programs.gate import Disturbance, Repeats
from agents.records import Candidate, Outcome, Protocol, Workload
from agents.values import Value

#: No clock of a job gives more seconds: sums of such numbers stay finite, and fit into the files of records.
_MOST_SECS = 1e12
#: Repeats, or warm-up runs, of one program at most.
_MOST_RUNS = 100_000
Seconds = Annotated[float, Meta(ge=0, le=_MOST_SECS)]
#: Seconds of warm-up runs; and of repeats: no program takes no time.
Runs = Annotated[tuple[Seconds, ...], Meta(max_length=_MOST_RUNS)]
RunSecs = Annotated[tuple[Annotated[float, Meta(gt=0, le=_MOST_SECS)], ...], Meta(max_length=_MOST_RUNS)]
Disturbances = Annotated[tuple[Disturbance, ...], Meta(max_length=_MOST_RUNS)]
Count = Annotated[int, Meta(ge=0, lt=2**53)]
#: Real texts take some 2,000 characters.
MOST_CHARS = 1 << 20
Text = Annotated[str, Meta(max_length=MOST_CHARS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateJob:
    """One candidate to build and time."""

    candidate: Candidate
    workload: Workload
    protocol: Protocol
    #: Which one its measurement will be.
    attempt: int = 0
    #: Compare its output with that of the unscheduled program.
    check: bool = False
    #: A reading of a canary, no candidate of a batch: its compiled program is kept for the next one.
    is_canary: bool = False


class JobResult(Value, frozen=True, kw_only=True):
    """How one job ended: the measured part of a record."""

    #: Number of the job in the order in which jobs were handed in.
    job: Count
    outcome: Outcome
    run_secs: RunSecs = ()
    #: What disturbed each repeat; empty if no gate was around them.
    disturbances: Disturbances = ()
    #: Seconds of the gate's probe, undisturbed, as far as its process knows; 0 if it has no gate.
    probe_secs: Seconds = 0.0
    warmup_secs: Runs = ()
    number: Count = 0
    build_secs: Seconds = 0.0
    wait_secs: Seconds = 0.0
    timing_secs: Seconds = 0.0
    error: Text = ""
    #: Unix seconds when it ended.
    ended_at: float = field(default_factory=time.time)
    environment: dict[str, Any] = field(default_factory=dict)
    #: See `docs/record.md`.
    quality: dict[str, Any] = field(default_factory=dict)

    @property
    def repeats(self) -> Repeats:
        """Its repeats, and what disturbed them."""
        return Repeats(self.run_secs, self.disturbances)

    def retimed(self, more: Repeats, timing_secs: float) -> JobResult:
        """The same with the repeats of one more timing, and the time it took."""
        if not more.run_secs:  # it failed this time
            return replace(self, timing_secs=self.timing_secs + timing_secs)
        repeats = self.repeats + more
        return replace(
            self,
            run_secs=repeats.run_secs,
            disturbances=repeats.disturbances,
            timing_secs=self.timing_secs + timing_secs,
            ended_at=time.time(),
            quality={**self.quality, "visits": self.quality.get("visits", 1) + 1},
        )
