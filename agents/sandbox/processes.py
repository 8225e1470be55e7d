"""The worker processes of one pool: start, watch, end. It waits for their pipes and holds the clock.

`pool.py` calls it, from one thread. It knows no job beyond its number.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agents.errors import MessageError, WorkerStartError
from agents.sandbox.job import JobResult
from agents.sandbox.process import START_TIMEOUT_SECS, WorkerProcess, Zygote
from agents.sandbox.stages import WATCHED, ChildSettings, WorkerStage
from agents.sandbox.worker_messages import Ready, parse_event

#: Time for a process whose socket closed to print its last words and be gone.
_LAST_WORDS_SECS = 2.0
#: A wait that took so much longer than was asked for was held up: this process, or its host, was paused.
_HELD_UP_SECS = 1.0
#: Longest wait for messages in one go.
WAIT_SECS = 60.0
#: How often the memory and the threads of working processes are looked at.
_MEMORY_POLL_SECS = 0.2


@dataclass(frozen=True, slots=True)
class ProcessOutput:
    """What arrived from one process."""

    process: WorkerProcess
    messages: list[dict[str, Any]]
    #: Whether nothing more comes: the process has ended, or its messages are damaged.
    is_end: bool
    damage: str = ""


class WorkerProcesses:
    """The worker processes of one device, one for each of the settings, forked from one zygote."""

    def __init__(self, settings: Sequence[ChildSettings]) -> None:
        if not settings:
            raise ValueError("a pool needs the settings of at least one process")
        self._settings = tuple(settings)
        self._zygote: Zygote | None = None
        self._all: list[WorkerProcess] = []
        #: Results that were held by processes that are gone.
        self._released: list[JobResult] = []
        #: Processes started so far.
        self.started = 0

    def __iter__(self) -> Iterator[WorkerProcess]:
        """The live ones; any of them may be ended meanwhile."""
        return iter(list(self._all))

    def __len__(self) -> int:
        return len(self._all)

    @property
    def most(self) -> int:
        """How many there may be."""
        return len(self._settings)

    @property
    def busy(self) -> int:
        """How many are at work."""
        return sum(process.is_busy for process in self._all)

    @property
    def pids(self) -> list[int]:
        """Process ids of the zygote and of the live processes."""
        zygote = [self._zygote.pid] if self._zygote else []
        return zygote + [process.pid for process in self._all if process.pid]

    def start(self, count: int) -> None:
        """Have so many of them, at most one for each of the settings; returns before they are ready.

        Raises:
            OSError: The host gives no more processes or files.
        """
        while len(self._all) < min(count, self.most):
            used_slots = [process.slot for process in self._all]
            slot = next(slot for slot in range(self.most) if slot not in used_slots)
            try:
                process = WorkerProcess(self._living_zygote(), slot, self._settings[slot])
            except ConnectionError:  # it died a moment ago; a lack of file descriptors is no death
                self._end_zygote()
                process = WorkerProcess(self._living_zygote(), slot, self._settings[slot])
            self._all.append(process)
            self.started += 1

    def discard(self, process: WorkerProcess, last_words_secs: float = 0.0) -> tuple[str, str]:
        """End a process; returns how it ended and the tail of its stderr."""
        self._all.remove(process)
        self._released += process.held.values()
        return process.end(last_words_secs)

    def take_released(self) -> list[JobResult]:
        """Results of programs whose processes are gone, once."""
        released, self._released = self._released, []
        return released

    def bury(self, end: ProcessOutput) -> str:
        """Take away a process that ended by itself, or whose messages are damaged; returns how, for people.

        Raises:
            WorkerStartError: It ended before its first job.
        """
        process = end.process
        is_starting = process.stage is WorkerStage.STARTING
        words = self._zygote.last_words() if self._zygote and is_starting else ""
        fate, tail = self.discard(process, 0.0 if end.damage else _LAST_WORDS_SECS)
        tail = end.damage or tail or words or "no output"
        if is_starting:
            # Of a traceback, the last line says what is wrong.
            what = tail.splitlines()[-1]
            raise WorkerStartError(
                f"a worker process {fate} before its first job: {what}; `fleet doctor` names what is missing"
            )
        return f"its worker process {fate} while {process.stage}: {tail}"

    def wait(self, limit_secs: float = WAIT_SECS) -> list[ProcessOutput]:
        """Wait for messages, or until a deadline or a look at the memory is due, or for so long."""
        if not self._all:
            return []
        with selectors.DefaultSelector() as selector:
            for process in self._all:
                selector.register(process.channel, selectors.EVENT_READ, process)
            began = time.monotonic()
            nearest = min(process.deadline for process in self._all) - began
            is_working = any(process.stage in WATCHED for process in self._all)
            wait_secs = max(0.0, min(nearest, _MEMORY_POLL_SECS if is_working else limit_secs))
            ready = [key.data for key, _ in selector.select(wait_secs)]
        held_up_secs = time.monotonic() - began - wait_secs
        if held_up_secs > _HELD_UP_SECS:
            for process in self._all:
                process.extend(held_up_secs)
        return [_output_of(process) for process in ready]

    def overdue(self) -> list[WorkerProcess]:
        """Processes whose time is over.

        Raises:
            WorkerStartError: One of them has not even started.
        """
        now = time.monotonic()
        late = [process for process in self._all if now > process.deadline]
        for process in late:
            if process.stage is WorkerStage.STARTING:
                self.discard(process)
                raise WorkerStartError(
                    "a worker process was not ready in time (importing TVM takes about 3 s on an idle core); "
                    "free the host or raise its share of CPU"
                )
        return late

    def retime(self) -> None:
        """Have every program that is kept timed a last time."""
        for process in [process for process in self._all if process.held]:
            process.retime_all()
            self._send(process, "retime")

    def abandon(self) -> None:
        """End those at work, and let go of what the others keep: a late result must not count any more."""
        for process in [process for process in self._all if process.is_busy]:
            self.discard(process)
        for process in [process for process in self._all if process.held]:
            process.held.clear()
            self._send(process, "forget")
        self._released.clear()

    def await_questions(self) -> None:
        """End those that time programs of an abandoned batch; whoever starts has all of its time from now on.

        It may have been ready long ago, and nobody asked.
        """
        for process in list(self._all):
            if process.stage is WorkerStage.RETIMING:
                self.discard(process)
            elif process.stage is WorkerStage.STARTING:
                process.deadline = time.monotonic() + START_TIMEOUT_SECS

    def answers(
        self, questioned: Collection[WorkerProcess], limit_secs: float
    ) -> dict[WorkerProcess, dict[str, Any] | None]:
        """Wait for those that were asked: what each answered, with None for one that never will.

        The others get ready, or are taken away, meanwhile.

        Raises:
            WorkerStartError: One of them does not get ready.
        """
        answers: dict[WorkerProcess, dict[str, Any] | None] = {}
        for output in self.wait(limit_secs):
            process = output.process
            if not output.messages and not output.is_end:
                continue
            if process in questioned:
                answers[process] = output.messages[0] if output.messages else None
            elif process.stage is WorkerStage.STARTING and output.messages:
                if isinstance(ready := parse_event(output.messages[0]), Ready):
                    process.pid = ready.pid
                    process.rest()
            else:  # an idle process says nothing: this is its end
                self.bury(replace(output, is_end=True))
        return dict.fromkeys(process for process in self.overdue() if process in questioned) | answers

    def close(self) -> None:
        """End every process."""
        if self._zygote is not None and not any(process.pid for process in self._all):
            self._zygote.kill_all()
        for process in list(self._all):
            self.discard(process)
        self._end_zygote()

    def _send(self, process: WorkerProcess, operation: str) -> None:
        try:
            process.channel.send({"op": operation})
        except OSError:
            self.discard(process)

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


def _output_of(process: WorkerProcess) -> ProcessOutput:
    try:
        messages, is_alive = process.channel.receive_ready()
    except MessageError as error:
        return ProcessOutput(process, [], is_end=True, damage=str(error))
    return ProcessOutput(process, messages, is_end=not is_alive)
