"""What stands beside the onboarding curve: ways to choose samples, breadth, intervals, kinds of processors.

Each part gives JSON-ready values for one set of devices; `benchmarks.tables.page` makes tables of them.
Called by `benchmarks.onboarding`. Nothing is measured.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.onboarding_contenders import Adapting
from benchmarks.onboarding_curve import CurvePlan, run_curve
from benchmarks.onboarding_parts import DeviceSet, narrowed
from benchmarks.onboarding_table import CurveTable
from benchmarks.tables import interval
from fleet.onboarding.adaptation import Onboarding, expectation
from transfer.adapt.base import Regime, Strategy
from transfer.adapt.multitask import Scratch
from transfer.adapt.nearest import Nearest
from transfer.adapt.sample_choice import Choice, Rows, first_of
from transfer.adapt.sample_selection import SELECTORS, selector_named
from transfer.adapt.source_devices import SourceDevices
from transfer.data.dataset import Dataset
from transfer.data.ranking import top_k
from transfer.errors import TransferError
from transfer.evaluate.onboarding_cases import (
    Case,
    CasePlan,
    FewShotSet,
    choose_few_shot,
    make_cases,
    situation_of,
    visible_dataset,
    with_few_shot,
)
from transfer.features.hardware import HARDWARE_NAMES
from transfer.model.inputs import torch_threads
from transfer.processes import run_each
from transfer.train.config import TrainConfig
from transfer.train.training import train

#: Samples at which ways to choose them are compared; at the last, random's top-1 is to be had with fewer.
SELECTED = (16, 32, 64, 128, 256)
#: Workloads to learn from in the curve over breadth; the last is cut to what is not held out.
BREADTH = (12, 25, 50, 80)
#: Samples at which stated intervals are compared with the truth.
COVERED = (32, 64, 128, 256)
#: Samples at which kinds of processors are compared.
ACROSS = (0, 64, 256)
_RANDOM = "random"


def _told(selector: str) -> str:
    """Name of a contender that chooses by a selector; "random" alone is a choice without any model."""
    return f"by {selector}"


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """Settings that all parts share."""

    seeds: tuple[int, ...]
    epochs: int
    workers: int
    selector: str
    keep: Path | None = None
    held: tuple[str, ...] = ()
    most_pool: int = 64
    most_judged: int = 256
    most_splits: int = 0

    def cases(self, one: DeviceSet, regime: Regime, **changes: Any) -> CasePlan:
        """The divisions of a set."""
        plan = CasePlan(
            regimes=(regime,),
            targets=tuple(map(str, one.dataset.device_ids)),
            seeds=self.seeds,
            held=self.held,
            most_pool=self.most_pool,
            most_judged=self.most_judged,
            most_splits=self.most_splits,
        )
        return replace(plan, **changes)

    def curve(
        self, one: DeviceSet, cases: CasePlan, contenders: Sequence[Adapting], samples: Sequence[int]
    ) -> CurveTable:
        """Run strategies on some divisions."""
        plan = CurvePlan(
            cases=cases,
            contenders=tuple(contenders),
            selector=selector_named(self.selector),
            config=TrainConfig(epochs=self.epochs, device="cpu"),
            samples=tuple(samples),
            with_all=False,
        )
        points = run_curve(
            one.dataset, one.workloads, plan, workers=self.workers, on_case=tell, kept=self.keep
        )
        names = tuple(contender.name for contender in contenders)
        return CurveTable(points=points, strategies=names, default=names[0])


@dataclass(frozen=True, slots=True)
class Uniform:
    """Any candidates, drawn at random: what a way to choose samples must beat."""

    name: str = _RANDOM

    def choose(self, choice: Choice, count: int) -> Rows:
        """See `transfer.adapt.sample_selection.Selector.choose`."""
        return first_of(choice, np.random.default_rng(choice.seed).permutation(choice.pool), count)


def selectors(one: DeviceSet, how: How) -> dict[str, Any]:
    """Ways to choose samples at equal k, by the default strategy, where source devices know the candidates.

    Returns:
        For each: top-1 by k, less random (paired), and the samples for random's top-1 at the largest k that
        it reaches; `share`, the least of those over the samples with which random first gets there.
    """
    strategy = SourceDevices(trains_head=False)
    short = replace(how, epochs=max(1, how.epochs // 3))
    ways = (*SELECTORS.values(), Uniform())
    contenders = [Adapting(strategy, selector, _told(selector.name)) for selector in ways]
    regime = Regime.DEVICE_NEW
    table = short.curve(one, short.cases(one, regime), contenders, SELECTED)
    ks = [k for k in SELECTED if table.estimate(regime, _told(_RANDOM), k) is not None]
    at = max(ks)
    wanted = table.estimate(regime, _told(_RANDOM), at)
    assert wanted is not None
    rows: dict[str, Any] = {}
    for name in (selector.name for selector in ways):
        top1 = {k: table.estimate(regime, _told(name), k) for k in ks}
        less = {k: interval(table.difference(regime, _told(name), _told(_RANDOM), k)) for k in ks}
        needed = table.samples_for(regime, _told(name), wanted.value)
        rows[name] = {
            "top1": {str(k): None if found is None else found.value for k, found in top1.items()},
            "less_random": {} if name == _RANDOM else {str(k): found for k, found in less.items()},
            "samples_for_random": needed,
        }
    reached = {name: row["samples_for_random"] for name, row in rows.items() if name != _RANDOM}
    known = {name: needed for name, needed in reached.items() if needed is not None}
    best = min(known, key=lambda name: known[name]) if known else None
    return {
        "set": one.name,
        "regime": regime.value,
        "strategy": strategy.name,
        "seeds": len(how.seeds),
        "samples": ks,
        "at": at,
        "selectors": rows,
        "best": best,
        "share": None if best is None else known[best] / rows[_RANDOM]["samples_for_random"],
    }


def breadth(one: DeviceSet, how: How, samples: Sequence[int]) -> dict[str, Any]:
    """Top-1 against the number of workloads learnt from, where device and workload are new."""
    found: dict[str, Any] = {}
    regime = Regime.BOTH_NEW
    contenders = [
        Adapting(strategy, selector_named(how.selector), strategy.name)
        for strategy in (SourceDevices(), Nearest())
    ]
    for count in BREADTH:
        cases = how.cases(one, regime, most_workloads=count)
        there = _learnt(one, cases)
        if found and there <= max(map(int, found)):
            break
        table = how.curve(one, cases, contenders, samples)
        found[str(there)] = {
            contender.name: {str(k): interval(table.estimate(regime, contender.name, k)) for k in samples}
            for contender in contenders
        }
    return {"set": one.name, "k": list(samples), "seeds": len(how.seeds), "workloads": found}


def _learnt(one: DeviceSet, cases: CasePlan) -> int:
    """Most workloads that a division learns from."""
    made = make_cases(one.dataset, one.workloads, cases)
    return max(len(np.unique(one.dataset.group[case.source_rows])) for case in made)


def coverage(one: DeviceSet, how: How, regime: Regime, samples: Sequence[int] = COVERED) -> dict[str, Any]:
    """How often stated 90 % intervals hold what the head's first choices reach in truth."""
    strategy = SourceDevices()
    rows: dict[int, list[dict[str, float]]] = defaultdict(list)
    cases = make_cases(one.dataset, one.workloads, how.cases(one, regime))
    asked = partial(_stated, one.dataset, strategy=strategy, how=how, samples=samples)
    made = run_each(asked, cases, how.workers, of="the stated intervals", pieces="cases")
    for place, (case, stated) in enumerate(zip(cases, made, strict=True), start=1):
        for k, row in stated:
            rows[k].append(row)
        tell(place, len(cases), case)
    by_k = {str(k): _covered(found) for k, found in sorted(rows.items())}
    every = [row for found in rows.values() for row in found]
    if every:
        by_k["all of these"] = _covered(every)
    return {
        "set": one.name,
        "regime": regime.value,
        "strategy": strategy.name,
        "seeds": len(how.seeds),
        "by_k": by_k,
    }


def _stated(
    dataset: Dataset, case: Case, *, strategy: Strategy, how: How, samples: Sequence[int]
) -> list[tuple[int, dict[str, float]]]:
    """What was stated and what was true, by number of samples."""
    view = visible_dataset(dataset, case)
    config = TrainConfig(epochs=how.epochs, device="cpu")
    situation = situation_of(view, case)
    sources = situation.sources
    source = train(view, case.source_rows, config=config, seed=case.seed, devices=sources).model
    truth = dataset.latency_secs[:, dataset.column(case.target)]
    found = []
    for k in samples:
        if k > len(case.pool):
            continue
        selector = selector_named(how.selector)
        few_shot = choose_few_shot(selector, situation, case.pool, truth, k, lambda: source)
        onboarding = Onboarding(
            dataset=with_few_shot(view, case.target, FewShotSet(few_shot, truth[few_shot])),
            target=case.target,
            few_shot=few_shot,
            source=source,
            source_rows=case.source_rows,
            regime=case.regime,
            config=config,
            seed=case.seed,
        )
        with torch_threads(1):
            adapted = onboarding.adapt(strategy, few_shot)
            try:
                stated = expectation(onboarding, adapted, strategy, case.test)
            except TransferError:
                continue  # nothing is stated
            scores = adapted.score(view, case.test)
        top1, top5 = (_mean_top(dataset, case, scores, several) for several in (1, 5))
        row = {"top1": top1, "top5": top5}
        for name, true, said in (("top1", top1, stated.top1), ("top5", top5, stated.top5)):
            row[f"{name}_covered"] = float(said.low <= true <= said.high)
            row[f"{name}_width"] = said.high - said.low
            row[f"{name}_expected"] = said.value
        found.append((k, row))
    return found


def _covered(rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    return {"runs": len(rows), **means}


def _mean_top(dataset: Dataset, case: Case, scores: np.ndarray, several: int) -> float:
    latency = dataset.latency_secs[case.test, dataset.column(case.target)]
    group = dataset.group[case.test]
    return float(
        np.mean([top_k(scores[group == one], latency[group == one], several) for one in np.unique(group)])
    )


def across(one: DeviceSet, how: How, samples: Sequence[int] = ACROSS) -> dict[str, Any] | None:
    """What devices of one kind of processor give one of another: None where all are of one kind."""
    names = tuple(map(str, one.dataset.device_ids))
    slots = [place for place, name in enumerate(HARDWARE_NAMES) if name.startswith("arch_")]
    kinds = {name: one.dataset.hardware[place, slots].tolist() for place, name in enumerate(names)}
    regime = Regime.BOTH_NEW
    selector = selector_named(how.selector)
    contenders = [
        Adapting(strategy, selector, strategy.name) for strategy in (SourceDevices(), Scratch(), Nearest())
    ]
    compared = [contender.name for contender in contenders]
    rows = []
    for target in names:
        for source in names:
            if kinds[source] == kinds[target]:
                continue
            pair = narrowed(one, (target, source))
            table = how.curve(pair, how.cases(pair, regime, targets=(target,)), contenders, samples)
            for k in samples:
                told = {name: table.estimate(regime, name, k) for name in compared}
                tau = {name: table.estimate(regime, name, k, "tau") for name in compared}
                rows.append(
                    {
                        "target": target,
                        "source": source,
                        "k": k,
                        "top1": _value(told["source_devices"]),
                        "scratch": _value(told["scratch"]),
                        "nearest": _value(told["nearest"]),
                        "less_scratch": interval(table.difference(regime, "source_devices", "scratch", k)),
                        "tau": _value(tau["source_devices"]),
                        "scratch_tau": _value(tau["scratch"]),
                    }
                )
    return {"set": one.name, "seeds": len(how.seeds), "rows": rows} if rows else None


def _value(estimate: Any) -> float | None:
    return None if estimate is None else round(estimate.value, 4)


def tell(done: int, total: int, case: Case, seconds: float | None = None) -> None:
    """A line for whoever waits."""
    took = "" if seconds is None else f": {seconds:.0f} s"
    print(
        f"{done}/{total} {case.regime} {case.target}, {case.split}, seed {case.seed}{took}",
        file=sys.stderr,
        flush=True,
    )
