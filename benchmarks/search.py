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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

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


class Side(NamedTuple):
    """One side's search of one workload with one seed.

    `run` has `trials` as [seconds since the start, latency or None] of each trial in their order, `secs` of
    everything, and for our sides `parts` (seconds by part). All programs that led a run in turn
    are timed again side by side after the searches of their workload, and every latency here is of that: the
    least of many noisy ones says little.
    """

    run: Json
    #: By the trials from which on it led: latency of the program; None where it did not run again.
    led: Mapping[int, float | None]

    def after(self, trials: float = math.inf) -> float | None:
        """Latency of the program that led after so many trials; None where none did, or did not run again."""
        counts = [count for count in self.led if count <= trials]
        return self.led[max(counts)] if counts else None

    def reached(self, latency_secs: float) -> tuple[int, float] | None:
        """Trials and wall seconds until it was led by a program that is as fast; None if it never was."""
        for count, secs in sorted(self.led.items()):
            if secs is not None and secs <= latency_secs:
                return count, self.run["trials"][count - 1][0]
        return None


#: By workload and seed, then by side.
Sides = Mapping[tuple[str, int], Mapping[str, Side]]


def _search(bench: SearchBench, plan: Options, ends_at: float) -> Figures:
    """Search, time again, and compare; what is missing when time is over is left out, and counted.

    Args:
        bench: The device.
        plan: How much.
        ends_at: `time.monotonic` after which nothing more begins.
    """
    head = bench.head() if OURS in plan.sides else None
    chosen = bench.workloads(NETWORKS, plan.workloads, _QUICK_MOST_FLOPS if plan.quick else _MOST_FLOPS)
    counts: Counter[str] = Counter()
    searched: dict[tuple[str, int], dict[str, Side]] = {}
    turns, missing = [], 0
    for number, workload in enumerate(chosen):
        tasks, runs = _tasks(plan, number), dict[tuple[str, int, int], Json]()
        for side, trials, seed in tasks:
            if time.monotonic() >= ends_at:
                break
            say(f"{workload.name}: {side}, seed {seed}")
            runs[side, trials, seed] = bench.run(side, workload, trials, seed)
            counts[side] += 1
        missing += len(tasks) - len(runs)
        if len(runs) < len(tasks):
            continue
        name = "-".join(f"{side}{seed}{trials}" for side, trials, seed in tasks)
        traces = {
            f"{side}/{seed}/{count}": trace
            for (side, _, seed), run in runs.items()
            for count, trace in run["best"].items()
        }
        turns.append(bench.timed(name, workload, traces))
        for (side, _, seed), run in runs.items():
            # What disturbs a program only ever slows it (decision 6).
            led = {
                int(count): min(turns[-1][f"{side}/{seed}/{count}"], default=None) for count in run["best"]
            }
            searched.setdefault((workload.name, seed), {})[side] = Side(run, led)
    for (name, seed), sides in searched.items():
        # Sides with one seed are compared with all seeds of the others.
        searched[name, seed] = searched[name, 0] | sides
    return {
        "device": bench.spec.device_id,
        "head": head,
        "evaluator": EVALUATOR,
        "trials": plan.trials,
        "missing_runs": missing,
        "sides": counts,
        **_keys(searched),
        "noise_floor": noise_floor(turns),
        "workloads": [
            {
                "workload": workload.name,
                "networks": [name for name, _ in workload.networks],
                "flops": workload.flops,
                "seeds": [
                    {
                        side: {
                            "early_secs": of.after(EARLY),
                            "final_secs": of.after(),
                            "secs": of.run["secs"],
                        }
                        for side, of in searched[place].items()
                    }
                    for place in sorted(searched)
                    if place[0] == workload.name
                ],
            }
            for workload in chosen
        ],
    }


def _keys(searched: Sides) -> Figures:
    """The figures that the comparison is about; each is a ratio or a share."""
    ours = leading(searched)
    trials, wall = ratios(searched, XGB, 0), ratios(searched, STOCK, 1)
    losses, head_gain = final_losses(searched, ours), gain(searched, NO_HEAD, ours, EARLY) or {}
    rivals = (NO_HEAD, XGB, RANDOM, STOCK)
    return {
        "ours": ours,
        "median_trials_ratio": statistics.median(trials) if trials else None,
        "trials_ratios": trials,
        "head_gain": head_gain.get("value"),
        "head_gain_interval": head_gain.get("interval"),
        "head_gain_day_zero": gain(searched, NO_HEAD, DAY_ZERO, EARLY),
        # Above 1: the program of ours is faster. At 32 trials, and at the end.
        "early_gains": {side: gain(searched, side, ours, EARLY) for side in rivals if side != STOCK},
        "final_gains": {side: gain(searched, side, ours) for side in rivals},
        "worst_final_loss": max(losses.values(), default=None),
        "median_wall_ratio_vs_stock": statistics.median(wall) if wall else None,
        "wall_ratios": wall,
        "scoring_share": scoring_share(searched),
    }


def _tasks(plan: Options, number: int) -> list[tuple[str, int, int]]:
    """Side, trials and seed of the runs of the workload of this number."""
    several = (OURS, DAY_ZERO, NO_HEAD, XGB)
    tasks = [(side, plan.trials, seed) for seed in range(plan.seeds) for side in several]
    tasks.append((RANDOM, plan.trials, 0))
    workloads, trials = _QUICK_STOCK if plan.quick else _STOCK
    if number < workloads:
        tasks.append((STOCK, trials, 0))
    return [task for task in tasks if task[0] in plan.sides]


#: Parts of our rounds; the first are scoring and learning.
_ROUND = ("rank", "learn", "draw", "measure", "confirm")


def leading(searched: Sides) -> str:
    """Which of our sides the figures are about: the store's head, and where it did not search, day zero's."""
    known = {side for sides in searched.values() for side in sides}
    return DAY_ZERO if DAY_ZERO in known and OURS not in known else OURS


def ratios(searched: Sides, rival: str, which: int) -> list[float]:
    """What a rival needs until its fastest program, over ours until one is as fast; 0 where ours never was.

    Args:
        searched: All sides.
        rival: The other one.
        which: 0 for trials, 1 for wall seconds.
    """
    found = []
    for sides in searched.values():
        mine, theirs = sides.get(leading(searched)), sides.get(rival)
        goal = min((one for one in theirs.led.values() if one is not None), default=None) if theirs else None
        if mine is None or theirs is None or goal is None:
            continue
        needed, until = theirs.reached(goal), mine.reached(goal)
        found.append(needed[which] / until[which] if needed and until else 0.0)
    return found


def gain(searched: Sides, over: str, side: str, trials: float = math.inf) -> JsonDict | None:
    """Geometric mean of another side's latency over ours, with a 90 % interval over workloads.

    Seeds of one workload are resampled together: they are no workloads of their own.
    """
    logs: dict[str, list[float]] = {}
    for (workload, _), sides in searched.items():
        theirs, mine = (sides[one].after(trials) if one in sides else None for one in (over, side))
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


def final_losses(searched: Sides, side: str) -> dict[str, float]:
    """By workload, how much slower one side is than the best of all; the worst of its seeds."""
    losses: dict[str, float] = {}
    for (workload, _), sides in searched.items():
        latencies = {name: secs for name, one in sides.items() if (secs := one.after())}
        if side in latencies:
            loss = latencies[side] / min(latencies.values()) - 1
            losses[workload] = max(losses.get(workload, 0.0), loss)
    return losses


def scoring_share(searched: Sides) -> float | None:
    """Share of the wall time of our rounds that scoring populations and learning take."""
    ours = leading(searched)
    runs = (sides[ours].run.get("parts") or {} for sides in searched.values() if ours in sides)
    spent = np.array([[parts.get(name, 0.0) for name in _ROUND] for parts in runs])
    return float(spent[:, :2].sum() / spent.sum()) if spent.sum() else None


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
