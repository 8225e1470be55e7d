"""What searches come to: the keys of `benchmarks.search`. Pure.

A run is one side's search of one workload with one seed: `trials` as [seconds since the start, latency or
None] of each trial in their order, `secs` (wall seconds of everything), and for our sides `parts` (seconds by
part). Incumbents of a run are the programs that led it in turn. All of a workload are timed again side by
side after its searches, and every latency here is of that: the least of many noisy ones says little.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from fleet.json_types import Json, JsonDict
from fleet.models.standings import mean_of

#: Trials after which the head's worth is judged.
EARLY = 32
OURS, NO_HEAD, XGB, RANDOM, STOCK = "ours", "ours_without_head", "xgb", "random", "stock"
#: Ours with the head of the shipped model, without a sample; searched only where it is asked for.
DAY_ZERO = "ours_day_zero"
#: `tune_tir` on our builder and runner, of `benchmarks.compare`.
PLUGGED = "plugged"
SIDES = (OURS, NO_HEAD, XGB, RANDOM)
#: Parts of our rounds that are scoring and learning.
_SCORING = frozenset({"rank", "learn"})

Run = Json
#: By side, then by workload and seed.
Runs = Mapping[str, Mapping[tuple[str, int], Run]]
#: Latency of the program that led from so many trials on; None where it did not run again.
Incumbents = Mapping[int, float | None]
#: By workload and seed, then by side.
Led = Mapping[tuple[str, int], Mapping[str, Incumbents]]
#: Latency by workload and seed, then by side, at some number of trials or at the end.
Timed = Mapping[tuple[str, int], Mapping[str, float | None]]


def latency_after(incumbents: Incumbents, trials: float = math.inf) -> float | None:
    """Latency of the program that led after so many trials; None where none did, or it did not run again."""
    led = [count for count in incumbents if count <= trials]
    return incumbents[max(led)] if led else None


def timed_after(led: Led, trials: float = math.inf) -> dict[tuple[str, int], dict[str, float | None]]:
    """Latency of what each side led with after so many trials."""
    return {
        place: {side: latency_after(found, trials) for side, found in sides.items()}
        for place, sides in led.items()
    }


def reached(run: Run, incumbents: Incumbents, latency_secs: float) -> tuple[int, float] | None:
    """Trials and wall seconds until a run was led by a program that is as fast; None if it never was."""
    for count in sorted(incumbents):
        secs = incumbents[count]
        if secs is not None and secs <= latency_secs:
            return count, run["trials"][count - 1][0]
    return None


def leading(sides: Iterable[str]) -> str:
    """Which of our sides the figures are about: the store's head, and where it did not search, day zero's."""
    known = set(sides)
    return DAY_ZERO if DAY_ZERO in known and OURS not in known else OURS


def trials_ratios(runs: Runs, led: Led) -> list[float]:
    """Trials that XGBoost needs for its best, over ours to get there; 0 where ours never did."""
    return [theirs[0] / ours[0] if ours else 0.0 for theirs, ours in _reached(runs, led, XGB)]


def wall_ratios(runs: Runs, led: Led) -> list[float]:
    """Wall seconds of stock `tune_tir` until its best, over everything of ours until then; 0 where never."""
    return [theirs[1] / ours[1] if ours else 0.0 for theirs, ours in _reached(runs, led, STOCK)]


def _reached(
    runs: Runs, led: Led, rival: str
) -> Iterator[tuple[tuple[int, float], tuple[int, float] | None]]:
    """Trials and wall seconds of a rival until its fastest program, and of ours until one is as fast."""
    side = leading(runs)
    ours = runs.get(side, {})
    for place, theirs in runs.get(rival, {}).items():
        sides = led.get(place, {})
        known = [secs for secs in sides.get(rival, {}).values() if secs is not None]
        if place not in ours or not known:
            continue
        goal = min(known)
        needed = reached(theirs, sides[rival], goal)
        assert needed is not None
        yield needed, reached(ours[place], sides.get(side, {}), goal)


def gain(timed: Timed, over: str, side: str = OURS) -> JsonDict | None:
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
    found = mean_of(means).estimate()
    value, low, high = map(math.exp, (found.value, found.low, found.high))
    return {
        "value": value,
        "interval": [low, high],
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
    return scoring / total if total else None


def noise_floor(turns: Iterable[Mapping[str, Sequence[float]]]) -> float | None:
    """Median change of a program's latency from one turn of timing to the next."""
    changes = [
        abs(later / earlier - 1)
        for sides in turns
        for values in sides.values()
        for earlier, later in itertools.pairwise(values)
    ]
    return statistics.median(changes) if changes else None
