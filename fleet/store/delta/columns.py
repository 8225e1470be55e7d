"""Rows that come as columns: checked as a whole, a few milliseconds for ten thousand.

Only `fleet.store.store` calls it, for `Store.append_table`. It keeps the promises that `records_to_table`
keeps record by record.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from agents.records import RECORD_SCHEMA, Outcome
from fleet.errors import StoreError
from fleet.store.delta.schema import FILE_SCHEMA, RECORD_ID_DIGITS, check_protocol

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
