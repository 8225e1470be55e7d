"""What an id stands for in a store: a record, a candidate or a workload.

Called by `fleet show`. Only columns of ids are read to find it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version

import pyarrow as pa
import pyarrow.compute as pc

from agents.programs.trace_rules import replay_fault
from agents.records import (
    IMPORTED,
    Candidate,
    CandidateId,
    DeviceId,
    Protocol,
    Record,
    Workload,
    WorkloadId,
    is_live,
)
from fleet.errors import StoreError
from fleet.store.reader import StoreReader
from fleet.store.trace_lookup import find_records

# A script that builds and times one candidate with TVM alone, to copy and to send on.
#
# Called by `fleet show --script` and the dashboard. A script is a program that its reader runs unconfined.
# So it exists only for traces that a live device of the store has measured and that pass the trace rules. A
# dataset or a log may hold any trace: it gets no script, whatever it claims.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOn:
    """Where a record of a candidate says that it was measured, and how."""

    device_id: DeviceId
    origin: str
    protocol: Protocol


def reproducer(reader: StoreReader, candidate: Candidate, measurements: Iterable[MeasuredOn]) -> str:
    """The script of a candidate, as the first live device measured it.

    Args:
        reader: The store.
        candidate: What to build.
        measurements: Of its records.

    Raises:
        StoreError: Why there is none.
    """
    if fault := replay_fault(candidate.dialect, candidate.trace):
        raise StoreError(fault)
    workload_id = candidate.workload_id
    workload = reader.own_workloads({workload_id}).get(workload_id)
    if workload is None:
        raise StoreError("no device of this store listed its workload, and modules of others are not run")
    entries = reader.devices()
    for measurement in measurements:
        entry = entries.get(measurement.device_id)
        # Replay devices, and with them those of datasets, answer from what anybody may have written.
        if entry is not None and is_live(entry.spec) and measurement.origin != IMPORTED:
            return script(
                workload, candidate, measurement.device_id, entry.spec.target_json, measurement.protocol
            )
    raise StoreError(
        "no live device of this store has measured it: it came with a log or a dataset, and programs of "
        "others are never executed as they came"
    )


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


#: Fewest characters of an id that may stand for the whole.
_SHORTEST = 6
_KINDS = ("record_id", "candidate_id", "workload_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundId:
    """What was found; `records` are all of the candidate, or the single one."""

    #: `record`, `candidate` or `workload`.
    kind: str
    #: The whole id.
    id: str
    workload: Workload | None
    records: tuple[Record, ...] = ()
    #: Of a workload: records by device.
    counts: dict[str, int] | None = None


def find(reader: StoreReader, text: str) -> FoundId | None:
    """Find what an id, its first six characters at least, or the name of a workload stands for.

    Returns:
        None where the store has nothing of this name.

    Raises:
        StoreError: Several ids begin so.
    """
    workloads = reader.workloads()
    named = [workload for workload in workloads.values() if text in (workload.name, workload.workload_id)]
    matches: dict[str, dict[str, set[DeviceId]]] = {kind: {} for kind in _KINDS}
    if named:
        matches["workload_id"] = {workload.workload_id: set() for workload in named}
    elif len(text) >= _SHORTEST:
        for device_id, kind, value in _beginning_with(reader, text):
            matches[kind].setdefault(value, set()).add(device_id)
    for kind in _KINDS:
        if len(matches[kind]) > 1:
            raise StoreError(
                f"{len(matches[kind])} ids of a {kind.removesuffix('_id')} begin with {text!r}: give more of "
                f"it, such as {min(matches[kind])}"
            )
        for value, devices in matches[kind].items():
            return _found_id(reader, kind.removesuffix("_id"), value, devices, workloads)
    return None


def _beginning_with(reader: StoreReader, text: str) -> Iterator[tuple[DeviceId, str, str]]:
    for device_id, batch in reader.columns(_KINDS):
        for kind in _KINDS:
            column = batch.column(kind)
            for value in pc.unique(column.filter(pc.starts_with(column, text))).to_pylist():
                yield device_id, kind, value


def _found_id(
    reader: StoreReader, kind: str, value: str, devices: set[DeviceId], workloads: dict[WorkloadId, Workload]
) -> FoundId:
    if kind == "workload":
        counts: dict[str, int] = {}
        for device_id, batch in reader.columns(["workload_id"]):
            counts[device_id] = counts.get(device_id, 0) + pc.sum(pc.equal(batch.column(0), value)).as_py()
        return FoundId(kind=kind, id=value, workload=workloads.get(WorkloadId(value)), counts=counts)
    candidate_ids = {CandidateId(value)} if kind == "candidate" else _candidates_of(reader, value)
    records = [
        record
        for device_id in sorted(devices)
        for record in find_records(reader, device_id, candidate_ids)
        if kind == "candidate" or record.record_id == value
    ]
    workload = workloads.get(records[0].workload_id) if records else None
    return FoundId(kind=kind, id=value, workload=workload, records=tuple(records))


def _candidates_of(reader: StoreReader, record_id: str) -> set[CandidateId]:
    for _, batch in reader.columns(["record_id", "candidate_id"]):
        chosen: pa.RecordBatch = batch.filter(pc.equal(batch.column(0), record_id))
        if chosen.num_rows:
            return {CandidateId(candidate_id) for candidate_id in chosen.column(1).to_pylist()}
    return set()
