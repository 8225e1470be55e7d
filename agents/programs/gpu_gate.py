"""Whether anything disturbed a repeat on a GPU: what its driver says before and after it, and a short kernel.

The driver's management library (NVML, read by `agents.host.cuda.GpuReader`) gives clocks, what holds them
down, and who else computes there. Without it the short kernel alone decides, which sees a slower GPU but not
why. Runs in a worker process, around the repeats of `timing.py`, like the gate of CPUs (`gate.py`).

AMD's and other GPUs have no gate: TVM's package here is built without their drivers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from agents.host.cuda import GpuMoment
from agents.programs.canaries import repeated_matmul, tile_for_gpu
from agents.programs.gate import Disturbance, RepeatGate, UsualLevel

#: The probe multiplies matrices of so many rows and columns with this depth, so many times: 64 groups of 256
#: threads, some 30 us on a large GPU.
_ROWS, _DEPTH, _TIMES = 1024, 32, 4
#: A clock is near the best down to this share of it: GPUs step by 15 MHz.
_NEAR_CLOCK = 0.97
#: What each of NVML's reasons means; others (an idle GPU, a clock that the user has set) disturb nothing.
_THROTTLED = {
    "sw_power_cap": Disturbance.POWER_CAP,
    "hw_power_brake_slowdown": Disturbance.POWER_CAP,
    "sw_thermal_slowdown": Disturbance.HEAT,
    "hw_thermal_slowdown": Disturbance.HEAT,
    "hw_slowdown": Disturbance.HARDWARE,
    "board_limit": Disturbance.HARDWARE,
    "reliability": Disturbance.HARDWARE,
}


def gpu_disturbance(before: GpuMoment, after: GpuMoment, *, is_clock_near: bool) -> Disturbance:
    """What the driver says that disturbed a repeat; pure.

    Args:
        before: The GPU right before the repeat.
        after: Right after it.
        is_clock_near: Whether its clocks were near the best on both sides.
    """
    reasons = {*before.throttle_reasons, *after.throttle_reasons}
    # A reason that says more comes first: heat also sets the bit of the hardware.
    for reason, disturbance in _THROTTLED.items():
        if reason in reasons:
            return disturbance
    if after.has_other_process:
        return Disturbance.OTHER_GPU_PROCESS
    return Disturbance.NONE if is_clock_near else Disturbance.CLOCK_FELL


class GpuGate(RepeatGate):
    """The gate of one worker process of a GPU.

    Args:
        probe: Runs the probe and gives the seconds that it took (`compiled_gpu_probe`).
        read: What the driver says of the GPU at this moment.
        clock: Seconds that only grow.
    """

    _SLOW = Disturbance.SLOW_GPU

    def __init__(
        self,
        probe: Callable[[], float],
        read: Callable[[], GpuMoment],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(probe, clock=clock)
        self._read = read
        #: Of the clocks of its processors and its memory, by seconds of a cycle.
        self._clocks = [UsualLevel(clock, 1 / _NEAR_CLOCK, 1, 0) for _ in range(2)]

    def _watched(self, run: Callable[[], float]) -> tuple[float, Disturbance]:
        before = self._read()
        run_secs = run()
        after = self._read()
        near = [self._is_clock_near(moment) for moment in (before, after)]
        return run_secs, gpu_disturbance(before, after, is_clock_near=all(near))

    def _is_clock_near(self, moment: GpuMoment) -> bool:
        """Whether the clocks of a moment are near the best; one that the card does not show is."""
        clocks = moment.sm_clock_mhz, moment.memory_clock_mhz
        # Each of them learns, whatever the other one says.
        near = [level.is_near(1 / mhz) for level, mhz in zip(self._clocks, clocks, strict=True) if mhz]
        return all(near)


def compiled_gpu_probe(target: Any, device: Any) -> Callable[[], float]:
    """Compile the probe for a GPU; gives its seconds by the GPU's own clock. Only a call touches the GPU.

    Args:
        target: TVM's target.
        device: TVM's device.
    """
    import tvm
    from tvm.s_tir.schedule import Schedule

    schedule = Schedule(repeated_matmul(_ROWS, _ROWS, depth=_DEPTH, repeats=_TIMES))
    tile_for_gpu(schedule)
    with target:
        module = tvm.tirx.build(schedule.mod, target=target)
    shapes = (_DEPTH, _ROWS), (_DEPTH, _ROWS), (_ROWS, _ROWS)

    @cache
    def evaluation() -> Callable[[], Any]:
        ones = [tvm.runtime.tensor(np.ones(shape, dtype=np.float32), device=device) for shape in shapes]
        return partial(module.time_evaluator("main", device, number=1, repeat=1), *ones)

    return lambda: float(evaluation()().results[0])
