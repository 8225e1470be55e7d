"""Whether anything disturbed a repeat: a short probe before and after it, and what the kernel counted.

A repeat is clean if the probes on both sides of it ran near their best, the thread had the processor all the
time, and the kernel took it from nobody's hands meanwhile. Neighbours on the same physical core, clocks that
fall and time stolen by a hypervisor show in the probes; other programs of the host in the kernel's counts.
Runs in a worker process, around the repeats of `timing.py`; which number follows is for `quality.py`.

Programs that fill a cache which others share, or the memory bus, are disturbed in ways that a probe in the
first-level cache does not feel; the scatter of the clean repeats is what is left of that. GPUs have a gate of
their own (`gpu_gate.py`).
"""

from __future__ import annotations

import resource
import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum

import numpy as np

from agents.programs.canaries import repeated_matmul, tile_for_cpu
from agents.values import Value

#: The probe multiplies square matrices of so many rows, so many times: 12 KiB, some 10 us on a core of 3 GHz.
_ROWS, _TIMES = 32, 4
_LANES = 8
#: A probe is near the best up to this ratio.
_NEAR = 1.08
#: Share of its time that the thread must have had the processor.
_OWN_SHARE = 0.98
#: Probes before the first repeat, and the latest probes: the best is the fastest of them but some, as the
#: clock of a core may jump for a moment.
_FIRST_PROBES, _LATEST_PROBES = 64, 256
_PASSED_OVER = 3
#: Pause between two looks for a quiet moment.
_LOOK_SECS = 0.002
#: Probes in a row, and seconds, without one near the best, after which their own best is the best: a clock
#: that fell for good. A neighbour may stay on the core for minutes.
_LEVEL_PROBES, _LEVEL_SECS = 200, 600.0


class Disturbance(StrEnum):
    """What disturbed a repeat."""

    #: Nothing.
    NONE = ""
    #: Another thread took the core.
    PREEMPTED = "preempted"
    #: The core itself ran slower: a neighbour on it, its clock, or the hypervisor.
    SLOW_CORE = "slow_core"
    #: Power, heat, or something else of its hardware held the clock of the GPU down.
    POWER_CAP = "throttled_power_cap"
    HEAT = "throttled_heat"
    HARDWARE = "throttled_hardware"
    #: A clock of the GPU was lower than before, for no reason that its driver gives.
    CLOCK_FELL = "clock_fell"
    #: Another process computed on the GPU.
    OTHER_GPU_PROCESS = "other_gpu_process"
    #: The GPU itself was slower, and nobody says why.
    SLOW_GPU = "slow_gpu"


class Repeats(Value, frozen=True):
    """Repeats of a program, in the order in which they were made."""

    #: Seconds of one run, one value a repeat.
    run_secs: tuple[float, ...] = ()
    #: What disturbed each of them; empty if no gate was around them.
    disturbances: tuple[Disturbance, ...] = ()

    def __add__(self, more: Repeats) -> Repeats:
        """These and later ones, all of them with a gate or all without."""
        return Repeats(self.run_secs + more.run_secs, self.disturbances + more.disturbances)

    @property
    def clean(self) -> int:
        """How many of them nothing disturbed."""
        return self.disturbances.count(Disturbance.NONE)

    @property
    def disturbed_at_end(self) -> int:
        """How many of the last ones in a row were disturbed."""
        clean = (place for place, each in enumerate(reversed(self.disturbances)) if not each)
        return next(clean, len(self.disturbances))


class UsualLevel:
    """How fast something can be, and whether a reading of it comes near.

    Args:
        clock: Seconds that only grow.
        near: A reading is near the best up to this ratio.
        first: Readings before anything is judged.
        passed_over: So many of the fastest of late are chance, and not the best.
    """

    def __init__(self, clock: Callable[[], float], near: float, first: int, passed_over: int) -> None:
        self._clock, self._near = clock, near
        self._first, self._passed_over = first, passed_over
        #: Seconds of a reading that nothing disturbs.
        self.best_secs = float("inf")
        #: Whether a slower level became the best.
        self.is_new = False
        self._latest = deque[float](maxlen=_LATEST_PROBES)
        self._far = 0
        self._last_near = clock()

    @property
    def is_learnt(self) -> bool:
        """Whether there are enough readings."""
        return len(self._latest) >= self._first

    def is_near(self, secs: float) -> bool:
        """Whether a reading is near the best; it teaches what the best is."""
        self._latest.append(secs)
        if self.is_learnt:
            self.best_secs = min(self.best_secs, sorted(self._latest)[self._passed_over])
        if secs <= self._near * self.best_secs:
            self._far, self._last_near = 0, self._clock()
            return True
        self._far += 1
        if self._far >= _LEVEL_PROBES and self._clock() - self._last_near >= _LEVEL_SECS:
            self.best_secs, self._far = sorted(self._latest)[self._passed_over], 0
            self.is_new = True
        return False


class RepeatGate:
    """The gate of one worker process; it learns how fast the probe can be.

    Args:
        probe: Runs the probe and gives the seconds that it took (`compiled_probe`).
        threads: Threads of a program: the thread that calls it waits for others if there are several.
        clock: Seconds that only grow.
        counts_switches: Whether the kernel counts switches of threads; some sandboxes do not.
    """

    #: What a probe far from its best says.
    _SLOW = Disturbance.SLOW_CORE

    def __init__(
        self,
        probe: Callable[[], float],
        threads: int = 1,
        clock: Callable[[], float] = time.monotonic,
        *,
        counts_switches: bool = True,
    ) -> None:
        self._probe, self._is_alone, self._clock = probe, threads == 1, clock
        self._level = UsualLevel(clock, _NEAR, _FIRST_PROBES, _PASSED_OVER)
        self._counts_switches = counts_switches

    @property
    def best_secs(self) -> float:
        """Seconds of a probe that nothing disturbs; infinite before the first repeat."""
        return self._level.best_secs

    @property
    def has_new_level(self) -> bool:
        """Whether a slower level became the best."""
        return self._level.is_new

    def learn(self, best_secs: float) -> None:
        """Take in what other processes of the device know of the probe; 0 if they know nothing."""
        if best_secs > 0 and not self.has_new_level:
            self._level.best_secs = min(best_secs, self.best_secs)

    def is_quiet(self, wait_secs: float = 0.0) -> bool:
        """Whether nothing disturbs the core just now; waits for such a moment for so long at most."""
        end = self._clock() + wait_secs
        while not self._level.is_near(self._probe()):
            if self._clock() >= end:
                return False
            time.sleep(_LOOK_SECS)
        return True

    def repeat(self, run: Callable[[], float]) -> Repeats:
        """Run one repeat, which gives the seconds of one run, and say what disturbed it."""
        while not self._level.is_learnt:
            self._level.is_near(self._probe())
        is_near = self._level.is_near(self._probe())
        run_secs, disturbance = self._watched(run)
        is_near &= self._level.is_near(self._probe())
        return Repeats((run_secs,), (disturbance or (Disturbance.NONE if is_near else self._SLOW),))

    def _watched(self, run: Callable[[], float]) -> tuple[float, Disturbance]:
        """The seconds of a repeat, and what disturbed it that no probe shows."""
        before, own, wall = self._switches(), time.thread_time(), time.perf_counter()
        run_secs = run()
        wall, own = time.perf_counter() - wall, time.thread_time() - own
        is_preempted = self._switches() > before or (self._is_alone and own < _OWN_SHARE * wall)
        return run_secs, Disturbance.PREEMPTED if is_preempted else Disturbance.NONE

    def _switches(self) -> int:
        """Times that the kernel gave the core of this thread to another one."""
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw if self._counts_switches else 0


def compiled_probe() -> Callable[[], float]:
    """Compile the probe for this host's architecture, without its widest vectors; gives its seconds.

    Wide vectors change the clock of some cores for a while, and what ran before decides whether they did.
    """
    import tvm
    from tvm.s_tir.schedule import Schedule

    schedule = Schedule(repeated_matmul(_ROWS, _ROWS, depth=_ROWS, repeats=_TIMES))
    tile_for_cpu(schedule, _LANES)
    program = tvm.tirx.build(schedule.mod, target=tvm.target.Target({"kind": "llvm"}))["main"]
    device = tvm.cpu(0)
    ones = np.ones((_ROWS, _ROWS), dtype=np.float32)
    arguments = [tvm.runtime.tensor(ones, device=device) for _ in range(3)]

    def probe() -> float:
        program(*arguments)  # what ran before has taken the cache
        began = time.perf_counter()
        program(*arguments)
        return time.perf_counter() - began

    return probe
