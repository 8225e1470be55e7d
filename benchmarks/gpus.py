"""A new GPU and the spaces that other GPUs measured whole: `python -m benchmarks.gpus --json`.

Each GPU is left out in turn, for every kernel and seed. The other GPUs' spaces are known; of the new one only
what a way of choosing asked for, one configuration after the other. `best_after_k`: speed of the best of the
k measured and the next choice, over the space's optimum. A measurement is the mean of the recorded repeats,
drawn with replacement; what is reported is the recorded mean. Settings are the same for all cases.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.gpus_rivals import CHOOSERS, STRATEGIES, orders, why_absent
from benchmarks.gpus_spaces import Space, find_spaces
from benchmarks.harness import Figures, benchmark, kept, option, say, working_folder
from transfer.arrays import Floats, Rows

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "kernel_tuner_hub"

OURS = "search (ours)"
COUNTS = (0, 8, 32, 64, 256)
#: Figures of our choice by the measurements before it.
_BEST = {f"best_at_{count}": place for place, count in enumerate(COUNTS) if count <= 64}
_GOOD = 0.95
_RESAMPLES = 2000


#: Speeds of each run in the order of their evaluation, by case (kernel and GPU), one run per seed.
Runs = dict[tuple[str, str], list[list[float]]]


def reached(runs: Runs, most: int) -> tuple[Floats, Floats]:
    """What one way of choosing reached.

    Args:
        runs: Its runs.
        most: Stands for "never".

    Returns:
        (cases, seeds, counts) best_after_k, and (cases, seeds) evaluations until 95 % of the optimum.
    """
    best = [[np.maximum.accumulate(speeds) for speeds in runs[case]] for case in sorted(runs)]
    after = [[[one[min(k, len(one) - 1)] for k in COUNTS] for one in several] for several in best]
    needed = [
        [1 + np.argmax(one >= _GOOD) if one[-1] >= _GOOD else most for one in several] for several in best
    ]
    return np.array(after), np.array(needed, dtype=np.float64)


def run_chooser(space: Space, target: int, name: str, seed: int, *, count: int) -> list[float]:
    """Speeds of what one way of choosing measures, in order.

    Args:
        space: The kernel.
        target: Place of the new GPU.
        name: One of `CHOOSERS`.
        seed: Of every draw.
        count: Measurements.
    """
    random = np.random.default_rng([seed, target])
    speed = space.speed(target)
    chooser = CHOOSERS[name](space, target, seed)
    speeds: list[float] = []
    row = next(chooser)
    while True:
        speeds.append(float(speed[row]))
        if len(speeds) >= min(count, len(speed)):
            return speeds
        row = chooser.send(space.measure(target, row, random))


@dataclass(frozen=True)
class Options:
    """How much is run."""

    quick: bool = option(False, "one seed, 64 measurements: within five minutes")
    data: Path = option(DATA, "folder with a folder of caches a kernel")
    seeds: int = option(5, "runs of each case", least=1, quick=1)
    most: int = option(max(COUNTS), "measurements of each run", least=1, quick=64)
    keep: Path | None = option(None, "folder of finished searches; a stopped run goes on")
    kernel_tuner: str = option(
        sys.executable, f"Python with Kernel Tuner, for its strategies {', '.join(STRATEGIES)}"
    )


def measure(options: Options) -> Figures:
    """Run everything, where the caches are there."""
    if not options.data.is_dir():
        return {
            "skipped": f"{options.data} is absent: it lies beside the checkout; or name a folder with --data",
            **dict.fromkeys((*_BEST, "worst_at_64", "evals_to_95_ratio")),
        }
    with working_folder(options.keep) as folder:
        return _measured(options, folder)


def _measured(options: Options, folder: Path) -> Figures:
    """Run everything; finished searches lie in the folder."""
    spaces = find_spaces(options.data)
    seeds = list(range(options.seeds))
    # The choice after the last measurement counts too.
    most = 1 + options.most
    runs: dict[str, Runs] = defaultdict(dict)
    told: Figures = {}
    absent = why_absent(options.kernel_tuner)
    if absent:
        told["kernel_tuner_skipped"] = absent
    failed: dict[str, str] = {}
    for space in spaces:
        for target, device in enumerate(space.devices):
            case = (space.kernel, device)
            say(f"{space.kernel} {device} left out")
            for name in CHOOSERS:
                runs[name][case] = _speeds(space, target, name, options, folder)
            if not absent:
                found, why = orders(options.kernel_tuner, space, target, seeds, folder)
                failed |= why
                speed = space.speed(target)
                for strategy, several in found.items():
                    runs[f"Kernel Tuner {strategy}"][case] = [speed[rows[:most]].tolist() for rows in several]
    outcomes = {name: reached(of_name, most) for name, of_name in runs.items()}
    if failed:
        told["kernel_tuner_failed"] = failed
    return {
        "quick": options.quick,
        **(_figures(outcomes) if spaces else {"skipped": "no space that three devices have measured"}),
        "spaces": {one.kernel: {"devices": one.devices, "size": len(one.traces)} for one in spaces},
        "seeds": options.seeds,
        **told,
        "table": _table(runs, outcomes, options.most),
    }


def _speeds(space: Space, target: int, name: str, options: Options, keep: Path) -> list[list[float]]:
    """As `run_chooser`, seed by seed; from an earlier run if the folder has it."""
    count = 1 + options.most
    path = keep / f"{space.kernel} {space.devices[target]} {name} {options.seeds} {count}.json"
    seeds = range(options.seeds)
    found = kept(
        path, lambda: {"runs": [run_chooser(space, target, name, one, count=count) for one in seeds]}
    )
    return list(found["runs"])


def _figures(outcomes: dict[str, tuple[Floats, Floats]]) -> Figures:
    """The keys that must reach something, with 95 % intervals by resampling seeds."""
    ours, needed = outcomes[OURS]
    at_64 = COUNTS.index(64)
    rivals = [outcomes[name][1] for name in outcomes if name.startswith("Kernel Tuner")]
    count = ours.shape[1]
    draws = list(np.random.default_rng(0).integers(0, count, (_RESAMPLES, count)))
    values: dict[str, Callable[[Rows], float]] = {
        **{name: partial(_mean_at, ours, place) for name, place in _BEST.items()},
        "worst_at_64": lambda seeds: ours[:, seeds, at_64].mean(axis=1).min(),
    }
    if rivals:
        # The least over the single strategies; and against the best one of each case, which nobody knows.
        values["evals_to_95_ratio"] = lambda seeds: min(
            _ratio([one[:, seeds]], needed[:, seeds]) for one in rivals
        )
        values["evals_to_95_ratio_best_of_each_case"] = lambda seeds: _ratio(
            [one[:, seeds] for one in rivals], needed[:, seeds]
        )
    figures = {}
    for name, value in values.items():
        low, high = np.quantile([float(value(seeds)) for seeds in draws], [0.025, 0.975])
        figures[name] = [float(one) for one in (value(np.arange(count)), low, high)]
    intervals = {name: found[1:] for name, found in figures.items()}
    return {**{name: found[0] for name, found in figures.items()}, "intervals": intervals}


def _mean_at(best: Floats, place: int, seeds: Rows) -> float:
    """Mean over cases and some seeds of (cases, seeds, counts) at a count."""
    return float(best[:, seeds, place].mean())


def _ratio(rivals: list[Floats], ours: Floats) -> float:
    """Evaluations that the best of some strategies needs in each case over ours, median of the cases."""
    best = np.min([np.median(one, axis=1) for one in rivals], axis=0)
    return float(np.median(best / np.median(ours, axis=1)))


def _table(runs: dict[str, Runs], outcomes: dict[str, tuple[Floats, Floats]], most: int) -> Figures:
    counts = [place for place, k in enumerate(COUNTS) if k <= most]

    def by_count(values: Floats) -> dict[str, float]:
        return {str(COUNTS[place]): float(values[place]) for place in counts}

    table = {}
    for name, (best, needed) in outcomes.items():
        if not len(best):
            continue
        found, named = best.mean(axis=1), [" ".join(case) for case in sorted(runs[name])]
        table[name] = {
            "mean": by_count(found.mean(axis=0)),
            "worst": by_count(found.min(axis=0)),
            "evals_to_95": dict(zip(named, np.median(needed, axis=1).tolist(), strict=True)),
            "cases": {case: by_count(values) for case, values in zip(named, found, strict=True)},
        }
    return table


main = benchmark("gpus", __doc__, Options, measure)

if __name__ == "__main__":
    main()
