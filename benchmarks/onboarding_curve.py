"""What a new device's head is worth after k measured candidates: leave one device out, again and again.

Contenders are strategies of `transfer.adapt`, each with a way to choose the k candidates, and other people's
ways; all see the same dataset, in which whatever they may not see is taken out. The points of finished cases
are kept, a JSON file each, under a hash of everything that they follow from but the code: a curve that gains
a contender or a number of samples runs that alone.

What is new and what is held out: `benchmarks.onboarding_cases`. Called by `benchmarks.onboarding`;
knows no store. What was found is read by `benchmarks.onboarding_parts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from agents.records import canonical_json, content_hash
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
from fleet.onboarding.adaptation import expectation
from transfer.adapt.base import Onboarding, Regime, Strategy, is_enough
from transfer.adapt.sample_selection import SELECTORS, Choice, Selector, choose_in_rounds
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

if TYPE_CHECKING:
    from benchmarks.onboarding_parts import DeviceSet

#: Measured candidates of each point of the curve; the last point is always all there are.
SAMPLES = (0, 8, 32, 64, 256, 1024, 4096)
#: Up to here every seed is run; beyond, the first ones only, for draws differ less and cost more.
ALL_SEEDS_UP_TO = 1024
_SEEDS_BEYOND = 2
#: How samples are chosen where a contender does not say.
SELECTOR = next(iter(SELECTORS.values()))
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


def adapting(*strategies: Strategy) -> list[Adapting]:
    """Strategies as contenders, with the samples of the default way to choose."""
    return [Adapting(one, SELECTOR, one.name) for one in strategies]


@dataclass(frozen=True, kw_only=True, eq=False)
class Experiment:
    """Devices that are left out in turn, and what all that is run on them shares.

    Attributes:
        devices: Of one family; no more than may be source devices.
        plan: The divisions, whatever the regime.
        config: How source models are trained.
        folder: Gets the points of each case as it ends; what lies there already is not run again.
        workers: Processes; the result does not depend on it.
    """

    devices: DeviceSet
    plan: CasePlan
    config: TrainConfig
    folder: Path
    workers: int = 1

    def cases(self, regime: Regime, **changes: Any) -> CasePlan:
        """The divisions of a regime."""
        return replace(self.plan, regimes=(regime,), **changes)

    def points(
        self,
        plan: CasePlan,
        contenders: Sequence[Contender],
        samples: Sequence[int],
        *,
        with_all: bool = False,
    ) -> list[Point]:
        """Run every contender at every number of samples on every case.

        Args:
            plan: Which divisions.
            contenders: Of different names.
            samples: Numbers of samples.
            with_all: With a point of all that the target may measure.

        Raises:
            DatasetError: There is nothing to judge.
            TransferError: A contender cannot be fitted, or a process died.
        """
        dataset = self.devices.dataset

        def asked(case: Case) -> list[Asked]:
            first = case.seed in plan.seeds[:_SEEDS_BEYOND]
            counts = [k for k in samples if k <= len(case.pool) and (first or k <= ALL_SEEDS_UP_TO)]
            every = [*counts, *([None] if with_all and first else [])]
            return [(k, contender) for k in every for contender in contenders]

        cases = make_cases(dataset, self.devices.workloads, plan)
        planned = [(case, [(one, self._path(case, one)) for one in asked(case)]) for case in cases]
        missing = [
            (case, absent)
            for case, pairs in planned
            if (absent := [(one, path) for one, path in pairs if read_kept(path) is None])
        ]
        jobs = [(case, [one for one, _ in absent]) for case, absent in missing]
        run = partial(_run_case, dataset, self.config)
        made = run_each(run, jobs, self.workers, of="the onboarding curve", pieces="cases")
        for done, ((case, absent), points) in enumerate(zip(missing, made, strict=True), start=1):
            for (_, path), point in zip(absent, points, strict=True):
                kept(path, lambda point=point: {"point": msgspec.to_builtins(point)})  # type: ignore[misc]
            say(f"{done}/{len(jobs)} {case.regime} {case.target}, {case.split}, seed {case.seed}")
        every: list[Point] = []
        for case, pairs in planned:
            every.append(_judged(RANDOM, case, dataset, (0, 0), None, 0.0))
            values = [read_kept(path) or {} for _, path in pairs]
            every += [msgspec.convert(one["point"], Point) for one in values if one["point"] is not None]
        return every

    def _path(self, case: Case, asked: Asked) -> Path:
        """The file of a point, named by all that it follows from."""
        dataset, (k, contender) = self.devices.dataset, asked
        how = [SELECTOR.name]
        if isinstance(contender, Adapting):
            how = [contender.strategy.name, contender.selector.name]
        name = content_hash(
            canonical_json([case.regime.value, case.target, case.split, case.seed, k]),
            canonical_json(list(map(str, dataset.device_ids))),
            digest(case.pool, case.source_rows, case.test),
            self._data,
            # Selectors may look at the model of the sources, so baselines hang on its training too.
            canonical_json([contender.name, *how, repr(self.config)]),
        )
        return self.folder / f"point-{name}.json"

    @cached_property
    def _data(self) -> str:
        dataset = self.devices.dataset
        return digest(
            dataset.latency_secs, dataset.failed, dataset.group, dataset.features.summary, dataset.hardware
        )


def _run_case(dataset: Dataset, config: TrainConfig, job: tuple[Case, Sequence[Asked]]) -> list[Point | None]:
    """What each of some contenders finds on a case, on one thread; None where it can say nothing."""
    with torch_threads(1):
        return list(_points(dataset, config, *job))


def _points(
    dataset: Dataset, config: TrainConfig, case: Case, contenders: Sequence[Asked]
) -> Iterator[Point | None]:
    view = visible_dataset(dataset, case)
    situation = situation_of(view, case)

    def source_model() -> FleetTLP:
        return situation.once(
            "model of sources",
            lambda: (
                train(view, case.source_rows, config=config, seed=case.seed, devices=situation.sources).model
            ),
        )

    truth = dataset.latency_secs[:, dataset.column(case.target)]
    choice = Choice(
        dataset=view, target=case.target, pool=case.pool, source_model=source_model, seed=case.seed
    )
    for k, contender in contenders:
        selector = contender.selector if isinstance(contender, Adapting) else SELECTOR
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
            config=config,
            seed=case.seed,
        )
        elapsed = stopwatch()
        adapted = contender.strategy.adapt(onboarding)
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
