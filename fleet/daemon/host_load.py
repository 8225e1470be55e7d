"""Whether somebody else uses this host: what all its CPUs did, less what the fleet's own processes did.

`fleet.daemon.receiving` asks for devices of this host whose policy is `idle_only`. Reads `/proc` through
psutil.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

import psutil

#: Seconds between two looks: each reads the times of every process of the fleet.
_EVERY_SECS = 5.0
#: CPUs that others may keep busy on an idle host: background services need some.
_MOST_CPUS = 0.25


class HostLoad:
    """Looks at the load of this host that is not the fleet's own.

    Args:
        clock: Seconds that never go back.
        times: Gives CPU seconds since some moment: of all CPUs, and of this process with all below it.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        times: Callable[[], tuple[float, float]] | None = None,
    ) -> None:
        self._clock, self._times = clock, times or _cpu_secs
        self._at, self._seen = clock(), self._times()
        self._is_idle: bool | None = None
        #: Name of this host, as its agents tell it.
        self.host = socket.gethostname()

    @property
    def is_idle(self) -> bool | None:
        """Whether nobody else uses the host; None while nobody knows."""
        now = self._clock()
        if now - self._at >= _EVERY_SECS:
            busy, own = self._times()
            others = (busy - self._seen[0]) - (own - self._seen[1])
            self._is_idle = others / (now - self._at) <= _MOST_CPUS
            self._at, self._seen = now, (busy, own)
        return self._is_idle


def _cpu_secs() -> tuple[float, float]:
    every = psutil.cpu_times()
    busy = sum(every) - every.idle - getattr(every, "iowait", 0.0)
    # Linux counts the time of guests in `user` as well.
    busy -= getattr(every, "guest", 0.0) + getattr(every, "guest_nice", 0.0)
    own = 0.0
    process = psutil.Process(os.getpid())
    for one in (process, *process.children(recursive=True)):
        try:
            # With what its ended children took, so that no time is counted for others when one ends.
            own += sum(one.cpu_times()[:4])
        except psutil.Error:
            continue
    return busy, own


__all__ = ["HostLoad"]
