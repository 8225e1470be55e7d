"""Programs that a worker process times again, seconds later. Called by `child.py`.

A neighbour on the host slows whatever runs for seconds on end, and a program whose repeats all fall into
such a time has a latency that is wrong by as much, with a narrow interval. Of repeats at moments far apart
one seldom fails to meet a better time. Building takes several times longer than timing, so later timings
cost little: the compiled programs stay in their process, and are timed while the next ones are built.

Which program is the fastest of its workload is what a search asks for, and what a few per cent decide. So
those near the fastest are timed more often, and side by side: the same quiet moment serves them all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Seconds between two timings of one program, and of a front-runner of its workload.
GAP_SECS, FRONT_RUNNER_GAP_SECS = 3.0, 0.5
#: A front-runner is at most so much slower than the fastest program of its workload, and has this many
#: times the timings of others.
FRONT_RUNNER_RATIO, FRONT_RUNNER_FACTOR = 1.1, 3
#: Seconds that the timings on top of the others' may take: a long run is less of a moment than a short one.
_FRONT_RUNNER_SECS = 0.4
#: Last timings of a front-runner, in turns with others: nothing is built beside them.
LAST_FRONT_RUNNER_TIMINGS = 3
#: Programs that are kept; of more, the oldest have their last timing at once.
_MOST_KEPT = 128


@dataclass(slots=True)
class RetimedProgram:
    """A program that has been timed once at least."""

    #: The number of its job.
    job: int
    #: Gives it one more repeat.
    run: Callable[[], tuple[float, ...]]
    workload_id: str
    #: Seconds of its fastest run.
    best_secs: float
    #: Timings that are still to come, if it is no front-runner.
    timings_left: int
    #: Further timings that are still to come while it is one.
    extra: int
    #: Reading of the clock at its last timing.
    last: float


class SpacedRetiming:
    """The programs of one worker process; `clock` gives seconds that only grow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._programs: list[RetimedProgram] = []
        #: Fastest run known of each workload that programs are kept of.
        self._best_secs: dict[str, float] = {}

    def keep(
        self,
        job: int,
        run: Callable[[], tuple[float, ...]],
        timings_left: int,
        workload_id: str,
        best_secs: float,
    ) -> None:
        """Keep a program that was timed just now, for 1 timing more at least; what `run` raises ends them."""
        extra = min((FRONT_RUNNER_FACTOR - 1) * (timings_left + 1), int(_FRONT_RUNNER_SECS / best_secs))
        self._programs.append(
            RetimedProgram(job, run, workload_id, best_secs, timings_left, extra, self._clock())
        )
        self.note(workload_id, best_secs)
        for old in self._programs[:-_MOST_KEPT]:
            old.timings_left, old.extra, old.last = 1, 0, -math.inf

    def note(self, workload_id: str, best_secs: float) -> None:
        """Take in the fastest run that is known of a workload, whoever made it; 0 if none is."""
        if best_secs > 0:
            self._best_secs[workload_id] = min(best_secs, self._best_secs.get(workload_id, math.inf))

    def due(self) -> list[RetimedProgram]:
        """Programs whose next timing is due."""
        now = self._clock()
        return [
            program
            for program in self._programs
            if now - program.last >= (FRONT_RUNNER_GAP_SECS if self._is_front_runner(program) else GAP_SECS)
        ]

    def last(self) -> list[RetimedProgram]:
        """All of them, for their last timings: a front-runner has several, the others between."""
        for program in self._programs:
            program.timings_left, program.extra = (
                LAST_FRONT_RUNNER_TIMINGS if self._is_front_runner(program) else 1,
                0,
            )
        return [
            program
            for turn in range(LAST_FRONT_RUNNER_TIMINGS)
            for program in self._programs
            if program.timings_left > turn
        ]

    def time_again(self, program: RetimedProgram) -> tuple[float, ...]:
        """Time a program again, and let go of it (`timings_left` is 0 then) after its last timing."""
        try:
            run_secs = program.run()
        except Exception:
            # The program ran before, so its earlier timings stand.
            run_secs, program.timings_left, program.extra = (), 0, 0
        else:
            program.best_secs = min(program.best_secs, *run_secs)
            self.note(program.workload_id, program.best_secs)
            if self._is_front_runner(program):
                program.extra -= 1
            else:
                program.timings_left -= 1
        program.last = self._clock()
        if not program.timings_left:
            self._programs.remove(program)
        return run_secs

    def forget(self) -> None:
        """Let go of all programs, and of what was known."""
        self._programs.clear()
        self._best_secs.clear()

    def _is_front_runner(self, program: RetimedProgram) -> bool:
        """Whether a program is near the fastest of its workload, and has timings left for that."""
        return (
            program.extra > 0
            and program.best_secs <= FRONT_RUNNER_RATIO * self._best_secs[program.workload_id]
        )
