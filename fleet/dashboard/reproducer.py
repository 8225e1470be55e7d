"""A script that builds and times one candidate with TVM alone, to copy and to send on. Pure."""

from __future__ import annotations

from agents.records import Protocol, Workload

_SCRIPT = '''\
"""Build and time one candidate again: {name}, candidate {candidate_id}.

It was measured on {device_id}. Needs apache-tvm only (made with {version}).
"""

import json

import numpy as np
import tvm
from tvm.s_tir.schedule import Schedule, Trace

TARGET = tvm.target.Target(json.loads({target}))
MODULE = tvm.ir.load_json({module})
TRACE = json.loads({trace})
SHAPES = {shapes}
DTYPES = {dtypes}

schedule = Schedule(MODULE)
Trace.apply_json_to_schedule(TRACE, schedule)
print(schedule.mod.script())
library = tvm.tirx.build(schedule.mod, target=TARGET)
device = tvm.device({device})
draws = np.random.default_rng(0)
arguments = [
    tvm.runtime.tensor(draws.uniform(0, 1, shape).astype(dtype), device)
    for shape, dtype in zip(SHAPES, DTYPES, strict=True)
]
timer = library.time_evaluator(
    "main", device, number=1, repeat={repeat}, min_repeat_ms={min_repeat_ms}
)
print("seconds of one run, one value a repeat:", timer(*arguments).results)
'''


def reproducer(
    workload: Workload,
    candidate_id: str,
    trace: str,
    target_json: str,
    device_id: str,
    protocol: Protocol,
    version: str,
) -> str:
    """The script.

    Every foreign text goes in as a literal, so nothing of it becomes code.

    Args:
        workload: Its module must be of our own agents.
        candidate_id: The candidate.
        trace: Its schedule, likewise of our own.
        target_json: Target of the device that measured it.
        device_id: That device.
        protocol: How it was timed.
        version: Of TVM.
    """
    kind = "cuda" if '"cuda"' in target_json else "cpu"
    return _SCRIPT.format(
        name=_word(workload.name),
        candidate_id=_word(candidate_id),
        device_id=_word(device_id),
        version=_word(version),
        target=repr(target_json),
        module=repr(workload.module_json),
        trace=repr(trace),
        shapes=repr([tuple(shape) for shape in workload.arg_shapes]),
        dtypes=repr(list(workload.arg_dtypes)),
        device=repr(kind),
        repeat=protocol.repeat,
        min_repeat_ms=max(1, round(protocol.min_repeat_ms)),
    )


def _word(text: str) -> str:
    """A text that can stand in a comment."""
    return "".join(char if char.isalnum() or char in " ._-+x" else "?" for char in text)[:120]
