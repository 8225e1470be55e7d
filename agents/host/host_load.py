"""Whether somebody else uses this host: what all its CPUs did, less what the fleet's own processes did.

`agents.device.agent_host` asks for devices that may be measured on an idle host only, and says it with their
heartbeats. Standard library only; reads `/proc`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

#: Seconds between two looks: each reads the times of every process of the host.
_EVERY_SECS = 5.0
#: CPUs that others may keep busy on an idle host: background services need some.
_MOST_CPUS = 0.25
_PROC = Path("/proc")
#: Places in the first line of `/proc/stat`, behind its name: what is not work, and what is counted twice.
_IDLE, _IOWAIT, _GUEST, _GUEST_NICE = 3, 4, 8, 9


class HostLoad:
    """Looks at the load of this host that is not the fleet's own.

    Args:
        roots: Processes of the fleet on this host; all below them are its own, too.
        clock: Seconds that never go back.
        times: Gives CPU seconds since some moment: of all CPUs, and of the fleet's own processes.
    """

    def __init__(
        self,
        roots: Sequence[int] = (),
        clock: Callable[[], float] = time.monotonic,
        times: Callable[[], tuple[float, float]] | None = None,
    ) -> None:
        self._clock, self._times = clock, times or (lambda: cpu_secs(roots))
        self._at, self._seen = clock(), self._times()
        self._is_idle: bool | None = None

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


def cpu_secs(roots: Sequence[int]) -> tuple[float, float]:
    """CPU seconds since the host's boot: of all its CPUs, and of some processes with all below them.

    What their ended children took is with them, so that no time is counted for others when one ends.
    """
    tick = os.sysconf("SC_CLK_TCK")
    values = [int(one) for one in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:]]
    values += [0] * (_GUEST_NICE + 1 - len(values))
    # Linux counts the time of guests in `user` and `nice` as well.
    busy = sum(values) - sum(values[place] for place in (_IDLE, _IOWAIT, _GUEST, _GUEST_NICE))
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            # After the name in brackets, which may hold any bytes (the kernel cuts it at 15, even within a
            # letter): parent 4, then times 14 to 17.
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        pid = int(path.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(int(one) for one in fields[11:15])
    own, waiting = 0, [one for one in dict.fromkeys(roots) if one in ticks]
    seen: set[int] = set()
    while waiting:
        pid = waiting.pop()
        if pid not in seen:
            seen.add(pid)
            own += ticks[pid]
            waiting += children.get(pid, [])
    return busy / tick, own / tick


__all__ = ["HostLoad", "cpu_secs"]
