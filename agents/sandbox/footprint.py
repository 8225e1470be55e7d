"""What a worker process holds of its host's memory and threads, and the kernel's limit on the first.

Called by `process.py`, which looks at each process at work, and by `confinement_trial.py`. What a process
could hold without being seen here (memory in files without a name, shared memory that it has unmapped) is
refused to it by `syscall_filter.py`.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

#: Threads and processes of one worker process at most: more than the thread pool of a large host.
MOST_THREADS = 1024
#: What a process may be given at most, over its limit: it is ended at the limit, if anybody looks in time.
_HEADROOM, _BASE_BYTES = 2.0, 1 << 30
#: Resident, swapped out, and the tables of pages that are mapped but empty.
_FIELDS = re.compile(r"^(VmRSS|VmSwap|VmPTE|Threads):\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Memory and threads of some processes."""

    memory_bytes: int
    threads: int


def footprint_of(pid: int, *, with_group: bool) -> Footprint:
    """Measure a worker process; nothing is left of one that is gone.

    Args:
        pid: Of the process, which leads its group.
        with_group: Whether it may have started others: looking through all processes takes some ms.
    """
    memory_kib = threads = 0
    for member in _group_of(pid) if with_group else [pid]:
        with suppress(OSError):
            fields = dict(_FIELDS.findall(Path(f"/proc/{member}/status").read_text()))
            threads += int(fields.pop("Threads"))
            memory_kib += sum(map(int, fields.values()))
    return Footprint(memory_bytes=memory_kib << 10, threads=threads)


def limit_memory(pid: int, limit_bytes: float) -> None:
    """Have the kernel refuse a process memory far beyond its limit, should nobody look in time.

    What was set before is replaced; the process itself may change no limit.

    Raises:
        OSError: It is gone.
    """
    most = _HEADROOM * limit_bytes + _BASE_BYTES
    _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
    bounds = [int(each) for each in (most, hard) if 0 <= each < 2**62]
    resource.prlimit(pid, resource.RLIMIT_DATA, (min(bounds, default=resource.RLIM_INFINITY), hard))


def _group_of(pid: int) -> Iterator[int]:
    for other in psutil.pids():
        with suppress(OSError):
            if os.getpgid(other) == pid:
                yield other
