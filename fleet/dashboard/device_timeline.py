"""What happened to a device's measurements over time: canaries, A/A runs, environments. Pure.

Made from columns of the store of one device. Only measurements of one environment may be compared, so
each environment is a separate series.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import median

import pyarrow as pa
import pyarrow.compute as pc

from agents.records import NOISE, DeviceId, Outcome
from fleet.comparison.series import canary_ratios, object_of
from fleet.dashboard.recent_records import NOISE_RUN_SECS
from fleet.json_types import Json, JsonDict
from fleet.store.noise import Reading, noise_floor
from fleet.store.noise_columns import READING_COLUMNS, readings

TIMELINE_COLUMNS = (*READING_COLUMNS, "environment")
#: Points of one canary in one environment that are shown; more are joined by their medians.
MOST_POINTS = 240
#: Parts of an environment that change with every moment.
_PASSING = frozenset(
    {
        *("load", "memory_available_bytes", "clock_mhz", "temperature_c", "memory_pressure", "steal_ticks"),
        *("gpu", "affinity"),
    }
)


def device_timeline(device_id: DeviceId, batch: pa.RecordBatch) -> list[JsonDict]:
    """The environments of a device, the oldest first, JSON-ready.

    Args:
        device_id: The device.
        batch: Its rows with `TIMELINE_COLUMNS`.

    Returns:
        Each with `environment_id`, `first_at`, `last_at`, `records`, `ok`, `changed` (what differs from the
        one before, as [key, before, now]), `canaries` ([moment, ratio] by canary), `canaries_of` (how many
        readings there are), and `noise` (each A/A run as `fleet.store.noise.NoiseFloor`).
    """
    environments = [
        _environment(device_id, name, batch.filter(pc.equal(batch.column("environment_id"), name)))
        for name in pc.unique(batch.column("environment_id")).to_pylist()
    ]
    environments.sort(key=lambda environment: float(environment["first_at"]))
    before: Json | None = None
    for environment in environments:
        parts = _lasting_parts(environment.pop("text"))
        environment["changed"] = [] if before is None else _changes(before, parts)
        before = parts
    return environments


def _environment(device_id: DeviceId, name: str, rows: pa.RecordBatch) -> JsonDict:
    times = pc.min_max(rows.column("measured_at")).as_py()
    noise = readings(device_id, rows.filter(pc.equal(rows.column("origin"), NOISE)))
    canaries: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for at, ratios in canary_ratios(rows):
        for canary, ratio in ratios.items():
            if not canaries[canary] or canaries[canary][-1][1] != ratio:
                canaries[canary].append((at, ratio))
    return {
        "environment_id": name,
        "text": rows.column("environment")[0].as_py(),
        "first_at": times["min"],
        "last_at": times["max"],
        "records": rows.num_rows,
        "ok": pc.sum(pc.equal(rows.column("outcome"), Outcome.OK.value)).as_py(),
        "canaries": {canary: _thinned(points) for canary, points in canaries.items()},
        "canaries_of": max(map(len, canaries.values()), default=0),
        "noise": [asdict(floor) for floor in map(noise_floor, _runs(noise)) if floor],
    }


def _thinned(points: Sequence[tuple[float, float]]) -> list[list[float]]:
    """At most `MOST_POINTS` of them, each the median of its neighbours."""
    ordered = sorted(points)
    step = -(-len(ordered) // MOST_POINTS)
    parts = [ordered[start : start + step] for start in range(0, len(ordered), step)] if ordered else []
    return [[median([at for at, _ in part]), median([ratio for _, ratio in part])] for part in parts]


def _runs(noise: Iterable[Reading]) -> list[list[Reading]]:
    runs: list[list[Reading]] = []
    for reading in sorted(noise, key=lambda reading: reading.measured_at):
        if not runs or reading.measured_at - runs[-1][-1].measured_at > NOISE_RUN_SECS:
            runs.append([])
        runs[-1].append(reading)
    return runs


def _changes(before: Json, now: Json) -> list[list[str]]:
    return [
        [name, str(before.get(name, "")), str(now.get(name, ""))]
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]


def _lasting_parts(text: str) -> JsonDict:
    """The lasting parts of an environment, one level deep."""
    parts: JsonDict = {}
    for key, part in object_of(text).items():
        if isinstance(part, Mapping) and key not in _PASSING:
            parts |= {f"{key}.{inner}": value for inner, value in part.items()}
        elif key not in _PASSING:
            parts[key] = part
    return parts
