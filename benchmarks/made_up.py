"""Rows, records, workloads and replay devices that are made up for load.

Ids are random, latencies are random, traces look like AutoTVM's in length and in how well they compress.
Nothing is learned from them; they only weigh as much as real ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agents.records import (
    Candidate,
    Descriptor,
    DeviceId,
    DeviceKind,
    DeviceSpec,
    Family,
    Outcome,
    Protocol,
    Record,
    Replay,
    Workload,
    WorkloadId,
    canonical_json,
)
from fleet.config.device_changes import DeviceFiles
from fleet.errors import FleetError
from fleet.store.delta.schema import FILE_SCHEMA, records_to_table
from fleet.store.store import Store

TARGET = '{"kind":"llvm","num-cores":1}'
#: Workloads that the made-up records are of.
WORKLOADS = 50
_ENVIRONMENT = canonical_json(
    {"made_up": True, "kernel": "6.1", "tvm": "0.27", "versions": {"llvm": "19.1"}, "affinity": [0]}
)


def _hex(rng: np.random.Generator, rows: int) -> pa.Array:
    digits = rng.bytes(rows * 16).hex().encode()
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), rows, [None, pa.py_buffer(digits)]).cast(
        pa.string()
    )


#: What stands in a trace before each of its numbers, and at its end.
_TRACE = (
    '["conv2d_NCHWc.x86",[["tile_ic","sp",[-1,',
    ']],["tile_oc","sp",[-1,',
    ']],["tile_ow","sp",[-1,',
    ']],["unroll_kw","ot",',
    '],["parallel","ot",',
    '],["vectorize","ot",',
)
_TRACE_END = "]]]"


def made_up_rows(rng: np.random.Generator, rows: int) -> pa.Table:
    """Rows of one device in the columns of a data file: one record over and over, but for what differs."""
    candidate = Candidate(workload_id=WorkloadId("0" * 16), trace="", dialect="autotvm")
    like = records_to_table([record_of(candidate, environment=_ENVIRONMENT)])
    secs = rng.lognormal(-7, 1, size=(rows, 3))
    numbers = [pa.array(rng.integers(1, 257, rows)).cast(pa.string()) for _ in _TRACE]
    pieces = itertools.chain.from_iterable(zip(_TRACE, numbers, strict=True))
    workloads = pa.array([f"{number:016x}" for number in range(WORKLOADS)])
    columns: dict[str, pa.Array] = {
        "record_id": _hex(rng, rows),
        "workload_id": workloads.take(pa.array(np.sort(rng.integers(0, WORKLOADS, rows)))),
        "candidate_id": _hex(rng, rows),
        "latency_secs": pa.array(secs.min(axis=1)),
        "run_secs": _lists(secs),
        "warmup_secs": _lists(secs[:, :1]),
        "timing_secs": pa.array(secs.sum(axis=1) * 10),
        "measured_at": pa.array(1.7e9 + np.arange(rows, dtype=np.float64)),
        "trace": pc.binary_join_element_wise(*pieces, _TRACE_END, ""),
    }
    for name in set(FILE_SCHEMA.names) - set(columns):
        columns[name] = pa.repeat(like.column(name)[0], rows)
    return pa.Table.from_arrays([columns[name] for name in FILE_SCHEMA.names], schema=FILE_SCHEMA)


def _lists(values: np.ndarray[Any, Any]) -> pa.Array:
    rows, width = values.shape
    offsets = pa.array(np.arange(0, rows * width + 1, width, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array(values.ravel()))


def record_of(candidate: Candidate, **changes: Any) -> Record:
    """A record of a candidate that ran."""
    values: dict[str, Any] = {
        "device_id": DeviceId("bench"),
        "workload_id": candidate.workload_id,
        "candidate_id": candidate.candidate_id,
        "dialect": candidate.dialect,
        "trace": candidate.trace,
        "origin": "random",
        "outcome": Outcome.OK,
        "run_secs": (1e-3, 1.01e-3, 1.02e-3),
        "warmup_secs": (1.5e-3,),
        "number": 10,
        "build_secs": 0.1,
        "wait_secs": 0.0,
        "timing_secs": 0.2,
        "error": "",
        "protocol": Protocol(),
        "environment": "{}",
        "environment_id": "e" * 32,
        "attempt": 0,
        "measured_at": 1.7e9,
    }
    return Record(**values | changes)


#: Instructions of one trace: with 40, its text is about 4 KB, as for a matrix multiplication of MetaSchedule.
TRACE_INSTRUCTIONS = 40


def make_records(
    start: int, count: int, device_id: str = "bench", instructions: int = TRACE_INSTRUCTIONS
) -> list[Record]:
    """Records with decisions that differ; only the size of their content counts.

    Args:
        start: Number of the first; equal numbers are equal candidates.
        count: How many.
        device_id: Of all.
        instructions: Of each trace.
    """
    steps = [["SamplePerfectTile", [f"l{step}"], [4, 64], [f"v{step}"]] for step in range(instructions)]

    def record(number: int) -> Record:
        decisions = [
            [step, [1 + (number * (step + 7)) % 64, 4, 2, (number >> step) % 32]] for step in range(8)
        ]
        candidate = Candidate(
            workload_id=WorkloadId(f"{number % WORKLOADS:016x}"),
            trace=canonical_json([steps, decisions, number]),
        )
        return record_of(
            candidate,
            device_id=DeviceId(device_id),
            run_secs=(1e-3 + number * 1e-9, 1.01e-3, 1.02e-3),
            environment=canonical_json({"load": number % 7, "clock_mhz": 2100 + number % 11, "tvm": "0.27"}),
            environment_id="0" * 32,
            measured_at=1.7e9 + number,
        )

    return [record(number) for number in range(start, start + count)]


def workload_of(workload_id: str, **changes: Any) -> Workload:
    """A matrix product without a program."""
    values: dict[str, Any] = {
        "name": "GMM",
        "operator": "GMM",
        "arg_shapes": ((64, 64),) * 3,
        "arg_dtypes": ("float32",) * 3,
        "flops": 524288.0,
        "networks": (),
        "module_json": "{}",
    }
    return Workload(workload_id=WorkloadId(workload_id), **values | changes)


def made_up_workloads(count: int, first: str = "") -> list[Workload]:
    """Workloads of a network.

    Args:
        count: How many.
        first: What their ids begin with; without it they are those of `made_up_rows`.
    """
    return [
        workload_of(
            first + f"{number:016x}"[len(first) :],
            name=f"made up {number}",
            operator="C2D",
            arg_shapes=((64, 64),),
            arg_dtypes=("float32",),
            flops=10.0 ** (6 + number % 4),
            networks=(("resnet-50", 1 + number % 5),),
        )
        for number in range(count)
    ]


def put_measured(
    store: Store,
    name: str,
    workloads: Sequence[Workload],
    records: Sequence[Record],
    descriptor: Descriptor | None = None,
) -> None:
    """Put a device of this host, workloads of ours and what it measured of them into a store."""
    device_id = DeviceId(name)
    spec = DeviceSpec(device_id=device_id, kind=DeviceKind.LOCAL, family=Family.CPU, target_json=TARGET)
    store.put_device(spec, descriptor or Descriptor(host=device_id))
    store.put_workloads(workloads, own=True)
    store.append(records)


def device_name(number: int) -> str:
    """Name of a device."""
    return f"dev-{number:05d}"


def replay_specs(
    names: Iterable[str], records: Path, recorded: str = "recorded"
) -> dict[DeviceId, DeviceSpec]:
    """Devices that answer from the records of one, `recorded`, each with a seed of its own."""
    return {
        DeviceId(name): DeviceSpec(
            device_id=DeviceId(name),
            kind=DeviceKind.REPLAY,
            family=Family.CPU,
            target_json=TARGET,
            replay=Replay(records=str(records), device=DeviceId(recorded), seed=number),
        )
        for number, name in enumerate(names)
    }


def own_mb(field: str = "RssAnon") -> float:
    """Memory of this process in MiB that is no mapped file, or another line of its status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


class FixedDevices:
    """Implements `fleet.engine.context.DeviceSource` for devices that stay as they are."""

    def __init__(self, specs: Mapping[DeviceId, DeviceSpec]) -> None:
        self.files = DeviceFiles(specs=dict(specs))

    def look(self) -> DeviceFiles | None:
        """See `DeviceSource`."""
        return None

    def retire(self, device_id: DeviceId) -> None:
        """See `DeviceSource`."""
        raise FleetError(f"device {device_id} has no file here that could be taken away")
