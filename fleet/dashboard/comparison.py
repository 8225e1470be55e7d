"""Two devices, two days or two versions side by side: what changed, and whether that means anything. Pure.

Each row is one series: a workload, a canary, or a device's head. Latencies are compared candidate by
candidate, so that a search that found something better is no change of the device.

Here is the one definition of "significant" of this project's pages, API and command line. A change is
relative: after over before, less one. The noise of a series is the standard deviation of such a change when
nothing was changed; it comes from A/A runs (`of_aa_run`), from the scatter of a series (`of_series`) or from
an interval (`of_interval`). Severity is the change over the noise. Significant is what reaches `THRESHOLD`:
with Gaussian noise, 1 of 370 comparisons does so by chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from agents.records import NOISE, DeviceId, Outcome
from fleet.dashboard.device_timeline import canary_ratios
from fleet.dashboard.pages import Key
from fleet.store.noise import Reading, noise_floor
from fleet.store.noise_columns import READING_COLUMNS, flag_column, readings

#: Severity from which a change is significant.
THRESHOLD = 3.0
#: Least noise of a measured series: no timer and no clock repeats better.
LEAST_NOISE = 0.002
#: Median of |x| to standard deviation, and half of a 90 % interval in these, for Gaussian noise.
_MEDIAN_TO_SIGMA, _HALF_INTERVAL = 1.4826, 1.645
#: Points of a series that say something of its scatter.
_LEAST_POINTS = 4
COMPARED_COLUMNS = (*READING_COLUMNS, "workload_id", "latency_secs")
TEXTS = ("name", "kind")
KEYS: Mapping[str, Key] = {
    "severity": lambda row: row["severity"],
    "name": lambda row: row["name"],
    "change": lambda row: abs(row["change"]),
    "pairs": lambda row: row["pairs"],
}


def judge(change: float, noise: float | None) -> dict[str, Any]:
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


def of_aa_run(median_change: float) -> float:
    """Noise of a change by an A/A run, whose median of |later / earlier - 1| is given."""
    return _MEDIAN_TO_SIGMA * median_change


def of_series(values: Sequence[float]) -> float | None:
    """Noise of a change between two points of a series, by the median absolute deviation of its points.

    None where it has fewer than four.
    """
    if len(values) < _LEAST_POINTS:
        return None
    middle = median(values)
    if middle == 0:
        return None
    spread = _MEDIAN_TO_SIGMA * median([abs(value - middle) for value in values]) / abs(middle)
    return math.sqrt(2) * spread


def of_interval(low: float, high: float) -> float:
    """Noise of an estimate by its 90 % interval."""
    return (high - low) / 2 / _HALF_INTERVAL


def together(first: float | None, second: float | None) -> float | None:
    """Noise of a change between two series, each of which has its own: half of each variance."""
    noises = [noise for noise in (first, second) if noise is not None]
    return math.sqrt(sum(noise**2 for noise in noises) / len(noises)) if noises else None


@dataclass(slots=True)
class ComparedSide:
    """The measurements of one side, gathered from rows of one device.

    Args:
        device_id: The device.
        environment_id: Only of this environment; the one with most records if empty.
        first_at: Only measured from here on, in Unix seconds.
        last_at: Only measured before.
    """

    device_id: DeviceId
    environment_id: str = ""
    first_at: float = float("-inf")
    last_at: float = float("inf")
    #: Candidates by environment, and the best of what was measured of each: `steady`, `suspect` or `failed`.
    _states: dict[str, dict[str, str]] = field(default_factory=dict)
    #: Rows of trusted first measurements by environment: workload, candidate, seconds.
    _rows: dict[str, list[tuple[list[str], list[str], NDArray[np.float64]]]] = field(default_factory=dict)
    _noise: dict[str, list[Reading]] = field(default_factory=dict)
    _canaries: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    records: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in rows with `COMPARED_COLUMNS`."""
        at = batch.column("measured_at")
        batch = batch.filter(pc.and_(pc.greater_equal(at, self.first_at), pc.less(at, self.last_at)))
        if self.environment_id:
            batch = batch.filter(pc.equal(batch.column("environment_id"), self.environment_id))
        self.records += batch.num_rows
        for name in pc.unique(batch.column("environment_id")).to_pylist():
            rows = batch.filter(pc.equal(batch.column("environment_id"), name))
            noise = rows.filter(pc.equal(rows.column("origin"), NOISE))
            self._noise.setdefault(name, []).extend(readings(self.device_id, noise))
            canaries = self._canaries.setdefault(name, {})
            for _, ratios in canary_ratios(rows):
                for canary, ratio in ratios.items():
                    canaries.setdefault(canary, []).append(ratio)
            is_ok = pc.equal(rows.column("outcome"), Outcome.OK.value)
            is_timed = pc.and_(is_ok, pc.is_valid(rows.column("latency_secs")))
            is_steady = pc.and_(is_timed, pa.array(~flag_column(rows.column("quality"), "suspect")))
            states, every = self._states.setdefault(name, {}), rows.column("candidate_id")
            states |= {candidate: "failed" for candidate in every.to_pylist() if candidate not in states}
            states |= {
                candidate: "suspect"
                for candidate in every.filter(is_timed).to_pylist()
                if states[candidate] == "failed"
            }
            timed = rows.filter(is_steady)
            states |= dict.fromkeys(timed.column("candidate_id").to_pylist(), "steady")
            if timed.num_rows:
                columns = (timed.column(column).to_pylist() for column in ("workload_id", "candidate_id"))
                steady = (*columns, np.asarray(timed.column("latency_secs")))
                self._rows.setdefault(name, []).append(steady)

    @property
    def environment(self) -> str:
        """The environment that is compared: the one with most steady timed records, then most candidates."""
        steady = {name: sum(len(part[0]) for part in parts) for name, parts in self._rows.items()}

        def rank(name: str) -> tuple[int, int, str]:
            return steady.get(name, 0), len(self._states[name]), name

        return max(self._states, key=rank, default="")

    def states(self) -> Mapping[str, str]:
        """Candidates of the environment: `steady`, `suspect` (the host was busy) or `failed` (no latency)."""
        return self._states.get(self.environment, {})

    @property
    def environments(self) -> int:
        """How many environments have timed records."""
        return len(self._rows)

    def latencies(self) -> dict[str, dict[str, float]]:
        """The fastest trusted latency of each candidate, by workload."""
        latencies: dict[str, dict[str, float]] = {}
        for workloads, candidates, secs in self._rows.get(self.environment, ()):
            for workload, candidate, latency in zip(workloads, candidates, secs.tolist(), strict=True):
                candidate_secs = latencies.setdefault(workload, {})
                candidate_secs[candidate] = min(latency, candidate_secs.get(candidate, latency))
        return latencies

    def noise(self) -> float | None:
        """Noise of a change of one latency, by all A/A runs of the environment."""
        floor = noise_floor(self._noise.get(self.environment, ()))
        return None if floor is None else of_aa_run(floor.median_change)

    def canaries(self) -> Mapping[str, list[float]]:
        """Ratios to usual speed, by canary."""
        return self._canaries.get(self.environment, {})


def compare_measurements(
    before: ComparedSide, after: ComparedSide, names: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Rows of what two sides measured.

    Returns:
        A row for each workload with common candidates, and for each canary that both have. Of a workload,
        `before` and `after` are the seconds of the candidate in the middle by its change, `change` is after
        over before less one, and `pairs` is the number of common candidates.
    """
    noise = together(before.noise(), after.noise())
    rows = []
    theirs = after.latencies()
    for workload, mine in before.latencies().items():
        both = sorted(mine.keys() & theirs.get(workload, {}).keys())
        if both:
            ratios = {candidate: theirs[workload][candidate] / mine[candidate] for candidate in both}
            # Medians of each side would be of two candidates, and may move against the change.
            middle = sorted(both, key=lambda candidate: ratios[candidate])[(len(both) - 1) // 2]
            values = mine[middle], theirs[workload][middle]
            about = {"key": workload, "name": names.get(workload, workload), "kind": "latency", "unit": "s"}
            rows.append(_row(about, values, ratios[middle] - 1.0, noise, len(both)))
    rows += _canary_rows(before.canaries(), after.canaries())
    return rows


def shared_candidates(before: ComparedSide, after: ComparedSide) -> dict[str, int]:
    """Count the candidates that both sides measured (`shared`), by their worse side.

    `steady` ones are compared, `suspect` and `failed` ones are not.
    """
    first, second = before.states(), after.states()
    states = [{first[candidate], second[candidate]} for candidate in first.keys() & second.keys()]
    failed = sum("failed" in pair for pair in states)
    steady = states.count({"steady"})
    return {
        "shared": len(states),
        "steady": steady,
        "suspect": len(states) - steady - failed,
        "failed": failed,
    }


def compare_versions(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of what was judged of the heads of two versions, by their manifests.

    Each figure is that of the version's own day, and other candidates judge on another day. So the noise of a
    change is that of both intervals together.
    """
    before, after = first.get("verdicts") or {}, second.get("verdicts") or {}
    rows = []
    for device_id in sorted(before.keys() & after.keys()):
        for name in ("top1", "pairs"):
            old, new = (((side[device_id] or {}).get("judged") or {}).get(name) for side in (before, after))
            if not old or not new or not old[0]:
                continue
            noise = [of_interval(figures[1], figures[2]) / old[0] for figures in (old, new)]
            about = {"key": f"{device_id}/{name}", "name": f"{device_id}: {_FIGURES[name]}", "kind": "head"}
            change, apart = new[0] / old[0] - 1.0, float(np.hypot(*noise))
            rows.append(_row(about | {"unit": ""}, (old[0], new[0]), change, apart, 1))
    return rows


_FIGURES = {"top1": "top-1", "pairs": "pairs in the right order"}


def summary(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """How many rows are significant, not, or cannot be judged, and from which severity."""
    verdicts = [row["is_significant"] for row in rows]
    return {
        "threshold": THRESHOLD,
        "significant": verdicts.count(True),
        "insignificant": verdicts.count(False),
        "unknown": verdicts.count(None),
    }


def _canary_rows(
    before: Mapping[str, list[float]], after: Mapping[str, list[float]]
) -> Iterable[dict[str, Any]]:
    for name in sorted(before.keys() & after.keys()):
        old, new = median(before[name]), median(after[name])
        if old > 0:
            about = {"key": f"canary {name}", "name": f"canary: {name}", "kind": "canary", "unit": "x"}
            noise, pairs = of_series(before[name]), min(len(before[name]), len(after[name]))
            yield _row(about, (old, new), new / old - 1.0, noise, pairs)


def _row(
    about: Mapping[str, str], values: tuple[float, float], change: float, noise: float | None, pairs: int
) -> dict[str, Any]:
    return {
        **about,
        "before": values[0],
        "after": values[1],
        "change": change,
        **judge(change, noise),
        "pairs": pairs,
    }
