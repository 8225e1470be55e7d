"""Persistent worker processes of one device: jobs in, typed outcomes out, whatever a candidate does.

Used by `worker.py`, from one thread. The parent holds the clock: a build or a run that takes too long
ends with the death of its process, and a fresh process takes the next job. Time in the queue for the
host's timing lock counts as neither.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from agents.child import ChildSettings, Stage
from agents.errors import AgentError
from agents.records import Candidate, Outcome, Protocol, Workload, as_json_dict
from agents.wire import Channel

#: Importing TVM takes about 3 s on an idle core; a loaded host may need many times that.
START_TIMEOUT_SEC = 120.0
#: Design spaces and workload lists; they never depend on a candidate.
_PREPARE_TIMEOUT_SEC = 120.0
#: A job is dropped as lost when the timing lock does not come free for this long.
_LOCK_TIMEOUT_SEC = 600.0
#: Time for a process whose socket closed to print its last words and be gone.
_LAST_WORDS_SEC = 2.0
_STDERR_TAIL_BYTES = 2000
_STDERR_KEPT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one job ended: the measured part of a record."""

    #: Position of the candidate in the batch.
    job: int
    outcome: Outcome
    run_secs: tuple[float, ...] = ()
    warmup_secs: tuple[float, ...] = ()
    number: int = 0
    build_secs: float = 0.0
    wait_secs: float = 0.0
    timing_secs: float = 0.0
    error: str = ""
    environment: dict[str, Any] = field(default_factory=dict)


class _Child:
    """One worker process and what it is doing."""

    def __init__(self, settings: ChildSettings, threads: int) -> None:
        self.settings = settings
        self.stderr: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # lives as long as the child
        ours, theirs = socket.socketpair()
        environment = {
            **os.environ,
            # Read by TVM when its thread pool starts; binding is ours (`pin_process`).
            "TVM_NUM_THREADS": str(threads),
            "TVM_BIND_THREADS": "0",
            # NumPy only fills arguments: its own threads would disturb a timing.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "agents.child", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.stderr,
                stderr=self.stderr,
                env=environment,
                # Ctrl-C in the terminal is for the coordinator, which then closes the children in order.
                start_new_session=True,
            )
        self.channel = Channel(ours)
        self.channel.send(as_json_dict(settings))
        self.stage = Stage.STARTING
        self.deadline = time.monotonic() + START_TIMEOUT_SEC
        self.job: int | None = None
        self.jobs_done = 0
        self.known_workloads: set[str] = set()
        self.build_secs = self.wait_secs = 0.0
        self._stderr_start = 0

    def enter(self, stage: Stage, protocol: Protocol) -> None:
        """Begin a stage of a job, with the time it may take."""
        limits = {Stage.BUILDING: protocol.build_timeout_sec, Stage.TIMING: protocol.run_timeout_sec}
        self.stage = stage
        self.deadline = time.monotonic() + limits.get(stage, _LOCK_TIMEOUT_SEC)

    def mark_stderr(self) -> None:
        """Remember where the next job's output begins; drop old output before it fills the disk."""
        size = os.fstat(self.stderr.fileno()).st_size
        if size > _STDERR_KEPT_BYTES:
            self.stderr.truncate(0)
            self.stderr.seek(0)
            size = 0
        self._stderr_start = size

    def stderr_tail(self) -> str:
        """The end of what the process printed since `mark_stderr`."""
        size = os.fstat(self.stderr.fileno()).st_size
        start = max(self._stderr_start, size - _STDERR_TAIL_BYTES)
        return os.pread(self.stderr.fileno(), size - start, start).decode(errors="replace").strip()

    def kill(self) -> str:
        """End the process group and say how the process ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        self.channel.close()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"


class WorkerPool:
    """Worker processes of one device.

    Args:
        settings: One for each process: target, cores and lock.
        threads: Threads of a measured program.
        recycle_after: Jobs after which an idle process is replaced, which bounds what compiled code and
            leaks may gather.
    """

    def __init__(
        self, settings: Sequence[ChildSettings], *, threads: int = 1, recycle_after: int = 400
    ) -> None:
        if not settings:
            raise ValueError("a pool needs the settings of at least one process")
        self._settings = tuple(settings)
        self._threads = threads
        self._recycle_after = recycle_after
        self._children: list[_Child] = []
        #: Processes started since the pool was made.
        self.started = 0

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> None:
        """Start every process now instead of with its first job; returns before they are ready."""
        while len(self._children) < len(self._settings):
            self._start()

    @property
    def pids(self) -> list[int]:
        """Process ids of the live workers."""
        return [child.process.pid for child in self._children]

    def close(self) -> None:
        """End every process."""
        while self._children:
            child = self._children.pop()
            child.kill()
            child.stderr.close()

    def ask(self, message: dict[str, Any], workload: Workload | None = None) -> dict[str, Any]:
        """Put one question that does not depend on a candidate to a process and wait for the answer.

        Raises:
            AgentError: No answer in time, or the process died of it.
        """
        child = self._start() if not self._children else self._children[0]
        self._await_ready(child)
        try:
            if workload is not None:
                self._tell_workload(child, workload)
            child.mark_stderr()
            child.channel.send(message)
            answer = self._receive(child, _PREPARE_TIMEOUT_SEC)
        except OSError:
            answer = None
        if answer is None:
            tail = child.stderr_tail()
            raise AgentError(
                f"a worker process {self._discard(child)} at {message['op']!r}: {tail or 'no output'}"
            )
        return answer

    def run(
        self, candidates: Sequence[Candidate], workloads: Sequence[Workload], protocol: Protocol
    ) -> Iterator[Result]:
        """Measure candidates; yields one result for each of them, in the order in which they end.

        Args:
            candidates: What to measure; a result's `job` is the index here.
            workloads: The workload of each candidate, same length.
            protocol: How to time, and the time-outs.
        """
        for child in [child for child in self._children if child.job is not None]:
            self._discard(child)  # its batch was abandoned: a late result must not count for this one
        todo = deque(range(len(candidates)))
        wire_protocol = as_json_dict(protocol)
        while todo or any(child.job is not None for child in self._children):
            while todo and len(self._children) < min(len(self._settings), len(candidates)):
                self._start()
            for child in list(self._children):
                if todo and child.stage is Stage.IDLE:
                    yield from self._give(child, todo, candidates, workloads, wire_protocol, protocol)
            yield from self._wait(protocol)

    def _give(
        self,
        child: _Child,
        todo: deque[int],
        candidates: Sequence[Candidate],
        workloads: Sequence[Workload],
        wire_protocol: dict[str, Any],
        protocol: Protocol,
    ) -> Iterator[Result]:
        if child.jobs_done >= self._recycle_after:
            self._discard(child)
            return
        job = todo.popleft()
        child.mark_stderr()
        child.job, child.build_secs, child.wait_secs = job, 0.0, 0.0
        child.enter(Stage.WAITING, protocol)
        try:
            self._tell_workload(child, workloads[job])
            child.channel.send(
                {
                    "op": "measure",
                    "job": job,
                    "workload_id": workloads[job].workload_id,
                    "trace": candidates[job].trace,
                    "protocol": wire_protocol,
                }
            )
        except OSError:
            yield self._bury(child)

    def _wait(self, protocol: Protocol) -> Iterator[Result]:
        """Wait for news or for the next deadline, and turn both into results."""
        if not self._children:
            return
        with selectors.DefaultSelector() as selector:
            for child in self._children:
                selector.register(child.channel, selectors.EVENT_READ, child)
            nearest = min(child.deadline for child in self._children)
            events = selector.select(max(0.0, min(nearest - time.monotonic(), 60.0)))
        for key, _ in events:
            child = key.data
            messages, alive = child.channel.receive_ready()
            for message in messages:
                result = self._advance(child, message, protocol)
                if result is not None:
                    yield result
            if not alive:
                yield from self._lost(child)
        now = time.monotonic()
        for child in list(self._children):
            if now > child.deadline:
                yield from self._overdue(child, protocol)

    def _advance(self, child: _Child, message: dict[str, Any], protocol: Protocol) -> Result | None:
        event = message["event"]
        if event == "ready":
            child.stage, child.deadline = Stage.IDLE, float("inf")
        elif event == "stage":
            child.build_secs = message.get("build_secs", child.build_secs)
            child.wait_secs = message.get("wait_secs", child.wait_secs)
            child.enter(Stage(message["stage"]), protocol)
        elif event == "done":
            assert child.job is not None
            result = Result(
                job=child.job,
                outcome=Outcome(message["outcome"]),
                run_secs=tuple(message.get("run_secs", ())),
                warmup_secs=tuple(message.get("warmup_secs", ())),
                number=message.get("number", 0),
                build_secs=message.get("build_secs", child.build_secs),
                wait_secs=message.get("wait_secs", child.wait_secs),
                timing_secs=message.get("timing_secs", 0.0),
                error=message["error"][-_STDERR_TAIL_BYTES:],
                environment=message.get("environment", {}),
            )
            child.job, child.stage, child.deadline = None, Stage.IDLE, float("inf")
            child.jobs_done += 1
            return result
        return None

    def _lost(self, child: _Child) -> Iterator[Result]:
        """A process ended by itself: its job's fate, or an error when it had not even started."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(_LAST_WORDS_SEC)
        if child.stage is Stage.STARTING:
            tail = child.stderr_tail()
            # Of a traceback, the last line says what is wrong.
            what = tail.splitlines()[-1] if tail else "no output"
            raise AgentError(
                f"a worker process {self._discard(child)} before its first job: {what}; "
                "`fleet doctor` names what is missing"
            )
        if child.job is None:
            self._discard(child)
        else:
            yield self._bury(child)

    def _overdue(self, child: _Child, protocol: Protocol) -> Iterator[Result]:
        if child.stage is Stage.STARTING:
            self._discard(child)
            raise AgentError(
                f"a worker process was not ready after {START_TIMEOUT_SEC:.0f} s (importing TVM takes about "
                "3 s on an idle core); free the host or raise its share of CPU"
            )
        if child.job is not None:
            yield self._bury(child, overdue=protocol)

    def _bury(self, child: _Child, overdue: Protocol | None = None) -> Result:
        """Replace a dead or overdue process and give its job the outcome of the stage that it died in."""
        stage, job, tail = child.stage, child.job, child.stderr_tail()
        build_secs, wait_secs = child.build_secs, child.wait_secs
        fate = self._discard(child)
        assert job is not None
        if overdue is None:
            outcome = Outcome.BUILD_FAILED if stage is Stage.BUILDING else Outcome.RUN_FAILED
            error = f"its worker process {fate} while {stage}: {tail or 'no output'}"
        else:
            outcome, limit = {
                Stage.BUILDING: (Outcome.BUILD_TIMEOUT, overdue.build_timeout_sec),
                Stage.TIMING: (Outcome.RUN_TIMEOUT, overdue.run_timeout_sec),
            }.get(stage, (Outcome.LOST, _LOCK_TIMEOUT_SEC))
            error = f"{stage} took more than {limit:g} s; its worker process was ended"
        return Result(job=job, outcome=outcome, build_secs=build_secs, wait_secs=wait_secs, error=error)

    def _start(self) -> _Child:
        taken = [child.settings for child in self._children]
        free = next(settings for settings in self._settings if settings not in taken)
        child = _Child(free, self._threads)
        self._children.append(child)
        self.started += 1
        return child

    def _discard(self, child: _Child) -> str:
        self._children.remove(child)
        fate = child.kill()
        child.stderr.close()
        return fate

    def _tell_workload(self, child: _Child, workload: Workload) -> None:
        if workload.workload_id not in child.known_workloads:
            child.channel.send({"op": "workload", "workload": as_json_dict(workload)})
            child.known_workloads.add(workload.workload_id)

    def _await_ready(self, child: _Child) -> None:
        while child.stage is Stage.STARTING:
            message = self._receive(child, START_TIMEOUT_SEC)
            if message is None:
                for _ in self._lost(child):
                    pass
            else:
                self._advance(child, message, Protocol())

    def _receive(self, child: _Child, timeout_sec: float) -> dict[str, Any] | None:
        """One message of one process; None when it died. Kills it when it is overdue."""
        end = time.monotonic() + timeout_sec
        with selectors.DefaultSelector() as selector:
            selector.register(child.channel, selectors.EVENT_READ)
            while (left := end - time.monotonic()) > 0:
                if selector.select(left):
                    messages, alive = child.channel.receive_ready()
                    if messages:
                        return messages[0]
                    if not alive:
                        return None
        return None
