"""One picture of the fleet, JSON-ready: what status, API and metrics show.

`fleet.engine.coordinator` makes it once a second; whoever shows it reads that copy and never the state
itself. It shows as well how the coordinator does: how long turns and the disk take, what piles up.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents.records import DeviceId, DeviceSpec
from fleet.core.events import JobState
from fleet.core.state import FleetState
from fleet.engine.composition import Composition
from fleet.engine.ingest import Ingest
from fleet.engine.record_sink import RecordCounts
from fleet.histogram import Histogram

#: Seconds over which the rate of records is told.
RATE_SECS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What of the picture is not in the state."""

    started_at: float
    now: float
    pid: int
    version: str
    #: `running`, `stopping` or `disk_full`.
    state: str
    store: str
    table_version: int
    #: Records that are durable but not in the table yet.
    waiting: int
    #: Records that the store would not have; they are set aside.
    refused: int = 0
    #: Imported candidates that nothing was derived from.
    imports_refused: int = 0
    alarms: tuple[Mapping[str, Any], ...]
    #: State of the trainer in its own words; empty where there is none.
    trainer: Mapping[str, Any]
    #: How the coordinator itself does (`health_of`).
    health: Mapping[str, Any]
    #: Gaps between turns, and settings of the wall clock (`FleetClock.counters`).
    clock: Mapping[str, float] = field(default_factory=dict)


class Rates:
    """Records a second of each device over the last minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[DeviceId, int]]] = deque()

    def add(self, now: float, counts: Mapping[DeviceId, RecordCounts]) -> dict[DeviceId, float]:
        """Note the counts of now; returns the rates."""
        # Every few seconds is enough for a rate over a minute.
        if not self._samples or now - self._samples[-1][0] >= RATE_SECS / 12:
            self._samples.append(
                (now, {device_id: device_counts.records for device_id, device_counts in counts.items()})
            )
        while len(self._samples) > 1 and now - self._samples[0][0] > RATE_SECS:
            self._samples.popleft()
        since, before = self._samples[0]
        secs = max(now - since, 1e-9)
        if now == since:
            return {}
        return {
            device_id: (device_counts.records - before.get(device_id, 0)) / secs
            for device_id, device_counts in counts.items()
        }


def make_view(
    state: FleetState,
    specs: Mapping[DeviceId, DeviceSpec],
    counts: Mapping[DeviceId, RecordCounts],
    rates: Mapping[DeviceId, float],
    around: Around,
) -> dict[str, Any]:
    """Draw the picture.

    Returns:
        `started_at`, `now`, `clock`, `coordinator`, `devices`, `jobs`, `store`, `training`, `alarms`,
        `health`; times in Unix seconds. Retired and absent devices are among them.
    """
    devices: dict[str, Any] = {}
    for device_id in state.device_ids():
        status = state.describe(device_id)
        has = counts.get(device_id, RecordCounts())
        spec = specs.get(device_id)
        devices[device_id] = status | {
            "kind": str(spec.kind) if spec is not None else "",
            "records": has.records,
            "ok": has.ok,
            "failed": has.records - has.ok,
            "records_per_s": round(rates.get(device_id, 0.0), 3),
            "last_record_at": has.last_at or None,
        }
    jobs = state.job_counts()
    return {
        "started_at": around.started_at,
        "now": around.now,
        "clock": dict(around.clock),
        "coordinator": {"pid": around.pid, "version": around.version, "state": around.state},
        "devices": devices,
        "jobs": {state.value: jobs[state] for state in JobState},
        "store": {
            "path": around.store,
            "table_version": around.table_version,
            "records": sum(device_counts.records for device_counts in counts.values()),
            "waiting": around.waiting,
            "refused": around.refused,
            "imports_refused": around.imports_refused,
        },
        "training": {**around.trainer, **state.training()},
        "alarms": [dict(alarm) for alarm in around.alarms],
        "health": dict(around.health),
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
