"""Solvers for unlike GPUs: what a few samples of a new one are worth: `python -m benchmarks.unlike --json`.

MIOpen's find databases tell which solvers of a convolution were timed on seven AMD GPUs of seven years. Each
GPU is left out in turn. *device new*: the judged problems are known on the others. *both new*: their
convolutions are held out there, too. A way of choosing sees k samples of the new GPU, of other convolutions,
whole problems at a time. `top1` is the speed of its choice over the fastest solver that was timed there, mean
over problems, seeds and GPUs; `right` is the share of problems with the fastest one. Only solvers that were
timed on the GPU can be chosen and judged. Intervals are of 90 %, paired, over problems.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.harness import Figures, benchmark, option, say
from benchmarks.onboarding_cases import Case, FewShotSet, situation_of, visible_dataset
from benchmarks.onboarding_curve import Point, judged
from benchmarks.onboarding_parts import CurveTable
from benchmarks.tables import interval
from benchmarks.unlike_ways import (
    LEARNING,
    OURS,
    WAYS,
    WITHOUT_SAMPLES,
    FindData,
    View,
    read_databases,
)
from transfer.adapt.base import Regime
from transfer.arrays import Groups, Mask, Rows
from transfer.data.metrics import evaluate_ranking

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "miopen_find_db"
#: Share of the convolutions that are judged.
_HELD = 4
_REGIMES = (Regime.DEVICE_NEW, Regime.BOTH_NEW)


@dataclass(frozen=True)
class Options:
    """How much is run."""

    quick: bool = option(False, "a sixteenth of the problems, two seeds")
    data: Path = option(DATA, "folder of find databases")
    one_in: int = option(16, "take one convolution in so many", least=1, quick=256)
    samples: tuple[int, ...] = option((0, 16, 64, 256, 1024), "numbers of samples (k)", quick=(0, 64))
    seeds: int = option(5, "draws of the samples", least=1, quick=2)
    trees: int = option(200, "trees that the sources teach", least=1, quick=30)
    learnt: int = option(40000, "measurements of the sources that teach trees", least=100, quick=5000)
    judged: int = option(1000, "most problems of a GPU that are judged", least=10, quick=200)


def measure(options: Options) -> Figures:
    """Run everything, where the databases are there."""
    if not options.data.is_dir():
        return {
            "skipped": f"{options.data} is absent: it lies beside the checkout; or name a folder with --data",
        }
    data = read_databases(options.data, options.one_in)
    points: list[Point] = []
    for target in map(str, data.dataset.device_ids):
        say(f"{target} left out")
        for regime in _REGIMES:
            points += _points(data, case_of(data, target, regime, options.judged), options)
    table = CurveTable(points=points, strategies=LEARNING, default=OURS)
    return {
        "quick": options.quick,
        **{
            f"{regime.value.replace('-', '_')}_gain_k{k}": interval(table.gain(regime, k))
            for regime in _REGIMES
            for k in options.samples
        },
        "devices": {one: len(data.dataset.rows_of(one)) for one in data.dataset.device_ids},
        "likeness": likeness(data),
        "regimes": table.as_json(),
    }


def case_of(data: FindData, target: str, regime: Regime, most_judged: int) -> Case:
    """What of the databases the target may measure, what the sources show, and what is judged."""
    dataset, column = data.dataset, data.dataset.column(target)
    known = np.isfinite(dataset.latency_secs)
    beside = np.delete(known, column, axis=1).any(axis=1)
    is_held = (data.convolution // 65536 % _HELD == 0)[dataset.group]
    several = _has_several(known[:, column], dataset.group)
    is_judged = is_held & several
    if regime is Regime.DEVICE_NEW:
        is_judged &= _has_several(known[:, column] & beside, dataset.group)
    problems = np.random.default_rng(column).permutation(np.unique(dataset.group[is_judged]))[:most_judged]
    return Case(
        regime=regime,
        target=target,
        split="convolutions",
        pool=np.flatnonzero(~is_held & several),
        source_rows=np.flatnonzero(beside & (~is_held | (regime is Regime.DEVICE_NEW))),
        test=np.flatnonzero(is_judged & np.isin(dataset.group, problems)),
        seed=0,
    )


def _has_several(measured: Mask, group: Groups) -> Mask:
    """(N,) measured rows of problems with two of them at least."""
    counts = np.bincount(group[measured], minlength=int(group.max()) + 1)
    return np.asarray(measured & (counts[group] > 1))


def _points(data: FindData, case: Case, options: Options) -> Iterator[Point]:
    """How each way does on a case with each number of samples and seed."""
    dataset, column = data.dataset, data.dataset.column(case.target)
    situation = situation_of(visible_dataset(dataset, case), case)
    for k in options.samples:
        # Without a sample there is nothing to draw.
        for seed in range(options.seeds if k else 1):
            rows = samples_of(data, case.pool, k, seed)
            view = View(data, situation, FewShotSet(rows, dataset.latency_secs[rows, column]), seed, options)
            for name, way in WAYS.items():
                score = partial(way, view)
                scores = situation.once(name, score) if name in WITHOUT_SAMPLES else score()
                count = (k, len(rows))
                point = judged(name, replace(case, seed=seed), dataset, count, scores, measures=("top1",))
                right = [float(kept >= 1) for kept in point.values["top1"]]
                yield msgspec.structs.replace(point, values={**point.values, "right": right})


def samples_of(data: FindData, pool: Rows, k: int, seed: int) -> Rows:
    """At most k rows, of whole problems in random order."""
    group = data.dataset.group[pool]
    problems, sizes = np.unique(group, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(problems))
    taken = problems[order[np.cumsum(sizes[order]) <= k]]
    return np.asarray(pool[np.isin(group, taken)])


def likeness(data: FindData) -> dict[str, dict[str, Figures]]:
    """How alike two GPUs are: what the winner of the one keeps on the other, of solvers timed on both.

    Only problems with three such solvers count.
    """
    dataset = data.dataset
    found: dict[str, dict[str, Figures]] = {}
    for source in dataset.device_ids:
        for target in dataset.device_ids:
            both = np.intersect1d(dataset.rows_of(source), dataset.rows_of(target))
            if source == target or np.bincount(dataset.group[both], minlength=1).max() < 3:
                continue
            theirs, own = (dataset.latency_secs[both, dataset.column(one)] for one in (source, target))
            group = dataset.group[both]
            metrics = evaluate_ranking(-theirs, own, group, names=("top1",), least=3)
            kept = metrics.values["top1"]
            found.setdefault(source, {})[target] = {
                "kept": float(kept.mean()),
                "same_winner": float((kept >= 1).mean()),
                "problems": len(metrics.counts),
            }
    return found


main = benchmark("unlike", __doc__, Options, measure)

if __name__ == "__main__":
    main()
