"""What a new device's head is worth after k measured candidates: leave one device out, again and again.

Contenders are strategies of `transfer.adapt`, each with a way to choose the k candidates, and other people's
ways; all see the same dataset, in which whatever they may not see is taken out. The points of finished cases
are kept, a JSON file each, under a hash of everything that they follow from but the code: a curve that gains
a contender or a number of samples runs that alone.

What is new and what is held out: `benchmarks.onboarding_cases`. Called by `benchmarks.onboarding`;
knows no store. What was found is read by `benchmarks.onboarding_parts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from agents.records import Workload, WorkloadId, canonical_json, content_hash
from benchmarks.harness import kept, read_kept, say, stopwatch
from benchmarks.onboarding_cases import (
    Case,
    CasePlan,
    FewShot,
    FewShotSet,
    make_cases,
    situation_of,
    visible_dataset,
    with_few_shot,
)
from benchmarks.tables import interval
from fleet.onboarding.adaptation import Onboarding, expectation
from transfer.adapt.base import Regime, Strategy, is_enough
from transfer.adapt.sample_selection import Choice, Selector, choose_in_rounds
from transfer.arrays import Floats
from transfer.data.dataset import Dataset
from transfer.data.metrics import measure_workloads
from transfer.errors import TransferError
from transfer.model.fleet_tlp import FleetTLP
from transfer.model.inputs import torch_threads
from transfer.processes import run_each
from transfer.train.rows import TrainConfig
from transfer.train.state import digest
from transfer.train.training import train

#: Measured candidates of each point of the curve; the last point is always all there are.
SAMPLES = (0, 8, 32, 64, 256, 1024, 4096)
#: Up to here every seed is run; beyond, the first ones only, for draws differ less and cost more.
ALL_SEEDS_UP_TO = 1024
_SEEDS_BEYOND = 2
#: Name of a random choice, whose expectation is exact.
RANDOM = "random"


@dataclass(frozen=True)
class Adapting:
    """A strategy with a way to choose its samples."""

    strategy: Strategy
    selector: Selector
    #: In tables.
    name: str
    #: Whether what the head's first choices are expected to reach is noted as well (`Point.expected`).
    states: bool = False


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """How one contender did with k samples on the G workloads of a case's test rows."""

    contender: str
    regime: Regime
    target: str
    split: str
    seed: int
    #: Samples asked for; None for all there were.
    k: int | None
    #: Samples that were measured.
    measured: int
    #: The workloads, and a value of each.
    groups: list[int]
    top1: list[float]
    top5: list[float]
    tau: list[float]
    #: Wall seconds of adapting, without the model of the sources and without scoring.
    seconds: float
    #: Stated value, low and high by measure, where the contender states them.
    expected: dict[str, list[float]] | None = None


#: What is compared.
Contender = Adapting | FewShot
#: A number of samples, None for all there are, and who is asked with them.
Asked = tuple[int | None, Contender]


@dataclass(frozen=True, kw_only=True)
class CurvePlan:
    """What to run."""

    cases: CasePlan
    #: Of different names.
    contenders: tuple[Contender, ...]
    #: How baselines choose their samples.
    selector: Selector
    #: How source models are trained.
    config: TrainConfig
    samples: tuple[int, ...] = SAMPLES
    #: With a point of all that the target may measure.
    with_all: bool = True

    def asked(self, case: Case) -> list[Asked]:
        """Whom to ask with how many samples."""
        first = case.seed in self.cases.seeds[:_SEEDS_BEYOND]
        samples = [k for k in self.samples if k <= len(case.pool) and (first or k <= ALL_SEEDS_UP_TO)]
        every = [*samples, *([None] if self.with_all and first else [])]
        return [(k, contender) for k in every for contender in self.contenders]

    def about(self, contender: Contender) -> list[str]:
        """What the points of a contender follow from beside the case."""
        how = [self.selector.name]
        if isinstance(contender, Adapting):
            how = [repr(contender.strategy), contender.selector.name]
        # Selectors may look at the model of the sources, so baselines hang on its training too.
        return [contender.name, *how, repr(self.config)]


def run_curve(
    dataset: Dataset,
    workloads: Mapping[WorkloadId, Workload] | None,
    plan: CurvePlan,
    folder: Path,
    *,
    workers: int = 1,
) -> list[Point]:
    """Run every contender at every k on every case.

    Args:
        dataset: Candidates of devices of one family; no more devices than may be source devices.
        workloads: Of the dataset; without them random workloads are held out instead of networks.
        plan: What to run.
        folder: Gets the points of each case as it ends; what lies there already is not run again.
        workers: Processes; the result does not depend on it.

    Raises:
        DatasetError: There is nothing to judge.
        TransferError: A contender cannot be fitted, or a process died.
    """
    data = digest(
        dataset.latency_secs, dataset.failed, dataset.group, dataset.features.summary, dataset.hardware
    )

    def path(case: Case, asked: Asked) -> Path:
        k, contender = asked
        name = content_hash(
            canonical_json([case.regime.value, case.target, case.split, case.seed, k]),
            canonical_json(list(map(str, dataset.device_ids))),
            digest(case.pool, case.source_rows, case.test),
            data,
            canonical_json(plan.about(contender)),
        )
        return folder / f"point-{name}.json"

    cases = make_cases(dataset, workloads, plan.cases)
    missing = {
        number: found
        for number, case in enumerate(cases)
        if (found := [one for one in plan.asked(case) if read_kept(path(case, one)) is None])
    }
    jobs = [(cases[number], asked) for number, asked in missing.items()]
    run = partial(_run_case, dataset, plan=plan)
    made = run_each(run, jobs, workers, of="the onboarding curve", pieces="cases")
    for done, ((case, asked), points) in enumerate(zip(jobs, made, strict=True), start=1):
        for one, point in zip(asked, points, strict=True):
            kept(path(case, one), lambda point=point: {"point": msgspec.to_builtins(point)})  # type: ignore[misc]
        what = f"{case.regime} {case.target}, {case.split}, seed {case.seed}"
        say(f"{done}/{len(jobs)} {what}")
    every: list[Point] = []
    for case in cases:
        every.append(_judged(RANDOM, case, dataset, (0, 0), None, 0.0))
        values = [read_kept(path(case, one)) or {} for one in plan.asked(case)]
        every += [msgspec.convert(one["point"], Point) for one in values if one["point"] is not None]
    return every


def _run_case(dataset: Dataset, job: tuple[Case, Sequence[Asked]], plan: CurvePlan) -> list[Point | None]:
    """What each of some contenders finds on a case, on one thread; None where it can say nothing."""
    with torch_threads(1):
        return list(_points(dataset, *job, plan))


def _points(
    dataset: Dataset, case: Case, contenders: Sequence[Asked], plan: CurvePlan
) -> Iterator[Point | None]:
    view = visible_dataset(dataset, case)
    situation = situation_of(view, case)

    def source_model() -> FleetTLP:
        return situation.once(
            "model of sources",
            lambda: (
                train(
                    view, case.source_rows, config=plan.config, seed=case.seed, devices=situation.sources
                ).model
            ),
        )

    truth = dataset.latency_secs[:, dataset.column(case.target)]
    choice = Choice(
        dataset=view, target=case.target, pool=case.pool, source_model=source_model, seed=case.seed
    )
    for k, contender in contenders:
        selector = contender.selector if isinstance(contender, Adapting) else plan.selector
        rows = situation.once(
            f"few-shot set {selector.name} {k}",
            lambda k=k, selector=selector: choose_in_rounds(  # type: ignore[misc]
                selector, choice, truth, len(case.pool) if k is None else k
            ),
        )
        few_shot = FewShotSet(rows, truth[rows])
        count = k, len(rows)
        if not isinstance(contender, Adapting):
            elapsed = stopwatch()
            scores = contender.score(situation, few_shot)
            seconds = elapsed()
            yield None if scores is None else _judged(contender.name, case, dataset, count, scores, seconds)
            continue
        if not is_enough(contender.strategy, dataset.group[rows], truth[rows]):
            yield None
            continue
        onboarding = Onboarding(
            dataset=with_few_shot(view, case.target, few_shot) if len(rows) else view,
            target=case.target,
            few_shot=rows,
            source=source_model(),
            source_rows=case.source_rows,
            regime=case.regime,
            config=plan.config,
            seed=case.seed,
        )
        elapsed = stopwatch()
        adapted = onboarding.adapt(contender.strategy, rows)
        seconds = elapsed()
        expected = None
        if contender.states:
            with suppress(TransferError):  # with too few samples nothing is stated
                stated = expectation(onboarding, adapted, contender.strategy, case.test)
                expected = {"top1": interval(stated.top1) or [], "top5": interval(stated.top5) or []}
        scores = adapted.score(view, case.test)
        yield _judged(contender.name, case, dataset, count, scores, seconds, expected)


def _judged(
    name: str,
    case: Case,
    dataset: Dataset,
    samples: tuple[int | None, int],
    scores: Floats | None,
    seconds: float,
    expected: dict[str, list[float]] | None = None,
) -> Point:
    """Judge scores of the test rows; a random choice where there are none.

    Args:
        name: Of the contender.
        case: What is judged.
        dataset: With the truth.
        samples: Asked for and measured.
        scores: (test rows,).
        seconds: Of adapting.
        expected: What was stated.
    """
    kind = "random_" if scores is None else ""
    names = (f"{kind}top1_by_workload", f"{kind}top5_by_workload", "tau_by_workload")
    # Of constant scores tau is 0.
    judged_scores = np.zeros(len(case.test)) if scores is None else scores
    truth = dataset.latency_secs[case.test, dataset.column(case.target)]
    groups, _, values = measure_workloads(names, judged_scores, truth, dataset.group[case.test])
    top1, top5, tau = (values[one].tolist() for one in names)
    return Point(
        contender=name,
        regime=case.regime,
        target=case.target,
        split=case.split,
        seed=case.seed,
        k=samples[0],
        measured=samples[1],
        groups=groups.tolist(),
        top1=top1,
        top5=top5,
        tau=tau,
        seconds=seconds,
        expected=expected,
    )
