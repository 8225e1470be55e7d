"""Programs that a worker process times again, seconds later. Called by `child.py`.

A neighbour on the host slows whatever runs for seconds on end, and a program whose repeats all fall into
such a time has a latency that is wrong by as much, with a narrow interval. Of repeats at moments far apart
one seldom fails to meet a better time. Building takes several times longer than timing, so the visits cost
little: the compiled programs stay in their process, and are timed while the next ones are built.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Seconds between two visits of one program.
GAP_SECS = 3.0
#: Programs that are kept; of more, the oldest have their last visit at once.
_MOST_KEPT = 64


@dataclass(slots=True)
class Kept:
    """A program that has been timed once at least."""

    #: The number of its job.
    job: int
    #: Gives it one more repeat.
    run: Callable[[], tuple[float, ...]]
    #: Visits that are still to come.
    left: int
    #: Reading of the clock at its last visit.
    last: float


class Visits:
    """The programs of one worker process.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: list[Kept] = []

    def keep(self, job: int, run: Callable[[], tuple[float, ...]], left: int) -> None:
        """Keep a program that was timed just now.

        Args:
            job: The number of its job.
            run: Gives it one more repeat; what it raises ends its visits.
            left: Visits that it is to have, 1 at least.
        """
        self._kept.append(Kept(job, run, left, self._clock()))
        for old in self._kept[:-_MOST_KEPT]:
            old.left, old.last = 1, -math.inf

    def due(self) -> list[Kept]:
        """Programs whose next visit has come."""
        now = self._clock()
        return [one for one in self._kept if now - one.last >= GAP_SECS]

    def last(self) -> list[Kept]:
        """All of them, for a visit that is the last one of each."""
        for one in self._kept:
            one.left = 1
        return list(self._kept)

    def visit(self, one: Kept) -> tuple[float, ...]:
        """Time a program again, and let go of it after its last visit."""
        try:
            run_secs = one.run()
            one.left -= 1
        except Exception:
            # It ran before: what was measured then stands.
            run_secs, one.left = (), 0
        one.last = self._clock()
        if not one.left:
            self._kept.remove(one)
        return run_secs

    def forget(self) -> None:
        """Let go of all programs."""
        self._kept.clear()


__all__ = ["GAP_SECS", "Kept", "Visits"]
