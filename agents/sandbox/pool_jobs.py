"""The jobs that a pool has under way: what is to come, what is known so far, whom jobs have killed.

`pool.py` makes one for each batch. It decides which job comes next, and when one is given up; it knows no
process and no clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agents.sandbox.job import CandidateJob, JobResult

#: A candidate that killed this many worker processes is not tried again. One death may have had another
#: cause: the kernel's out-of-memory killer, an operator, a board that was unplugged.
MAX_STRIKES = 3
#: Times that a job is handed out again after a process died while nothing of the candidate ran.
MAX_EXCUSES = 2


@dataclass(slots=True)
class PoolRun:
    """Jobs under way."""

    #: What is still to come; read when a process is about to be free, so it may depend on what ended.
    source: Iterator[CandidateJob]
    #: Best latency known by workload; the caller adds to it while the batch runs.
    best_secs: Mapping[str, float]
    #: Told the number of every job that has its first numbers, or failed.
    on_timed: Callable[[int], None]
    #: Best latency by workload among results that are still held to be timed again.
    held_secs: dict[str, float] = field(default_factory=dict)
    #: Jobs read so far.
    jobs: list[CandidateJob] = field(default_factory=list)
    #: Numbers of those that wait for a process.
    todo: deque[int] = field(default_factory=deque)
    #: Worker processes that each job has killed.
    strikes: dict[int, int] = field(default_factory=dict)
    #: Worker processes that died of something else while they had the job.
    excuses: dict[int, int] = field(default_factory=dict)
    #: Jobs whose unscheduled program cannot be run in time.
    unchecked: set[int] = field(default_factory=set)
    #: Jobs that need a process which had no other before: theirs grew too large.
    alone: set[int] = field(default_factory=set)
    #: Why the device is out of reach; empty while it is not.
    device_lost: str = ""

    def best(self, workload_id: str) -> float:
        """Best latency known of a workload; 0 if none is."""
        known = [secs[workload_id] for secs in (self.best_secs, self.held_secs) if workload_id in secs]
        return min(known, default=0.0)

    def hold(self, result: JobResult) -> None:
        """Note the latency of a program that will be timed again."""
        workload_id = self.jobs[result.job].workload.workload_id
        self.held_secs[workload_id] = min(*result.run_secs, self.held_secs.get(workload_id, math.inf))

    def look_ahead(self, count: int) -> None:
        """Read jobs until `count` of them wait, or there are no more."""
        while len(self.todo) < count and (job := next(self.source, None)) is not None:
            self.todo.append(len(self.jobs))
            self.jobs.append(job)

    def leave_unchecked(self, number: int) -> None:
        """Measure a candidate next, without the check: its unscheduled program failed, not the candidate."""
        self.unchecked.add(number)
        self.todo.appendleft(number)

    def give_alone(self, number: int) -> None:
        """Measure a candidate next in a fresh process: what others left in this one is not its doing."""
        self.alone.add(number)
        self.todo.appendleft(number)

    def strike(self, number: int, processes: int) -> bool:
        """Count a death against a job; true if it is to be tried again, after some others.

        Args:
            number: The job.
            processes: How many jobs are under way at once.
        """
        self.strikes[number] = self.strikes.get(number, 0) + 1
        if self.strikes[number] >= MAX_STRIKES:
            return False
        self._put_off(number, processes)
        return True

    def excuse(self, number: int, processes: int) -> bool:
        """Note a death that no candidate can have caused; true if the job is to be tried again, later.

        Args:
            number: The job.
            processes: How many jobs are under way at once.
        """
        self.excuses[number] = self.excuses.get(number, 0) + 1
        if self.excuses[number] > MAX_EXCUSES:
            return False
        self._put_off(number, processes)
        return True

    def _put_off(self, number: int, processes: int) -> None:
        """Let as many others go first as there are processes."""
        self.look_ahead(len(self.todo) + processes)
        self.todo.append(number)

    def strikes_quality(self, number: int) -> dict[str, Any]:
        """What the quality of a record says of them."""
        strikes = self.strikes.get(number, 0)
        quality: dict[str, Any] = {"strikes": strikes} if strikes else {}
        return {**quality, "quarantined": True} if strikes >= MAX_STRIKES else quality


__all__ = ["MAX_EXCUSES", "MAX_STRIKES", "PoolRun"]
