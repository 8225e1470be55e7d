"""One worker process as its pool sees it, and the zygote that it comes from. Called by `pool.py`."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any

import psutil

from agents.errors import MessageError
from agents.host.cuda import WORKER_ENVIRONMENT
from agents.host.process_control import command, environment, output_tail, signal_name
from agents.records import Protocol, Workload, as_json_dict
from agents.sandbox.confinement import needs_of
from agents.sandbox.footprint import Footprint, footprint_of, limit_memory
from agents.sandbox.job import JobResult
from agents.sandbox.stages import LOCK_TIMEOUT_SECS, ChildSettings, WorkerStage, limit_of
from agents.sandbox.wire import Channel
from agents.sandbox.worker_messages import MOST_EVENT_BYTES, StageBegan, most_answer_bytes

#: Importing TVM takes about 3 s on an idle core; a loaded host may need many times that.
START_TIMEOUT_SECS = 120.0
_STDERR_KEPT_BYTES = 1 << 20
#: Stages of one job at most: it waits, builds and times in a few.
_MOST_STAGES = 32
#: Time for a killed process to be gone, on a host without a free core.
_DEATH_TIMEOUT_SECS = 10.0
#: A build may take this many times its time-out where other builds share its core; then it hangs.
_MOST_STARVED = 10.0
#: Environment of every process that runs TVM here.
_ENVIRONMENT = {
    # Binding is ours (`pin_process`).
    "TVM_BIND_THREADS": "0",
    # NumPy only fills arguments: its own threads would disturb a timing, and must not live across a fork.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


def end_of(code: int) -> str:
    """Say how a process ended, from its exit code (negative: a signal)."""
    if code >= 0:
        return f"exited with status {code}"
    return f"killed by {signal_name(-code)}"


class Zygote:
    """The process that worker processes are forked from.

    Args:
        threads: Threads of a measured program; read by TVM when its thread pool starts.
        cores: Where it imports TVM.
        lock_path: The host's timing lock, where `cores` time something; else empty.
    """

    def __init__(self, threads: int, cores: Sequence[int], lock_path: str) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # lives as long as this
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._codes: dict[int, int] = {}
        self._next_token = 0
        pinned = ",".join(map(str, cores))
        with theirs:
            self._process = subprocess.Popen(
                command("agents.sandbox.zygote", str(theirs.fileno()), str(os.getpid()), pinned, lock_path),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                env={
                    **environment(),
                    **_ENVIRONMENT,
                    **WORKER_ENVIRONMENT,
                    "TVM_NUM_THREADS": str(threads),
                },
                # Ctrl-C in the terminal is for the coordinator, which then closes the processes in order.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id of the zygote."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether it can fork."""
        return self._process.poll() is None

    def fork(self, channel: socket.socket, stderr: IO[bytes], settings: ChildSettings) -> int:
        """Ask for a worker process that talks over `channel`; returns its token at once.

        Raises:
            OSError: The zygote is gone.
        """
        token = self._next_token
        self._next_token += 1
        message = {"op": "fork", "token": token, "settings": as_json_dict(settings)}
        request = json.dumps(message).encode()
        socket.send_fds(self._control, [request], [channel.fileno(), stderr.fileno()])
        return token

    def kill(self, token: int) -> str:
        """End a worker process and say how it ended; it is gone on return."""
        if token not in self._codes:
            with contextlib.suppress(OSError):
                self._control.send(json.dumps({"op": "kill", "token": token}).encode())
        return self.end_of(token, _DEATH_TIMEOUT_SECS)

    def kill_all(self) -> None:
        """End it and every process it forked, even while it imports TVM, or waits to, and hears nothing."""
        self._process.kill()

    def end_of(self, token: int, timeout_secs: float) -> str:
        """Wait for the end of a worker process, and say how it ended."""
        deadline = time.monotonic() + timeout_secs
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            while token not in self._codes:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return "did not end"
                try:
                    packet = self._control.recv(1 << 16)
                except OSError:
                    packet = b""
                if not packet:
                    return "ended with the process that it was forked from"
                message = json.loads(packet)
                self._codes[message["token"]] = message["code"]
        return end_of(self._codes.pop(token))

    def last_words(self) -> str:
        """The end of what the zygote itself printed: why it could not start."""
        return output_tail(self._stderr.fileno())

    def close(self) -> None:
        """End it and every process it forked."""
        self._control.close()  # it then ends its processes and itself
        try:
            self._process.wait(_DEATH_TIMEOUT_SECS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()


class WorkerProcess:
    """One worker process, forked from a zygote, and what it is doing; `slot` is its place in the pool."""

    def __init__(self, zygote: Zygote, slot: int, settings: ChildSettings) -> None:
        self.slot = slot
        self._zygote = zygote
        self._stderr: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # lives as long as this
        self._stderr_start = 0
        needs = needs_of(settings)
        self._starts_programs, self._is_limited = needs.programs, not needs.gpu
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        self.channel.most_bytes = MOST_EVENT_BYTES
        with theirs:
            try:
                self._token = zygote.fork(theirs, self._stderr, settings)
            except OSError:
                self.channel.close()
                self._stderr.close()
                raise
        self.stage = WorkerStage.STARTING
        self.deadline = time.monotonic() + START_TIMEOUT_SECS
        self.pid = 0
        #: Where its job stands; None while it has none.
        self.at: StageBegan | None = None
        self.jobs_done = 0
        self.memory_limit_bytes = float("inf")
        self.known_workloads: set[str] = set()
        #: Results of programs that it keeps and times again.
        self.held: dict[int, JobResult] = {}
        #: Time that such a timing may take.
        self.retime_limit_secs = 0.0
        #: Whether it was told to time all of them a last time.
        self.is_last_timing = False
        #: Stages of its job so far.
        self._stages = 0
        self._stage_began = self._cpu_secs_before = 0.0

    def begin(self, job: int | None, memory_limit_gib: float = 0.0) -> None:
        """A job (None: a question) is about to be handed over.

        Args:
            job: Its number.
            memory_limit_gib: Above it the process is to be ended, also while programs are timed again.
        """
        self.channel.most_bytes = MOST_EVENT_BYTES
        waiting = WorkerStage.WAITING
        self.stage, self.deadline, self._stages = waiting, time.monotonic() + LOCK_TIMEOUT_SECS, 0
        self.at = None if job is None else StageBegan(job=job, stage=waiting, build_secs=0.0, wait_secs=0.0)
        if job is not None:
            self.memory_limit_bytes = memory_limit_gib * 2**30
            if self._is_limited:
                with contextlib.suppress(OSError):  # it is dead, which shows at once
                    limit_memory(self.pid, self.memory_limit_bytes)
        size = os.fstat(self._stderr.fileno()).st_size
        if size > _STDERR_KEPT_BYTES:  # drop old output before it fills the disk
            self._stderr.truncate(0)
            self._stderr.seek(0)
            size = 0
        self._stderr_start = size

    def enter(self, began: StageBegan, protocol: Protocol) -> None:
        """Begin a stage of a job, with the time it may take.

        Raises:
            MessageError: The job has had more stages than any: each would give it more time.
        """
        self._stages += 1
        if self._stages > _MOST_STAGES:
            raise MessageError(f"a worker process began more than {_MOST_STAGES} stages of one job")
        self.at, self.stage = began, began.stage
        self._stage_began, self._cpu_secs_before = time.monotonic(), self.cpu_secs()
        self.deadline = self._stage_began + limit_of(began.stage, protocol)

    def extend(self, secs: float) -> None:
        """Give it more time: it, or whoever watches it, did not run for so long."""
        self.deadline += secs
        self._stage_began += secs

    @property
    def is_busy(self) -> bool:
        """Whether something is still to come of it."""
        return self.at is not None or self.stage is WorkerStage.RETIMING

    def retime(self, limit_secs: float) -> None:
        """It is timing programs of earlier jobs, with the time that the next one may take."""
        self.at, self.stage = None, WorkerStage.RETIMING
        self.deadline = time.monotonic() + limit_secs

    def retime_all(self) -> None:
        """It was told to time all that it keeps a last time, once the device is free."""
        self.retime(LOCK_TIMEOUT_SECS + self.retime_limit_secs)
        self.is_last_timing = True

    def retiming_began(self) -> None:
        """It has the device. It may say so again: that gives it no more time."""
        self.deadline = min(self.deadline, time.monotonic() + self.retime_limit_secs)

    def rest(self) -> None:
        """Nothing to do."""
        self.at, self.stage, self.deadline = None, WorkerStage.IDLE, float("inf")
        self.is_last_timing = False

    def tell_workload(self, workload: Workload) -> None:
        """Send a workload's module once.

        Raises:
            OSError: The process is gone.
        """
        if workload.workload_id not in self.known_workloads:
            self.channel.send({"op": "workload", "workload": as_json_dict(workload)})
            self.known_workloads.add(workload.workload_id)

    def ask(self, message: dict[str, Any], workload: Workload | None, limit_secs: float) -> None:
        """Put a question to it; where it is dead, that shows at once to who waits for its answer."""
        self.begin(None)
        self.channel.most_bytes = most_answer_bytes(message)
        self.deadline = time.monotonic() + limit_secs
        with contextlib.suppress(OSError):
            if workload is not None:
                self.tell_workload(workload)
            self.channel.send(message)

    def cpu_secs(self) -> float:
        """Processor time that the process has used; 0 if it is gone."""
        try:
            used = psutil.Process(self.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(used.user + used.system)

    def is_starved(self, protocol: Protocol) -> bool:
        """Whether a build that is overdue has not had its time yet, because others kept the cores busy.

        Then it gets the rest of it: how many candidates time out must not depend on how many devices of a
        host build side by side.
        """
        limit = protocol.build_timeout_secs
        used = self.cpu_secs() - self._cpu_secs_before
        if self.stage is not WorkerStage.BUILDING or used >= limit:
            return False
        if time.monotonic() - self._stage_began > _MOST_STARVED * limit:
            return False
        self.deadline = time.monotonic() + max(0.1, limit - used)
        return True

    def footprint(self) -> Footprint:
        """What it and the programs that it started hold."""
        return footprint_of(self.pid, with_group=self._starts_programs)

    def end(self, last_words_secs: float = 0.0) -> tuple[str, str]:
        """End the process; returns how it ended and the end of what it printed since its job began.

        One that ends by itself gets some time (`last_words_secs`) to finish printing.
        """
        fate = self._zygote.end_of(self._token, last_words_secs) if last_words_secs else "did not end"
        if fate == "did not end":
            fate = self._zygote.kill(self._token)
        self.channel.close()
        tail = output_tail(self._stderr.fileno(), start=self._stderr_start)
        self._stderr.close()
        return fate, tail
