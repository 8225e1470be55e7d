"""Adapt a new device and say what its head is worth: the part that measuring and replaying share.

Called by `fleet.onboarding.onboarding` (a real device) and `fleet.onboarding.replay` (a recorded one).
Imports torch when called.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agents.records import WorkloadId
from fleet.errors import FleetError
from fleet.json_types import JsonDict

if TYPE_CHECKING:
    from transfer.adapt.base import Adapted, Regime, Strategy
    from transfer.adapt.expectation import Expectation
    from transfer.data.dataset import Dataset
    from transfer.model.fleet_tlp import FleetTLP
    from transfer.train.config import TrainConfig

Rows = NDArray[np.int64]

#: The strategy that checks its default on held-back samples.
AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Onboarding:
    """What the head of a new device, the target, is made from."""

    #: Candidates of the target and its source devices; of the target only the samples are looked at.
    dataset: Dataset
    target: str
    #: Rows of the samples.
    few_shot: Rows
    #: Model of the source devices, without a head for the target.
    source: FleetTLP
    #: Rows whose latencies on source devices may be seen.
    source_rows: Rows
    #: What the head will be asked.
    regime: Regime
    #: How the source model was trained.
    config: TrainConfig
    #: Of everything random.
    seed: int
    #: Whether workloads are held out of all rows.
    holds_out: bool = False
    #: Workloads that the source model has learnt from, those of other rows too.
    inherited: frozenset[WorkloadId] = frozenset()
    #: Model that the source model's weights go back to (`fleet.onboarding.judgement.origin_of`).
    origin: str = ""

    @property
    def latency(self) -> NDArray[np.float64]:
        """(N,) the target's seconds; only those of the few-shot set may be read."""
        latency_secs: NDArray[np.float64] = self.dataset.latency_secs[:, self.dataset.column(self.target)]
        return latency_secs

    def held_back(self, strategy: Strategy, regime: Regime) -> NDArray[np.float64]:
        """(k,) scores of the samples by heads made without them, in turn, asked as in a regime; NaN: none."""
        from transfer.adapt.guard import folds, held_back_scores

        rows = self.few_shot
        scores = np.full(len(rows), np.nan)
        for held in folds(self.dataset.group[rows], regime, self.seed):
            scores[held] = held_back_scores(partial(self.adapt, strategy), self.dataset, rows, held, regime)
        return scores

    def adapt(self, strategy: Strategy, rows: Rows, hidden: Rows | None = None) -> Adapted:
        """Make a head from some of the samples, without what source devices measured of `hidden` rows."""
        from transfer.adapt.base import FewShotTask

        task = FewShotTask(
            source=self.source,
            dataset=self.dataset,
            target=self.target,
            few_shot=rows,
            source_rows=self.source_rows if hidden is None else np.setdiff1d(self.source_rows, hidden),
            config=self.config,
            seed=self.seed,
        )
        return strategy.adapt(task)


def strategy_for(
    name: str, regime: Regime, starts: Path | None = None, *, is_alone: bool = False
) -> Strategy:
    """The strategy of this name, `auto` included.

    Args:
        name: A name of `transfer.adapt.registry`, or `auto`.
        regime: What the head will be asked.
        starts: Folder of the source model's version, which keeps what strategies make of it once.
        is_alone: Whether nothing is known of source devices but their heads.

    Raises:
        FleetError: There is none.
    """
    from transfer.adapt.registry import GUARDED, GUARDED_ALONE, auto, strategies

    by_name = strategies(starts)
    if name == AUTO:
        return auto(regime, by_name, GUARDED_ALONE if is_alone else GUARDED)
    if name not in by_name:
        raise FleetError(f"unknown strategy {name!r}; known: {AUTO}, {', '.join(by_name)}")
    return by_name[name]


def expectation(onboarding: Onboarding, adapted: Adapted, strategy: Strategy, ranked: Rows) -> Expectation:
    """What the first choices of a head, made by `strategy`, among the rows `ranked` will reach.

    Raises:
        TransferError: There are too few samples.
    """
    from transfer.adapt.base import Regime
    from transfer.adapt.expectation import expect
    from transfer.adapt.guard import for_check

    scores = onboarding.held_back(for_check(strategy, onboarding.regime), onboarding.regime)
    has_score = np.isfinite(scores)
    rows = onboarding.few_shot[has_score]
    return expect(
        adapted.score(_visible(onboarding), ranked),
        onboarding.dataset.group[ranked],
        scores[has_score],
        onboarding.latency[rows],
        onboarding.dataset.group[rows],
        seed=onboarding.seed,
        unseen=onboarding.regime is Regime.BOTH_NEW,
    )


def adaptation_report(
    onboarding: Onboarding,
    adapted: Adapted,
    strategy: Strategy,
    ranked: Rows,
    starts: Path | None = None,
) -> JsonDict:
    """What a report says of a head: its samples, how it was made, and what to expect of it.

    With too few samples the reason why nothing is expected; `starts` is as of `strategy_for`.
    """
    from transfer.errors import TransferError

    taken = str(adapted.notes.get("strategy", strategy.name))
    report: JsonDict = {
        "samples": len(onboarding.few_shot),
        "taken": taken,
        "notes": dict(adapted.notes),
    }
    its_own = strategy_for(taken, onboarding.regime, starts)
    try:
        estimate = expectation(onboarding, adapted, its_own, ranked)
    except TransferError as error:
        return report | {"expected": None, "reason": str(error)}
    figures: JsonDict = {
        "samples": estimate.samples,
        "workloads": estimate.workloads,
        "regime": onboarding.regime.value,
    }
    for name, figure in (("top1", estimate.top1), ("top5", estimate.top5)):
        figures[name] = round(figure.value, 4)
        figures[f"{name}_interval"] = [round(figure.low, 4), round(figure.high, 4)]
    return report | {"expected": figures}


def _visible(onboarding: Onboarding) -> Dataset:
    """What the head may look at when it ranks: the source devices', or nothing where nobody has measured."""
    from transfer.adapt.base import Regime

    visible = np.zeros(onboarding.dataset.latency_secs.shape, dtype=np.bool_)
    if onboarding.regime is not Regime.BOTH_NEW:
        visible[onboarding.source_rows] = True
        visible[:, onboarding.dataset.column(onboarding.target)] = False
    return onboarding.dataset.where(visible)
