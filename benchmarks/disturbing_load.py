"""Work that disturbs measurements, the same on every host: a compiler on the other cores, two light programs.

`disturbing_load` starts it around a block of a benchmark. The compiler is Python's own, which allocates,
jumps and fills caches as others do; light programs are busy for a third of their time, on any core.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path

#: Light programs, and the seconds that each is busy and idle in turns.
_LIGHT_PROGRAMS = 2
_BUSY_SECS, _IDLE_SECS = 0.02, 0.04


@contextlib.contextmanager
def disturbing_load(timing_cores: Collection[int], cores: Collection[int]) -> Iterator[None]:
    """Disturb measurements on `timing_cores` of a host, of which a benchmark may use `cores`."""
    others = sorted(set(cores) - set(timing_cores))
    command = [sys.executable, "-m", "benchmarks.disturbing_load", str(os.getpid())]
    with contextlib.ExitStack() as started:
        for pinned in [[core] for core in others] + [sorted(cores)] * _LIGHT_PROGRAMS:
            kind = "compiler" if len(pinned) == 1 and pinned[0] in others else "light"
            process = subprocess.Popen([*command, kind, *map(str, pinned)])
            started.callback(process.wait)
            started.callback(process.kill)
        yield


def compile_for_ever(parent: int) -> None:
    """Compile modules of the standard library again and again, while the parent lives."""
    folder = Path(os.__file__).parent
    sources = [path.read_text() for path in sorted(folder.glob("*.py")) if path.stat().st_size > 50_000]
    while os.getppid() == parent:
        for source in sources:
            compile(source, "module", "exec", optimize=0)


def be_light_for_ever(parent: int) -> None:
    """Be busy and idle in turns, while the parent lives."""
    while os.getppid() == parent:
        end = time.monotonic() + _BUSY_SECS
        while time.monotonic() < end:
            pass
        time.sleep(_IDLE_SECS)


if __name__ == "__main__":
    os.sched_setaffinity(0, [int(core) for core in sys.argv[3:]])
    (compile_for_ever if sys.argv[2] == "compiler" else be_light_for_ever)(int(sys.argv[1]))
