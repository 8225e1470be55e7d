"""What searches come to: the keys of `benchmarks.search`. Pure.

A run is one side's search of one workload with one seed: `trials` as [seconds since the start, latency or
None] of each trial in their order, `secs` (wall seconds of everything), and for our sides `parts` (seconds by
part). `timed` are latencies of the best programs, timed again side by side after all searches of a workload.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

#: Trials after which the head's worth is judged.
EARLY = 32
OURS, NO_HEAD, XGB, MLP, RANDOM, STOCK = "ours", "ours_without_head", "xgb", "mlp", "random", "stock"
#: Ours with the head of the shipped model, without a sample; searched only where it is asked for.
DAY_ZERO = "ours_day_zero"
SIDES = (OURS, NO_HEAD, XGB, MLP, RANDOM)
#: Parts of our rounds that are scoring and learning.
_SCORING = frozenset({"rank", "learn"})
_RESAMPLES = 4000

#: By workload and seed.
Run = Mapping[str, Any]
Runs = Mapping[str, Mapping[tuple[str, int], Run]]
#: Latency by workload, seed and side, at some number of trials or at the end.
Timed = Mapping[tuple[str, int], Mapping[str, float | None]]


def reached(run: Run, latency_secs: float) -> tuple[int, float] | None:
    """Trials and wall seconds until a run found a program that is as fast; None if it never did."""
    for count, (secs, latency) in enumerate(run["trials"], start=1):
        if latency is not None and latency <= latency_secs:
            return count, secs
    return None


def best(run: Run, trials: int | None = None) -> float:
    """Best latency within so many trials; infinite where none ran."""
    found = [latency for _, latency in run["trials"][:trials] if latency is not None]
    return min(found, default=math.inf)


def leading(sides: Iterable[str]) -> str:
    """Which of our sides the figures are about: the store's head, and where it did not search, day zero's."""
    known = set(sides)
    return DAY_ZERO if DAY_ZERO in known and OURS not in known else OURS


def trials_ratios(runs: Runs) -> list[float]:
    """Trials that XGBoost needs for its best, over ours to get there; 0 where ours never did."""
    found, ours = [], runs.get(leading(runs), {})
    for place, theirs in runs.get(XGB, {}).items():
        mine = ours.get(place)
        goal = best(theirs)
        if mine is None or not math.isfinite(goal):
            continue
        needed, got = reached(theirs, goal), reached(mine, goal)
        found.append(0.0 if got is None or needed is None else needed[0] / got[0])
    return found


def wall_ratios(runs: Runs, timed: Timed) -> list[float]:
    """Wall seconds of stock `tune_tir` until its best, over everything of ours until then; 0 where never.

    Its best counts as what it took when it was timed beside ours: the two runners differ.
    """
    found, ours = [], runs.get(leading(runs), {})
    for place, theirs in runs.get(STOCK, {}).items():
        mine, goal = ours.get(place), timed.get(place, {}).get(STOCK)
        if mine is None or goal is None:
            continue
        needed, got = reached(theirs, best(theirs)), reached(mine, goal)
        found.append(0.0 if got is None or needed is None else needed[1] / got[1])
    return found


def gain(timed: Timed, over: str, side: str = OURS) -> dict[str, Any] | None:
    """Geometric mean of another side's latency over ours, with a 90 % interval over workloads.

    Seeds of one workload are resampled together: they are no workloads of their own.
    """
    logs: dict[str, list[float]] = {}
    for (workload, _), latencies in timed.items():
        theirs, mine = latencies.get(over), latencies.get(side)
        if theirs and mine:
            logs.setdefault(workload, []).append(math.log(theirs / mine))
    if not logs:
        return None
    means = np.array([statistics.fmean(values) for values in logs.values()])
    drawn = np.random.default_rng(0).integers(len(means), size=(_RESAMPLES, len(means)))
    low, high = np.quantile(means[drawn].mean(axis=1), [0.05, 0.95])
    return {
        "value": round(float(np.exp(means.mean())), 4),
        "interval": [round(float(np.exp(low)), 4), round(float(np.exp(high)), 4)],
        "workloads": len(means),
        "won": int((means > 0).sum()),
    }


def final_losses(timed: Timed, side: str = OURS) -> dict[str, float]:
    """By workload, how much slower one side is than the best of all; the worst of its seeds."""
    found: dict[str, float] = {}
    for (workload, _), latencies in timed.items():
        known = [one for one in latencies.values() if one]
        mine = latencies.get(side)
        if mine and known:
            found[workload] = max(found.get(workload, 0.0), mine / min(known) - 1)
    return found


def scoring_share(runs: Runs) -> float | None:
    """Share of the wall time of our rounds that scoring populations and learning take."""
    spent = [run["parts"] for run in runs.get(leading(runs), {}).values() if run.get("parts")]
    rounds = ("rank", "learn", "draw", "measure", "confirm")
    total = sum(parts.get(name, 0.0) for parts in spent for name in rounds)
    scoring = sum(parts.get(name, 0.0) for parts in spent for name in _SCORING)
    return round(scoring / total, 4) if total else None


def noise_floor(turns: Iterable[Mapping[str, Sequence[float]]]) -> float | None:
    """Median change of a program's latency from one turn of timing to the next."""
    changes = [
        abs(later / earlier - 1)
        for sides in turns
        for values in sides.values()
        for earlier, later in itertools.pairwise(values)
    ]
    return round(statistics.median(changes), 4) if changes else None


def curves(runs: Runs, at: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Of each side by trials and wall seconds: speed of its best beside the best of any side, mean."""
    goals: dict[str, float] = {}
    for side_runs in runs.values():
        for (workload, _), run in side_runs.items():
            goals[workload] = min(goals.get(workload, math.inf), best(run))
    found: dict[str, dict[str, Any]] = {}
    for side, side_runs in runs.items():
        by_trials = {}
        for count in at:
            reach = [goals[name] / best(run, count) for (name, _), run in side_runs.items()]
            by_trials[str(count)] = round(statistics.fmean(reach), 4) if reach else None
        by_secs = {}
        for secs in (15, 30, 60, 120, 240):
            reach = []
            for (name, _), run in side_runs.items():
                count = sum(moment <= secs for moment, _ in run["trials"])
                reach.append(goals[name] / best(run, count) if count else 0.0)
            by_secs[str(secs)] = round(statistics.fmean(reach), 4) if reach else None
        found[side] = {"speed_by_trials": by_trials, "speed_by_secs": by_secs}
    return found
