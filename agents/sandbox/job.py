"""What is asked of the worker processes and how it ended. Values only; `pool.py` carries them out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agents.programs.quality import interval_quality
from agents.records import Candidate, Outcome, Protocol, Workload


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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """How one job ended: the measured part of a record."""

    #: Number of the job in the order in which jobs were handed in.
    job: int
    outcome: Outcome
    run_secs: tuple[float, ...] = ()
    warmup_secs: tuple[float, ...] = ()
    number: int = 0
    build_secs: float = 0.0
    wait_secs: float = 0.0
    timing_secs: float = 0.0
    error: str = ""
    #: Unix seconds when it ended.
    ended_at: float = field(default_factory=time.time)
    environment: dict[str, Any] = field(default_factory=dict)
    #: See `docs/measuring.md`.
    quality: dict[str, Any] = field(default_factory=dict)

    def retimed(self, run_secs: Sequence[float], timing_secs: float) -> JobResult:
        """The same with the repeats of one more timing (seconds of one run each), and the time it took."""
        if not run_secs:  # it failed this time
            return replace(self, timing_secs=self.timing_secs + timing_secs)
        every = (*self.run_secs, *run_secs)
        visits = self.quality.get("visits", 1) + 1
        return replace(
            self,
            run_secs=every,
            timing_secs=self.timing_secs + timing_secs,
            ended_at=time.time(),
            quality={**self.quality, "visits": visits, **interval_quality(every)},
        )
