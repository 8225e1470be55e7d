"""Exported Parquet: one flat table of records that needs no other file: for pandas, DuckDB, replay devices.

The columns are those of the store, made self-contained: what the workload and the device are stands in each
row (compressed to almost nothing), and which record of a candidate counts. `docs/export.md` lists them.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agents.device.replay_file import Recorded, footer
from agents.programs.trace_rules import replay_fault
from agents.records import Outcome, Record, Workload, WorkloadId, canonical_json, claimed_id
from fleet.errors import FleetError
from fleet.interchange.export_source import NotHeldError, Source, has_module, write_lines
from fleet.store.delta.schema import DICTIONARY_COLUMNS, FILE_SCHEMA, STATISTICS_COLUMNS

#: What every row says of its device and workload, beside the columns of the store.
_DEVICE_FIELDS = (("device_id", pa.string()), ("family", pa.string()), ("target", pa.string()))
_WORKLOAD_FIELDS = (
    ("workload", pa.string()),
    ("operator", pa.string()),
    ("flops", pa.float64()),
    ("bytes_moved", pa.int64()),
    ("arg_shapes", pa.string()),
    ("arg_dtypes", pa.string()),
)
#: All columns, in order.
SCHEMA = pa.schema([*_DEVICE_FIELDS, *_WORKLOAD_FIELDS, ("counts", pa.bool_()), *FILE_SCHEMA])

#: A row group ends with this many bytes or rows: some MB for a reader to decode at once.
_GROUP_BYTES = 32 << 20
#: Largest number that the column of a workload's bytes holds: shapes of older imports are not bounded.
_MOST_BYTES = 2**63 - 1
_GROUP_ROWS = 1 << 16
#: Of zstd, for small files.
_SMALL_LEVEL = 15
#: Numbers without a pattern: their first bytes pack better apart from the others.
_SECONDS_COLUMNS = (
    *("run_secs.list.element", "warmup_secs.list.element", "latency_secs", "build_secs"),
    *("wait_secs", "timing_secs", "measured_at"),
)
_TEXT_COLUMNS = [name for name, kind in (*_DEVICE_FIELDS, *_WORKLOAD_FIELDS) if kind == pa.string()]


def write_parquet(path: Path, sources: Sequence[Source], *, is_small: bool = False) -> int:
    """Write all records of some devices into one file; returns how many.

    With `is_small` it takes ten times longer for a file that is a quarter smaller.
    """
    count = 0
    used: dict[WorkloadId, Workload] = {}
    with pq.ParquetWriter(
        path,
        SCHEMA,
        compression="zstd",
        compression_level=_SMALL_LEVEL if is_small else None,
        use_byte_stream_split=list(_SECONDS_COLUMNS) if is_small else False,
        use_dictionary=[*_TEXT_COLUMNS, "quality", *DICTIONARY_COLUMNS],
        write_statistics=["device_id", *STATISTICS_COLUMNS],
    ) as writer:
        for source in sources:
            group: list[pa.RecordBatch] = []
            for batch in flat_batches(source):
                group.append(batch)
                for workload_id in pc.unique(batch.column("workload_id")).to_pylist():
                    if workload_id in source.workloads:
                        used[workload_id] = source.workloads[workload_id]
                rows = sum(part.num_rows for part in group)
                if rows >= _GROUP_ROWS or sum(part.nbytes for part in group) >= _GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(group, SCHEMA), row_group_size=rows)
                    group = []
                count += batch.num_rows
            if group:
                writer.write_table(pa.Table.from_batches(group, SCHEMA), row_group_size=_GROUP_ROWS)
        devices = {
            source.device_id: Recorded(spec=source.spec, descriptor=source.descriptor)
            for source in sources
            if source.spec is not None
        }
        writer.add_key_value_metadata(footer(devices, used.values(), sources[0].reader.version))
    return count


def flat_batches(source: Source) -> Iterator[pa.RecordBatch]:
    """Yield the records of a device, each with all that there is to say of it: columns of `SCHEMA`."""
    workloads, spec = _workload_columns(source.workloads), source.spec
    device = {
        "device_id": source.device_id,
        "family": None if spec is None else str(spec.family),
        "target": None if spec is None else spec.target_json,
    }
    start = 0
    for batch in source.batches(FILE_SCHEMA.names):
        rows = batch.num_rows
        place = pc.index_in(batch.column("workload_id"), value_set=workloads["workload_id"])
        columns: dict[str, pa.Array] = {name: batch.column(name) for name in FILE_SCHEMA.names}
        columns |= {name: pa.repeat(pa.scalar(device[name], kind), rows) for name, kind in _DEVICE_FIELDS}
        columns |= {name: workloads[name].take(place) for name, _ in _WORKLOAD_FIELDS}
        columns["counts"] = pa.array(source.counts[start : start + rows])
        start += rows
        yield pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _workload_columns(workloads: Mapping[WorkloadId, Workload]) -> dict[str, pa.Array]:
    """The workload fields by column, and the ids that they belong to as `workload_id`."""
    values: dict[str, list[Any]] = {
        "workload": [workload.name for workload in workloads.values()],
        "operator": [workload.operator for workload in workloads.values()],
        "flops": [workload.flops for workload in workloads.values()],
        "bytes_moved": [min(workload.bytes_moved, _MOST_BYTES) for workload in workloads.values()],
        "arg_shapes": [canonical_json(workload.arg_shapes) for workload in workloads.values()],
        "arg_dtypes": [canonical_json(workload.arg_dtypes) for workload in workloads.values()],
    }
    columns = {name: pa.array(values[name], kind) for name, kind in _WORKLOAD_FIELDS}
    return columns | {"workload_id": pa.array(list(workloads), pa.string())}


# A MetaSchedule database of one device, as TVM's `JSONDatabase` loads it; written without TVM.
#
# `database_workload.json` has a line `[structural hash, module]` a workload: the module is base64 of its
# JSON text behind the text's length (8 bytes, little-endian). `database_tuning_record.json` has a line
# `[workload index, [trace, run_secs, target, args_info]]` a record. A workload's `module_json` is what TVM
# itself would put there, less its line breaks, and a record's trace is its JSON already.

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"


def write_database(folder: Path, source: Source) -> int:
    """Write the `ok` records into a new folder; nothing where there are none.

    All measurements of a candidate are written. TVM takes the one with the least mean of `run_secs`.

    Returns:
        How many records were written.

    Raises:
        FleetError: The store does not know the device's target.
    """
    #: Workloads with a fitting record, in the order of their first one.
    indices: dict[WorkloadId, int] = {}
    arguments: dict[WorkloadId, str] = {}
    target = "" if source.spec is None else canonical_json(source.spec.target)
    module_is_known = {
        workload_id: has_module(workload) for workload_id, workload in source.workloads.items()
    }

    def line(record: Record) -> str:
        if record.outcome is not Outcome.OK:
            raise NotHeldError("failed: a database holds latencies only")
        if fault := replay_fault(record.dialect, record.trace):
            raise NotHeldError(fault)
        if not module_is_known.get(record.workload_id):
            raise NotHeldError("the module of its workload is not known")
        if source.spec is None:
            raise FleetError(
                f"device {source.device_id}: the store does not say what its target is, and TVM needs it; "
                "collect or import into it once more, which stores the device"
            )
        if record.workload_id not in indices:
            indices[record.workload_id] = len(indices)
            arguments[record.workload_id] = _arguments(source.workloads[record.workload_id])
        secs = json.dumps([float(value) for value in record.run_secs])
        inner = f"[{record.trace},{secs},{target},{arguments[record.workload_id]}]"
        return f"[{indices[record.workload_id]},{inner}]"

    folder.mkdir()
    count = write_lines(folder / RECORDS, source.held(line))
    workloads = (_workload_line(source.workloads[workload_id]) for workload_id in indices)
    write_lines(folder / WORKLOADS, workloads)
    if not count:
        shutil.rmtree(folder)
    return count


def _workload_line(workload: Workload) -> str:
    # TVM reads the hash as a decimal number and works it out again from the module.
    name = str(int(claimed_id(workload.workload_id) or workload.workload_id, 16))
    text = workload.module_json.encode()
    packed = base64.b64encode(len(text).to_bytes(8, "little") + text).decode()
    return json.dumps([name, packed])


def _arguments(workload: Workload) -> str:
    pairs = zip(workload.arg_dtypes, workload.arg_shapes, strict=True)
    return canonical_json([["TENSOR", dtype, list(shape)] for dtype, shape in pairs])
