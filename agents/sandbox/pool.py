"""Persistent worker processes of one device: jobs in, typed outcomes out, whatever a candidate does.

Used by `worker.py`, from one thread. The parent holds the clock: a build or a run that takes too long, or too
much memory, ends with the death of its process, and a fresh one takes the next job. Time in the queue for
the device counts as neither.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from agents.errors import AgentError, MessageError, WorkerStartError
from agents.records import Outcome, Workload, as_json_dict
from agents.sandbox.job import CandidateJob, JobResult
from agents.sandbox.news import checked
from agents.sandbox.pool_jobs import PoolRun
from agents.sandbox.process import (
    LOCK_TIMEOUT_SECS,
    START_TIMEOUT_SECS,
    STDERR_TAIL_BYTES,
    WorkerProcess,
    Zygote,
    limit_of,
    refuse_start,
)
from agents.sandbox.stages import ChildSettings, WorkerStage

#: Design spaces and workload lists; they never depend on a candidate.
_PREPARE_TIMEOUT_SECS = 120.0
#: Time for a process whose socket closed to print its last words and be gone.
_LAST_WORDS_SECS = 2.0
#: A wait that took so much longer than was asked for was held up: this process, or its host, was paused.
_HELD_UP_SECS = 1.0
#: How often the memory of working processes is looked at.
_MEMORY_POLL_SECS = 0.2
#: Stages in which the candidate itself is at work; elsewhere a death is not its doing.
_AT_WORK = frozenset({WorkerStage.BUILDING, WorkerStage.TIMING, WorkerStage.CHECKING})


class WorkerPool:
    """Worker processes of one device.

    Args:
        settings: One for each process: target, cores and lock.
        recycle_after: Jobs after which an idle process is replaced, which bounds what compiled code and
            leaks may gather.
    """

    def __init__(self, settings: Sequence[ChildSettings], *, recycle_after: int = 400) -> None:
        if not settings:
            raise ValueError("a pool needs the settings of at least one process")
        self._settings = tuple(settings)
        self._recycle_after = recycle_after
        self._zygote: Zygote | None = None
        self._processes: list[WorkerProcess] = []
        #: Results that were held by processes that are gone.
        self._released: list[JobResult] = []
        #: The batch that the processes work for.
        self._running: PoolRun | None = None
        #: Processes started since the pool was made.
        self.started = 0

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> None:
        """Start every process now instead of with its first job; returns before they are ready."""
        while len(self._processes) < len(self._settings):
            self._start()

    @property
    def pids(self) -> list[int]:
        """Process ids of the live workers and of the process that they are forked from."""
        zygote = [self._zygote.pid] if self._zygote else []
        return zygote + [process.pid for process in self._processes if process.pid]

    @property
    def stages(self) -> list[WorkerStage]:
        """What each process is doing; another thread may ask."""
        return [process.stage for process in list(self._processes)]

    def close(self) -> None:
        """End every process."""
        if self._zygote is not None and not any(process.pid for process in self._processes):
            self._zygote.kill_all()
        for process in list(self._processes):
            self._discard(process)
        self._end_zygote()

    def ask(self, message: dict[str, Any], workload: Workload | None = None) -> dict[str, Any]:
        """Put one question that does not depend on a candidate to a process and wait for the answer.

        Raises:
            AgentError: No answer in time, or the process died of it.
        """
        for is_last in (False, True):
            process = self._idle_process()
            process.begin(None)
            with contextlib.suppress(OSError):
                if workload is not None:
                    process.tell_workload(workload)
                process.channel.send(message)
                answer = self._receive(process, _PREPARE_TIMEOUT_SECS)
                if answer is not None:
                    process.rest()
                    return answer
            fate, tail = self._discard(process)
            # One that was killed while it was idle knew nothing of the question: a fresh one gets it.
            if is_last:
                break
        raise AgentError(f"a worker process {fate} at {message['op']!r}: {tail or 'no output'}")

    def run(
        self,
        jobs: Iterable[CandidateJob],
        best_secs: Mapping[str, float] | None = None,
        on_timed: Callable[[int], None] = lambda _: None,
    ) -> Generator[JobResult, None, None]:
        """Measure candidates; yields one result for each job, in the order in which they end.

        A program that is to be timed at several moments (`Protocol.visits`) ends with its last timing, or
        when all the others have been timed.

        Nothing is left at work when it ends, raises or is closed, which whoever stops reading early should
        do: only here somebody watches the clock.

        Args:
            jobs: What to measure; a result's `job` is the place here. Read as processes become free, so an
                iterator may decide late, by the results that it has seen, what comes next.
            best_secs: Best latency known on this device by workload id, for early stop. Read when a job is
                handed over, so what the caller adds between two results counts at once.
            on_timed: Told the place of every job when it was timed for the first time, or failed.
        """
        self._abandon()
        batch = self._running = PoolRun(iter(jobs), best_secs or {}, on_timed)
        try:
            yield from self._results(batch)
        finally:
            if self._running is batch:  # else another one has begun since
                self._abandon()

    def _results(self, batch: PoolRun) -> Iterator[JobResult]:
        while True:
            busy = sum(process.is_busy for process in self._processes)
            batch.look_ahead(len(self._settings) - busy)
            while batch.device_lost and batch.todo:
                number = batch.todo.popleft()
                batch.on_timed(number)
                yield JobResult(job=number, outcome=Outcome.LOST, error=batch.device_lost)
                batch.look_ahead(1)
            if not batch.todo and not busy and not self._retime_all():
                yield from self._take_released()
                return
            while batch.todo and len(self._processes) < min(len(self._settings), len(batch.jobs)):
                self._start()
            for process in list(self._processes):
                if batch.todo and process.stage is WorkerStage.IDLE:
                    self._give(process, batch)
            yield from self._wait(batch)
            yield from self._take_released()

    def _abandon(self) -> None:
        """Let go of what an abandoned batch left: a late result must not count for the next one."""
        self._running = None
        for process in [process for process in self._processes if process.is_busy]:
            self._discard(process)
        for process in [process for process in self._processes if process.held]:
            process.held.clear()
            try:
                process.channel.send({"op": "forget"})
            except OSError:
                self._discard(process)
        self._released.clear()

    def _retime_all(self) -> bool:
        """Have every program that is kept timed a last time; false if there is none."""
        for process in [process for process in self._processes if process.held]:
            process.retime(LOCK_TIMEOUT_SECS)
            try:
                process.channel.send({"op": "retime"})
            except OSError:
                self._discard(process)
        return any(process.is_busy for process in self._processes)

    def _take_released(self) -> Iterator[JobResult]:
        released, self._released = self._released, []
        yield from released

    def _give(self, process: WorkerProcess, batch: PoolRun) -> None:
        number = batch.todo[0]
        if process.jobs_done and number in batch.alone:
            if all(other.jobs_done for other in self._processes):
                self._discard(process)
            return  # a fresh one takes it
        if process.jobs_done >= self._recycle_after:
            self._discard(process)
            return
        batch.todo.popleft()
        job = batch.jobs[number]
        process.begin(number)
        try:
            process.tell_workload(job.workload)
            process.channel.send(
                {
                    "op": "measure",
                    "job": number,
                    "workload_id": job.workload.workload_id,
                    "candidate_id": job.candidate.candidate_id,
                    "trace": job.candidate.trace,
                    "protocol": as_json_dict(job.protocol),
                    "check": job.check and number not in batch.unchecked,
                    "keep": job.keep,
                    "best_secs": batch.best(job.workload.workload_id),
                }
            )
        except OSError:
            # It had died while it was idle: the job has not begun.
            self._discard(process)
            batch.todo.appendleft(number)

    def _wait(self, batch: PoolRun) -> Iterator[JobResult]:
        """Wait for news or for the next deadline, and turn both into results."""
        if not self._processes:
            return
        with selectors.DefaultSelector() as selector:
            for process in self._processes:
                selector.register(process.channel, selectors.EVENT_READ, process)
            began = time.monotonic()
            nearest = min(process.deadline for process in self._processes) - began
            is_working = any(process.stage in _AT_WORK for process in self._processes)
            wait_secs = max(0.0, min(nearest, _MEMORY_POLL_SECS if is_working else 60.0))
            events = selector.select(wait_secs)
        held_up_secs = time.monotonic() - began - wait_secs
        if held_up_secs > _HELD_UP_SECS:
            for process in self._processes:
                process.extend(held_up_secs)
        for key, _ in events:
            process = key.data
            try:
                messages, alive = process.channel.receive_ready()
                for message in messages:
                    yield from self._advance(process, checked(message), batch)
                words = ""
            except MessageError as error:
                alive, words = False, str(error)
            if not alive and process in self._processes:
                yield from self._gone(process, batch, words)
        now = time.monotonic()
        for process in list(self._processes):
            if now > process.deadline:
                yield from self._overdue(process, batch)
            elif process.stage in _AT_WORK:
                yield from self._check_memory(process, batch)

    def _advance(
        self, process: WorkerProcess, message: dict[str, Any], batch: PoolRun
    ) -> Iterator[JobResult]:
        event = message["event"]
        if event == "ready":
            process.pid = message["pid"]
            process.rest()
            return
        if event in ("retiming", "retimed", "rested"):
            yield from self._retimed(process, message)
            return
        number = process.job
        if number is None or number != message["job"]:
            raise MessageError(f"a worker process spoke of job {message['job']}, and has job {number}")
        if event == "stage":
            process.build_secs = message.get("build_secs", process.build_secs)
            process.wait_secs = message.get("wait_secs", process.wait_secs)
            process.enter(WorkerStage(message["stage"]), batch.jobs[number].protocol)
            return
        protocol = batch.jobs[number].protocol
        process.rest()
        process.jobs_done += 1
        if message.get("is_retiming"):
            process.retime(protocol.run_timeout_secs)
        if message.get("broken") and batch.strike(number, len(self._settings)):
            return
        if message.get("device_lost"):
            batch.device_lost = message["error"]
            # A fresh process looks up its tracker and makes missing locks, which may be what was wrong.
            self._discard(process)
        quality = message.get("quality", {}) | batch.strikes_quality(number)
        result = JobResult(
            job=number,
            outcome=Outcome(message["outcome"]),
            run_secs=tuple(message.get("run_secs", ())),
            warmup_secs=tuple(message.get("warmup_secs", ())),
            number=message.get("number", 0),
            build_secs=message.get("build_secs", process.build_secs),
            wait_secs=message.get("wait_secs", process.wait_secs),
            timing_secs=message.get("timing_secs", 0.0),
            error=message["error"][-STDERR_TAIL_BYTES:],
            environment=message.get("environment", {}),
            quality=quality,
        )
        batch.on_timed(number)
        if message.get("is_kept"):
            process.held[number] = result
            process.retime_limit_secs = protocol.run_timeout_secs
            batch.hold(result)
        else:
            yield result

    def _retimed(self, process: WorkerProcess, message: dict[str, Any]) -> Iterator[JobResult]:
        """A program was timed once more; its result is ready after the last time."""
        if message["event"] == "rested":
            process.rest()
            return
        process.retime(process.retime_limit_secs)
        if message["event"] == "retimed":
            number = message["job"]
            if number not in process.held:
                raise MessageError(f"a worker process timed job {number} again, which it does not keep")
            result = process.held[number].retimed(message["run_secs"], message["timing_secs"])
            process.held[number] = result
            if not message["left"]:
                yield process.held.pop(number)

    def _gone(self, process: WorkerProcess, batch: PoolRun | None, damage: str = "") -> Iterator[JobResult]:
        """A process ended by itself, or must be ended because of the `damage` that its messages show.

        A strike against its job if that was at work, or an error when it had not even started.
        """
        number, stage = process.job, process.stage
        build_secs, wait_secs = process.build_secs, process.wait_secs
        words = self._zygote.last_words() if self._zygote and stage is WorkerStage.STARTING else ""
        fate, tail = self._discard(process, 0.0 if damage else _LAST_WORDS_SECS)
        tail = damage or tail
        if stage is WorkerStage.STARTING:
            raise refuse_start(fate, tail or words)
        if number is None or batch is None:
            return
        if stage is WorkerStage.REFERENCE:
            batch.leave_unchecked(number)
            return
        if stage in _AT_WORK:
            outcome = Outcome.BUILD_FAILED if stage is WorkerStage.BUILDING else Outcome.RUN_FAILED
            is_again = batch.strike(number, len(self._settings))
        else:  # the host's doing, such as a timing lock that it may not open
            outcome = Outcome.LOST
            is_again = batch.excuse(number, len(self._settings))
        if is_again:
            return
        batch.on_timed(number)
        yield JobResult(
            job=number,
            outcome=outcome,
            build_secs=build_secs,
            wait_secs=wait_secs,
            error=f"its worker process {fate} while {stage}: {tail or 'no output'}",
            quality=batch.strikes_quality(number),
        )

    def _check_memory(self, process: WorkerProcess, batch: PoolRun) -> Iterator[JobResult]:
        number = process.job
        assert number is not None
        limit_gib = batch.jobs[number].protocol.memory_limit_gib
        if process.memory_bytes() <= limit_gib * 2**30:
            return
        if process.jobs_done:
            # Arguments of other workloads and programs that wait to be timed again are there as well.
            self._discard(process)
            batch.give_alone(number)
        else:
            yield self._end_job(
                process,
                batch,
                Outcome.BUILD_FAILED if process.stage is WorkerStage.BUILDING else Outcome.RUN_FAILED,
                f"{process.stage} took more than {limit_gib:g} GiB of memory; its worker process was ended",
            )

    def _overdue(self, process: WorkerProcess, batch: PoolRun) -> Iterator[JobResult]:
        if process.stage is WorkerStage.STARTING:
            self._discard(process)
            raise WorkerStartError(
                "a worker process was not ready in time (importing TVM takes about 3 s on an idle core); "
                "free the host or raise its share of CPU"
            )
        if process.stage is WorkerStage.RETIMING:
            self._discard(process)
        if process.job is None:
            return
        stage, number = process.stage, process.job
        if process.is_starved(batch.jobs[number].protocol):
            return
        if stage is WorkerStage.REFERENCE:
            self._discard(process)
            batch.leave_unchecked(number)
            return
        outcome = {
            WorkerStage.BUILDING: Outcome.BUILD_TIMEOUT,
            WorkerStage.TIMING: Outcome.RUN_TIMEOUT,
            WorkerStage.CHECKING: Outcome.RUN_TIMEOUT,
        }.get(stage, Outcome.LOST)
        limit = limit_of(stage, batch.jobs[number].protocol)
        yield self._end_job(
            process, batch, outcome, f"{stage} took more than {limit:g} s; its worker process was ended"
        )

    def _end_job(self, process: WorkerProcess, batch: PoolRun, outcome: Outcome, error: str) -> JobResult:
        """Kill a process for what its job does, and give the job its outcome."""
        number = process.job
        assert number is not None
        batch.on_timed(number)
        result = JobResult(
            job=number,
            outcome=outcome,
            build_secs=process.build_secs,
            wait_secs=process.wait_secs,
            error=error,
        )
        self._discard(process)
        return result

    def _start(self) -> WorkerProcess:
        taken = [process.slot for process in self._processes]
        slot = next(slot for slot in range(len(self._settings)) if slot not in taken)
        try:
            process = WorkerProcess(self._living_zygote(), slot, self._settings[slot])
        except ConnectionError:  # it died a moment ago; a lack of file descriptors is no death
            self._end_zygote()
            process = WorkerProcess(self._living_zygote(), slot, self._settings[slot])
        self._processes.append(process)
        self.started += 1
        return process

    def _living_zygote(self) -> Zygote:
        if self._zygote is not None and not self._zygote.is_alive():
            self._end_zygote()
        if self._zygote is None:
            # The first of the processes is the one that disturbs no timing, where there is such a one.
            first = self._settings[0]
            lock = first.lock_path if first.builds_where_it_times else ""
            self._zygote = Zygote(first.threads, first.build_cores, lock)
        return self._zygote

    def _end_zygote(self) -> None:
        if self._zygote:
            self._zygote.close()
            self._zygote = None

    def _discard(self, process: WorkerProcess, last_words_secs: float = 0.0) -> tuple[str, str]:
        self._processes.remove(process)
        self._released += process.held.values()
        return process.end(last_words_secs)

    def _idle_process(self) -> WorkerProcess:
        """A process that waits for a question; a dead one is replaced first."""
        while True:
            process = self._processes[0] if self._processes else self._start()
            if process.stage is WorkerStage.RETIMING:
                self._discard(process)  # of a batch that was abandoned
                continue
            if process.stage is WorkerStage.IDLE:
                with selectors.DefaultSelector() as selector:
                    selector.register(process.channel, selectors.EVENT_READ)
                    if not selector.select(0):
                        return process
                self._discard(process)  # an idle process says nothing: this is its end
                continue
            # From now on: its own time may be long over while nobody asked whether it is ready.
            message = self._receive(process, START_TIMEOUT_SECS)
            if message is None:
                for _ in self._gone(process, None):
                    pass
            elif message["event"] == "ready":
                process.pid = message["pid"]
                process.rest()

    def _receive(self, process: WorkerProcess, timeout_secs: float) -> dict[str, Any] | None:
        """One message of one process; None when it died, is overdue, or sends no message."""
        end = time.monotonic() + timeout_secs
        with selectors.DefaultSelector() as selector:
            selector.register(process.channel, selectors.EVENT_READ)
            while (left := end - time.monotonic()) > 0:
                if selector.select(left):
                    try:
                        messages, alive = process.channel.receive_ready()
                    except MessageError:
                        return None
                    if messages:
                        return messages[0]
                    if not alive:
                        return None
        return None
