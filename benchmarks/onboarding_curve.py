"""What a new device's head is worth after k measured candidates: leave one device out, again and again.

Contenders are strategies of `transfer.adapt`, each with a way to choose the k candidates, and other people's
ways; all see the same dataset, in which whatever they may not see is taken out. Finished cases are kept, a
JSON file each, under a hash of everything that their points follow from but the code.

What is new and what is held out: `benchmarks.onboarding_cases`. Called by `benchmarks.onboarding`;
knows no store. What was found is read by `benchmarks.onboarding_parts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from agents.records import canonical_json, content_hash
from benchmarks.harness import Figures, run_kept, stopwatch
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
from transfer.data.metrics import evaluate_ranking
from transfer.errors import TransferError
from transfer.model.fleet_tlp import FleetTLP
from transfer.model.inputs import torch_threads
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
MEASURES = ("top1", "top5", "tau")


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
    #: The workloads, and by measure a value of each.
    groups: list[int]
    values: dict[str, list[float]]
    #: Wall seconds of adapting, without the model of the sources and without scoring.
    seconds: float = 0.0
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
        jobs: dict[Path, tuple[Case, list[Asked]]] = {}
        for case in make_cases(self.devices.dataset, self.devices.workloads, plan):
            first = case.seed in plan.seeds[:_SEEDS_BEYOND]
            counts = [k for k in samples if k <= len(case.pool) and (first or k <= ALL_SEEDS_UP_TO)]
            every = [*counts, *([None] if with_all and first else [])]
            asked: list[Asked] = [(k, contender) for k in every for contender in contenders]
            jobs[self._path(case, asked)] = case, asked
        run = partial(_run_case, self.devices.dataset, self.config)
        found = run_kept(run, jobs, self.workers, of="the onboarding curve")
        return [msgspec.convert(one, Point) for figures in found for one in figures["points"]]

    def _path(self, case: Case, asked: Sequence[Asked]) -> Path:
        """The file of a case, named by all that its points follow from."""
        told: list[Any] = [case.regime.value, case.target, case.split, case.seed, repr(self.config)]
        for k, one in asked:
            how = (one.strategy.name, one.selector.name) if isinstance(one, Adapting) else ()
            told += [k, one.name, *how]
        rows = digest(case.pool, case.source_rows, case.test)
        return self.folder / f"case-{content_hash(canonical_json(told), rows, self._data)}.json"

    @cached_property
    def _data(self) -> str:
        dataset = self.devices.dataset
        arrays = (dataset.latency_secs, dataset.failed, dataset.group, dataset.features.summary)
        return digest(*arrays, dataset.hardware, np.array(dataset.device_ids))


def _run_case(dataset: Dataset, config: TrainConfig, job: tuple[Case, Sequence[Asked]]) -> Figures:
    """What each of some contenders finds on a case, on one thread, as far as it can say anything."""
    with torch_threads(1):
        return {"points": msgspec.to_builtins(list(_points(dataset, config, *job)))}


def _points(
    dataset: Dataset, config: TrainConfig, case: Case, contenders: Sequence[Asked]
) -> Iterator[Point]:
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
    yield judged(RANDOM, case, dataset, (0, 0), None)
    for k, contender in contenders:
        selector = contender.selector if isinstance(contender, Adapting) else SELECTOR
        rows = situation.once(
            f"few-shot set {selector.name} {k}",
            lambda k=k, selector=selector: choose_in_rounds(  # type: ignore[misc]
                selector, choice, truth, len(case.pool) if k is None else k
            ),
        )
        few_shot = FewShotSet(rows, truth[rows])
        told: dict[str, Any] = {}
        if not isinstance(contender, Adapting):
            elapsed = stopwatch()
            scores = contender.score(situation, few_shot)
            if scores is None:
                continue
            seconds = elapsed()
        elif not is_enough(contender.strategy, dataset.group[rows], truth[rows]):
            continue
        else:
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
            if contender.states:
                with suppress(TransferError):  # with too few samples nothing is stated
                    stated = expectation(onboarding, adapted, contender.strategy, case.test)
                    told = {"top1": interval(stated.top1) or [], "top5": interval(stated.top5) or []}
            scores = adapted.score(view, case.test)
        about = {"seconds": seconds, "expected": told or None}
        yield judged(contender.name, case, dataset, (k, len(rows)), scores, about)


def judged(
    name: str,
    case: Case,
    dataset: Dataset,
    samples: tuple[int | None, int],
    scores: Floats | None,
    about: Mapping[str, Any] | None = None,
    measures: Sequence[str] = MEASURES,
) -> Point:
    """Judge scores of the test rows; a random choice where there are none.

    Args:
        name: Of the contender.
        case: What is judged.
        dataset: With the truth.
        samples: Asked for and measured.
        scores: (test rows,).
        about: Further fields of the point.
        measures: Which of `MEASURES`.
    """
    kind = "random_" if scores is None else ""
    names = {one: f"{kind * one.startswith('top')}{one}" for one in measures}
    # Of constant scores tau is 0.
    judged_scores = np.zeros(len(case.test)) if scores is None else scores
    truth = dataset.latency_secs[case.test, dataset.column(case.target)]
    found = evaluate_ranking(judged_scores, truth, dataset.group[case.test], names=names.values())
    return Point(
        contender=name,
        regime=case.regime,
        target=case.target,
        split=case.split,
        seed=case.seed,
        k=samples[0],
        measured=samples[1],
        groups=found.groups.tolist(),
        values={one: found.values[full].tolist() for one, full in names.items()},
        **(about or {}),
    )
