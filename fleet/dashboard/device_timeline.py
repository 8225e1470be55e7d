"""What happened to a device's measurements over time: canaries, A/A runs, environments. Pure.

Made from columns of the store of one device. Only what was measured in one environment may be compared, so
each environment is a series of its own.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from agents.records import NOISE, DeviceId, Outcome
from fleet.dashboard.device_digest import ONE_RUN_SECS
from fleet.store.noise import Reading, noise_floor
from fleet.store.noise_columns import READING_COLUMNS, readings

TIMELINE_COLUMNS = (*READING_COLUMNS, "environment")
#: Points of one canary in one environment that are shown; more are joined by their medians.
MOST_POINTS = 240
#: No program takes so many times its usual time.
_MOST_RATIO = 1e9
#: Parts of an environment that change with every moment.
_PASSING = frozenset(
    {
        *("load", "memory_available_bytes", "clock_mhz", "temperature_c", "memory_pressure", "steal_ticks"),
        *("gpu", "affinity"),
    }
)


@dataclass(slots=True)
class _Environment:
    """Gathers the rows of one environment."""

    first_at: float
    last_at: float
    text: str
    records: int = 0
    ok: int = 0
    #: Moments and ratios by canary.
    canaries: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    noise: list[Reading] = field(default_factory=list)


class DeviceTimeline:
    """Gathers the records of one device in the order of the table."""

    def __init__(self, device_id: DeviceId) -> None:
        self._device_id = device_id
        self._environments: dict[str, _Environment] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in rows with `TIMELINE_COLUMNS`."""
        for name in pc.unique(batch.column("environment_id")).to_pylist():
            rows = batch.filter(pc.equal(batch.column("environment_id"), name))
            times = pc.min_max(rows.column("measured_at")).as_py()
            environment = self._environments.get(name)
            if environment is None:
                text = rows.column("environment")[0].as_py()
                environment = self._environments[name] = _Environment(times["min"], times["max"], text)
            environment.first_at = min(environment.first_at, times["min"])
            environment.last_at = max(environment.last_at, times["max"])
            environment.records += rows.num_rows
            environment.ok += pc.sum(pc.equal(rows.column("outcome"), Outcome.OK.value)).as_py()
            _add_canaries(environment, rows)
            environment.noise += readings(
                self._device_id, rows.filter(pc.equal(rows.column("origin"), NOISE))
            )

    def to_json(self) -> list[dict[str, Any]]:
        """The environments, the oldest first, JSON-ready.

        Returns:
            Each with `environment_id`, `first_at`, `last_at`, `records`, `ok`, `changed` (what differs from
            the one before, as [key, before, now]), `canaries` ([moment, ratio] by canary), `canaries_of` (how
            many readings there are), and `noise` (each A/A run as `fleet.store.noise.NoiseFloor`).
        """
        rows = []
        before: Mapping[str, Any] | None = None
        for name, environment in sorted(self._environments.items(), key=lambda pair: pair[1].first_at):
            now = _flat(object_of(environment.text))
            rows.append(
                {
                    "environment_id": name,
                    "first_at": environment.first_at,
                    "last_at": environment.last_at,
                    "records": environment.records,
                    "ok": environment.ok,
                    "changed": [] if before is None else _changes(before, now),
                    "canaries": {canary: _thinned(points) for canary, points in environment.canaries.items()},
                    "canaries_of": max((len(points) for points in environment.canaries.values()), default=0),
                    "noise": [asdict(floor) for floor in map(noise_floor, _runs(environment.noise)) if floor],
                }
            )
            before = now
        return rows


def canary_ratios(batch: pa.RecordBatch) -> Iterable[tuple[float, dict[str, float]]]:
    """Readings of canaries in some rows with `measured_at` and `quality`: moment and ratio to usual speed.

    All records between two readings carry the same one; it is given once. What cannot be a ratio, as in
    somebody else's dataset, is left out.
    """
    last: dict[str, float] = {}
    rows = zip(batch.column("measured_at").to_pylist(), batch.column("quality").to_pylist(), strict=True)
    for at, text in rows:
        canaries = object_of(text).get("canary") if '"canary"' in text else None
        if not isinstance(canaries, Mapping):
            continue
        ratios = {name: float(ratio) for name, ratio in canaries.items() if _is_ratio(ratio)}
        # The texts differ all the same: each has the interval of its own record.
        if ratios and ratios != last:
            last = ratios
            yield at, ratios


def _is_ratio(value: Any) -> bool:
    return isinstance(value, int | float) and 0 < value < _MOST_RATIO


def _add_canaries(environment: _Environment, rows: pa.RecordBatch) -> None:
    for at, ratios in canary_ratios(rows):
        for name, ratio in ratios.items():
            points = environment.canaries[name]
            if not points or points[-1][1] != ratio:
                points.append((at, ratio))


def _thinned(points: list[tuple[float, float]]) -> list[list[float]]:
    """At most `MOST_POINTS` of them, each the median of its neighbours."""
    ordered = sorted(points)
    step = -(-len(ordered) // MOST_POINTS)
    parts = [ordered[start : start + step] for start in range(0, len(ordered), step)] if ordered else []
    return [[median([at for at, _ in part]), median([ratio for _, ratio in part])] for part in parts]


def _runs(noise: list[Reading]) -> list[list[Reading]]:
    runs: list[list[Reading]] = []
    for reading in sorted(noise, key=lambda reading: reading.measured_at):
        if not runs or reading.measured_at - runs[-1][-1].measured_at > ONE_RUN_SECS:
            runs.append([])
        runs[-1].append(reading)
    return runs


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[list[str]]:
    names = sorted(before.keys() | now.keys())
    return [
        [name, str(before.get(name, "")), str(now.get(name, ""))]
        for name in names
        if before.get(name) != now.get(name)
    ]


def _flat(value: Mapping[str, Any]) -> dict[str, Any]:
    """The lasting parts of an environment, one level deep."""
    parts: dict[str, Any] = {}
    for key, part in value.items():
        if key in _PASSING:
            continue
        if isinstance(part, Mapping):
            parts.update({f"{key}.{inner}": each for inner, each in part.items()})
        else:
            parts[key] = part
    return parts


def object_of(text: str) -> Mapping[str, Any]:
    """The JSON object that a text is; empty where it is none, as it may be in somebody else's dataset."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, Mapping) else {}
