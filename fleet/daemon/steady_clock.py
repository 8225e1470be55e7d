"""The daemon's clock: Unix seconds that always pass, whatever is done to the clock of the host.

`fleet.daemon.daemon` makes one for all parts that wait for a time of day: state, timers, trainings.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class SteadyClock:
    """Follows the host's clock forward; where that is set back, it goes on from where it was.

    So nothing waits for a time to come a second time. It stays ahead by as much as the host's clock was set
    back until the daemon starts again, which sets the state's time too.

    Args:
        wall: Gives Unix seconds, and may jump.
        steady: Gives seconds that never go back.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall, self._steady = wall, steady
        self._apart = wall() - steady()

    def __call__(self) -> float:
        """Unix seconds, never fewer than before."""
        # In this order: a pause between the two must not put the clock ahead for good.
        wall = self._wall()
        steady = self._steady()
        self._apart = max(self._apart, wall - steady)
        return steady + self._apart


__all__ = ["SteadyClock"]
