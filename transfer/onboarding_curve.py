"""What a new device's head is worth after k measured candidates: leave one device out, again and again.

Contenders are strategies of `transfer.adapt`, each with a way to choose the k candidates, and baselines; all
see the same dataset, in which whatever they may not see is taken out. What is new and what is held out:
`transfer.onboarding_cases`. Called by `benchmarks.onboarding` and by `transfer.adapt.standings`; knows
neither stores nor files. What was found is read by `transfer.onboarding_table`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from agents.records import Workload, WorkloadId
from transfer.adapt.base import Strategy
from transfer.adapt.choice import Choice
from transfer.adapt.select import Selector
from transfer.baselines.base import Rows, Scores
from transfer.baselines.few_shot import FewShot
from transfer.baselines.situation import Situation, Support, with_support
from transfer.dataset import Dataset
from transfer.errors import TransferError
from transfer.model import MultiTaskTLP
from transfer.onboarding_cases import Case, CasePlan, Regime, make_cases, shown
from transfer.onboarding_points import KeptPoints, Point
from transfer.ranking import kendall_tau, random_top_k, top_k
from transfer.train import TrainConfig, torch_threads, train, trainable_devices

#: Measured candidates of each point of the curve; the last point is always all there are.
SAMPLES = (0, 8, 32, 64, 256, 1024, 4096)
#: Up to here every seed is run; beyond, the first ones only, for draws differ less and cost more.
ALL_SEEDS_UP_TO = 1024
_SEEDS_BEYOND = 2


@runtime_checkable
class Prepared(Protocol):
    """A strategy with something to do ahead of any onboarding, once for given records of the siblings."""

    def prepare(
        self, dataset: Dataset, target_device: str, *, source_rows: Rows, config: TrainConfig
    ) -> object:
        """Do it; what comes of it is kept by the strategy."""
        ...


@dataclass(frozen=True, slots=True)
class Adapting:
    """A strategy with a way to choose its samples."""

    strategy: Strategy
    selector: Selector
    #: In tables.
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePlan:
    """What to run."""

    cases: CasePlan
    contenders: tuple[Adapting | FewShot, ...]
    #: How baselines choose their samples.
    selector: Selector
    #: How source models are trained.
    config: TrainConfig
    samples: tuple[int, ...] = SAMPLES
    #: With a point of all that the target may measure.
    with_all: bool = True


def run_curve(
    dataset: Dataset,
    workloads: Mapping[WorkloadId, Workload] | None,
    plan: CurvePlan,
    *,
    workers: int = 1,
    until: float = math.inf,
    on_case: Callable[[int, int, Case, float], None] | None = None,
    kept: Path | None = None,
) -> list[Point]:
    """Run every contender at every k on every case.

    Args:
        dataset: Candidates of devices of one family; no more devices than may be siblings.
        workloads: Of the dataset; without them random workloads are held out instead of networks.
        plan: What to run.
        workers: Processes; the result does not depend on it.
        until: No case of a later seed is begun after this value of `time.monotonic`, and no points of seeds
            that did not run on every case are given. The first seed runs in any way.
        on_case: Told of each finished case: how many are done, of how many, which, its seconds.
        kept: Folder of the points of cases that finished before: those are not run again.

    Raises:
        DatasetError: There is nothing to judge.
        TransferError: A contender cannot be fitted, or a process died.
    """
    cases = make_cases(dataset, workloads, plan.cases)
    points: dict[int, list[Point]] = {}
    done = 0
    for seed in plan.cases.seeds:
        if points and time.monotonic() > until:
            break
        mine = [case for case in cases if case.seed == seed]
        found_of: list[Point] = []
        ran = 0
        for case, found, seconds in _run(mine, dataset, plan, workers, kept):
            found_of += found
            ran, done = ran + 1, done + 1
            if on_case is not None:
                on_case(done, len(cases), case, seconds)
            if points and time.monotonic() > until:
                break
        if ran == len(mine):
            points[seed] = found_of
    return [point for found in points.values() for point in found]


def run_case(dataset: Dataset, case: Case, plan: CurvePlan) -> list[Point]:
    """Every contender at every k on one case, on one thread."""
    with torch_threads(1):
        return list(_points(dataset, case, plan))


def situation_of(view: Dataset, case: Case) -> Situation:
    """The situation of a case.

    Args:
        view: What of the dataset may be seen (`shown`).
        case: The new device, and what is to be put in order.
    """
    return Situation(
        dataset=view,
        target=case.target,
        sources=tuple(one for one in trainable_devices(view, case.source_rows) if one != case.target),
        source_rows=case.source_rows,
        test=case.test,
        seed=case.seed,
    )


def _points(dataset: Dataset, case: Case, plan: CurvePlan) -> Iterator[Point]:
    view = shown(dataset, case)
    situation = situation_of(view, case)
    sources = situation.sources

    def source_model() -> MultiTaskTLP:
        return situation.once(
            "model of sources",
            lambda: train(view, case.source_rows, config=plan.config, seed=case.seed, devices=sources).model,
        )

    truth = dataset.latency_secs[:, dataset.column(case.target)]
    yield _judged("random", case, dataset, 0, 0, None, 0.0)
    for k in [*plan.samples, *([None] if plan.with_all else [])]:
        if k is not None and k > len(case.pool):
            continue
        if (k is None or k > ALL_SEEDS_UP_TO) and case.seed not in plan.cases.seeds[:_SEEDS_BEYOND]:
            continue
        for contender in plan.contenders:
            selector = contender.selector if isinstance(contender, Adapting) else plan.selector
            rows = situation.once(
                f"support {selector.name} {k}",
                lambda k=k, selector=selector: choose_support(  # type: ignore[misc]
                    selector, situation, case.pool, len(case.pool) if k is None else k, truth, source_model
                ),
            )
            support = Support(rows, truth[rows])
            if isinstance(contender, Adapting):
                if not _is_enough(contender.strategy, dataset, support):
                    continue
                # What is done ahead of an onboarding is not counted as adapting.
                model = source_model()
                seen = with_support(view, case.target, support) if len(rows) else view
                if isinstance(contender.strategy, Prepared):
                    contender.strategy.prepare(
                        seen, case.target, source_rows=case.source_rows, config=plan.config
                    )
                started = time.perf_counter()
                adapted = contender.strategy.adapt(
                    model,
                    seen,
                    case.target,
                    rows,
                    source_rows=case.source_rows,
                    config=plan.config,
                    seed=case.seed,
                )
                seconds = time.perf_counter() - started
                scores: Scores | None = adapted.score(view, case.test)
                notes = dict(adapted.notes)
            else:
                started = time.perf_counter()
                scores, notes = contender.score(situation, support), {}
                seconds = time.perf_counter() - started
            if scores is not None:
                yield _judged(contender.name, case, dataset, k, len(rows), scores, seconds, notes)


def choose_support(
    selector: Selector,
    situation: Situation,
    pool: Rows,
    count: int,
    truth: NDArray[np.float64],
    source_model: Callable[[], MultiTaskTLP],
) -> Rows:
    """Rows of the pool that the target measures; in rounds where the selector looks at what was measured."""
    if not count:
        return np.zeros(0, dtype=np.int64)
    if count >= len(pool):
        return np.sort(pool)
    choice = Choice(
        dataset=situation.dataset,
        target=situation.target,
        pool=pool,
        source_model=source_model,
        seed=situation.seed,
    )
    return np.sort(selector.choose(choice, count))


def _is_enough(strategy: Strategy, dataset: Dataset, support: Support) -> bool:
    """Whether a strategy can work with a support: enough samples, and a pair to compare if it needs any."""
    if not strategy.least_samples:
        return True
    known = np.isfinite(support.latency_secs)
    pairs = np.bincount(dataset.group[support.rows[known]], minlength=1).max(initial=0)
    return int(known.sum()) >= strategy.least_samples and pairs >= 2


def _judged(
    name: str,
    case: Case,
    dataset: Dataset,
    k: int | None,
    measured: int,
    scores: Scores | None,
    seconds: float,
    notes: Mapping[str, Any] | None = None,
) -> Point:
    """Judge scores of the test rows; a random choice where there are none."""
    latency = dataset.latency_secs[case.test, dataset.column(case.target)]
    group = dataset.group[case.test]
    groups = np.unique(group)
    top1, top5, tau = (np.zeros(len(groups)) for _ in range(3))
    for place, one in enumerate(groups):
        mine = group == one
        if scores is None:
            top1[place], top5[place] = (random_top_k(latency[mine], several) for several in (1, 5))
            continue
        top1[place], top5[place] = (top_k(scores[mine], latency[mine], several) for several in (1, 5))
        tau[place] = kendall_tau(scores[mine], latency[mine])
    return Point(
        contender=name,
        regime=case.regime,
        target=case.target,
        split=case.split,
        seed=case.seed,
        k=k,
        measured=measured,
        groups=groups.astype(np.int32),
        top1=top1,
        top5=top5,
        tau=tau,
        seconds=seconds,
        notes=dict(notes or {}),
    )


def _timed(dataset: Dataset, case: Case, plan: CurvePlan) -> tuple[list[Point], float]:
    started = time.perf_counter()
    found = run_case(dataset, case, plan)
    return found, time.perf_counter() - started


def _run(
    cases: Sequence[Case], dataset: Dataset, plan: CurvePlan, workers: int, kept: Path | None
) -> Iterator[tuple[Case, list[Point], float]]:
    todo = []
    for case in cases:
        found = None if kept is None else KeptPoints(kept, _about(plan, case)).get(dataset, case)
        if found is None:
            todo.append(case)
        else:
            yield case, found, 0.0
    for case, found, seconds in _run_anew(todo, dataset, plan, workers):
        if kept is not None:
            KeptPoints(kept, _about(plan, case)).put(dataset, case, found)
        yield case, found, seconds


def _about(plan: CurvePlan, case: Case) -> list[Any]:
    """What the points of a case follow from beside the records."""
    return [
        [
            [one.name, repr(one.strategy), one.selector.name] if isinstance(one, Adapting) else one.name
            for one in plan.contenders
        ],
        plan.selector.name,
        repr(plan.config),
        list(plan.samples),
        plan.with_all,
        case.seed in plan.cases.seeds[:_SEEDS_BEYOND],
    ]


def _run_anew(
    cases: Sequence[Case], dataset: Dataset, plan: CurvePlan, workers: int
) -> Iterator[tuple[Case, list[Point], float]]:
    if workers <= 1 or len(cases) <= 1:
        for case in cases:
            yield case, *_timed(dataset, case, plan)
        return
    with ProcessPoolExecutor(min(workers, len(cases)), get_context("spawn")) as pool:
        futures = [pool.submit(_timed, dataset, case, plan) for case in cases]
        try:
            for case, future in zip(cases, futures, strict=True):
                yield case, *future.result()
        except BrokenProcessPool as error:
            raise TransferError(
                f"a worker of the onboarding curve died (killed, or out of memory) in one of {len(cases)} "
                "cases; run it again with one worker"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


__all__ = [
    "SAMPLES",
    "Adapting",
    "Case",
    "CurvePlan",
    "Point",
    "Regime",
    "choose_support",
    "make_cases",
    "run_case",
    "run_curve",
    "situation_of",
]
