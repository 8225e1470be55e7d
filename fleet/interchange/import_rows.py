"""Measurements as columns of the records table, collected until there are enough for one commit.

Called by `fleet.interchange.import_logs`. What a row holds, and what is left unsaid because logs do not say
it, is in `docs/import.md`.
"""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa
from msgspec import to_builtins

from agents.records import IMPORTED, RECORD_SCHEMA, DeviceId, Protocol, canonical_json, record_id_of
from fleet.interchange.logs.catalog import Measurement
from fleet.interchange.logs.json_values import attempt_of
from fleet.store.delta.schema import FILE_SCHEMA

#: Rows in one commit at most, and bytes of what strangers may make long: traces, environments, costs.
BATCH_ROWS = 32_768
BATCH_BYTES = 48 << 20
#: Bytes that one cost takes in memory: as it waits, as a column, and as it is written.
_SECONDS_BYTES = 100

#: Logs keep no limits of time and memory; the protocol needs numbers, so these are beyond any that was used.
NO_TIME_LIMIT_SECS = 1e6
NO_MEMORY_LIMIT_GIB = 1e6

#: Logs do not say how many runs one repeat averages.
UNKNOWN_NUMBER = 1

#: What no log says.
_CONSTANTS: dict[str, Any] = {
    "warmup_secs": [],
    "number": UNKNOWN_NUMBER,
    "build_secs": 0.0,
    "wait_secs": 0.0,
    "origin": IMPORTED,
    "model_version": "",
    "schema": RECORD_SCHEMA,
    "quality": "{}",
}


@functools.cache
def protocol_text(repeat: int) -> str:
    """The protocol of a logged measurement: its repeats are known, and nothing else."""
    protocol = Protocol(
        repeat=repeat,
        extra_repeats=0,
        target_interval=0.0,
        reject_interval=0.0,
        min_repeat_ms=0.0,
        visits=1,
        early_stop_ratio=0.0,
        check_share=0.0,
        build_timeout_secs=NO_TIME_LIMIT_SECS,
        run_timeout_secs=NO_TIME_LIMIT_SECS,
        memory_limit_gib=NO_MEMORY_LIMIT_GIB,
    )
    return canonical_json(to_builtins(protocol))


class RowBatch:
    """Rows of one device that wait for a commit."""

    def __init__(self, device_id: DeviceId) -> None:
        self._device_id = device_id
        self._clear()

    def _clear(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in FILE_SCHEMA.names}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._columns["record_id"])

    @property
    def is_full(self) -> bool:
        """Whether it is time for a commit."""
        return len(self) >= BATCH_ROWS or self._bytes >= BATCH_BYTES

    def add(self, measurement: Measurement) -> None:
        """Take one measurement."""
        workload, trace = measurement.workload, measurement.trace
        environment, result = measurement.environment, measurement.result
        candidate_id, attempt = workload.candidate_id(trace), attempt_of(result)
        row = _CONSTANTS | {
            "record_id": record_id_of(candidate_id, self._device_id, environment.environment_id, attempt),
            "workload_id": workload.workload.workload_id,
            "candidate_id": candidate_id,
            "outcome": result.outcome,
            "latency_secs": min(result.run_secs, default=None),
            "run_secs": result.run_secs,
            "timing_secs": result.all_secs,
            "measured_at": result.measured_at,
            "attempt": attempt,
            "error": result.error,
            "environment_id": environment.environment_id,
            "environment": environment.text,
            "protocol": protocol_text(len(result.run_secs) or 1),
            "dialect": workload.dialect,
            "trace": trace,
        }
        for name, value in row.items():
            self._columns[name].append(value)
        self._bytes += len(trace) + len(environment.text) + _SECONDS_BYTES * len(result.run_secs)

    def take(self) -> pa.Table:
        """All rows as a table of `FILE_SCHEMA`; the batch is empty afterwards."""
        table = pa.table(self._columns, schema=FILE_SCHEMA)
        self._clear()
        return table
