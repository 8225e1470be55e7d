"""How processes of ours give way to others, and how the one that times goes before all others of the host.

`be_nice` is called at the start of trainings, drivers and scorings; `raise_priority` and `lower_priority` by
the process that worker processes are forked from (`agents.sandbox.core_slot`), around what they time.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

#: The session's own weight, on kernels that share the CPU between sessions (`sched(7)`, autogroup).
_SESSION = Path("/proc/self/autogroup")
#: Microseconds of each period that real-time processes may take from others; -1: all of them.
_REAL_TIME_SHARE = Path("/proc/sys/kernel/sched_rt_runtime_us")
#: The lowest real-time priority: above every usual process, below the kernel's own.
_REAL_TIME = os.sched_param(1)
_MOST_NICE = -20


class Priority(StrEnum):
    """How a process goes before others while it times."""

    #: Real-time (`SCHED_FIFO`): no usual process of the host takes its core.
    FIFO = "fifo"
    #: The highest usual priority.
    NICE = "nice"
    #: As all others: neither of the above is allowed.
    USUAL = "usual"


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


def is_throttled() -> bool:
    """Whether the kernel keeps a share of each core for usual processes.

    Then a program that never ends under real-time priority cannot take the host.
    """
    try:
        return int(_REAL_TIME_SHARE.read_text()) >= 0
    except (OSError, ValueError):
        return False


def counts_switches() -> bool:
    """Whether the kernel counts when it takes a core from a thread, as `getrusage` gives it.

    Some sandboxes always answer 0, or refuse. Sleeping gives the core away, so that is tried: 1 ms.
    """
    try:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        time.sleep(0.001)
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw > before
    except (AttributeError, OSError, ValueError):
        return False


def raise_priority(pid: int) -> Priority:
    """Let all threads of a process go before others, as far as this process may; its later threads do not.

    Real-time priority is taken only if the kernel throttles it (`is_throttled`).
    """
    if is_throttled():
        with suppress(PermissionError):
            for thread in _threads(pid):
                with suppress(ProcessLookupError):
                    os.sched_setscheduler(thread, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, _REAL_TIME)
            return Priority.FIFO
    with suppress(PermissionError):
        for thread in _threads(pid):
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, thread, _MOST_NICE)
        return Priority.NICE
    return Priority.USUAL


def allowed_priority() -> Priority:
    """What `raise_priority` may do; this process has it for a moment."""
    priority = raise_priority(os.getpid())
    lower_priority(os.getpid())
    return priority


def lower_priority(pid: int) -> None:
    """Take back what `raise_priority` gave."""
    for thread in _threads(pid):
        with suppress(PermissionError, ProcessLookupError):
            if os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK != os.SCHED_OTHER:
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
            if os.getpriority(os.PRIO_PROCESS, thread) == _MOST_NICE:
                os.setpriority(os.PRIO_PROCESS, thread, 0)


def _threads(pid: int) -> Iterator[int]:
    with suppress(FileNotFoundError):  # it ended meanwhile
        for entry in Path(f"/proc/{pid}/task").iterdir():
            yield int(entry.name)
