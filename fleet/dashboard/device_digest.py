"""What a dashboard shows of a device's records, gathered row by row: noise, drift, failures, activity. Pure.

`fleet.dashboard.table_follower` feeds it with columns of the store as they come. It keeps some kilobytes a
device, whatever the number of records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from agents.records import NOISE, DeviceId, Outcome
from fleet.store.noise import Reading, noise_floor
from fleet.store.noise_columns import READING_COLUMNS, flag_column, readings

#: Columns that `DeviceDigest.add` needs.
DIGEST_COLUMNS = (*READING_COLUMNS, "workload_id", "latency_secs", "error")
#: Last records whose share of failed and suspect ones is shown.
LAST_RECORDS = 128
#: Points of a sparkline, and seconds of each.
SPARK_POINTS, SPARK_SECS = 24, 300.0
#: Records of A/A runs that are closer together than this belong to one run.
ONE_RUN_SECS = 12 * 3600.0
#: Characters of an error's end that are shown.
_ERROR_CHARS = 300


@dataclass(slots=True)
class WorkloadCell:
    """What one device has of one workload."""

    records: int = 0
    ok: int = 0
    #: Latency of the fastest candidate; infinite where none ran.
    best_secs: float = math.inf


@dataclass(slots=True)
class DeviceDigest:
    """Gathers the records of one device."""

    device_id: DeviceId
    records: int = 0
    #: Records by number of the period of `SPARK_SECS` in which they were measured.
    periods: dict[int, int] = field(default_factory=dict)
    #: Of the last records: when they were measured, whether they failed, and whether they are suspect.
    last_at: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    failed: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    suspect: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    noise: list[Reading] = field(default_factory=list)
    #: Moment, outcome and text of the last record that failed.
    error: tuple[float, str, str] | None = None
    cells: dict[str, WorkloadCell] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in rows with `DIGEST_COLUMNS`, in any order."""
        self.records += batch.num_rows
        measured_at = np.asarray(batch.column("measured_at"))
        self._count_periods(measured_at)
        failed = np.asarray(pc.not_equal(batch.column("outcome"), Outcome.OK.value))
        suspect = flag_column(batch.column("quality"), "suspect")
        times = np.concatenate([self.last_at, measured_at])
        last = np.argsort(times, kind="stable")[-LAST_RECORDS:]
        self.last_at = times[last]
        self.failed = np.concatenate([self.failed, failed])[last]
        self.suspect = np.concatenate([self.suspect, suspect])[last]
        self._note_error(batch, np.flatnonzero(failed), measured_at)
        noise = readings(self.device_id, batch.filter(pc.equal(batch.column("origin"), NOISE)))
        self.noise = last_run([*self.noise, *noise])
        self._add_cells(batch)

    def to_json(self) -> dict[str, Any]:
        """What is shown: JSON-ready, and changed by nobody afterwards."""
        floor = noise_floor(self.noise)
        return {
            "records": self.records,
            "periods": dict(self.periods),
            "failed_share": float(self.failed.mean()) if len(self.failed) else None,
            "suspect_share": float(self.suspect.mean()) if len(self.suspect) else None,
            "noise": asdict(floor) if floor is not None else None,
            "last_error": None
            if self.error is None
            else {"at": self.error[0], "outcome": self.error[1], "text": self.error[2]},
        }

    def _count_periods(self, measured_at: NDArray[np.float64]) -> None:
        numbers, counts = np.unique((measured_at // SPARK_SECS).astype(np.int64), return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self.periods[number] = self.periods.get(number, 0) + count
        # A device may have waited for a day with what its spool holds.
        while len(self.periods) > 2 * SPARK_POINTS:
            del self.periods[min(self.periods)]

    def _note_error(
        self, batch: pa.RecordBatch, rows: NDArray[np.int64], measured_at: NDArray[np.float64]
    ) -> None:
        if not len(rows):
            return
        row = int(rows[np.argmax(measured_at[rows])])
        at = float(measured_at[row])
        if self.error is None or at >= self.error[0]:
            text = (batch.column("error")[row].as_py() or "").strip()
            self.error = at, batch.column("outcome")[row].as_py(), text[-_ERROR_CHARS:]

    def _add_cells(self, batch: pa.RecordBatch) -> None:
        table = pa.table(
            {
                "workload": batch.column("workload_id"),
                "ok": pc.equal(batch.column("outcome"), Outcome.OK.value),
                "secs": batch.column("latency_secs"),
            }
        )
        counts = table.group_by("workload").aggregate([("ok", "count"), ("ok", "sum"), ("secs", "min")])
        columns = (counts.column(name).to_pylist() for name in ("workload", "ok_count", "ok_sum", "secs_min"))
        for workload, count, ok, best in zip(*columns, strict=True):
            cell = self.cells.setdefault(workload, WorkloadCell())
            cell.records, cell.ok = cell.records + count, cell.ok + ok
            if best is not None:
                cell.best_secs = min(cell.best_secs, best)


def last_run(noise: Sequence[Reading]) -> list[Reading]:
    """The readings of the last A/A run among some."""
    newest = max((reading.measured_at for reading in noise), default=0.0)
    return [reading for reading in noise if reading.measured_at > newest - ONE_RUN_SECS]


def spark(periods: Mapping[int, int], now: float) -> list[int]:
    """Records in each of the last `SPARK_POINTS` periods, the oldest first; the last one is not over."""
    last = int(now // SPARK_SECS)
    return [periods.get(number, 0) for number in range(last - SPARK_POINTS + 1, last + 1)]
