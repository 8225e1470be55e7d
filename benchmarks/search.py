"""What heads are worth in a search: `python -m benchmarks.search --json --store STORE --device DEVICE`.

Workloads that no head learns from (`fleet.models.versions`), of five networks, are searched on one device of
this host with the same number of trials by `fleet tune` with a head, by `fleet tune` without one, by TVM's
evolutionary search with its XGBoost model, and by random draws, all on our builder and runner; and by
`tune_tir` as it is shipped. The head is made from the store's other workloads, with at most
256 samples of the device; or it is that of `--models`. The side `ours_day_zero`, where it is asked for, has
the head of the shipped model (`benchmarks.pretrained`), without a sample; where `ours` does not search, all
keys are about that side. None of the searches knows an earlier record of the workload. After the searches of
a workload all programs that led one of them are timed again by one agent, in turn. Figures are of these
timings, the fastest turn of each program: that a program was the fastest of hundreds in its search may be
chance.

`--keep FOLDER` keeps every finished run there, and goes on where an earlier one stopped. `--quick`: four
workloads, one seed, 64 trials, the slow sides on fewer of them (`sides` says on how many). A full run takes
hours: `--minutes` ends it after the run that is on, and the same command goes on.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agents.records import Workload
from benchmarks.harness import Figures, benchmark, option, say, working_folder
from benchmarks.search_sides import DAY_ZERO, NO_HEAD, OURS, RANDOM, STOCK, XGB, SearchBench
from benchmarks.tvm_sides import EVALUATOR
from fleet.config.settings import load_fleet
from fleet.json_types import Json, JsonDict
from fleet.models.standings import mean_of

NETWORKS = ("resnet-50", "mobilenet-v2", "resnext-50", "bert-base", "bert-tiny")

#: Workloads and trials of stock `tune_tir`, which takes minutes a workload.
_STOCK, _QUICK_STOCK = (12, 64), (1, 32)
_MOST_FLOPS, _QUICK_MOST_FLOPS = 3e8, 3e7
#: Trials after which the head's worth is judged.
EARLY = 32


class _Task(NamedTuple):
    side: str
    trials: int
    seed: int


@dataclass(frozen=True)
class Options:
    """What is searched, on what, and from which records."""

    store: Path = option(help="records that the head is made from")
    device: str = option(help="device of this host, by its id")
    models: Path | None = option(
        None, "folder with a head of the device that learnt no held-out workload, such as a daemon's"
    )
    without: tuple[str, ...] = option((), "devices that the head learns nothing from")
    quick: bool = option(False, "4 workloads, 1 seed, 64 trials")
    keep: Path | None = option(None, "folder of finished runs; an earlier one goes on")
    minutes: float = option(math.inf, "nothing more begins after these")
    workloads: int = option(12, "how many are searched", least=1, quick=4)
    trials: int = option(256, "of a search", least=1, quick=64)
    seeds: int = option(3, "of ours and of XGBoost; the other sides have one", least=1, quick=1)
    sides: tuple[str, ...] = option(
        (OURS, NO_HEAD, XGB, RANDOM, STOCK),
        "who searches",
        choices=(OURS, NO_HEAD, XGB, RANDOM, STOCK, DAY_ZERO),
    )


def measure(options: Options) -> Figures:
    """Search, time again, and compare."""
    settings = load_fleet(None, {"store.path": str(options.store)}).config
    ends_at = time.monotonic() + 60 * options.minutes
    with working_folder(options.keep) as folder:
        bench = SearchBench(settings, options.device, folder, options.without, options.models)
        return _search(bench, options, ends_at)


def _search(bench: SearchBench, plan: Options, ends_at: float) -> Figures:
    """Search, time again, and compare; what is missing when time is over is left out, and counted.

    Args:
        bench: The device.
        plan: How much.
        ends_at: `time.monotonic` after which nothing more begins.
    """
    head = bench.head() if OURS in plan.sides else None
    chosen = bench.workloads(NETWORKS, plan.workloads, _QUICK_MOST_FLOPS if plan.quick else _MOST_FLOPS)
    runs: dict[str, dict[tuple[str, int], Figures]] = {}
    led: dict[tuple[str, int], dict[str, dict[int, float | None]]] = {}
    turns, missing = [], 0
    for number, workload in enumerate(chosen):
        tasks, finished = _tasks(plan, number), {}
        for task in tasks:
            if time.monotonic() >= ends_at:
                break
            say(f"{workload.name}: {task.side}, seed {task.seed}")
            finished[task] = bench.run(task.side, workload, task.trials, task.seed)
            runs.setdefault(task.side, {})[workload.name, task.seed] = finished[task]
        missing += len(tasks) - len(finished)
        if len(finished) < len(tasks):
            continue
        name = "-".join(f"{task.side}{task.seed}{task.trials}" for task in tasks)
        timed = bench.timed(name, workload, _incumbents(finished))
        turns.append(timed)
        for label, secs in timed.items():
            side, seed, count = label.split("/")
            sides = led.setdefault((workload.name, int(seed)), {})
            # What disturbs a program only ever slows it (decision 6).
            sides.setdefault(side, {})[int(count)] = min(secs, default=None)
    _share_seeds(led)
    early, final = timed_after(led, EARLY), timed_after(led)
    return {
        "device": bench.spec.device_id,
        "head": head,
        "evaluator": EVALUATOR,
        "trials": plan.trials,
        "missing_runs": missing,
        "sides": {side: len(found) for side, found in runs.items()},
        **_keys(runs, led, early, final),
        "noise_floor": noise_floor(turns),
        "workloads": _rows(chosen, runs, early, final),
    }


def _keys(runs: Any, led: Led, early: Timed, final: Timed) -> Figures:
    """The figures that the comparison is about; each is a ratio or a share."""
    ours = leading(runs)
    trials, wall, losses = trials_ratios(runs, led), wall_ratios(runs, led), final_losses(final, ours)
    head_gain = gain(early, NO_HEAD, ours)
    return {
        "ours": ours,
        "median_trials_ratio": statistics.median(trials) if trials else None,
        "trials_ratios": trials,
        "head_gain": None if head_gain is None else head_gain["value"],
        "head_gain_interval": None if head_gain is None else head_gain["interval"],
        "head_gain_day_zero": gain(early, NO_HEAD, DAY_ZERO),
        # Above 1: the program of ours is faster. At 32 trials, and at the end.
        "early_gains": {side: gain(early, side, ours) for side in (NO_HEAD, XGB, RANDOM)},
        "final_gains": {side: gain(final, side, ours) for side in (NO_HEAD, XGB, RANDOM, STOCK)},
        "worst_final_loss": max(losses.values()) if losses else None,
        "median_wall_ratio_vs_stock": statistics.median(wall) if wall else None,
        "wall_ratios": wall,
        "scoring_share": scoring_share(runs),
    }


def _tasks(plan: Options, number: int) -> list[_Task]:
    """The runs of the workload of this number."""
    several = (OURS, DAY_ZERO, NO_HEAD, XGB)
    tasks = [_Task(side, plan.trials, seed) for seed in range(plan.seeds) for side in several]
    tasks.append(_Task(RANDOM, plan.trials, 0))
    workloads, trials = _QUICK_STOCK if plan.quick else _STOCK
    if number < workloads:
        tasks.append(_Task(STOCK, trials, 0))
    return [task for task in tasks if task.side in plan.sides]


def _incumbents(finished: dict[_Task, Figures]) -> dict[str, str]:
    """Traces of all programs that led a run, by side, seed and the trials that had found them."""
    return {
        f"{task.side}/{task.seed}/{trials}": trace
        for task, run in finished.items()
        for trials, trace in run["best"].items()
    }


def _share_seeds(led: dict[tuple[str, int], dict[str, dict[int, float | None]]]) -> None:
    """Give sides with one seed to the other seeds of a workload as well: they are compared with all."""
    for (name, seed), sides in led.items():
        for side, found in led.get((name, 0), {}).items():
            if seed:
                sides.setdefault(side, found)


def _rows(chosen: list[Workload], runs: Any, early: Timed, final: Timed) -> list[Figures]:
    return [
        {
            "workload": workload.name,
            "networks": [name for name, _ in workload.networks],
            "flops": workload.flops,
            "early_secs": _of(workload, early),
            "final_secs": _of(workload, final),
            "search_secs": {
                side: [run["secs"] for run in _of(workload, found)] for side, found in runs.items()
            },
        }
        for workload in chosen
    ]


def _of(workload: Workload, values: Mapping[tuple[str, int], Any]) -> list[Any]:
    """Values of a workload, seed by seed."""
    return [values[place] for place in sorted(values) if place[0] == workload.name]


# What searches come to. A run is one side's search of one workload with one seed: `trials` as [seconds since
# the start, latency or None] of each trial in their order, `secs` (wall seconds of everything), and for our
# sides `parts` (seconds by part). Incumbents of a run are the programs that led it in turn. All of a workload
# are timed again side by side after its searches, and every latency here is of that: the least of many noisy
# ones says little.

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


main = benchmark("search", __doc__, Options, measure)

if __name__ == "__main__":
    main()
