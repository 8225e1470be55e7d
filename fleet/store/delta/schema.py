"""The records table in Arrow: its columns, and the way from a `Record` to a row and back.

`fleet.store.store` and `fleet.store.delta.log` call it. It knows no folders, lock or transaction.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import to_builtins

from agents.codec import bounded_json, protocol_from_json
from agents.errors import AgentError
from agents.records import (
    RECORD_SCHEMA,
    CandidateId,
    DeviceId,
    Outcome,
    Protocol,
    Record,
    WorkloadId,
    canonical_json,
)
from fleet.errors import StoreError

#: Layout of the whole store (tables, folders).
STORE_SCHEMA = 2

#: Key of `STORE_SCHEMA` in the table's metadata.
SCHEMA_KEY = "tensorFleet.storeSchema"

#: Columns inside one data file. `device_id` is the partition, so it stands in the folder's name instead.
FILE_SCHEMA = pa.schema(
    [
        ("record_id", pa.string()),
        ("workload_id", pa.string()),
        ("candidate_id", pa.string()),
        ("outcome", pa.string()),
        ("latency_secs", pa.float64()),
        ("run_secs", pa.list_(pa.float64())),
        ("warmup_secs", pa.list_(pa.float64())),
        ("number", pa.int64()),
        ("build_secs", pa.float64()),
        ("wait_secs", pa.float64()),
        ("timing_secs", pa.float64()),
        ("measured_at", pa.float64()),
        ("attempt", pa.int64()),
        ("origin", pa.string()),
        ("model_version", pa.string()),
        ("error", pa.string()),
        ("environment_id", pa.string()),
        ("environment", pa.string()),
        ("protocol", pa.string()),
        ("dialect", pa.string()),
        ("trace", pa.string()),
        ("schema", pa.int32()),
        ("quality", pa.string()),
    ]
)

#: The table as Delta sees it: the partition column and those of the files.
TABLE_SCHEMA = pa.schema([("device_id", pa.string()), *FILE_SCHEMA])

#: Columns a `Record` is rebuilt from: `record_id` and `latency_secs` follow from the others.
RECORD_COLUMNS = tuple(name for name in FILE_SCHEMA.names if name not in ("record_id", "latency_secs"))

#: Columns with few values or repeated text. Hashes repeat too seldom for a dictionary to pay.
DICTIONARY_COLUMNS = (
    "workload_id",
    "outcome",
    "origin",
    "model_version",
    "error",
    "environment_id",
    "environment",
    "protocol",
    "dialect",
    "trace",
)

#: Columns with minimum and maximum in the Parquet footer; for long text they would only cost space.
STATISTICS_COLUMNS = ("record_id", "workload_id", "candidate_id", "outcome", "latency_secs", "measured_at")

#: Rows decoded at once: with traces of 20 KB this is some 20 MB.
BATCH_ROWS = 1024

#: Hexadecimal digits of a record id (`agents.records.content_hash`).
RECORD_ID_DIGITS = 32


def records_to_table(records: Sequence[Record], record_ids: Sequence[str] | None = None) -> pa.Table:
    """Turn records into a table of `FILE_SCHEMA`.

    Args:
        records: Records, mostly of one device; the device itself is not a column.
        record_ids: Their ids, if they are at hand: hashing takes a sixth of the time.

    Raises:
        StoreError: A field cannot be kept: a wrong type, or text that is not Unicode. What else is wrong with
            rows, `fleet.store.delta.schema.check_columns` says.
    """
    ids = [record.record_id for record in records] if record_ids is None else list(record_ids)
    # Column by column: a dictionary a row takes twice as long.
    fields = (
        zip(*map(operator.attrgetter(*RECORD_COLUMNS), records), strict=True)
        if records
        else ((),) * len(RECORD_COLUMNS)
    )
    columns: dict[str, Sequence[object]] = dict(zip(RECORD_COLUMNS, fields, strict=True))
    columns["record_id"] = ids
    # Hashing a protocol takes longer than all else here, and those of a batch are mostly one object.
    texts: dict[int, str] = {}
    for record, record_id in zip(records, ids, strict=True):
        if id(record.protocol) not in texts:
            texts[id(record.protocol)] = _protocol_of(record, record_id)
    columns["protocol"] = [texts[id(record.protocol)] for record in records]
    columns["outcome"] = [record.outcome.value for record in records]
    columns["latency_secs"] = [
        min(record.run_secs) if record.outcome is Outcome.OK and record.run_secs else None
        for record in records
    ]
    # The tail of a stream cut at any byte may hold halves of characters: they must not stop the batch.
    columns["error"] = [
        record.error and record.error.encode("utf-8", "backslashreplace").decode() for record in records
    ]
    try:
        arrays = [pa.array(columns[field.name], field.type) for field in FILE_SCHEMA]
        return pa.Table.from_arrays(arrays, schema=FILE_SCHEMA)
    except (pa.ArrowException, UnicodeError, TypeError, OverflowError) as error:
        raise StoreError(
            f"a record cannot be stored: {error}; each field must have the type of Record"
        ) from error


def _protocol_of(record: Record, record_id: str) -> str:
    try:
        return _protocol_text(record.protocol)
    except (AgentError, ValueError, TypeError) as error:
        raise StoreError(f"record {record_id} cannot be stored: {error}") from error


@functools.lru_cache(maxsize=256)
def _protocol_text(protocol: Protocol) -> str:
    return canonical_json(to_builtins(protocol))


@functools.lru_cache(maxsize=256)
def _protocol(text: str) -> Protocol:
    return protocol_from_json(bounded_json(text))


def check_protocol(text: str) -> None:
    """Refuse the text of a protocol that no record could be read back with.

    Raises:
        StoreError: It is no protocol.
    """
    try:
        _protocol(text)
    except (AgentError, ValueError, TypeError) as error:
        raise StoreError(f"rows cannot be stored: {error}") from error


def read_batches(
    path: Path, columns: Sequence[str] = tuple(FILE_SCHEMA.names), rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one data file, up to `rows` at a time, in order.

    It reads when asked. A scan of pyarrow's datasets reads ahead of a slow consumer: 330 MB for 400,000
    records, where this takes 31 MB.

    Raises:
        StoreError: The file lacks a column.
        pyarrow.ArrowException, OSError: The file is damaged or gone.
    """
    with pq.ParquetFile(path) as file:
        missing = [name for name in columns if name not in file.schema_arrow.names]
        if missing:
            raise StoreError(f"{path} lacks the columns {', '.join(missing)}: tensor-fleet did not write it")
        yield from file.iter_batches(batch_size=rows, columns=list(columns), use_threads=False)


def batch_to_records(device_id: str, batch: pa.RecordBatch) -> Iterator[Record]:
    """Yield the records in one batch of `RECORD_COLUMNS`, in its order.

    Raises:
        StoreError: A row was written by another version, or breaks the record's own rules.
    """
    columns = [batch.column(name).to_pylist() for name in RECORD_COLUMNS]
    for values in zip(*columns, strict=True):
        row = dict(zip(RECORD_COLUMNS, values, strict=True))
        check_layout(device_id, row["schema"])
        try:
            row["outcome"] = Outcome(row["outcome"])
            row["protocol"] = _protocol(row["protocol"])
        except (AgentError, ValueError, TypeError) as error:
            raise StoreError(f"a record of device {device_id} cannot be read: {error}") from error
        row["run_secs"] = tuple(row["run_secs"])
        row["warmup_secs"] = tuple(row["warmup_secs"])
        row["workload_id"] = WorkloadId(row["workload_id"])
        row["candidate_id"] = CandidateId(row["candidate_id"])
        yield Record(device_id=DeviceId(device_id), **row)


def check_layout(device_id: str, schema: object) -> None:
    """Refuse the layout of a record that another version wrote.

    Raises:
        StoreError: It is not `RECORD_SCHEMA`.
    """
    if schema != RECORD_SCHEMA:
        raise StoreError(
            f"a record of device {device_id} has layout {schema}, this version reads {RECORD_SCHEMA} only"
        )


# Rows that come as columns: checked as a whole, a few milliseconds for ten thousand.
#
# Only `fleet.store.store` calls it, for `Store.append_table`. It keeps the promises that `records_to_table`
# keeps record by record.

#: Columns that may hold nulls.
_NULLABLE = ("latency_secs",)
#: Columns of seconds: one value a row, and lists of them.
_SECONDS = ("build_secs", "wait_secs", "timing_secs", "measured_at")
_SECONDS_LISTS = ("run_secs", "warmup_secs")


def check_columns(table: pa.Table) -> None:
    """Refuse rows that `Store.records` could not give back as records.

    Whether ids follow from the other columns is not checked: the caller hashes them as `agents.records` does.

    Raises:
        StoreError: Another schema, a null, seconds that are negative or no finite number, an unknown outcome
            or layout, an id of another length, a latency that is not the fastest of its `run_secs`, or a
            protocol that cannot be read.
    """
    check_schema(table)
    for name in FILE_SCHEMA.names:
        if name not in _NULLABLE and table.column(name).null_count:
            raise StoreError(f"rows cannot be stored: column {name} holds nulls")
    for name in _SECONDS_LISTS:
        # A null within a list would read as a record whose seconds are no numbers.
        values = pc.list_flatten(table.column(name))
        if values.null_count:
            raise StoreError(f"rows cannot be stored: lists of column {name} hold nulls")
        _check_seconds(name, values)
    for name in _SECONDS:
        _check_seconds(name, table.column(name))
    for name in ("record_id", "candidate_id"):
        is_id = pc.match_substring_regex(table.column(name), f"^[0-9a-f]{{{RECORD_ID_DIGITS}}}$")
        if not pc.all(is_id, min_count=0).as_py():
            strange = table.column(name).filter(pc.invert(is_id))[0].as_py()
            raise StoreError(
                f"rows cannot be stored: {name} {strange!r:.80}, expected {RECORD_ID_DIGITS} digits 0-9, a-f"
            )
    unknown = set(pc.unique(table.column("outcome")).to_pylist()) - {outcome.value for outcome in Outcome}
    if unknown:
        raise StoreError(f"rows cannot be stored: unknown outcomes {', '.join(sorted(unknown))}")
    for schema in pc.unique(table.column("schema")).to_pylist():
        if schema != RECORD_SCHEMA:
            raise StoreError(
                f"rows cannot be stored: record layout {schema}, this version writes {RECORD_SCHEMA} only"
            )
    for text in pc.unique(table.column("protocol")).to_pylist():
        check_protocol(text)
    _check_latencies(table)


def check_schema(table: pa.Table) -> None:
    """Refuse rows with other columns than those of a data file.

    Raises:
        StoreError: They are named.
    """
    if not table.schema.equals(FILE_SCHEMA):
        raise StoreError(
            f"rows have the columns {table.schema.names}, expected {FILE_SCHEMA.names} in their types"
        )


def _check_seconds(name: str, values: pa.ChunkedArray) -> None:
    # A minimum passes over NaN, so a check of latencies alone would let it through behind a number.
    is_good = pc.and_(pc.is_finite(values), pc.greater_equal(values, 0.0))
    wrong = pc.filter(values, pc.invert(is_good))
    if len(wrong):
        raise StoreError(
            f"rows cannot be stored: column {name} holds {wrong[0].as_py()}, expected seconds from 0 on"
        )


def _check_latencies(table: pa.Table) -> None:
    secs = table.column("run_secs").combine_chunks()
    parents = pc.list_parent_indices(secs)
    fastest = (
        pa.table({"row": parents, "secs": pc.list_flatten(secs)})
        .group_by("row")
        .aggregate([("secs", "min")])
        .sort_by("row")
    )
    has_latency = pc.and_(
        pc.equal(table.column("outcome"), Outcome.OK.value), pc.greater(pc.list_value_length(secs), 0)
    )
    rows = pc.indices_nonzero(has_latency)
    expected = fastest.filter(pc.is_in(fastest.column("row"), rows.cast(parents.type))).column("secs_min")
    latency = table.column("latency_secs")
    if pc.any(pc.not_equal(pc.is_valid(latency), has_latency)).as_py():
        raise StoreError("rows cannot be stored: a latency where the outcome is not ok, or none where it is")
    if not pc.all(pc.equal(latency.take(rows), expected)).as_py() and len(rows):
        raise StoreError("rows cannot be stored: a latency is not the fastest of its repeats")
