"""Exported Parquet: one flat table of records that needs no other file: for pandas, DuckDB, replay devices.

The columns are those of the store, made self-contained: what the workload and the device are stands in each
row (compressed to almost nothing), and which record of a candidate counts. `docs/export.md` lists them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agents.device.replay_file import Head, Recorded, footer
from agents.records import Workload, WorkloadId, canonical_json
from fleet.interchange.export_source import Source
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
        head = Head(devices=devices, table_version=sources[0].reader.version)
        writer.add_key_value_metadata(footer(head, used.values()))
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
