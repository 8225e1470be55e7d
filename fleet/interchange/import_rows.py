"""Measurements as columns of the records table, collected until there are enough for one commit.

Called by `fleet.interchange.import_logs`. What a row holds, and what is left unsaid because logs do not say
it, is in `docs/import.md`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from typing import Any, TypeVar

import numpy as np
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

T = TypeVar("T", bound=Hashable)


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
        self._measurements: list[Measurement] = []
        self._record_ids: list[str] = []
        self._candidate_ids: list[str] = []
        self._attempts: list[int] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._measurements)

    @property
    def is_full(self) -> bool:
        """Whether it is time for a commit."""
        return len(self._measurements) >= BATCH_ROWS or self._bytes >= BATCH_BYTES

    def add(self, measurement: Measurement) -> None:
        """Take one measurement."""
        trace, environment, result = measurement.trace, measurement.environment, measurement.result
        candidate_id = measurement.workload.candidate_id(trace)
        attempt = attempt_of(result)
        record_id = record_id_of(candidate_id, self._device_id, environment.environment_id, attempt)
        self._measurements.append(measurement)
        self._record_ids.append(record_id)
        self._candidate_ids.append(candidate_id)
        self._attempts.append(attempt)
        self._bytes += len(trace) + len(environment.text) + _SECONDS_BYTES * len(result.run_secs)

    def take(self) -> pa.Table:
        """All rows as a table of `FILE_SCHEMA`; the batch is empty afterwards."""
        rows = len(self)
        results = [measurement.result for measurement in self._measurements]
        workloads = [measurement.workload for measurement in self._measurements]
        environments = [measurement.environment for measurement in self._measurements]
        run_secs = [result.run_secs for result in results]
        columns: dict[str, Any] = {
            "record_id": self._record_ids,
            "workload_id": _words(workloads, lambda logged: logged.workload.workload_id),
            "candidate_id": self._candidate_ids,
            "outcome": [result.outcome for result in results],
            "latency_secs": [min(secs) if secs else None for secs in run_secs],
            "run_secs": _lists(run_secs, "run_secs"),
            "timing_secs": [result.all_secs for result in results],
            "measured_at": [result.measured_at for result in results],
            "attempt": self._attempts,
            "error": [result.error for result in results],
            "environment_id": _words(environments, lambda environment: environment.environment_id),
            "environment": _words(environments, lambda environment: environment.text),
            "protocol": _words([len(secs) or 1 for secs in run_secs], protocol_text),
            "dialect": _words(workloads, lambda logged: logged.dialect),
            "trace": [measurement.trace for measurement in self._measurements],
        }
        self._clear()
        arrays = []
        for name, kind in zip(FILE_SCHEMA.names, FILE_SCHEMA.types, strict=True):
            if name in _CONSTANTS:
                arrays.append(pa.repeat(pa.scalar(_CONSTANTS[name], kind), rows))
            else:
                values = columns[name]
                arrays.append(values if isinstance(values, pa.Array) else pa.array(values, kind))
        return pa.Table.from_arrays(arrays, schema=FILE_SCHEMA)


def _words(values: Sequence[T], text: Callable[[T], str]) -> pa.Array:
    """A column of texts that many rows share: each is made once."""
    places: dict[T, int] = {}
    rows = [places.setdefault(value, len(places)) for value in values]
    return pa.array([text(value) for value in places], pa.string()).take(pa.array(rows, pa.int32()))


def _lists(values: Sequence[Sequence[float]], name: str) -> pa.Array:
    """A column of lists of numbers, a third of the time of pyarrow's own way."""
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    flat = np.fromiter(chain.from_iterable(values), np.float64, count=int(ends[-1]))
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(flat), type=FILE_SCHEMA.field(name).type)
