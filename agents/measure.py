"""Time a compiled candidate under a protocol. Runs in a worker process (`child.py`).

What makes a number trustworthy here: one timing at a time on the host (a lock that every process of every
fleet on the host takes), fixed cores that no builder uses, warm-up kept apart, raw repeats kept.
"""

from __future__ import annotations

import fcntl
import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.records import Protocol

#: A program's second run decides how many runs make a repeat, unless the first one already filled a repeat.
_TINY_SECS = 1e-7


@dataclass(frozen=True, slots=True)
class Timing:
    """Raw seconds of one candidate."""

    #: Seconds of one run, one value a repeat.
    run_secs: tuple[float, ...]
    #: Seconds of the runs before the repeats.
    warmup_secs: tuple[float, ...]
    #: Runs inside one repeat.
    number: int


def host_lock_path() -> Path:
    """Where the host-wide timing lock lies: one a host, whoever runs the fleet."""
    return Path(tempfile.gettempdir()) / "tensor-fleet-timing.lock"


@contextmanager
def timing_lock(path: Path) -> Iterator[float]:
    """Hold the host's timing lock; yields the seconds that were spent waiting for it.

    `flock` blocks in the kernel (no polling, so the next holder starts at once) and falls with its
    process, however that dies.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        started = time.perf_counter()
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield time.perf_counter() - started
    finally:
        os.close(handle)


def pin_process(cores: Sequence[int]) -> None:
    """Bind every thread of this process to `cores`."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def make_arguments(
    shapes: Sequence[Sequence[int]], dtypes: Sequence[str], device: Any, seed: int
) -> list[Any]:
    """Allocate the arguments of a workload on `device`, filled with reproducible random values.

    Floating-point values lie in [0.1, 1): no zeros, denormals or infinities, whose speed is not typical.
    """
    import numpy as np
    import tvm

    generator = np.random.default_rng(seed)
    arguments = []
    for shape, dtype in zip(shapes, dtypes, strict=True):
        if dtype.startswith(("float", "bfloat")):
            values = generator.uniform(0.1, 1.0, size=shape).astype(dtype)
        else:
            values = generator.integers(0, 2, size=shape).astype(dtype)
        arguments.append(tvm.runtime.tensor(values, device=device))
    return arguments


def time_module(module: Any, arguments: Sequence[Any], device: Any, protocol: Protocol) -> Timing:
    """Run `main` of a compiled module under `protocol`.

    One or two single runs come first: they warm caches and tell how many runs fill `min_repeat_ms`, so
    that TVM's evaluator need not grow the number by trial (its `min_repeat_ms` throws those runs away).
    """
    function = module.get_function("main", query_imports=True)
    warmup = [_single_run(function, arguments, device)]
    if warmup[0] < protocol.min_repeat_ms / 1e3:
        warmup.append(_single_run(function, arguments, device))
    number = math.ceil(protocol.min_repeat_ms / 1e3 / max(warmup[-1], _TINY_SECS))
    number = min(max(number, 1), protocol.max_number)
    evaluator = module.time_evaluator("main", device, number=number, repeat=protocol.repeat)
    if protocol.cooldown_ms:
        time.sleep(protocol.cooldown_ms / 1e3)
    results = tuple(float(seconds) for seconds in evaluator(*arguments).results)
    return Timing(results, tuple(warmup), number)


def _single_run(function: Any, arguments: Sequence[Any], device: Any) -> float:
    started = time.perf_counter()
    function(*arguments)
    device.sync()
    return time.perf_counter() - started
