"""Programs that a worker process times again, seconds later. Called by `child.py`.

A neighbour on the host slows whatever runs for seconds on end, and a program whose repeats all fall into
such a time has a latency that is wrong by as much, with a narrow interval. Of repeats at moments far apart
one seldom fails to meet a better time. Building takes several times longer than timing, so the visits cost
little: the compiled programs stay in their process, and are timed while the next ones are built.

Which program is the fastest of its workload is what a search asks for, and what a few per cent decide. So
those near the fastest are visited more often, and side by side: the same quiet moment serves them all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Seconds between two visits of one program, and of one that leads its workload.
GAP_SECS, LEADER_GAP_SECS = 3.0, 0.5
#: A program leads while it is at most so much slower than the fastest of its workload, and has this many
#: times the visits of others then.
LEAD, LEADER_VISITS = 1.1, 3
#: Seconds that the visits on top of the others' may take: a long run is less of a moment than a short one.
_LEADER_SECS = 0.4
#: Last visits that a leader has, in turns with others: nothing is built beside them.
LAST_LEADER_VISITS = 3
#: Programs that are kept; of more, the oldest have their last visit at once.
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
    #: Visits that are still to come, if it does not lead.
    left: int
    #: Those that come on top of them while it leads.
    extra: int
    #: Reading of the clock at its last visit.
    last: float


class SpacedRetiming:
    """The programs of one worker process.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: list[RetimedProgram] = []
        #: Fastest run known of each workload that programs are kept of.
        self._best_secs: dict[str, float] = {}

    def keep(
        self, job: int, run: Callable[[], tuple[float, ...]], left: int, workload_id: str, best_secs: float
    ) -> None:
        """Keep a program that was timed just now.

        Args:
            job: The number of its job.
            run: Gives it one more repeat; what it raises ends its visits.
            left: Visits that it is to have, 1 at least.
            workload_id: What it computes.
            best_secs: Seconds of its fastest run.
        """
        extra = min((LEADER_VISITS - 1) * (left + 1), int(_LEADER_SECS / best_secs))
        self._kept.append(RetimedProgram(job, run, workload_id, best_secs, left, extra, self._clock()))
        self.note(workload_id, best_secs)
        for old in self._kept[:-_MOST_KEPT]:
            old.left, old.extra, old.last = 1, 0, -math.inf

    def note(self, workload_id: str, best_secs: float) -> None:
        """Take in the fastest run that is known of a workload, whoever made it; 0 if none is."""
        if best_secs > 0:
            self._best_secs[workload_id] = min(best_secs, self._best_secs.get(workload_id, math.inf))

    def due(self) -> list[RetimedProgram]:
        """Programs whose next visit has come."""
        now = self._clock()
        return [
            one for one in self._kept if now - one.last >= (LEADER_GAP_SECS if self._leads(one) else GAP_SECS)
        ]

    def last(self) -> list[RetimedProgram]:
        """All of them, for their last visits: one that leads has several, the others between."""
        for one in self._kept:
            one.left, one.extra = LAST_LEADER_VISITS if self._leads(one) else 1, 0
        return [one for turn in range(LAST_LEADER_VISITS) for one in self._kept if one.left > turn]

    def visit(self, one: RetimedProgram) -> tuple[float, ...]:
        """Time a program again, and let go of it (`left` is 0 then) after its last visit."""
        try:
            run_secs = one.run()
        except Exception:
            # It ran before: what was measured then stands.
            run_secs, one.left, one.extra = (), 0, 0
        else:
            one.best_secs = min(one.best_secs, *run_secs)
            self.note(one.workload_id, one.best_secs)
            if self._leads(one):
                one.extra -= 1
            else:
                one.left -= 1
        one.last = self._clock()
        if not one.left:
            self._kept.remove(one)
        return run_secs

    def forget(self) -> None:
        """Let go of all programs, and of what was known."""
        self._kept.clear()
        self._best_secs.clear()

    def _leads(self, one: RetimedProgram) -> bool:
        """Whether a program is near the fastest of its workload, and has visits left for that."""
        return one.extra > 0 and one.best_secs <= LEAD * self._best_secs[one.workload_id]


__all__ = [
    "GAP_SECS",
    "LAST_LEADER_VISITS",
    "LEADER_GAP_SECS",
    "LEADER_VISITS",
    "RetimedProgram",
    "SpacedRetiming",
]
