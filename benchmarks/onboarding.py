"""What a new device's head is worth after k measured candidates: `python -m benchmarks.onboarding --json`.

Leaves out each device of a store in turn and onboards it from the others' records, in regimes that are
never mixed (`benchmarks.onboarding_cases`), by every strategy and the baselines that must stand beside
it. Nothing is measured: stored records answer. Stores are those given, else that of `make run` and the
AutoTVM logs beside the checkout, as far as they are there. `--quick` gives the same keys in about ten
minutes; `--table FILE` writes the page that `docs/results/` keeps.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Figures, benchmark, option, working_folder
from benchmarks.onboarding_baselines import baselines
from benchmarks.onboarding_cases import CasePlan, networks_to_hold_out
from benchmarks.onboarding_curve import (
    RANDOM,
    SAMPLES,
    SELECTOR,
    Adapting,
    Contender,
    Experiment,
    Point,
    adapting,
)
from benchmarks.onboarding_parts import CurveTable, DeviceSet, as_json, device_sets
from benchmarks.tables import command_of, interval, page, write_page
from transfer.adapt.base import Regime
from transfer.adapt.guard import NAMES, auto, strategies
from transfer.adapt.sample_selection import SELECTORS, Choice, first_of
from transfer.adapt.source_devices import SourceDevices
from transfer.arrays import Rows
from transfer.train.rows import TrainConfig

_PARTS = ("selectors", "coverage")
#: Families of networks held out of imported logs: the others have too few workloads to be judged by.
_LOGGED_HELD = ("inception", "mobilenet", "vgg")
#: Most candidates of a workload that the target may measure and source devices did, of imported logs: they
#: have hundreds of workloads.
_LOGGED_POOL = 8
_NOTE = (
    "`top1` is the speed of the candidate put first over the best there is among those judged, mean over "
    "workloads, seeds and devices, each device left out in turn. In brackets: 90 % intervals, bootstrap over "
    "workloads; `less_best_baseline` is paired. `random` is a random choice, a ceiling one record of a "
    "candidate ranking another. Regimes are never mixed."
)
#: Samples at which ways to choose them are compared; at the last, random's top-1 is to be had with fewer.
SELECTED = (16, 32, 64, 128, 256)
#: Samples at which stated intervals are compared with the truth.
COVERED = (32, 64, 128, 256)
#: A choice of samples by chance; "random" alone is a choice without any model.
_BY_CHANCE = f"by {RANDOM}"


#: The strategy that users get.
_DEFAULT = "auto"
#: What a run compares with, unless it names fewer.
_BASELINES = tuple(one.name for one in baselines())


@dataclass(frozen=True)
class Options:
    """What is left out in turn, who makes heads, and how much is run."""

    quick: bool = option(False, "the same keys from less, in about ten minutes")
    table: Path | None = option(None, "write the page to this file")
    keep: Path | None = option(None, "folder of finished cases, not run again")
    store: tuple[Path, ...] = option((), "store to read")
    target: tuple[str, ...] = option((), "leave out only this device")
    regime: tuple[str, ...] = option((), "only this regime", choices=[one.value for one in Regime])
    strategies: tuple[str, ...] = option(
        NAMES, "beside auto", choices=NAMES, may_be_empty=True, quick=("scratch",)
    )
    selectors: tuple[str, ...] = option(
        (), "to compare by the default strategy", choices=list(SELECTORS), may_be_empty=True
    )
    baselines: tuple[str, ...] = option(
        _BASELINES, "only these; none without a name", choices=_BASELINES, may_be_empty=True
    )
    samples: tuple[int, ...] = option(SAMPLES, "numbers of samples (k)", quick=(0, 64, 256))
    held: tuple[str, ...] = option((), "hold out only this network")
    splits: int = option(0, "most networks held out in turn; 0 for all", least=0, quick=1)
    pool: int = option(64, "most candidates of a workload learnt from", least=1)
    judge: int = option(256, "most candidates of a workload judged", least=2, quick=64)
    most: int = option(320, "most candidates of a workload kept", least=2, quick=24)
    parts: tuple[str, ...] = option(_PARTS, "beside the curve", choices=_PARTS, may_be_empty=True)
    part_seeds: int = option(3, "seeds of what stands beside the curve", least=1, quick=1)
    covered: tuple[int, ...] = option(COVERED, "k at which stated intervals are checked", quick=(64, 256))
    epochs: int = option(24, "epochs of source models", least=1, quick=12)
    seeds: int = option(5, "seeds of the curve", least=1, quick=1)
    workers: int = option(len(os.sched_getaffinity(0)), "cases at once", least=1)


@dataclass(frozen=True)
class _Run:
    """One set of devices with everything that was run on it."""

    devices: DeviceSet
    table: CurveTable


def measure(options: Options) -> Figures:
    """Run everything, and write the page."""
    with working_folder() as folder, working_folder(options.keep) as points:
        result = _measured(options, folder, points)
    if options.table is not None:
        title, command = "Onboarding: results", command_of("onboarding", options)
        write_page(options.table, page(title, command, result, _NOTE))
    return result


def _measured(options: Options, folder: Path, points: Path) -> Figures:
    """Run everything.

    Args:
        options: The command line.
        folder: For a store of imported logs.
        points: For finished cases.
    """
    sets = device_sets(options.store, folder, options.most)
    experiments = [_experiment(one, options, points) for one in sets]
    runs = [_run(one, options) for one in experiments]
    parts = _parts(experiments, options)
    result: Figures = {
        "quick": options.quick,
        **figures(runs),
        **part_figures(parts),
        "parts": parts,
        "used": [one.name for one in sets],
        "default": _DEFAULT,
        "tables": [as_json(run.devices, run.table) for run in runs],
    }
    if not sets:
        result["skipped"] = "no store: run `make run` first, or give --store"
    return result


def _experiment(one: DeviceSet, options: Options, points: Path) -> Experiment:
    """What all that is run on a set shares."""
    held = options.held
    if not held and not one.is_own:
        there = networks_to_hold_out(one.dataset, one.workloads)
        held = tuple(name for name in _LOGGED_HELD if name in there)
    return Experiment(
        devices=one,
        config=TrainConfig(epochs=options.epochs, device="cpu"),
        workers=options.workers,
        folder=points,
        plan=CasePlan(
            regimes=(),
            targets=tuple(map(str, one.dataset.device_ids)),
            seeds=tuple(range(options.seeds)),
            held=held,
            most_pool=options.pool if one.is_own else min(options.pool, _LOGGED_POOL),
            most_judged=options.judge,
            most_splits=options.splits,
        ),
    )


def _run(experiment: Experiment, options: Options) -> _Run:
    """The curve of one set, regime by regime: `auto` checks by what it will be asked."""
    one, known = experiment.devices, experiment.plan.targets
    targets = tuple(name for name in known if not options.target or name in options.target)
    if not targets:
        raise SystemExit(
            f"--target {' '.join(options.target)}: no such device in {one.name}; there are {', '.join(known)}"
        )
    points = []
    for regime in _regimes(one, options):
        points += experiment.points(
            experiment.cases(regime, targets=targets),
            _contenders(options, regime),
            options.samples,
            # What a device of the logs has in all is thousands of candidates.
            with_all=one.is_own or not options.quick,
        )
    names = (_DEFAULT, *options.strategies, *(f"{_DEFAULT} by {name}" for name in options.selectors))
    return _Run(one, CurveTable(points=points, strategies=names, default=_DEFAULT))


def _regimes(one: DeviceSet, options: Options) -> list[Regime]:
    """What is new in a set."""
    if options.regime:
        return [Regime(name) for name in options.regime]
    # Other people's tuners searched each device by itself.
    return list(Regime) if one.is_own else [Regime.BOTH_NEW]


def _contenders(options: Options, regime: Regime) -> list[Contender]:
    """`auto`, the strategies and other ways to choose that it is compared with, and the baselines."""
    by_name = strategies()
    default = auto(regime, by_name)
    return [
        *adapting(default, *(by_name[name] for name in options.strategies)),
        *(Adapting(default, SELECTORS[name], f"{_DEFAULT} by {name}") for name in options.selectors),
        *(one for one in baselines() if one.name in options.baselines),
    ]


def figures(runs: Sequence[_Run]) -> Figures:
    """The figures that the project is judged by: gains over own devices where there are any.

    Shares of full data are the least over all sets and regimes.
    """
    tables = [run.table for run in runs]
    own = next((run.table for run in runs if run.devices.is_own), next(iter(tables), None))
    worst = [one for table in tables if (one := table.worst_less_scratch()) is not None]
    secs = (table.mean("seconds", 256, table.regimes, _DEFAULT) for table in tables)
    result: Figures = {"adapt_seconds_k256": max((one for one in secs if one is not None), default=None)}
    result["worst_warm_minus_scratch"], result["worst_warm_minus_scratch_at"] = min(
        worst, default=(None, None)
    )
    for regime, k in ((Regime.DEVICE_NEW, 64), (Regime.BOTH_NEW, 256)):
        name, gain = (
            f"{regime.value.replace('-', '_')}_gain_k{k}",
            None if own is None else own.gain(regime, k),
        )
        result[name] = None if gain is None else gain.value
        result[f"{name}_interval"] = interval(gain)
        result[f"{name}_best_baseline"] = None if own is None else own.best_baseline(regime, k)
    for k in (256, 64):
        shares = (table.share_of_full(regime, k) for table in tables for regime in table.regimes)
        result[f"k{k}_of_full"] = min((one for one in shares if one is not None), default=None)
    return result


def _parts(experiments: Sequence[Experiment], options: Options) -> dict[str, list[Figures]]:
    """What stands beside the curve, by name: an entry for each set that it applies to."""
    parts: dict[str, list[Figures]] = {name: [] for name in _PARTS if name in options.parts}
    for experiment in experiments:
        one = experiment.devices
        seeds, splits = tuple(range(options.part_seeds)), options.splits or (0 if one.is_own else 1)
        few = replace(experiment, plan=replace(experiment.plan, seeds=seeds, most_splits=splits))
        for name, part in parts.items():
            if name == "coverage":
                part += [
                    coverage(few, regime, options.covered)
                    for regime in _regimes(one, options)
                    if regime is not Regime.CANDIDATE_NEW
                    and (regime is Regime.DEVICE_NEW or options.regime or not options.quick)
                ]
            elif one.is_own:
                part.append(selectors(few))
    return parts


def part_figures(parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figures:
    """Figures of what stands beside the curve; None where it was not run."""
    stated = [part["by_k"]["all of these"] for part in parts.get("coverage", ()) if part["by_k"]]
    runs = sum(one["runs"] for one in stated)
    covered = sum(one["runs"] * one["top1_covered"] for one in stated)
    compared = next(iter(parts.get("selectors", ())), {})
    return {
        "interval_coverage": covered / runs if runs else None,
        "interval_coverage_runs": runs or None,
        "best_selector": compared.get("best"),
        "chosen_samples_share": compared.get("share"),
    }


@dataclass(frozen=True)
class Uniform:
    """Any candidates, drawn at random: what a way to choose samples must beat."""

    name: str = RANDOM

    def choose(self, choice: Choice, count: int) -> Rows:
        """See `transfer.adapt.sample_selection.Selector.choose`."""
        return first_of(choice, np.random.default_rng(choice.seed).permutation(choice.pool), count)


def selectors(experiment: Experiment) -> Figures:
    """Ways to choose samples at equal k, by the default strategy, where source devices know the candidates.

    Returns:
        For each: top-1 by k, less random (paired), and the samples for random's top-1 at the largest k that
        it reaches; `share`, the least of those over the samples with which random first gets there.
    """
    strategy, regime = SourceDevices(trains_head=False), Regime.DEVICE_NEW
    config = experiment.config
    short = replace(experiment, config=replace(config, epochs=max(1, config.epochs // 3)))
    ways = (*SELECTORS.values(), Uniform())
    contenders = [Adapting(strategy, way, f"by {way.name}") for way in ways]
    points = short.points(short.cases(regime), contenders, SELECTED)
    table = CurveTable(points=points, strategies=(), default=_BY_CHANCE)
    ks = [k for k in SELECTED if table.estimate(regime, _BY_CHANCE, k) is not None]
    goal = table.estimate(regime, _BY_CHANCE, max(ks))
    assert goal is not None
    needed = {way.name: table.samples_for(regime, f"by {way.name}", goal.value) for way in ways}
    rows = {
        way.name: {
            "top1": {str(k): interval(table.estimate(regime, f"by {way.name}", k)) for k in ks},
            "less_random": {
                str(k): interval(table.estimate(regime, f"by {way.name}", k, less=_BY_CHANCE)) for k in ks
            },
            "samples_for_random": needed[way.name],
        }
        for way in ways
    }
    by_chance = needed.pop(RANDOM)
    known = {name: count for name, count in needed.items() if count is not None}
    best = min(known, key=known.__getitem__, default=None)
    return {
        "set": experiment.devices.name,
        "regime": regime.value,
        "strategy": strategy.name,
        "seeds": len(experiment.plan.seeds),
        "samples": ks,
        "at": max(ks),
        "selectors": rows,
        "best": best,
        "share": known[best] / by_chance if best and by_chance else None,
    }


def coverage(experiment: Experiment, regime: Regime, samples: Sequence[int] = COVERED) -> Figures:
    """How often stated 90 % intervals hold what the head's first choices reach in truth."""
    strategy = SourceDevices()
    stating = Adapting(strategy, SELECTOR, f"{strategy.name}, stating", states=True)
    rows: dict[int | None, list[dict[str, float]]] = defaultdict(list)
    for point in experiment.points(experiment.cases(regime), [stating], samples):
        if point.expected is not None:
            rows[point.k].append(_stated(point))
    by_k = {str(k): _covered(rows[k]) for k in samples if k in rows}
    if every := [row for k in samples for row in rows.get(k, ())]:
        by_k["all of these"] = _covered(every)
    return {
        "set": experiment.devices.name,
        "regime": regime.value,
        "strategy": strategy.name,
        "seeds": len(experiment.plan.seeds),
        "by_k": by_k,
    }


def _stated(point: Point) -> dict[str, float]:
    """What was stated of a point, and what was true."""
    row: dict[str, float] = {}
    for name, (value, low, high) in (point.expected or {}).items():
        true = row[name] = float(np.mean(point.values[name]))
        row[f"{name}_covered"] = float(low <= true <= high)
        row[f"{name}_width"] = high - low
        row[f"{name}_expected"] = value
    return row


def _covered(rows: Sequence[Mapping[str, float]]) -> Figures:
    means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    return {"runs": len(rows), **means}


main = benchmark("onboarding", __doc__, Options, measure)

if __name__ == "__main__":
    main()
