"""Time a compiled candidate under a protocol. Runs in a worker process (`child.py`).

What makes a number trustworthy here: one timing at a time on the host (a lock that every process of every
fleet on the host takes), fixed cores that no builder uses, warm-up kept apart, raw repeats kept, more repeats
where they disagree. How many are enough, and when a program is not worth them, is for `quality.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agents.programs.link import REMOTE_MASK, is_remote
from agents.programs.quality import interval_quality, surely_slower, wants_repeats
from agents.records import Protocol

#: A program's last warm-up run decides how many runs make a repeat; no clock is finer than this.
_TINY_SECS = 1e-7
#: A repeat of a program that is stopped early is this many times shorter: it is far from being chosen.
_BRIEF = 4
#: TVM's number for the CPU (`DLDeviceType.kDLCPU`).
_CPU = 1
#: TVM's preprocessing of a repeat that empties the CPU's caches of the arguments, the output excepted.
_FLUSH = "cache_flush_cpu_non_first_arg"
#: Bytes that TVM copies on a GPU between its repeats: more than the second-level cache of any GPU holds.
_GPU_FLUSH_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Timing:
    """Raw seconds of one candidate."""

    #: Seconds of one run, one value a repeat.
    run_secs: tuple[float, ...]
    #: Seconds of the runs before the repeats.
    warmup_secs: tuple[float, ...]
    #: Runs inside one repeat.
    number: int
    #: Given one repeat only, being surely several times slower than the best.
    stopped_early: bool

    def facts(self, *, is_checked: bool) -> dict[str, Any]:
        """What a record says of it, ready for JSON; `quality` as in `docs/measuring.md`."""
        quality: dict[str, Any] = {**interval_quality(self.run_secs)}
        if self.stopped_early:
            quality["stopped_early"] = True
        if is_checked:
            quality["checked"] = True
        return {
            "run_secs": self.run_secs,
            "warmup_secs": self.warmup_secs,
            "number": self.number,
            "quality": quality,
        }


def time_module(
    module: Any, arguments: Sequence[Any], device: Any, protocol: Protocol, best_secs: float = 0.0
) -> Timing:
    """Run `main` of a compiled module under `protocol`.

    One or two single runs come first: they warm caches and tell how many runs fill `min_repeat_ms`, so
    that TVM's evaluator need not grow the number by trial (its `min_repeat_ms` throws those runs away).

    Module and arguments may be local or remote. The best latency known for the workload on this device is 0
    where none is.
    """
    timed = _timer(module, arguments, device, protocol)
    single = _single_run(module, arguments, device, timed)
    warmup = [single()]
    # The first call to a GPU loads the program, whatever the time that it takes.
    if warmup[0] < protocol.min_repeat_ms / 1e3 or device.dlpack_device_type() != _CPU:
        warmup.append(single())
    stopped = surely_slower(warmup, best_secs, protocol)
    number = math.ceil(protocol.min_repeat_ms / 1e3 / max(warmup[-1], _TINY_SECS))
    number = 1 if protocol.cache_flush else min(max(number, 1), protocol.max_number)
    heating = protocol.warmup_ms / 1e3 - sum(warmup)
    while heating > 0 and not stopped:
        began = time.perf_counter()
        warmup.extend(timed(number, 1))
        heating -= time.perf_counter() - began
    if protocol.cooldown_ms:
        time.sleep(protocol.cooldown_ms / 1e3)
    if stopped:
        brief = math.ceil(number / _BRIEF)
        results = timed(brief, 1)
        if surely_slower((*warmup, *results), best_secs, protocol):
            return Timing(results, tuple(warmup), brief, True)
        # Otherwise only the first runs were slow, not the program: it is timed in full.
    results = timed(number, protocol.repeat)
    # Each call of the evaluator runs the program once more for nothing, so repeats are added in some number.
    more = max(1, protocol.repeat // 2)
    limit = protocol.repeat + protocol.extra_repeats
    while wants_repeats(results, protocol):
        results += timed(number, min(more, limit - len(results)))
    return Timing(results, tuple(warmup), number, False)


def time_again(
    module: Any, arguments: Sequence[Any], device: Any, protocol: Protocol, number: int
) -> tuple[float, ...]:
    """Give a program that was timed before one more repeat, of as many runs (`number`) as the first time."""
    timed = _timer(module, arguments, device, protocol)
    if number == 1 and not protocol.cache_flush:
        # Such a program takes milliseconds, and the evaluator would run it once more for nothing.
        return (_single_run(module, arguments, device, timed)(),)
    return timed(number, 1)


def _timer(
    module: Any, arguments: Sequence[Any], device: Any, protocol: Protocol
) -> Callable[[int, int], tuple[float, ...]]:
    """What gives a number of repeats of a number of runs."""
    flush: dict[str, Any] = {}
    if protocol.cache_flush:
        is_cpu = device.dlpack_device_type() % REMOTE_MASK == _CPU
        flush = {"f_preproc": _FLUSH} if is_cpu else {"cache_flush_bytes": _GPU_FLUSH_BYTES}

    def timed(number: int, repeat: int) -> tuple[float, ...]:
        evaluator = module.time_evaluator("main", device, number=number, repeat=repeat, **flush)
        return tuple(float(seconds) for seconds in evaluator(*arguments).results)

    return timed


def _single_run(
    module: Any, arguments: Sequence[Any], device: Any, timed: Callable[[int, int], tuple[float, ...]]
) -> Callable[[], float]:
    """Give what times one run: by this process's clock, or by the remote one where a wire lies between."""
    if is_remote(device):
        return lambda: timed(1, 1)[0]
    function = module.get_function("main", query_imports=True)

    def run() -> float:
        started = time.perf_counter()
        function(*arguments)
        device.sync()
        return time.perf_counter() - started

    return run
