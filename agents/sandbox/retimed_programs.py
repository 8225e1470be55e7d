"""Programs that a worker process times again, seconds later. Called by `child.py`.

A neighbour on the host disturbs for seconds on end. A program whose first repeats were disturbed (`gate.py`)
stays in its process, and is timed again while the next ones are built, until enough of its repeats are clean.
In quiet moments all such programs are; in others, so that its fastest repeat says something all the same,
each only at as many moments as its protocol names. Building takes several times longer than timing, so that
costs little.

Which program is the fastest of its workload is what a search asks for, and what a few per cent decide. So
those near the fastest are timed until more repeats are clean, and side by side: the same quiet moment serves
them all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from agents.programs.gate import Repeats
from agents.programs.quality import CLEAN_REPEATS

#: Seconds between two timings of one program, and of a front-runner of its workload.
GAP_SECS, FRONT_RUNNER_GAP_SECS = 3.0, 0.5
#: A front-runner is at most so much slower than the fastest program of its workload, and gets this many times
#: the clean repeats of others.
FRONT_RUNNER_RATIO, FRONT_RUNNER_FACTOR = 1.1, 2
#: Seconds that the repeats on top of the others' may take: a long run is less of a moment than a short one.
_FRONT_RUNNER_SECS = 0.4
#: Last timings of a front-runner, and of a program that lacks clean repeats, in turns with others: nothing is
#: built beside them.
LAST_TIMINGS = 3
#: Moments at which a program may be timed, over those that the protocol names: disturbed ones teach nothing.
_MOST_MOMENTS = 3
#: Programs that are kept; of more, the oldest have their last timing at once.
_MOST_KEPT = 128


def most_timings(visits: int) -> int:
    """Timings that a program may have in all, by the moments of its protocol."""
    return _MOST_MOMENTS * visits + LAST_TIMINGS


@dataclass(slots=True)
class RetimedProgram:
    """A program that has been timed once at least."""

    #: The number of its job.
    job: int
    #: Gives it one more repeat.
    run: Callable[[], Repeats]
    workload_id: str
    #: Seconds of its fastest run.
    best_secs: float
    #: Clean repeats so far; those that it needs, and those that it needs as a front-runner.
    clean: int
    needs: int
    needs_in_front: int
    #: Timings that are still to come at most; 0 after its last one.
    timings_left: int
    #: Of these, so many are left for quiet moments.
    quiet_timings: int
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
        run: Callable[[], Repeats],
        repeats: Repeats,
        workload_id: str,
        *,
        visits: int,
        needs: int = CLEAN_REPEATS,
    ) -> bool:
        """Keep a program that was timed just now; what `run` raises ends its timings.

        Args:
            job: Its number.
            run: Gives it one more repeat.
            repeats: Those that it has.
            workload_id: What it computes.
            visits: Moments at which the protocol has it timed.
            needs: Clean repeats after which it is done.

        Returns:
            Whether it is kept: it lacks clean repeats, or is a front-runner.
        """
        best_secs = min(repeats.run_secs)
        self.note(workload_id, best_secs)
        more = min((FRONT_RUNNER_FACTOR - 1) * needs, int(_FRONT_RUNNER_SECS / best_secs))
        program = RetimedProgram(
            job=job,
            run=run,
            workload_id=workload_id,
            best_secs=best_secs,
            clean=repeats.clean,
            needs=needs,
            needs_in_front=needs + more,
            timings_left=_MOST_MOMENTS * visits - 1,
            quiet_timings=(_MOST_MOMENTS - 1) * visits,
            last=self._clock(),
        )
        if visits == 1 or not (self._lacks(program) or self._is_front_runner(program)):
            return False
        self._programs.append(program)
        for old in self._programs[:-_MOST_KEPT]:
            old.timings_left, old.quiet_timings, old.last = 1, 0, -math.inf
        return True

    def note(self, workload_id: str, best_secs: float) -> None:
        """Take in the fastest run that is known of a workload, whoever made it; 0 if none is."""
        if best_secs > 0:
            self._best_secs[workload_id] = min(best_secs, self._best_secs.get(workload_id, math.inf))

    def due(self, *, is_quiet: bool = True) -> list[RetimedProgram]:
        """Programs whose next timing is due, in a moment that is quiet or not."""
        now = self._clock()
        return [
            program
            for program in self._programs
            if (self._lacks(program) or program.last == -math.inf)
            and (is_quiet or program.timings_left > program.quiet_timings)
            and now - program.last >= (FRONT_RUNNER_GAP_SECS if self._is_front_runner(program) else GAP_SECS)
        ]

    def last(self) -> list[RetimedProgram]:
        """All of them, for their last timings: those that need several have others between."""
        for program in self._programs:
            is_open = program.clean < program.needs or self._is_front_runner(program)
            program.timings_left = LAST_TIMINGS if is_open else 1
        return [
            program
            for turn in range(LAST_TIMINGS)
            for program in self._programs
            if program.timings_left > turn
        ]

    def time_again(self, program: RetimedProgram) -> Repeats:
        """Time a program again, and let go of it (`timings_left` is 0 then) after its last timing."""
        try:
            repeats = program.run()
            # A quiet moment serves it as long as it lasts.
            while not repeats.disturbed_at_end and program.clean + repeats.clean < program.needs:
                repeats += program.run()
        except Exception:
            # The program ran before, so its earlier timings stand.
            repeats, program.timings_left = Repeats(), 0
        else:
            program.best_secs = min(program.best_secs, *repeats.run_secs)
            program.clean += repeats.clean
            self.note(program.workload_id, program.best_secs)
            program.timings_left -= 1
            if not self._lacks(program) and not self._is_front_runner(program):
                program.timings_left = 0
        program.last = self._clock()
        if not program.timings_left:
            self._programs.remove(program)
        return repeats

    def forget(self) -> None:
        """Let go of all programs, and of what was known."""
        self._programs.clear()
        self._best_secs.clear()

    def _lacks(self, program: RetimedProgram) -> bool:
        """Whether a program lacks clean repeats."""
        return program.clean < (program.needs_in_front if self._is_front_runner(program) else program.needs)

    def _is_front_runner(self, program: RetimedProgram) -> bool:
        """Whether a program is near the fastest of its workload."""
        return program.best_secs <= FRONT_RUNNER_RATIO * self._best_secs[program.workload_id]
