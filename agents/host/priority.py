"""How a process of ours gives way to others. Called at the start of trainings, drivers and scorings."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

#: The session's own weight, on kernels that share the CPU between sessions (`sched(7)`, autogroup).
_SESSION = Path("/proc/self/autogroup")


def be_nice(nice: int) -> None:
    """Lower the priority of this process by so much and, if it leads one, of its session.

    Desktop kernels share the CPU between sessions first, and a process's own value counts only inside of its
    session: each of our children has one of its own, so a training with nice 10 took as much as the
    measurements beside it.
    """
    priority = os.nice(nice)
    if os.getsid(0) == os.getpid():
        with suppress(OSError):  # no such kernel, or a container without it
            _SESSION.write_text(f"{priority}\n")
