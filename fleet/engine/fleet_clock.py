"""The one source of time for decisions: seconds in which the coordinator ran, and the wall clock beside them.

`fleet.daemon.daemon` makes one. The coordinator moves it on once a turn; all parts read it. Leases, silence,
back-offs and pauses go by the seconds that it ran. The wall clock is for stamps and for times of day only.
"""

from __future__ import annotations

import time
from collections.abc import Callable

#: Most seconds that one turn adds. A lease is longer (5 s at least), so what came in during a pause is heard
#: before any lease is judged.
MOST_STEP_SECS = 2.0
#: The wall clock was set where it moved by so much more, or less, than the time that passed.
LEAST_SET_SECS = 1.0


def boot_secs() -> float:
    """Seconds since the host was started, also while it sleeps; no setting of the clock moves them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class FleetClock:
    """Time that passes only while the coordinator runs, a little with each turn.

    A coordinator that was stopped, swapped out or asleep with its host did not listen meanwhile. So what lies
    between two turns counts for `MOST_STEP_SECS` at most: every deadline moves by the rest.

    Args:
        wall: Gives Unix seconds, and may jump.
        steady: Gives seconds that never go back, also while the host sleeps.

    Attributes:
        gaps: Turns that came so late that time was left out; what came before the first turn is none.
        gap_secs: Seconds that were left out.
        steps: How often the wall clock was seen to be set, forward or back.
        step_secs: By how much in all; forward is positive.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = boot_secs
    ) -> None:
        self._wall, self._steady = wall, steady
        self._steady_at, self._wall_at = steady(), wall()
        #: Unix seconds to begin with: what an event log of before waits for goes on.
        self._now = self._wall_at
        self._has_begun = False
        self.gaps = self.steps = 0
        self.gap_secs = self.step_secs = 0.0

    def tick(self) -> float:
        """Let the time pass that lies between two turns; only the coordinator calls it, first in each turn.

        Returns:
            The same as a call.
        """
        # A pause between the two looks like a clock that was set, and set back again in the next turn.
        steady, wall = self._steady(), self._wall()
        passed = max(0.0, steady - self._steady_at)
        moved = wall - self._wall_at - passed
        self._steady_at, self._wall_at = steady, wall
        counted = min(passed, MOST_STEP_SECS)
        self._now += counted
        if passed > counted and self._has_begun:
            self.gaps += 1
            self.gap_secs += passed - counted
        if abs(moved) >= LEAST_SET_SECS:
            self.steps += 1
            self.step_secs += moved
        self._has_begun = True
        return self._now

    def __call__(self) -> float:
        """Seconds for decisions, the same all through a turn: Unix time at first, and what passed since."""
        return self._now

    def wall(self) -> float:
        """Unix seconds of the host, for people and for times of day; no wait and no age goes by them."""
        return self._wall()

    @property
    def counters(self) -> dict[str, float]:
        """What was seen of gaps and of settings of the wall clock since the start, for the view."""
        return {
            "gaps": self.gaps,
            "gap_secs": self.gap_secs,
            "steps": self.steps,
            "step_secs": self.step_secs,
        }

    @property
    def wall_ahead_secs(self) -> float:
        """How far the wall clock was ahead of these seconds at the last `tick`; negative where behind."""
        return self._wall_at - self._now
