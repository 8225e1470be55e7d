"""What stands beside the onboarding curve: ways to choose samples, breadth, and stated intervals.

Each part is a curve of some contenders, and gives JSON-ready values for one set of devices;
`benchmarks.tables.page` makes tables of them. Called by `benchmarks.onboarding`. Nothing is measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.onboarding_cases import CasePlan, make_cases
from benchmarks.onboarding_curve import RANDOM, SELECTOR, Adapting, Experiment, Point, adapting
from benchmarks.onboarding_parts import CurveTable
from benchmarks.tables import interval
from fleet.json_types import JsonDict
from transfer.adapt.base import Regime
from transfer.adapt.nearest import Nearest
from transfer.adapt.sample_selection import SELECTORS, Choice, first_of
from transfer.adapt.source_devices import SourceDevices
from transfer.arrays import Rows

#: Samples at which ways to choose them are compared; at the last, random's top-1 is to be had with fewer.
SELECTED = (16, 32, 64, 128, 256)
#: Workloads to learn from in the curve over breadth, the last cut to what is not held out; its samples.
BREADTH, _BREADTH_SAMPLES = (12, 25, 50, 80), (0, 64)
#: Samples at which stated intervals are compared with the truth.
COVERED = (32, 64, 128, 256)
#: A choice of samples by chance; "random" alone is a choice without any model.
_BY_CHANCE = f"by {RANDOM}"


def _curve(
    experiment: Experiment, cases: CasePlan, contenders: Sequence[Adapting], samples: Sequence[int]
) -> CurveTable:
    """The table of strategies."""
    names = tuple(contender.name for contender in contenders)
    points = experiment.points(cases, contenders, samples)
    return CurveTable(points=points, strategies=names, default=names[0])


@dataclass(frozen=True)
class Uniform:
    """Any candidates, drawn at random: what a way to choose samples must beat."""

    name: str = RANDOM

    def choose(self, choice: Choice, count: int) -> Rows:
        """See `transfer.adapt.sample_selection.Selector.choose`."""
        return first_of(choice, np.random.default_rng(choice.seed).permutation(choice.pool), count)


def selectors(experiment: Experiment) -> JsonDict:
    """Ways to choose samples at equal k, by the default strategy, where source devices know the candidates.

    Returns:
        For each: top-1 by k, less random (paired), and the samples for random's top-1 at the largest k that
        it reaches; `share`, the least of those over the samples with which random first gets there.
    """
    strategy, regime = SourceDevices(trains_head=False), Regime.DEVICE_NEW
    config = experiment.config
    short = replace(experiment, config=replace(config, epochs=max(1, config.epochs // 3)))
    ways = (*SELECTORS.values(), Uniform())
    table = _curve(
        short, short.cases(regime), [Adapting(strategy, way, f"by {way.name}") for way in ways], SELECTED
    )
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


def breadth(experiment: Experiment) -> JsonDict:
    """Top-1 against the number of workloads learnt from, where device and workload are new."""
    one, regime = experiment.devices, Regime.BOTH_NEW
    samples = _BREADTH_SAMPLES
    contenders = adapting(SourceDevices(), Nearest())
    by_count: dict[int, Any] = {}
    for count in BREADTH:
        cases = experiment.cases(regime, most_workloads=count)
        made = make_cases(one.dataset, one.workloads, cases)
        learnt = max(len(np.unique(one.dataset.group[case.source_rows])) for case in made)
        if learnt <= max(by_count, default=0):
            break
        table = _curve(experiment, cases, contenders, samples)
        by_count[learnt] = {
            contender.name: {str(k): interval(table.estimate(regime, contender.name, k)) for k in samples}
            for contender in contenders
        }
    workloads = {str(learnt): row for learnt, row in by_count.items()}
    return {
        "set": one.name,
        "k": list(samples),
        "seeds": len(experiment.plan.seeds),
        "workloads": workloads,
    }


def coverage(experiment: Experiment, regime: Regime, samples: Sequence[int] = COVERED) -> JsonDict:
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


def _covered(rows: Sequence[Mapping[str, float]]) -> JsonDict:
    means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    return {"runs": len(rows), **means}
