"""A new GPU and the spaces that other GPUs measured whole: `python -m benchmarks.gpus --json`.

Each GPU is left out in turn, for every kernel and seed. The other GPUs' spaces are known; of the new one only
what a way of choosing asked for, one configuration after the other. `best_after_k`: speed of the best of the
k measured and the next choice, over the space's optimum. A measurement is the mean of the recorded repeats,
drawn with replacement; what is reported is the recorded mean. Settings are the same for all cases. Intervals
are of 90 %, over cases.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.gpus_rivals import CHOOSERS, OURS, STRATEGIES, Space, find_spaces, orders, why_absent
from benchmarks.harness import Figures, benchmark, kept, option, say, working_folder
from benchmarks.onboarding_curve import Point
from benchmarks.onboarding_parts import CurveTable
from benchmarks.tables import interval
from transfer.adapt.base import Regime

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "kernel_tuner_hub"

COUNTS = (0, 8, 32, 64, 256)
#: Keys of our choice by the measurements before it.
_BEST = {f"best_at_{count}": count for count in COUNTS if count <= 64}
_GOOD, _TUNER = 0.95, "Kernel Tuner"

#: Speeds of each run in the order of their evaluation, by way and case (kernel and GPU), one run per seed.
Runs = dict[str, dict[str, list[list[float]]]]


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
    spaces, runs, failed = find_spaces(options.data), Runs(), dict[str, str]()
    absent = why_absent(options.kernel_tuner)
    with working_folder(options.keep) as folder:
        for space in spaces:
            for target, device in enumerate(space.devices):
                say(f"{space.kernel} {device} left out")
                for name, several in _run(
                    space, target, options, folder, failed, is_absent=bool(absent)
                ).items():
                    runs.setdefault(name, {})[f"{space.kernel} {device}"] = several
    told = {"kernel_tuner_skipped": absent, "kernel_tuner_failed": failed}
    return {
        "quick": options.quick,
        **(
            _figures(runs, options.most)
            if spaces
            else {"skipped": "no space that three devices have measured"}
        ),
        "spaces": {one.kernel: {"devices": one.devices, "size": len(one.traces)} for one in spaces},
        "seeds": options.seeds,
        **{name: why for name, why in told.items() if why},
    }


def _run(
    space: Space, target: int, options: Options, folder: Path, failed: dict[str, str], *, is_absent: bool
) -> dict[str, list[list[float]]]:
    """Speeds of all ways on a case, seed by seed; finished ones lie in the folder.

    Args:
        space: The kernel.
        target: Place of the new GPU.
        options: The command line.
        folder: Keeps what is finished.
        failed: Gets why a strategy of Kernel Tuner failed.
        is_absent: Whether Kernel Tuner cannot be asked.
    """
    # The choice after the last measurement counts too.
    count, seeds = 1 + options.most, list(range(options.seeds))
    found = {}
    for name in CHOOSERS:
        path = folder / f"{space.kernel} {space.devices[target]} {name} {options.seeds} {count}.json"
        run = partial(run_chooser, space, target, name, count=count)
        found[name] = kept(path, lambda run=run: {"runs": list(map(run, seeds))})["runs"]  # type: ignore[misc]
    if not is_absent:
        by_strategy, why = orders(options.kernel_tuner, space, target, seeds, folder)
        failed |= why
        speed = space.speed(target)
        for strategy, several in by_strategy.items():
            found[f"{_TUNER} {strategy}"] = [speed[rows[:count]].tolist() for rows in several]
    return found


def curve_of(runs: Runs, most: int) -> CurveTable:
    """The points of all runs at each of `COUNTS` up to the most measurements."""
    cases = {
        case: number for number, case in enumerate(sorted({case for of in runs.values() for case in of}))
    }
    points = [
        Point(
            contender=name,
            regime=Regime.DEVICE_NEW,
            target=case,
            split="",
            seed=seed,
            k=k,
            measured=k,
            groups=[cases[case]],
            values={"top1": [max(speeds[: k + 1])]},
        )
        for name, by_case in runs.items()
        for case, several in by_case.items()
        for seed, speeds in enumerate(several)
        for k in COUNTS
        if k <= most
    ]
    return CurveTable(points=points, strategies=(OURS,), default=OURS)


def _figures(runs: Runs, most: int) -> Figures:
    """The keys that must reach something, and all ways."""
    table, regime = curve_of(runs, most), Regime.DEVICE_NEW
    best = {name: table.estimate(regime, OURS, k) for name, k in _BEST.items()}
    at_64 = (table.estimate(regime, OURS, 64, targets=(case,)) for case in table.targets)
    needed = {
        name: np.array([_until_good(of[case], most) for case in sorted(of)]) for name, of in runs.items()
    }
    rivals = [of for name, of in needed.items() if name.startswith(_TUNER)]
    ratios = {
        # The least over the single strategies; and against the best one of each case, which nobody knows.
        "evals_to_95_ratio": min((float(np.median(one / needed[OURS])) for one in rivals), default=None),
        "evals_to_95_ratio_best_of_each_case": float(np.median(np.min(rivals, axis=0) / needed[OURS]))
        if rivals
        else None,
    }
    return {
        **{name: one and one.value for name, one in best.items()},
        "worst_at_64": min((one.value for one in at_64 if one), default=None),
        **ratios,
        "intervals": {name: interval(one) for name, one in best.items()},
        "evals_to_95": {
            name: dict(zip(table.targets, of.tolist(), strict=True)) for name, of in needed.items()
        },
        "table": table.as_json()[regime.value],
    }


def _until_good(several: Sequence[Sequence[float]], most: int) -> float:
    """Evaluations until 95 % of the optimum, median of the seeds; `most` and one more where it never came."""
    good = [next((place for place, one in enumerate(of, 1) if one >= _GOOD), 1 + most) for of in several]
    return float(np.median(good))


main = benchmark("gpus", __doc__, Options, measure)

if __name__ == "__main__":
    main()
