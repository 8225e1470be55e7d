"""Two devices, two days or two versions side by side: what changed, and whether that means anything. Pure.

Each row is one series: a workload, a canary, or a device's head. Latencies are compared candidate by
candidate, so that a search that found something better is no change of the device.

Here is the one definition of "significant" of this project's pages, API and command line. A change is
relative: after over before, less one. The noise of a series is the standard deviation of such a change when
nothing was changed; it comes from A/A runs, from the scatter of a series (`of_series`) or from an interval.
Severity is the change over the noise. Significant is what reaches `THRESHOLD`: with Gaussian noise, 1 of 370
comparisons does so by chance.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agents.records import NOISE, DeviceId, Outcome
from fleet.json_types import Json, JsonDict
from fleet.store.noise import READING_COLUMNS, flag_column, noise_floor, readings

#: Severity from which a change is significant.
THRESHOLD = 3.0
#: Least noise of a measured series: no timer and no clock repeats better.
LEAST_NOISE = 0.002
#: Median of |x| to standard deviation, and half of a 90 % interval in these, for Gaussian noise.
_MEDIAN_TO_SIGMA, _HALF_INTERVAL = 1.4826, 1.645
#: Points of a series that say something of its scatter.
_LEAST_POINTS = 4
#: No program takes so many times its usual time.
_MOST_RATIO = 1e9
COMPARED_COLUMNS = (*READING_COLUMNS, "workload_id", "latency_secs")
_FIGURES = {"top1": "top-1", "pairs": "pairs in the right order"}


def judge(change: float, noise: float | None) -> JsonDict:
    """How a change stands against the noise of its series.

    Args:
        change: Relative change, such as .03 for 3 % more.
        noise: Of its series, as a standard deviation; None where nobody knows it.

    Returns:
        `noise`, `severity` (|change| over noise) and `is_significant`; each None where the noise is unknown.
    """
    if noise is None or not math.isfinite(noise) or not math.isfinite(change):
        return {"noise": None, "severity": None, "is_significant": None}
    noise = max(noise, LEAST_NOISE)
    severity = abs(change) / noise
    return {"noise": noise, "severity": severity, "is_significant": severity >= THRESHOLD}


def of_series(values: Sequence[float]) -> float | None:
    """Noise of a change between two points of a series, by the median absolute deviation of its points.

    None where it has fewer than four.
    """
    middle = median(values) if len(values) >= _LEAST_POINTS else 0
    if middle == 0:
        return None
    deviation = median([abs(value - middle) for value in values])
    return math.sqrt(2) * _MEDIAN_TO_SIGMA * deviation / abs(middle)


def together(first: float | None, second: float | None) -> float | None:
    """Noise of a change between two series, each of which has its own: half of each variance."""
    noises = [noise for noise in (first, second) if noise is not None]
    return math.sqrt(sum(noise**2 for noise in noises) / len(noises)) if noises else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSide:
    """The measurements of one side: of one device in one environment."""

    records: int = 0
    #: How many environments have timed records; the one that is compared.
    environments: int = 0
    environment: str = ""
    #: Candidates, and the best of what was measured of each: `steady`, `suspect` (the host was busy) or
    #: `failed` (no latency).
    states: Mapping[str, str]
    #: The fastest trusted latency in seconds of each candidate, by workload.
    latencies: Mapping[str, Mapping[str, float]]
    #: Noise of a change of one latency, by all A/A runs.
    noise: float | None = None
    #: Ratios to usual speed, by canary.
    canaries: Mapping[str, list[float]]


def compared_side(
    device_id: DeviceId, batch: pa.RecordBatch | None, environment_id: str = ""
) -> ComparedSide:
    """Gather what a device measured in an environment.

    Args:
        device_id: The device.
        batch: Its rows with `COMPARED_COLUMNS`; None for none.
        environment_id: Only of this environment; the one with most steady records, then most candidates, if
            empty.
    """
    if batch is not None and environment_id:
        batch = batch.filter(pc.equal(batch.column("environment_id"), environment_id))
    if batch is None or not batch.num_rows:
        return ComparedSide(states={}, latencies={}, canaries={})
    is_ok = pc.equal(batch.column("outcome"), Outcome.OK.value)
    is_timed = pc.and_(is_ok, pc.is_valid(batch.column("latency_secs")))
    is_steady = pc.and_(is_timed, pa.array(~flag_column(batch.column("quality"), "suspect")))
    environments = batch.column("environment_id")
    steady = Counter(environments.filter(is_steady).to_pylist())

    def rank(name: str) -> tuple[int, int, str]:
        mine = batch.column("candidate_id").filter(pc.equal(environments, name))
        return steady[name], len(pc.unique(mine)), name

    environment = max(pc.unique(environments).to_pylist(), key=rank)
    is_compared = pc.equal(environments, environment)
    rows, timed_rows, steady_rows = (
        batch.filter(mask)
        for mask in (is_compared, pc.and_(is_compared, is_timed), pc.and_(is_compared, is_steady))
    )
    states: dict[str, str] = {}
    latencies: dict[str, dict[str, float]] = {}
    for state, some in (("failed", rows), ("suspect", timed_rows), ("steady", steady_rows)):
        states |= dict.fromkeys(some.column("candidate_id").to_pylist(), state)
    columns = (
        steady_rows.column(name).to_pylist() for name in ("workload_id", "candidate_id", "latency_secs")
    )
    for workload, candidate, secs in zip(*columns, strict=True):
        candidate_secs = latencies.setdefault(workload, {})
        candidate_secs[candidate] = min(secs, candidate_secs.get(candidate, secs))
    floor = noise_floor(readings(device_id, rows.filter(pc.equal(rows.column("origin"), NOISE))))
    canaries = defaultdict[str, list[float]](list)
    for _, ratios in canary_ratios(rows):
        for canary, ratio in ratios.items():
            canaries[canary].append(ratio)
    return ComparedSide(
        records=batch.num_rows,
        environments=len(steady),
        environment=environment,
        states=states,
        latencies=latencies,
        noise=None if floor is None else _MEDIAN_TO_SIGMA * floor.median_change,
        canaries=canaries,
    )


def compare_measurements(
    before: ComparedSide, after: ComparedSide, names: Mapping[str, str]
) -> list[JsonDict]:
    """Rows of what two sides measured.

    Returns:
        A row for each workload with common candidates, and for each canary that both have. Of a workload,
        `before` and `after` are the seconds of the candidate in the middle by its change, `change` is after
        over before less one, and `pairs` is the number of common candidates.
    """
    noise = together(before.noise, after.noise)
    rows = []
    for workload, mine in before.latencies.items():
        theirs = after.latencies.get(workload, {})
        ratios = {candidate: theirs[candidate] / mine[candidate] for candidate in mine.keys() & theirs.keys()}
        if ratios:
            # Medians of each side would be of two candidates, and may move against the change.
            ordered = sorted(ratios, key=lambda candidate: (ratios[candidate], candidate))
            middle = ordered[(len(ordered) - 1) // 2]
            about = {"key": workload, "name": names.get(workload, workload), "kind": "latency", "unit": "s"}
            values = mine[middle], theirs[middle]
            rows.append(_row(about, values, ratios[middle] - 1.0, noise, len(ratios)))
    for name in sorted(before.canaries.keys() & after.canaries.keys()):
        first, second = before.canaries[name], after.canaries[name]
        old, new = median(first), median(second)
        about = {"key": f"canary {name}", "name": f"canary: {name}", "kind": "canary", "unit": "x"}
        pairs = min(len(first), len(second))
        rows.append(_row(about, (old, new), new / old - 1.0, of_series(first), pairs))
    return rows


def shared_candidates(before: ComparedSide, after: ComparedSide) -> dict[str, int]:
    """Count the candidates that both sides measured (`shared`), by their worse side.

    `steady` ones are compared, `suspect` and `failed` ones are not.
    """
    states = [
        {before.states[candidate], after.states[candidate]}
        for candidate in before.states.keys() & after.states.keys()
    ]
    failed, steady = sum("failed" in pair for pair in states), states.count({"steady"})
    suspect = len(states) - steady - failed
    return {"shared": len(states), "steady": steady, "suspect": suspect, "failed": failed}


def compare_versions(first: Json, second: Json) -> list[JsonDict]:
    """Rows of what was judged of the heads of two versions, by their manifests.

    Each figure is that of the version's own day, and other candidates judge on another day. So the noise of a
    change is that of both intervals together.
    """
    before, after = first.get("verdicts") or {}, second.get("verdicts") or {}
    rows = []
    for device_id in sorted(before.keys() & after.keys()):
        for name, words in _FIGURES.items():
            old, new = (((side[device_id] or {}).get("judged") or {}).get(name) for side in (before, after))
            if not old or not new or not old[0]:
                continue
            noises = [(figures[2] - figures[1]) / 2 / _HALF_INTERVAL / old[0] for figures in (old, new)]
            about = {
                "key": f"{device_id}/{name}",
                "name": f"{device_id}: {words}",
                "kind": "head",
                "unit": "",
            }
            change = new[0] / old[0] - 1.0
            noise = float(np.hypot(*noises))
            rows.append(_row(about, (old[0], new[0]), change, noise, 1))
    return rows


def summary(rows: Iterable[Json]) -> JsonDict:
    """How many rows are significant, not, or cannot be judged, and from which severity."""
    verdicts = [row["is_significant"] for row in rows]
    return {
        "threshold": THRESHOLD,
        "significant": verdicts.count(True),
        "insignificant": verdicts.count(False),
        "unknown": verdicts.count(None),
    }


def _row(
    about: Mapping[str, str], values: tuple[float, float], change: float, noise: float | None, pairs: int
) -> JsonDict:
    sides = {"before": values[0], "after": values[1], "change": change}
    return {**about, **sides, **judge(change, noise), "pairs": pairs}


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
        ratios = {
            name: float(ratio)
            for name, ratio in canaries.items()
            if isinstance(ratio, int | float) and 0 < ratio < _MOST_RATIO
        }
        # The texts differ all the same: each has the interval of its own record.
        if ratios and ratios != last:
            last = ratios
            yield at, ratios


def object_of(text: str) -> Json:
    """The JSON object that a text is; empty where it is none, as it may be in somebody else's dataset."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, Mapping) else {}
