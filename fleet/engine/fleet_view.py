"""One picture of the fleet, JSON-ready: what status, API and metrics show.

`fleet.engine.coordinator` makes it once a second; whoever shows it reads that copy and never the state
itself. It shows as well how the coordinator does: how long turns and the disk take, what piles up.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agents.host.probe import installed_version
from agents.records import DeviceId
from fleet.core.events import JobState
from fleet.engine.context import Composition
from fleet.engine.ingest import Ingest
from fleet.histogram import Histogram

#: Seconds over which the rate of records is told.
RATE_SECS = 60.0


class Rates:
    """Records a second of each device over the last minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Mapping[DeviceId, int]]] = deque()

    def add(self, now: float, records: Mapping[DeviceId, int]) -> dict[DeviceId, float]:
        """Note the counts of now; returns the rates."""
        # Every few seconds is enough for a rate over a minute.
        if not self._samples or now - self._samples[-1][0] >= RATE_SECS / 12:
            self._samples.append((now, records))
        while len(self._samples) > 1 and now - self._samples[0][0] > RATE_SECS:
            self._samples.popleft()
        since, before = self._samples[0]
        if now == since:
            return {}
        secs = max(now - since, 1e-9)
        return {device_id: (count - before.get(device_id, 0)) / secs for device_id, count in records.items()}


def make_view(
    parts: Composition, rates: Rates, health: Mapping[str, Any], *, started_at: float, is_stopping: bool
) -> dict[str, Any]:
    """Draw the picture.

    Args:
        parts: Of the coordinator.
        rates: Get the counts of now.
        health: How the coordinator itself does (`health_of`).
        started_at: When it began, in Unix seconds.
        is_stopping: Whether it grants no lease any more.

    Returns:
        `started_at`, `now`, `clock`, `coordinator`, `devices`, `jobs`, `store`, `training`, `alarms`,
        `health`; times in Unix seconds. Retired and absent devices are among them.
    """
    state, store = parts.state, parts.store
    sums = store.state.device_sums()
    per_second = rates.add(parts.clock(), {device_id: records for device_id, (records, _, _) in sums.items()})
    devices: dict[str, Any] = {}
    for device_id in state.device_ids():
        records, ok, last_at = sums.get(device_id, (0, 0, 0.0))
        spec = parts.roster.all_specs.get(device_id)
        devices[device_id] = state.describe(device_id) | {
            "kind": str(spec.kind) if spec is not None else "",
            "records": records,
            "ok": ok,
            "failed": records - ok,
            "records_per_s": round(per_second.get(device_id, 0.0), 3),
            "last_record_at": last_at or None,
        }
    jobs = state.job_counts()
    stage = "disk_full" if parts.disk.is_full else "stopping" if is_stopping else "running"
    return {
        "started_at": started_at,
        "now": parts.clock.wall(),
        "clock": parts.clock.counters,
        "coordinator": {"pid": os.getpid(), "version": installed_version("tensor-fleet"), "state": stage},
        "devices": devices,
        "jobs": {job_state.value: jobs[job_state] for job_state in JobState},
        "store": {
            "path": str(store.path),
            "table_version": store.version,
            "records": sum(records for records, _, _ in sums.values()),
            # Durable, but not in the table yet.
            "waiting": store.waiting_count,
            # Records that are set aside, and imported candidates that nothing was derived from.
            "refused": parts.record_sink.letters.refused,
            "imports_refused": parts.imports.refused.total(),
        },
        "training": {**(parts.trainer.view if parts.trainer is not None else {}), **state.training()},
        "alarms": [dict(alarm) for alarm in parts.notices.alarms],
        "health": dict(health),
    }


def health_of(parts: Composition, ingest: Ingest, turns: Histogram) -> dict[str, Any]:
    """Look at all of it; some microseconds.

    Returns:
        JSON-ready: `turns` and `disk_waits` (of the state file) as `Histogram.view`; `event_bytes`;
        `unacknowledged` records and `unacknowledged_secs`, the age of the oldest; `waiting_secs`, the same of
        those that wait for the table; `training_secs`, the age of the training that runs; `free_bytes` of
        each folder that can be looked at.
    """
    # The state shows its times by the wall clock as it knows it.
    training, wall = parts.state.training(), parts.clock() + parts.state.wall_ahead_secs
    unacknowledged, unacknowledged_secs = ingest.unacknowledged
    folders = {"store": parts.store.path, "daemon": parts.disk.folder}
    return {
        "turns": turns.view,
        "disk_waits": {"state": parts.store.state.waits.view},
        "event_bytes": parts.event_log.size_bytes,
        "unacknowledged": unacknowledged,
        "unacknowledged_secs": unacknowledged_secs,
        "waiting_secs": parts.store.waiting_secs,
        "training_secs": wall - training["since"] if training["state"] == "running" else 0.0,
        "free_bytes": {
            name: free for name, path in folders.items() if (free := _free_bytes(path)) is not None
        },
    }


def _free_bytes(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None
