"""What an export reads of one device: its entry in the store, its records, and which of them count.

The writers of the formats get one `Source` a device. It holds ids and flags in memory, never traces.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from agents.records import (
    Descriptor,
    DeviceId,
    DeviceSpec,
    Outcome,
    Protocol,
    Record,
    Workload,
    WorkloadId,
)
from fleet.durable import disk_errors
from fleet.noise import settled
from fleet.store_log import delta_errors
from fleet.store_reader import StoreReader
from fleet.store_schema import read_batches

#: Records between two calls of the watcher.
_WATCH_EVERY = 1024
#: What tells which record of a candidate counts.
_RANK_COLUMNS = (
    "candidate_id",
    "environment_id",
    "outcome",
    "origin",
    "attempt",
    "quality",
)
_NO_PROTOCOL = Protocol()


class Source:
    """The records of one device in one version of a store.

    Args:
        reader: The store.
        device_id: A device that has records.
        watch: Told (device, records written so far) now and then.

    Attributes:
        skipped: Records that a writer left out, by reason; writers add to it.
    """

    def __init__(
        self, reader: StoreReader, device_id: DeviceId, watch: Callable[[DeviceId, int], None] | None = None
    ) -> None:
        self.reader = reader
        self.device_id = device_id
        self.skipped: Counter[str] = Counter()
        self._watch = watch
        self._written = 0

    @cached_property
    def spec(self) -> DeviceSpec | None:
        """The device's spec; None where the store has records of it and nothing else."""
        entry = self.reader.devices().get(self.device_id)
        return entry.spec if entry else None

    @cached_property
    def descriptor(self) -> Descriptor | None:
        """What the probe saw last; None for a device that was never probed."""
        entry = self.reader.devices().get(self.device_id)
        return entry.descriptor if entry else None

    @cached_property
    def workloads(self) -> Mapping[WorkloadId, Workload]:
        """All workloads of the store."""
        return self.reader.workloads()

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the device with some columns, always in the same order."""
        for path in self._files():
            batches = read_batches(path, columns)
            while True:
                # Not around the `yield`: the caller's own errors must pass untouched.
                with delta_errors("exporting", path), disk_errors("exporting", path):
                    batch = next(batches, None)
                if batch is None:
                    break
                if batch.num_rows:
                    yield batch

    def records(self) -> Iterator[Record]:
        """Yield the records of the device, in the same order."""
        return self.reader.records(device_id=self.device_id)

    @cached_property
    def counting(self) -> frozenset[str]:
        """Ids of the records that count (`fleet.noise.settled`): one a candidate and environment."""
        return frozenset(record.record_id for record in settled(self._shadows()))

    def wrote(self, rows: int) -> None:
        """Tell the watcher that more records are written."""
        before = self._written // _WATCH_EVERY
        self._written += rows
        if self._watch is not None and self._written // _WATCH_EVERY != before:
            self._watch(self.device_id, self._written)

    def _files(self) -> list[Path]:
        folder = f"device_id={self.device_id}"
        return sorted(path for path in self.reader.data_files() if path.parent.name == folder)

    def _shadows(self) -> Iterator[Record]:
        """The records without what tells nothing of whether they count: traces above all."""
        for batch in self.batches(_RANK_COLUMNS):
            for row in batch.to_pylist():
                yield _shadow(self.device_id, row)


def _shadow(device_id: DeviceId, row: Mapping[str, Any]) -> Record:
    return Record(
        device_id=device_id,
        workload_id=WorkloadId(""),
        candidate_id=row["candidate_id"],
        dialect="",
        trace="",
        origin=row["origin"],
        outcome=Outcome(row["outcome"]),
        run_secs=(),
        warmup_secs=(),
        number=0,
        build_secs=0.0,
        wait_secs=0.0,
        timing_secs=0.0,
        error="",
        protocol=_NO_PROTOCOL,
        environment="",
        environment_id=row["environment_id"],
        attempt=row["attempt"],
        measured_at=0.0,
        quality=row["quality"] or "{}",
    )


def has_module(workload: Workload) -> bool:
    """Whether a workload holds a TVM module; that of an imported log may name its origin instead."""
    try:
        value = json.loads(workload.module_json)
    except ValueError:
        return False
    return isinstance(value, dict) and "dialect" not in value


__all__ = ["Source", "has_module"]
