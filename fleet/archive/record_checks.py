"""What every row of a data file must be: whole, readable as a record, and named by what it says.

`fleet.archive.verify` calls it, a file at a time and some rows at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from agents.records import content_hash, record_id_of
from fleet.errors import StoreError
from fleet.store.delta.columns import check_columns
from fleet.store.delta.files import file_sum
from fleet.store.delta.log import DataFile
from fleet.store.delta.schema import read_batches


@dataclass(slots=True)
class Seen:
    """What the rows of all files said."""

    #: First eight bytes of each record id, a piece for some rows.
    ids: list[NDArray[np.uint64]] = field(default_factory=list)
    #: Records of each workload.
    workloads: Counter[str] = field(default_factory=Counter)
    rows: int = 0


def file_faults(
    table: Path,
    file: DataFile,
    known_sum: str | None,
    totals: Seen,
    note: Callable[[pa.RecordBatch], None],
) -> Iterator[str]:
    """Read a data file from its first byte to its last.

    Args:
        table: Folder of the table.
        file: What the log says of it.
        known_sum: What the state file says of its bytes; None where that cannot be read.
        totals: Gets what its rows say.
        note: Gets its rows, some at a time.

    Yields:
        What is wrong with it; nothing where all is well.
    """
    path = table / file.path
    if Path(file.path).parent.name != f"device_id={file.device_id}":
        yield f"the log says that it is of device {file.device_id}"
    try:
        size = path.stat().st_size
        if size != file.bytes:
            yield f"it has {size} bytes, the log says {file.bytes}"
        if known_sum is not None and (sha256 := file_sum(path)) != known_sum:
            yield f"its SHA-256 is {sha256[:12]}..., expected {known_sum[:12]}...: bits have changed"
    except FileNotFoundError:
        yield "it is missing"
        return
    except OSError as error:
        yield f"it cannot be read: {error.strerror}"
        return
    before = totals.rows
    try:
        for batch in read_batches(path):
            yield from row_faults(file.device_id, pa.Table.from_batches([batch]), totals)
            note(batch)
    except (OSError, pa.ArrowException, StoreError, ValueError) as error:
        yield f"it cannot be decoded: {' '.join(str(error).split())}"
        return
    if totals.rows - before != file.rows:
        yield f"it has {totals.rows - before} rows, the log says {file.rows}"


def row_faults(device_id: str, rows: pa.Table, totals: Seen) -> Iterator[str]:
    """Check some rows of one device."""
    totals.rows += rows.num_rows
    totals.ids += [first_halves(chunk) for chunk in rows.column("record_id").chunks]
    for entry in pc.value_counts(rows.column("workload_id").combine_chunks()).to_pylist():
        totals.workloads[entry["values"]] += entry["counts"]
    try:
        check_columns(rows)
    except StoreError as error:
        yield str(error)
        return
    if wrong := _misnamed(device_id, rows):
        yield f"{wrong} of {rows.num_rows} rows have another id than what they say makes"


def first_halves(record_ids: pa.Array) -> NDArray[np.uint64]:
    """The first eight bytes of each id."""
    return np.array([_first_half(record_id) for record_id in record_ids.to_pylist()], np.uint64)


def _first_half(record_id: str | None) -> int:
    try:
        return int((record_id or "")[:16], 16)
    except ValueError:
        # It is no hash of ours, and reported as that.
        return hash(record_id) % (1 << 64)


def _misnamed(device_id: str, rows: pa.Table) -> int:
    """How many rows have another id, or are of a candidate of another id, than what they say makes."""
    wrong = 0
    names = ("record_id", "candidate_id", "workload_id", "dialect", "trace", "environment_id", "attempt")
    for record_id, candidate_id, workload_id, dialect, trace, environment_id, attempt in zip(
        *(rows.column(name).to_pylist() for name in names), strict=True
    ):
        # As `agents.records.Candidate` names itself.
        wrong += candidate_id != content_hash(workload_id, dialect, trace) or record_id != record_id_of(
            candidate_id, device_id, environment_id, attempt
        )
    return wrong
