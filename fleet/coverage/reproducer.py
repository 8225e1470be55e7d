"""A script that builds and times one candidate with TVM alone, to copy and to send on.

Called by `fleet show --script` and the dashboard. Programs of others are never run, so they get none.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import version

from agents.records import Candidate, DeviceId, Protocol, Workload
from agents.trust import IMPORTED, is_imported
from fleet.errors import StoreError
from fleet.store.reader import StoreReader

_SCRIPT = '''\
"""Build and time one candidate again: {name}, candidate {candidate_id}.

It was measured on {device_id}. Needs apache-tvm only (made with {version}).
"""

import json

import numpy as np
import tvm
from tvm.s_tir.schedule import Schedule, Trace

TARGET = {target}
MODULE = {module}
TRACE = {trace}
SHAPES = {shapes}
DTYPES = {dtypes}

schedule = Schedule(tvm.ir.load_json(MODULE))
Trace.apply_json_to_schedule(json.loads(TRACE), schedule)
print(schedule.mod.script())
library = tvm.tirx.build(schedule.mod, target=tvm.target.Target(json.loads(TARGET)))
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
    reader: StoreReader,
    candidate: Candidate,
    origins: Collection[str],
    device_id: DeviceId,
    protocol: Protocol,
) -> str:
    """The script of a candidate, with the origins of its records, a device, and how it was timed there.

    Raises:
        StoreError: Why there is none.
    """
    if candidate.dialect != "meta_schedule":
        raise StoreError(f"its schedule is of the dialect {candidate.dialect}, which TVM 0.27 does not build")
    wanted = candidate.workload_id
    workload = reader.own_workloads({wanted}).get(wanted)
    is_foreign = IMPORTED in origins or is_imported(wanted)
    if workload is None or is_foreign or reader.doubtful_workloads({wanted}):
        raise StoreError(
            "it may have come with a log, and programs of others are never executed as they came"
        )
    entry = reader.devices().get(device_id)
    if entry is None:
        raise StoreError("nothing is known of the device that measured it")
    return script(workload, candidate, device_id, entry.spec.target_json, protocol)


def script(
    workload: Workload, candidate: Candidate, device_id: str, target_json: str, protocol: Protocol
) -> str:
    """The text itself. Every foreign text goes in as a literal, so nothing of it becomes code."""
    kind = "cuda" if '"cuda"' in target_json else "cpu"
    return _SCRIPT.format(
        name=_word(workload.name),
        candidate_id=_word(candidate.candidate_id),
        device_id=_word(device_id),
        version=version("apache-tvm"),
        target=repr(target_json),
        module=repr(workload.module_json),
        trace=repr(candidate.trace),
        shapes=repr([tuple(shape) for shape in workload.arg_shapes]),
        dtypes=repr(list(workload.arg_dtypes)),
        device=repr(kind),
        repeat=protocol.repeat,
        min_repeat_ms=max(1, round(protocol.min_repeat_ms)),
    )


def _word(text: str) -> str:
    """A text that can stand in a comment."""
    return "".join(char if char.isalnum() or char in " ._-+x" else "?" for char in text)[:120]
