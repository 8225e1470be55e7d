"""Rows of the records table as bytes, while they wait for the table: a piece holds rows of some devices."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from agents.records import NOISE, CandidateId, DeviceId, Outcome, WorkloadId, has_flag
from fleet.errors import StoreError
from fleet.state.rows import Result
from fleet.store.delta.schema import TABLE_SCHEMA

#: LZ4 takes a tenth of the time of writing the columns uncompressed to most disks.
_COMPRESSION = "lz4"
_DEVICE = "device_id"


def pack(table: pa.Table) -> bytes:
    """Rows of `fleet.store.delta.schema.TABLE_SCHEMA` as a compressed Arrow stream: a fifth of the memory."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=_COMPRESSION)
    with pa.ipc.new_stream(sink, TABLE_SCHEMA, options=options) as writer:
        writer.write_table(table.combine_chunks())
    data = sink.getvalue().to_pybytes()
    assert isinstance(data, bytes)
    return data


def unpack(packed: bytes, columns: Sequence[str] = tuple(TABLE_SCHEMA.names)) -> pa.Table:
    """The rows that `pack` was given, with some of their columns, in the order of the schema.

    Raises:
        StoreError: They are of another version, or no rows at all.
    """
    chosen = [number for number, name in enumerate(TABLE_SCHEMA.names) if name in columns]
    expected = pa.schema([TABLE_SCHEMA.field(number) for number in chosen])
    try:
        options = pa.ipc.IpcReadOptions(included_fields=chosen, use_threads=False)
        table = pa.ipc.open_stream(packed, options=options).read_all()
    except (pa.ArrowException, IndexError) as error:
        raise StoreError(f"rows that were taken in cannot be read: {error}") from error
    if not table.schema.equals(expected):
        raise StoreError(
            f"rows that were taken in have the columns {table.schema.names}, this version expects"
            f" {expected.names}; use the version that wrote them"
        )
    return table


def rows_of(packed: bytes, device_id: str, columns: Sequence[str]) -> pa.Table:
    """The rows that a piece has of a device, with these columns of `FILE_SCHEMA`."""
    table = unpack(packed, [_DEVICE, *columns])
    return table.filter(pc.equal(table.column(_DEVICE), device_id)).select(list(columns))


def with_device(device_id: str, table: pa.Table) -> pa.Table:
    """Rows of `FILE_SCHEMA` as rows of `TABLE_SCHEMA`."""
    names = pa.repeat(pa.scalar(device_id, pa.string()), table.num_rows)
    return table.add_column(0, TABLE_SCHEMA.field(_DEVICE), names)


#: Columns that `results_of_rows` needs.
RESULT_COLUMNS = (
    *("workload_id", "environment_id", "candidate_id", "attempt", "outcome", "latency_secs", "measured_at"),
    *("origin", "quality"),
)


def results_of_rows(device_id: str, table: pa.Table | pa.RecordBatch) -> Iterator[Result]:
    """Yield what a state file keeps of rows of a device with `RESULT_COLUMNS`: as `result_of` does.

    Raises:
        StoreError, ValueError: They are no rows of records.
    """
    return _results(itertools.repeat(device_id), table)


def results_of_piece(table: pa.Table) -> Iterator[Result]:
    """Yield the same of rows of some devices: of a piece that is unpacked; errors as of `results_of_rows`."""
    return _results(table.column(_DEVICE).to_pylist(), table)


def _results(device_ids: Iterable[str], table: pa.Table | pa.RecordBatch) -> Iterator[Result]:
    for column in RESULT_COLUMNS:
        if column != "latency_secs" and table.column(column).null_count:
            raise StoreError(f"column {column} holds nulls")
    columns = [table.column(column).to_pylist() for column in RESULT_COLUMNS]
    rows = zip(*columns, strict=True)
    for device_id, row in zip(device_ids, rows, strict=False):
        workload, environment, candidate, attempt, outcome, secs, measured_at, origin, quality = row
        yield Result(
            WorkloadId(workload),
            DeviceId(device_id),
            environment,
            CandidateId(candidate),
            attempt,
            Outcome(outcome),
            None if _is_suspect(quality) else secs,
            measured_at,
            origin == NOISE and attempt % 2 == 0,
        )


@functools.lru_cache(maxsize=256)
def _is_suspect(quality: str) -> bool:
    return has_flag(quality, "suspect")
