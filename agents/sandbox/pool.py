"""Persistent worker processes of one device: jobs in, typed outcomes out, whatever a candidate does.

Used by `worker.py`, from one thread. The parent holds the clock: a build or a run that takes too long, or too
much memory, ends with the death of its process, and a fresh one takes the next job. Time in the queue for
the device counts as neither. `pool_jobs.py` decides what becomes of a job, `processes.py` waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agents.errors import AgentError, MessageError
from agents.records import Workload, as_json_dict
from agents.sandbox.footprint import MOST_THREADS
from agents.sandbox.job import CandidateJob, JobResult
from agents.sandbox.pool_jobs import PoolRun
from agents.sandbox.process import WorkerProcess
from agents.sandbox.processes import WAIT_SECS, ProcessOutput, WorkerProcesses
from agents.sandbox.stages import WATCHED, ChildSettings, WorkerStage
from agents.sandbox.worker_messages import (
    JobDone,
    Ready,
    Rested,
    Retimed,
    RetimingBegan,
    StageBegan,
    WorkerEvent,
    parse_answer,
    parse_event,
)

#: Design spaces and workload lists; they never depend on a candidate.
_PREPARE_TIMEOUT_SECS = 120.0
#: How often it is looked whether there are more questions while processes have none.
_LOOK_SECS = 0.2
#: Jobs after which an idle process is replaced, which bounds what compiled code and leaks may gather.
_RECYCLE_AFTER = 400
#: Share of the probe's seconds below which one process may not bring them at once.
_PROBE_STEP = 0.8


#: What a process is asked, and the workload that the question is about.
Question = tuple[dict[str, Any], Workload | None]


@dataclass(frozen=True, slots=True)
class _OpenQuestion:
    """A question that waits for its answer."""

    place: int
    message: dict[str, Any]
    workload: Workload | None
    #: Whether a process has died of it, or before it saw it.
    was_lost: bool = False


class WorkerPool:
    """Worker processes of one device, one for each of the settings."""

    def __init__(self, settings: Sequence[ChildSettings]) -> None:
        self._processes = WorkerProcesses(settings)
        #: The batch that the processes work for, and candidates timed in those before.
        self._running: PoolRun | None = None
        self._timed_before = 0
        #: Seconds of the gate's probe on this device, undisturbed (`agents.programs.gate`); 0 if not known.
        self.probe_secs = 0.0

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def started(self) -> int:
        """Processes started since the pool was made."""
        return self._processes.started

    @property
    def pids(self) -> list[int]:
        """Process ids of the live workers and of the process that they are forked from."""
        return self._processes.pids

    @property
    def stages(self) -> list[WorkerStage]:
        """What each process is doing; another thread may ask."""
        return [process.stage for process in self._processes]

    @property
    def timed(self) -> int:
        """Candidates that were timed for the first time, or failed, so far; another thread may ask."""
        running = self._running
        return self._timed_before + (running.timed if running else 0)

    def start(self) -> None:
        """Start every process now instead of with its first job; returns before they are ready."""
        self._processes.start(self._processes.most)

    def close(self) -> None:
        """End every process."""
        self._processes.close()

    def ask(self, message: dict[str, Any], workload: Workload | None = None) -> dict[str, Any]:
        """Put one question that does not depend on a candidate to a process and wait for the answer.

        Returns:
            The fields of the answer (`handlers.py`), of checked types.

        Raises:
            AgentError: It refuses, gives no answer in time or a damaged one, or died of the question.
        """
        [(_, answer)] = self.ask_each([(message, workload)])
        if isinstance(answer, AgentError):
            raise answer
        return answer

    def ask_each(
        self, questions: Iterable[Question | None]
    ) -> Generator[tuple[int, dict[str, Any] | AgentError], None, None]:
        """Put questions as of `ask` to all processes side by side; yields places and answers as they come.

        What `ask` would raise stands in the place of an answer. Whoever stops reading early should close it.

        Args:
            questions: Read as processes become free; None where there is none at this moment. The answers end
                with the last of them, or when there is none and nobody is at work.

        Raises:
            WorkerStartError: No process gets ready.
        """
        processes, unread, count = self._processes, iter(questions), 0
        processes.await_questions()
        waiting = deque[_OpenQuestion]()
        answering: dict[WorkerProcess, _OpenQuestion] = {}
        may_come = True
        try:
            while True:
                if may_come and not waiting:
                    for question in unread:
                        if question is not None:
                            waiting.append(_OpenQuestion(count, *question))
                            count += 1
                        break
                    else:
                        may_come = False
                if not waiting and not answering:
                    return
                processes.start(len(answering) + len(waiting))
                idle = next((process for process in processes if process.stage is WorkerStage.IDLE), None)
                if waiting and idle is not None:
                    answering[idle] = open_question = waiting.popleft()
                    idle.ask(open_question.message, open_question.workload, _PREPARE_TIMEOUT_SECS)
                    continue
                limit_secs = _LOOK_SECS if may_come and not waiting else WAIT_SECS
                for process, message in processes.answers(answering, limit_secs).items():
                    open_question = answering.pop(process)
                    if message is not None:
                        yield open_question.place, self._answer(process, message)
                        continue
                    fate, tail = processes.discard(process)
                    if open_question.was_lost:
                        operation = open_question.message["op"]
                        end = f"a worker process {fate} at {operation!r}: {tail or 'no output'}"
                        yield open_question.place, AgentError(end)
                    else:
                        # One that was killed while idle never saw the question: a fresh one gets it.
                        waiting.append(replace(open_question, was_lost=True))
        finally:
            for process in answering:
                processes.discard(process)

    def _answer(self, process: WorkerProcess, message: dict[str, Any]) -> dict[str, Any] | AgentError:
        process.rest()
        try:
            return parse_answer(message)
        except MessageError as error:
            self._processes.discard(process)  # it would be asked again, and measure
            return error
        except AgentError as error:
            return error

    def run(
        self, jobs: Iterable[CandidateJob], best_secs: Mapping[str, float] | None = None
    ) -> Generator[JobResult, None, None]:
        """Measure candidates; yields one result for each job, in the order in which they end.

        A program that is to be timed at several moments (`Protocol.visits`) ends with its last timing, or
        when all the others have been timed.

        Nothing is left at work when it ends, raises or is closed: who stops reading early closes it.

        Args:
            jobs: What to measure; a result's `job` is the place here. Read as processes become free, so an
                iterator may decide late, by the results that it has seen, what comes next.
            best_secs: Best latency known on this device by workload id, for early stop; those of the jobs
                are added to a copy.
        """
        self._abandon()
        batch = self._running = PoolRun(iter(jobs), best_secs or {}, self._processes.most)
        try:
            yield from self._results(batch)
        finally:
            if self._running is batch:  # else another one has begun since
                self._abandon()

    def _results(self, batch: PoolRun) -> Iterator[JobResult]:
        processes = self._processes
        while True:
            busy = processes.busy
            batch.look_ahead(processes.most - busy)
            while batch.device_lost and batch.todo:
                yield batch.lose_next()
                batch.look_ahead(1)
            if not batch.todo and not busy:
                processes.retime()
                if not processes.busy:
                    yield from processes.take_released()
                    return
            if batch.todo:
                processes.start(len(batch.jobs))
            for process in processes:
                if batch.todo and process.stage is WorkerStage.IDLE:
                    self._give(process, batch)
            for output in processes.wait():
                yield from self._take(output, batch)
            yield from filter(None, self._end_overdue(batch))
            yield from filter(None, self._end_grown(batch))
            yield from processes.take_released()

    def _abandon(self) -> None:
        """Let go of what an abandoned batch left: a late result must not count for the next one."""
        running, self._running = self._running, None
        if running:
            self._timed_before += running.timed
        self._processes.abandon()

    def _give(self, process: WorkerProcess, batch: PoolRun) -> None:
        number = batch.todo[0]
        if process.jobs_done and batch.needs_fresh_process(number):
            if all(other.jobs_done for other in self._processes):
                self._processes.discard(process)
            return  # a fresh one takes it
        if process.jobs_done >= _RECYCLE_AFTER:
            self._processes.discard(process)
            return
        job = batch.jobs[batch.todo.popleft()]
        process.begin(number, job.protocol.memory_limit_gib)
        try:
            process.tell_workload(job.workload)
            process.channel.send(
                {
                    "op": "measure",
                    "workload_id": job.workload.workload_id,
                    "protocol": as_json_dict(job.protocol),
                    "job": {
                        "number": number,
                        "candidate_id": job.candidate.candidate_id,
                        "trace": job.candidate.trace,
                        "check": batch.is_checked(number),
                        "keep": job.is_canary,
                        "best_secs": batch.best(job.workload.workload_id),
                        "probe_secs": self.probe_secs,
                    },
                }
            )
        except OSError:
            # The process died while idle, so the job has not begun.
            self._processes.discard(process)
            batch.todo.appendleft(number)

    def _take(self, output: ProcessOutput, batch: PoolRun) -> Iterator[JobResult]:
        """Turn the messages of a process, or its end, into results."""
        process = output.process
        try:
            for message in output.messages:
                if (result := self._advance(process, parse_event(message), batch)) is not None:
                    yield result
        except MessageError as error:
            output = ProcessOutput(process, [], is_end=True, damage=str(error))
        if not output.is_end or process not in self._processes:
            return
        at = process.at
        end = self._processes.bury(output)
        if at is not None and (result := batch.process_died(at, end)) is not None:
            yield result

    def _advance(self, process: WorkerProcess, event: WorkerEvent, batch: PoolRun) -> JobResult | None:
        """Take in one message; gives the result of a job that ends with it."""
        match event:
            case Ready() if process.stage is not WorkerStage.STARTING:
                raise MessageError(f"a worker process said that it has started while {process.stage}")
            case Rested() | RetimingBegan() | Retimed() if process.stage is not WorkerStage.RETIMING:
                raise MessageError(f"a worker process timed programs again while {process.stage}")
            case Ready():
                process.pid = event.pid
                process.rest()
            case Rested() if process.is_last_timing and process.held:
                raise MessageError(f"a worker process did not time job {min(process.held)} a last time")
            case Rested():
                process.rest()
            case RetimingBegan():
                process.retiming_began()
            case Retimed():
                process.retime(process.retime_limit_secs)
                if event.job not in process.held:
                    raise MessageError(f"a worker process timed job {event.job} again, and does not keep it")
                result = process.held[event.job] = batch.retime(process.held[event.job], event)
                return None if event.left else process.held.pop(result.job)
            case StageBegan() | JobDone() if process.at is None or event.job != process.at.job:
                has = process.at and process.at.job
                raise MessageError(f"a worker process spoke of job {event.job}, and has job {has}")
            case StageBegan():
                process.enter(event, batch.jobs[event.job].protocol)
            case JobDone():
                return self._finish(process, event, batch)
        return None

    def _finish(self, process: WorkerProcess, done: JobDone, batch: PoolRun) -> JobResult | None:
        limit_secs = batch.jobs[done.job].protocol.run_timeout_secs
        process.rest()
        process.jobs_done += 1
        if done.is_retiming:
            process.retime(limit_secs)
        self.probe_secs = _probe_secs(self.probe_secs, done)
        result = batch.finish(done)
        if result is not None and done.is_device_lost:
            # A fresh process looks up its tracker and makes missing locks, which may be what was wrong.
            self._processes.discard(process)
        if result is not None and done.is_kept:
            process.held[done.job], process.retime_limit_secs = result, limit_secs
            return None
        return result

    def _end_overdue(self, batch: PoolRun) -> Iterator[JobResult | None]:
        for process in self._processes.overdue():
            at = process.at
            if process.stage is WorkerStage.RETIMING:
                self._processes.discard(process)
            if at is not None and not process.is_starved(batch.jobs[at.job].protocol):
                self._processes.discard(process)
                yield batch.overdue(at)

    def _end_grown(self, batch: PoolRun) -> Iterator[JobResult | None]:
        for process in self._processes:
            at = process.at
            if process.stage not in WATCHED:
                continue
            held = process.footprint()
            if held.memory_bytes <= process.memory_limit_bytes and held.threads <= MOST_THREADS:
                continue
            self._processes.discard(process)
            if at is None:
                continue  # programs of earlier jobs, which have their numbers
            if held.threads > MOST_THREADS:
                yield batch.over_threads(at, held.threads)
            else:
                yield batch.over_memory(at, is_alone=not process.jobs_done)


def _probe_secs(known: float, done: JobDone) -> float:
    """Seconds of the probe after what a process knows of it; too few would make all records suspect."""
    if done.has_new_level or not known:
        return done.probe_secs or known
    return max(done.probe_secs, _PROBE_STEP * known) if 0 < done.probe_secs < known else known
