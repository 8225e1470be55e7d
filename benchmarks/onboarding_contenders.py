"""One case of the onboarding curve: what each contender makes of k samples, judged on what is held out.

Contenders are strategies of `transfer.adapt`, each with a way to choose the k candidates, and other people's
ways; all see the same dataset, in which whatever they may not see is taken out. Called by
`benchmarks.onboarding_curve`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.onboarding_cases import (
    Case,
    FewShotSet,
    Situation,
    situation_of,
    visible_dataset,
    with_few_shot,
)
from fleet.onboarding.adaptation import Onboarding, expectation
from transfer.adapt.base import Regime, Strategy, is_enough
from transfer.adapt.sample_selection import Choice, Selector, choose_in_rounds
from transfer.arrays import Floats
from transfer.data.dataset import Dataset
from transfer.data.metrics import measure_workloads
from transfer.errors import TransferError
from transfer.model.fleet_tlp import FleetTLP
from transfer.model.inputs import torch_threads
from transfer.train.config import TrainConfig
from transfer.train.training import train


@dataclass(frozen=True, slots=True)
class Adapting:
    """A strategy with a way to choose its samples."""

    strategy: Strategy
    selector: Selector
    #: In tables.
    name: str
    #: Whether what the head's first choices are expected to reach is noted as well (`expected`).
    states: bool = False


class Baseline(Protocol):
    """What others would do with a few measurements of a new device."""

    @property
    def name(self) -> str:
        """In tables."""
        ...

    def score(self, situation: Situation, few_shot: FewShotSet) -> Floats | None:
        """(test rows,) scores, higher is faster; None where it does not apply."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Point:
    """How one contender did with k samples on the G workloads of a case's test rows; arrays are (G,)."""

    contender: str
    regime: Regime
    target: str
    split: str
    seed: int
    #: Samples asked for; None for all there were.
    k: int | None
    #: Samples that were measured.
    measured: int
    groups: NDArray[np.int32]
    top1: NDArray[np.float64]
    top5: NDArray[np.float64]
    tau: NDArray[np.float64]
    #: Wall seconds of adapting, without the model of the sources and without scoring.
    seconds: float
    notes: dict[str, Any] = field(default_factory=dict)


#: What is compared.
Contender = Adapting | Baseline
#: A number of samples, None for all there are, and who is asked with them.
Asked = tuple[int | None, Contender]


def run_case(
    dataset: Dataset, case: Case, contenders: Sequence[Asked], selector: Selector, config: TrainConfig
) -> list[Point | None]:
    """What each of `contenders` finds on one case, on one thread; None where it can say nothing.

    Args:
        dataset: With all measurements; what may not be seen is taken out here.
        case: Who is new, and what is held out.
        contenders: Each with its number of samples.
        selector: How those that are no strategies choose their samples.
        config: How the model of the sources is trained.
    """
    with torch_threads(1):
        return list(_points(dataset, case, contenders, selector, config))


def _points(
    dataset: Dataset, case: Case, contenders: Sequence[Asked], own_selector: Selector, config: TrainConfig
) -> Iterator[Point | None]:
    view = visible_dataset(dataset, case)
    situation = situation_of(view, case)
    sources = situation.sources

    def source_model() -> FleetTLP:
        return situation.once(
            "model of sources",
            lambda: train(view, case.source_rows, config=config, seed=case.seed, devices=sources).model,
        )

    truth = dataset.latency_secs[:, dataset.column(case.target)]
    choice = Choice(
        dataset=view, target=case.target, pool=case.pool, source_model=source_model, seed=case.seed
    )
    for k, contender in contenders:
        selector = contender.selector if isinstance(contender, Adapting) else own_selector
        rows = situation.once(
            f"few-shot set {selector.name} {k}",
            lambda k=k, selector=selector: choose_in_rounds(  # type: ignore[misc]
                selector, choice, truth, len(case.pool) if k is None else k
            ),
        )
        few_shot = FewShotSet(rows, truth[rows])
        scores: Floats | None = None
        notes: dict[str, Any] = {}
        started = time.perf_counter()
        if not isinstance(contender, Adapting):
            scores = contender.score(situation, few_shot)
            seconds = time.perf_counter() - started
        elif is_enough(contender.strategy, dataset.group[rows], truth[rows]):
            model = source_model()
            onboarding = Onboarding(
                dataset=with_few_shot(view, case.target, few_shot) if len(rows) else view,
                target=case.target,
                few_shot=rows,
                source=model,
                source_rows=case.source_rows,
                regime=case.regime,
                config=config,
                seed=case.seed,
            )
            started = time.perf_counter()
            adapted = onboarding.adapt(contender.strategy, rows)
            seconds = time.perf_counter() - started
            scores, notes = adapted.score(view, case.test), dict(adapted.notes)
            if contender.states:
                with suppress(TransferError):  # with too few samples nothing is stated
                    stated = expectation(onboarding, adapted, contender.strategy, case.test)
                    figures = {"top1": stated.top1, "top5": stated.top5}
                    notes["expected"] = {
                        name: [one.value, one.low, one.high] for name, one in figures.items()
                    }
        yield (
            None
            if scores is None
            else judged(contender.name, case, dataset, k, len(rows), scores, seconds, notes)
        )


def judged(
    name: str,
    case: Case,
    dataset: Dataset,
    k: int | None,
    measured: int,
    scores: Floats | None,
    seconds: float,
    notes: Mapping[str, Any] | None = None,
) -> Point:
    """Judge scores of the test rows; a random choice where there are none."""
    kind = "random_" if scores is None else ""
    top1, top5 = (f"{kind}{name}_by_workload" for name in ("top1", "top5"))
    # Of constant scores tau is 0.
    judged_scores = np.zeros(len(case.test)) if scores is None else scores
    names = (top1, top5, "tau_by_workload")
    truth = dataset.latency_secs[case.test, dataset.column(case.target)]
    # All measures would take longer than the fit.
    groups, _, values = measure_workloads(names, judged_scores, truth, dataset.group[case.test])
    return Point(
        contender=name,
        regime=case.regime,
        target=case.target,
        split=case.split,
        seed=case.seed,
        k=k,
        measured=measured,
        groups=groups,
        top1=values[top1],
        top5=values[top5],
        tau=values["tau_by_workload"],
        seconds=seconds,
        notes=dict(notes or {}),
    )
