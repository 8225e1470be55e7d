"""Noise, drift, failures and activity of a device, from its last records. Pure, on columns of the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agents.records import DeviceId, Outcome
from fleet.store.noise import Reading, noise_floor
from fleet.store.noise_columns import flag_column, readings

#: Columns that `recent` needs.
RECENT_COLUMNS = ("measured_at", "outcome", "quality", "error")
#: Last records whose share of failed and suspect ones is shown.
LAST_RECORDS = 128
#: Points of a sparkline, and seconds of each; records of the time before the last one that are looked at.
SPARK_POINTS, SPARK_SECS = 24, 300.0
RECENT_SECS = SPARK_POINTS * SPARK_SECS
#: Records of A/A runs that are closer together than this belong to one run.
NOISE_RUN_SECS = 12 * 3600.0
#: Characters of an error's end that are shown.
_ERROR_CHARS = 300


def recent(batch: pa.RecordBatch | None) -> dict[str, Any]:
    """Summarise rows with `RECENT_COLUMNS` in any order; JSON-ready, but for the keys of `periods`.

    Returns:
        `periods` (records by the number of the period of `SPARK_SECS`), `failed_share` and `suspect_share` of
        the last `LAST_RECORDS`, `last_error` (`at`, `outcome`, `text`; None for none).
    """
    if batch is None or not batch.num_rows:
        return {"periods": {}, "failed_share": None, "suspect_share": None, "last_error": None}
    batch = batch.take(pc.sort_indices(batch.column("measured_at")))
    periods = (np.asarray(batch.column("measured_at")) // SPARK_SECS).astype(np.int64)
    numbers, counts = np.unique(periods, return_counts=True)
    is_failed = pc.not_equal(batch.column("outcome"), Outcome.OK.value)
    failed = batch.filter(is_failed)
    last = batch.slice(max(0, batch.num_rows - LAST_RECORDS))
    error = None
    if failed.num_rows:
        [row] = failed.slice(failed.num_rows - 1).to_pylist()
        text = (row["error"] or "").strip()[-_ERROR_CHARS:]
        error = {"at": row["measured_at"], "outcome": row["outcome"], "text": text}
    return {
        "periods": dict(zip(numbers.tolist(), counts.tolist(), strict=True)),
        "failed_share": pc.mean(is_failed.slice(batch.num_rows - last.num_rows)).as_py(),
        "suspect_share": float(flag_column(last.column("quality"), "suspect").mean()),
        "last_error": error,
    }


def last_noise(device_id: DeviceId, batch: pa.RecordBatch | None) -> dict[str, Any] | None:
    """The noise floor of the last A/A run in rows of A/A runs with `READING_COLUMNS`; None without."""
    floor = None if batch is None else noise_floor(last_run(list(readings(device_id, batch))))
    return None if floor is None else asdict(floor)


def last_run(noise: Sequence[Reading]) -> list[Reading]:
    """The readings of the last A/A run among some."""
    newest = max((reading.measured_at for reading in noise), default=0.0)
    return [reading for reading in noise if reading.measured_at > newest - NOISE_RUN_SECS]


def spark(periods: Mapping[int, int], now: float) -> list[int]:
    """Records in each of the last `SPARK_POINTS` periods, the oldest first; the last one is not over."""
    last = int(now // SPARK_SECS)
    return [periods.get(number, 0) for number in range(last - SPARK_POINTS + 1, last + 1)]
