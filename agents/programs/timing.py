"""Time a compiled candidate under a protocol. Runs in a worker process (`child.py`).

What makes a number trustworthy here: one timing at a time on the host (a lock that every process of every
fleet on the host takes), fixed cores that no builder uses, warm-up kept apart, raw repeats kept, and around
each repeat a gate that says what disturbed it (`gate.py`). How many are enough, and when a program is not
worth them, is for `quality.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agents.programs.gate import RepeatGate, Repeats
from agents.programs.link import REMOTE_MASK, is_remote
from agents.programs.quality import clean_needed, surely_slower, wants_repeats
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
#: Disturbed repeats in a row after which a program is left for a later moment.
_MOST_DISTURBED = 3
#: Arguments with more bytes than this are not moved: copying them takes as long as a repeat.
_MOST_MOVED_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Timing:
    """Raw seconds of one candidate."""

    repeats: Repeats
    #: Seconds of the runs before the repeats.
    warmup_secs: tuple[float, ...]
    #: Runs inside one repeat.
    number: int
    #: Given one repeat only, being surely several times slower than the best.
    stopped_early: bool

    def facts(self, *, is_checked: bool) -> dict[str, Any]:
        """What a record says of it, ready for JSON; `quality` as in `docs/record.md`."""
        quality = {"stopped_early": self.stopped_early, "checked": is_checked}
        return {
            "run_secs": self.repeats.run_secs,
            "disturbances": self.repeats.disturbances,
            "warmup_secs": self.warmup_secs,
            "number": self.number,
            "quality": {name: True for name, is_so in quality.items() if is_so},
        }


def time_module(
    module: Any,
    arguments: Sequence[Any],
    device: Any,
    protocol: Protocol,
    best_secs: float = 0.0,
    gate: RepeatGate | None = None,
) -> Timing:
    """Run `main` of a compiled module under `protocol`.

    One or two single runs come first: they warm caches and tell how many runs fill `min_repeat_ms`, so
    that TVM's evaluator need not grow the number by trial (its `min_repeat_ms` throws those runs away).

    Module and arguments may be local or remote. The best latency known for the workload on this device is 0
    if none is. With a gate repeats end with enough clean ones, each with its arguments at another place.
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
            return Timing(Repeats(results), tuple(warmup), brief, True)
        # Otherwise only the first runs were slow, not the program: it is timed in full.
    if gate is not None:
        return Timing(_gated(module, arguments, device, protocol, number, gate), tuple(warmup), number, False)
    results = timed(number, protocol.repeat)
    # Each call of the evaluator runs the program once more for nothing, so repeats are added in some number.
    more = max(1, protocol.repeat // 2)
    limit = protocol.repeat + protocol.extra_repeats
    while wants_repeats(results, protocol):
        results += timed(number, min(more, limit - len(results)))
    return Timing(Repeats(results), tuple(warmup), number, False)


def time_again(
    module: Any,
    arguments: Sequence[Any],
    device: Any,
    protocol: Protocol,
    number: int,
    gate: RepeatGate | None = None,
) -> Repeats:
    """Give a program one more repeat, of so many runs (`number`), with its arguments at another place.

    Where arguments lie decides which of them share places in the caches: some per cent.
    """
    moved = elsewhere(arguments, device)
    timed = _timer(module, moved, device, protocol)
    # A long program takes milliseconds, and the evaluator would run it once more for nothing.
    is_single = number == 1 and not protocol.cache_flush
    single = _single_run(module, moved, device, timed) if is_single else lambda: timed(number, 1)[0]
    return Repeats((single(),)) if gate is None else gate.repeat(single)


def _gated(
    module: Any, arguments: Sequence[Any], device: Any, protocol: Protocol, number: int, gate: RepeatGate
) -> Repeats:
    """Repeats until enough of them are clean.

    Disturbances last: a program that may be timed again later is left after some in a row.
    """
    is_last_chance = protocol.visits == 1
    limit = protocol.repeat + (protocol.extra_repeats if is_last_chance else 0)
    repeats = Repeats()
    while repeats.clean < clean_needed(protocol) and len(repeats.run_secs) < limit:
        repeats += time_again(module, arguments, device, protocol, number, gate)
        if not is_last_chance and repeats.disturbed_at_end >= _MOST_DISTURBED:
            break
    return repeats


def elsewhere(arguments: Sequence[Any], device: Any) -> Sequence[Any]:
    """Copies of arguments at another place in the memory of their device; large ones stay where they are."""
    held = sum(math.prod(argument.shape) * np.dtype(str(argument.dtype)).itemsize for argument in arguments)
    return arguments if held > _MOST_MOVED_BYTES else [argument.copyto(device) for argument in arguments]


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
