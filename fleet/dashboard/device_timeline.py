"""What happened to a device's measurements over time: canaries, A/A runs, environments. Pure.

Made from columns of the store of one device. Only measurements of one environment may be compared, so
each environment is a separate series.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agents.records import NOISE, DeviceId, Outcome
from fleet.comparison.series import canary_ratios, object_of
from fleet.json_types import Json, JsonDict
from fleet.models.freshness import CURVES, history
from fleet.models.registry_file import RegistryError
from fleet.models.registry_reader import RegistryReader, as_json
from fleet.models.views import score_of
from fleet.store.noise import READING_COLUMNS, Reading, flag_column, noise_floor, readings

# Noise, drift, failures and activity of a device, from its last records. Pure, on columns of the store.

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
    """The noise floor of the rows of one A/A run, with `READING_COLUMNS`; None without."""
    floor = None if batch is None else noise_floor(readings(device_id, batch))
    return None if floor is None else asdict(floor)


def last_run(noise: Sequence[Reading]) -> list[Reading]:
    """The readings of the last A/A run among some."""
    newest = max((reading.measured_at for reading in noise), default=0.0)
    return [reading for reading in noise if reading.measured_at > newest - NOISE_RUN_SECS]


def spark(periods: Mapping[int, int], now: float) -> list[int]:
    """Records in each of the last `SPARK_POINTS` periods, the oldest first; the last one is not over."""
    last = int(now // SPARK_SECS)
    return [periods.get(number, 0) for number in range(last - SPARK_POINTS + 1, last + 1)]


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


# How a device's champions came about, which challengers lost to them, and its onboardings. Reads files.

#: Versions whose verdicts are looked at, and steps that are shown; the newest.
MOST_VERSIONS, MOST_STEPS = 40, 60


def champion_ladder(registry: RegistryReader, device_id: str) -> JsonDict:
    """The steps of one device, the newest first.

    Returns:
        `champion` (as plain values; None without), `steps` (`at`, `kind`: `published`, `rolled_back`,
        `pinned`, `unpinned`, or `kept` for a challenger that lost; `version`, `reason`, `score`,
        `challenger`, `champion`, `difference`), and `of`, how many steps there are.

    Raises:
        RegistryError: The registry is damaged.
    """
    champion = registry.champions().get(device_id)  # type: ignore[call-overload]
    changes = [change for change in registry.history() if change.device_id == device_id]
    steps = [
        _step(change.at_secs, change.kind, change.version, change.reason, change.judged) for change in changes
    ]
    published = {change.version for change in changes if change.kind == "published"}
    for at, version, name, verdict in _lost(registry):
        if name == device_id and version not in published:
            steps.append(_step(at, "kept", version, str(verdict.get("reason", "")), verdict.get("judged")))
    steps.sort(key=lambda step: -float(step["at"]))
    return {
        "champion": None if champion is None else as_json(champion),
        "steps": steps[:MOST_STEPS],
        "of": len(steps),
    }


def model_alerts(registry: RegistryReader) -> list[JsonDict]:
    """Rollbacks of all devices, and challengers that were worse than their champions; shown as alerts.

    Raises:
        RegistryError: The registry is damaged.
    """
    rollbacks = [
        {
            "at": change.at_secs,
            "kind": "rollback",
            "device_id": str(change.device_id),
            "text": f"goes back from {change.previous} to {change.version}: {change.reason}",
        }
        for change in registry.history()
        if change.kind == "rolled_back"
    ]
    regressions = [
        {
            "at": at,
            "kind": "regression",
            "device_id": device_id,
            "text": f"{version} does not serve: {verdict['reason']}",
        }
        for at, version, device_id, verdict in _lost(registry)
        if str(verdict.get("reason", "")).startswith("worse")
    ]
    return rollbacks + regressions


def _lost(registry: RegistryReader) -> Iterator[tuple[float, str, str, Json]]:
    """Challengers that do not serve a device, by the newest versions: moment, version, device, verdict."""
    for version in registry.versions()[-MOST_VERSIONS:]:
        # A version that cannot be read hides no other.
        with suppress(RegistryError):
            manifest = registry.manifest(version)
            for device_id, verdict in (manifest.get("verdicts") or {}).items():
                if isinstance(verdict, Mapping) and not verdict.get("serves"):
                    yield float(manifest.get("created_at") or 0.0), version, device_id, verdict


def _step(at: float, kind: str, version: str, reason: str, judged: Json | None) -> JsonDict:
    """One step, with the figures that its verdict rests on: pairs in the right order."""
    judged = judged or {}
    return {
        "at": at,
        "kind": kind,
        "version": version,
        "reason": reason,
        "score": score_of(judged),
        "challenger": judged.get("pairs"),
        "champion": (judged.get("champion") or {}).get("pairs"),
        "difference": (judged.get("difference") or {}).get("pairs"),
    }


def onboardings(device_id: str, requests: Iterable[Json], beside_models: Path) -> JsonDict | None:
    """What is known of the onboardings of one device; None if there was none.

    Args:
        device_id: The device.
        requests: All requests, as the coordinator's desk shows them.
        beside_models: Folder of the curves.

    Returns:
        `request` (the newest one; None if only earlier ones are known), and `points` (samples, top-1 with
        its interval, and the strategy, of each onboarding).
    """
    mine = [
        request
        for request in requests
        if request["kind"] == "onboarding" and request["arguments"].get("device") == device_id
    ]
    request = max(mine, key=lambda candidate: candidate["submitted_at"] or 0.0, default=None)
    points = history(beside_models / CURVES, device_id)
    return {"request": request, "points": points} if mine or points else None
