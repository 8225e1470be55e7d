"""The jobs that a pool has under way: which comes next, what becomes of one, whom jobs have killed.

`pool.py` makes one for each batch. It takes every decision on jobs; it knows no process and no clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from agents.errors import MessageError
from agents.records import Outcome
from agents.sandbox.job import CandidateJob, JobResult
from agents.sandbox.retimed_programs import most_timings
from agents.sandbox.stages import AT_WORK, WorkerStage, limit_of
from agents.sandbox.worker_messages import JobDone, Retimed, StageBegan

#: A candidate that killed this many worker processes is not tried again. One death may have had another
#: cause: the kernel's out-of-memory killer, an operator, a board that was unplugged.
MAX_STRIKES = 3
#: Times that a job is handed out again after a process died while nothing of the candidate ran.
MAX_EXCUSES = 2
#: Characters of an error that a record keeps, from its end.
_ERROR_CHARS = 2000


class PoolRun:
    """Jobs under way.

    Args:
        source: Jobs; read when a process is about to be free, so it may depend on what ended.
        best_secs: Best latency known by workload; those of the jobs are added.
        processes: Jobs that are under way at once.
    """

    def __init__(
        self, source: Iterator[CandidateJob], best_secs: Mapping[str, float], processes: int
    ) -> None:
        self._source, self._processes = source, processes
        self._best_secs = dict(best_secs)
        #: Jobs read so far.
        self.jobs: list[CandidateJob] = []
        #: Numbers of those that wait for a process.
        self.todo: deque[int] = deque()
        #: Candidates that were timed for the first time, or failed.
        self.timed = 0
        #: Why the device is out of reach; empty while it is not.
        self.device_lost = ""
        #: Worker processes that each job has killed.
        self._strikes = Counter[int]()
        #: Worker processes that died of something else while they had the job.
        self._excuses = Counter[int]()
        #: Jobs whose unscheduled program cannot be run in time.
        self._unchecked: set[int] = set()
        #: Jobs that need a process which had no other before: theirs grew too large.
        self._alone: set[int] = set()

    def look_ahead(self, count: int) -> None:
        """Read jobs until `count` of them wait, or there are no more."""
        while len(self.todo) < count and (job := next(self._source, None)) is not None:
            self.todo.append(len(self.jobs))
            self.jobs.append(job)

    def best(self, workload_id: str) -> float:
        """Best latency known of a workload, in seconds; 0 if none is."""
        return self._best_secs.get(workload_id, 0.0)

    def is_checked(self, number: int) -> bool:
        """Whether the output of a job is compared with that of the unscheduled program."""
        return self.jobs[number].check and number not in self._unchecked

    def needs_fresh_process(self, number: int) -> bool:
        """Whether what others left in a process must not count against this job."""
        return number in self._alone

    def lose_next(self) -> JobResult:
        """End the next job: the device is out of reach."""
        return self._first(JobResult(job=self.todo.popleft(), outcome=Outcome.LOST, error=self.device_lost))

    def finish(self, done: JobDone) -> JobResult | None:
        """Take in the end of a job; None if it is tried again, after some others."""
        if done.is_broken and self._strike(done.job):
            return None
        if done.is_device_lost:
            self.device_lost = done.error
        quality = done.quality | self._strikes_quality(done.job)
        return self._first(replace(done, error=done.error[-_ERROR_CHARS:], quality=quality))

    def retime(self, result: JobResult, event: Retimed) -> JobResult:
        """Add one more timing to the result of a program that its process keeps.

        Raises:
            MessageError: It goes on after it failed, or beyond all its timings: each gives its process more
                time. Or it has repeats with a gate and others without.
        """
        if event.run_secs and bool(event.disturbances) != bool(result.disturbances):
            raise MessageError(f"a worker process timed job {event.job} with a gate and without one")
        more = result.retimed(event.repeats, event.timing_secs)
        most = most_timings(self.jobs[event.job].protocol.visits)
        if event.left and (not event.run_secs or more.quality["visits"] > most):
            raise MessageError(f"a worker process goes on to time job {event.job}, which has had its timings")
        self._note_best(more)
        return more

    def process_died(self, at: StageBegan, error: str) -> JobResult | None:
        """Take in that the process of a job ended by itself; None if the job is tried again.

        A strike against the job if that was at work.
        """
        if at.stage is WorkerStage.REFERENCE:
            self._leave_unchecked(at.job)
            return None
        if at.stage in AT_WORK:
            outcome = _failure_in(at.stage)
            is_again = self._strike(at.job)
        else:  # the host's doing, such as a timing lock that it may not open
            outcome = Outcome.LOST
            is_again = self._is_tried_again(self._excuses, at.job, MAX_EXCUSES)
        return None if is_again else self._fail(at, outcome, error, self._strikes_quality(at.job))

    def overdue(self, at: StageBegan) -> JobResult | None:
        """Take in that a job took too long and was ended; None if it is tried again."""
        if at.stage is WorkerStage.REFERENCE:
            self._leave_unchecked(at.job)
            return None
        outcome = {
            WorkerStage.BUILDING: Outcome.BUILD_TIMEOUT,
            WorkerStage.TIMING: Outcome.RUN_TIMEOUT,
            WorkerStage.CHECKING: Outcome.RUN_TIMEOUT,
        }.get(at.stage, Outcome.LOST)
        limit = limit_of(at.stage, self.jobs[at.job].protocol)
        return self._fail(at, outcome, f"{at.stage} took more than {limit:g} s; its worker process was ended")

    def over_memory(self, at: StageBegan, *, is_alone: bool) -> JobResult | None:
        """Take in that the process of a job took too much memory; None if a fresh process tries it again.

        Args:
            at: The job.
            is_alone: Whether the process had no other job before. Arguments of other workloads and programs
                that wait to be timed again are in it otherwise.
        """
        if not is_alone:
            self._alone.add(at.job)
            self.todo.appendleft(at.job)
            return None
        limit_gib = self.jobs[at.job].protocol.memory_limit_gib
        error = f"{at.stage} took more than {limit_gib:g} GiB of memory; its worker process was ended"
        return self._fail(at, _failure_in(at.stage), error)

    def over_threads(self, at: StageBegan, threads: int) -> JobResult:
        """Take in that the process of a job ran more threads and processes than any honest one."""
        error = f"{at.stage} ran {threads} threads and processes; its worker process was ended"
        return self._fail(at, _failure_in(at.stage), error)

    def _first(self, result: JobResult) -> JobResult:
        self.timed += not self.jobs[result.job].is_canary
        self._note_best(result)
        return result

    def _note_best(self, result: JobResult) -> None:
        if result.outcome is Outcome.OK and result.run_secs:
            workload_id = self.jobs[result.job].workload.workload_id
            best_secs = self._best_secs.get(workload_id, float("inf"))
            self._best_secs[workload_id] = min(best_secs, *result.run_secs)

    def _fail(
        self, at: StageBegan, outcome: Outcome, error: str, quality: dict[str, Any] | None = None
    ) -> JobResult:
        return self._first(
            JobResult(
                job=at.job,
                outcome=outcome,
                build_secs=at.build_secs,
                wait_secs=at.wait_secs,
                error=error,
                quality=quality or {},
            )
        )

    def _leave_unchecked(self, number: int) -> None:
        """Measure a candidate next, without the check: its unscheduled program failed, not the candidate."""
        self._unchecked.add(number)
        self.todo.appendleft(number)

    def _is_tried_again(self, deaths: Counter[int], number: int, most: int) -> bool:
        """Count a death of a job's process; up to `most` of them the job waits again, behind some others."""
        deaths[number] += 1
        if deaths[number] > most:
            return False
        self.look_ahead(len(self.todo) + self._processes)  # as many as there are processes go first
        self.todo.append(number)
        return True

    def _strike(self, number: int) -> bool:
        """Count a death against a job; true if it is to be tried again."""
        return self._is_tried_again(self._strikes, number, MAX_STRIKES - 1)

    def _strikes_quality(self, number: int) -> dict[str, Any]:
        strikes = self._strikes[number]
        quality: dict[str, Any] = {"strikes": strikes} if strikes else {}
        return {**quality, "quarantined": True} if strikes >= MAX_STRIKES else quality


def _failure_in(stage: WorkerStage) -> Outcome:
    return Outcome.BUILD_FAILED if stage is WorkerStage.BUILDING else Outcome.RUN_FAILED
