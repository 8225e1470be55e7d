"""The records table in Arrow: its columns, and the way from a `Record` to a row and back.

`fleet.store` and `fleet.store_log` call it. It knows no folders, lock or transaction.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from agents.errors import AgentError
from agents.record_json import protocol_from_json, protocol_to_json
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

#: Layout of the whole store (tables, folders). 1: first published layout. 2: column `quality`; older versions
#: must refuse it, because they would merge files without the column.
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

#: Columns that older data files lack: null there. A merge writes the nulls, so that no row ever changes.
ADDED_COLUMNS = frozenset({"quality"})

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

#: New ids are kept in a set until they are this many, then sorted into the array.
MERGE_AT = 65_536


def records_to_table(records: Sequence[Record]) -> pa.Table:
    """Turn records of one device into a table of `FILE_SCHEMA`.

    Args:
        records: Records of one device; the device itself is not a column.

    Raises:
        StoreError: A field cannot be kept: an unsupported record layout, wrong type, or text that is not
            Unicode.
    """
    rows = [_row(record) for record in records]
    try:
        return pa.Table.from_pylist(rows, schema=FILE_SCHEMA)
    except (pa.ArrowException, UnicodeError, TypeError, OverflowError) as error:
        raise StoreError(
            f"a record cannot be stored: {error}; each field must have the type of Record"
        ) from error


def _row(record: Record) -> dict[str, object]:
    if not _is_known(record.schema):
        raise StoreError(
            f"record {record.record_id}: cannot store record layout {record.schema}, this version knows"
            f" 1 to {RECORD_SCHEMA}; upgrade tensor-fleet"
        )
    row: dict[str, object] = {name: getattr(record, name) for name in RECORD_COLUMNS}
    row["record_id"] = record.record_id
    row["outcome"] = record.outcome.value
    row["latency_secs"] = record.latency_secs if record.outcome is Outcome.OK and record.run_secs else None
    row["run_secs"] = list(record.run_secs)
    row["warmup_secs"] = list(record.warmup_secs)
    try:
        row["protocol"] = _protocol_text(record.protocol, record.schema)
    except (AgentError, ValueError, TypeError) as error:
        raise StoreError(f"record {record.record_id} cannot be stored: {error}") from error
    # The tail of a stream cut at any byte may hold halves of characters: they must not stop the batch.
    row["error"] = record.error.encode("utf-8", "backslashreplace").decode("utf-8")
    return row


def _is_known(schema: object) -> bool:
    return isinstance(schema, int) and 1 <= schema <= RECORD_SCHEMA


@functools.lru_cache(maxsize=256)
def _protocol_text(protocol: Protocol, schema: int) -> str:
    return canonical_json(protocol_to_json(protocol, schema))


@functools.lru_cache(maxsize=256)
def _protocol(text: str, schema: int) -> Protocol:
    return protocol_from_json(json.loads(text), schema)


def check_protocol(text: str, schema: int) -> None:
    """Refuse the text of a protocol that no record could be read back with.

    Raises:
        StoreError: It is no protocol of that layout.
    """
    try:
        _protocol(text, schema)
    except (AgentError, ValueError, TypeError) as error:
        raise StoreError(f"rows cannot be stored: {error}") from error


def read_batches(path: Path, columns: Sequence[str] = tuple(FILE_SCHEMA.names)) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one data file, `BATCH_ROWS` at a time, in order.

    `ADDED_COLUMNS` that the file lacks are null.

    It reads when asked. A scan of pyarrow's datasets reads ahead of a slow consumer: 330 MB for 400,000
    records, where this takes 31 MB.

    Raises:
        StoreError: The file lacks a column.
        pyarrow.ArrowException, OSError: The file is damaged or gone.
    """
    with pq.ParquetFile(path) as file:
        present = [name for name in columns if name in file.schema_arrow.names]
        missing = [name for name in columns if name not in present and name not in ADDED_COLUMNS]
        if missing:
            raise StoreError(f"{path} lacks the columns {', '.join(missing)}: tensor-fleet did not write it")
        batches = file.iter_batches(batch_size=BATCH_ROWS, columns=present, use_threads=False)
        if len(present) == len(columns):
            yield from batches
            return
        for batch in batches:
            kept = {name: batch.column(name) for name in present}
            nulls = {name: pa.nulls(batch.num_rows, FILE_SCHEMA.field(name).type) for name in ADDED_COLUMNS}
            yield pa.RecordBatch.from_pydict({name: (nulls | kept)[name] for name in columns})


def batch_to_records(device_id: str, batch: pa.RecordBatch) -> Iterator[Record]:
    """Yield the records in one batch of `RECORD_COLUMNS`, in its order.

    Raises:
        StoreError: A row was written by a newer version, or breaks the record's own rules.
    """
    columns = [batch.column(name).to_pylist() for name in RECORD_COLUMNS]
    for values in zip(*columns, strict=True):
        row = dict(zip(RECORD_COLUMNS, values, strict=True))
        check_layout(device_id, row["schema"])
        try:
            row["outcome"] = Outcome(row["outcome"])
            row["protocol"] = _protocol(row["protocol"], row["schema"])
        except (AgentError, ValueError, TypeError) as error:
            raise StoreError(f"a record of device {device_id} cannot be read: {error}") from error
        row["run_secs"] = tuple(row["run_secs"])
        row["warmup_secs"] = tuple(row["warmup_secs"])
        if row["quality"] is None:
            row["quality"] = "{}"
        row["workload_id"] = WorkloadId(row["workload_id"])
        row["candidate_id"] = CandidateId(row["candidate_id"])
        yield Record(device_id=DeviceId(device_id), **row)


def check_layout(device_id: str, schema: object) -> None:
    """Refuse the layout of a record that a newer version wrote.

    Raises:
        StoreError: This version does not know it.
    """
    if not _is_known(schema):
        raise StoreError(
            f"a record of device {device_id} has layout {schema}, this version knows"
            f" 1 to {RECORD_SCHEMA}; upgrade tensor-fleet"
        )


class RecordIds:
    """Which record ids the table holds: a sorted array of 32 bytes an id, so ten million fit in 320 MB."""

    def __init__(self) -> None:
        self._sorted: npt.NDArray[np.bytes_] = np.empty(0, dtype=f"S{RECORD_ID_DIGITS}")
        self._new: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._sorted) + len(self._new)

    def __iter__(self) -> Iterator[str]:
        for raw in self._sorted.tolist():
            yield raw.decode()
        for raw in self._new:
            yield raw.decode()

    def load(self, columns: Iterable[pa.Array]) -> None:
        """Take the ids of a whole table, as it is opened; ids known before are forgotten.

        Args:
            columns: The `record_id` column in pieces of any length.
        """
        parts = [_fixed_width(column) for column in columns]
        self._sorted = np.sort(np.concatenate(parts)) if parts else self._sorted[:0]
        self._new.clear()

    def known(self, ids: Sequence[str]) -> list[bool]:
        """Say of each id whether the table holds it."""
        raw = [text.encode() for text in ids]
        if len(self._sorted) == 0:
            return [one in self._new for one in raw]
        wanted = np.array(raw, dtype=self._sorted.dtype)
        at = np.minimum(np.searchsorted(self._sorted, wanted), len(self._sorted) - 1)
        found = self._sorted[at] == wanted
        return [bool(hit) or one in self._new for hit, one in zip(found, raw, strict=True)]

    def add(self, ids: Iterable[str]) -> None:
        """Remember ids that were not known before."""
        self._new.update(text.encode() for text in ids)
        if len(self._new) >= MERGE_AT:
            merged = np.concatenate([self._sorted, np.array(list(self._new), dtype=self._sorted.dtype)])
            # Two sorted runs after the small one is sorted: the stable sort merges them in one pass.
            merged[len(self._sorted) :].sort()
            merged.sort(kind="stable")
            self._sorted = merged
            self._new.clear()


def _fixed_width(column: pa.Array) -> npt.NDArray[np.bytes_]:
    dtype = f"S{RECORD_ID_DIGITS}"
    fixed = column.cast(pa.binary()).cast(pa.binary(RECORD_ID_DIGITS))
    data = fixed.buffers()[1]
    if data is None:
        return np.empty(0, dtype=dtype)
    start = fixed.offset * RECORD_ID_DIGITS
    return np.frombuffer(data, dtype=dtype, count=len(fixed), offset=start)


__all__ = [
    "ADDED_COLUMNS",
    "BATCH_ROWS",
    "DICTIONARY_COLUMNS",
    "FILE_SCHEMA",
    "RECORD_COLUMNS",
    "SCHEMA_KEY",
    "STATISTICS_COLUMNS",
    "STORE_SCHEMA",
    "TABLE_SCHEMA",
    "RecordIds",
    "batch_to_records",
    "check_layout",
    "check_protocol",
    "read_batches",
    "records_to_table",
]
