"""Adapt a new device and tell what its head is worth: the part that measuring and replaying share.

Called by `fleet.onboarding.onboarding` (a real device) and `fleet.onboarding.replay` (a recorded one).
Imports torch when called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agents.records import WorkloadId
from fleet.errors import FleetError

if TYPE_CHECKING:
    from transfer.adapt.base import Adapted, Strategy
    from transfer.auto.expectation import Expectation
    from transfer.auto.leave_one_out import LeaveOneOutScores
    from transfer.data.dataset import Dataset
    from transfer.data.intervals import Estimate
    from transfer.evaluate.onboarding_cases import Regime
    from transfer.model.fleet_tlp import FleetTLP
    from transfer.train.config import TrainConfig

Rows = NDArray[np.int64]

#: The strategy that chooses among the others.
AUTO = "auto"
#: Parts of the samples that are held back in turn, to see how far scores can be trusted.
_FOLDS = 3


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

    @property
    def latency(self) -> NDArray[np.float64]:
        """(N,) the target's seconds; only those of the few-shot set may be read."""
        latency_secs: NDArray[np.float64] = self.dataset.latency_secs[:, self.dataset.column(self.target)]
        return latency_secs

    def adapt(self, strategy: Strategy, rows: Rows) -> Adapted:
        """Make a head from some of the samples."""
        return strategy.adapt(
            self.source,
            self.dataset,
            self.target,
            rows,
            source_rows=self.source_rows,
            config=self.config,
            seed=self.seed,
        )


def prepared(strategy: Strategy, onboarding: Onboarding) -> LeaveOneOutScores | None:
    """Leave-one-device-out scores that `auto` makes, or looks up, ahead of adapting; None for the others."""
    from transfer.auto.strategy import Auto

    if not isinstance(strategy, Auto):
        return None
    return strategy.prepare(
        onboarding.dataset, onboarding.target, source_rows=onboarding.source_rows, config=onboarding.config
    )


def strategy_for(
    name: str,
    regime: Regime,
    cache: Path | None,
    *,
    waits: bool = True,
) -> Strategy:
    """The strategy of this name, `auto` included.

    Args:
        name: A name of `transfer.adapt.registry`, or `auto`.
        regime: What the head will be asked.
        cache: Where leave-one-device-out scores are kept: those that `auto` makes, and those made ahead of
            it.
        waits: Whether `auto` makes such scores where none are ready.

    Raises:
        FleetError: There is none.
    """
    from transfer.adapt.registry import CHOICES, strategies
    from transfer.auto.strategy import Auto

    by_name = strategies()
    if name == AUTO:
        few = tuple(by_name[choice] for choice in CHOICES)
        ready = tuple(by_name.values())
        return Auto(strategies=few, regime=regime, ready=ready, cache=cache, waits=waits)
    if name not in by_name:
        raise FleetError(f"unknown strategy {name!r}; known: {AUTO}, {', '.join(by_name)}")
    return by_name[name]


def expectation(onboarding: Onboarding, adapted: Adapted, strategy: Strategy, ranked: Rows) -> Expectation:
    """What the first choices of a head, made by `strategy`, among the rows `ranked` will reach.

    Raises:
        TransferError: There are too few samples.
    """
    from transfer.auto.expectation import expect
    from transfer.auto.strategy import checking_view, for_check
    from transfer.evaluate.onboarding_cases import Regime

    scores = np.full(len(onboarding.few_shot), np.nan)
    for held in folds(onboarding):
        rest = onboarding.few_shot[~held]
        # What source devices said of held-back candidates is hidden where nobody will have measured any.
        hidden = (
            onboarding.few_shot[held]
            if onboarding.regime is Regime.CANDIDATE_NEW
            else onboarding.few_shot[:0]
        )
        fold_onboarding = replace(onboarding, source_rows=np.setdiff1d(onboarding.source_rows, hidden))
        fold = fold_onboarding.adapt(for_check(strategy, onboarding.regime), rest)
        view = checking_view(onboarding.dataset, onboarding.few_shot[held], onboarding.regime)
        scores[held] = fold.score(view, onboarding.few_shot[held])
    has_score = np.isfinite(scores)
    rows = onboarding.few_shot[has_score]
    return expect(
        adapted.score(_hidden(onboarding), ranked),
        onboarding.dataset.group[ranked],
        scores[has_score],
        onboarding.latency[rows],
        onboarding.dataset.group[rows],
        seed=onboarding.seed,
        unseen=onboarding.regime is Regime.BOTH_NEW,
    )


def expectation_report(
    onboarding: Onboarding,
    adapted: Adapted,
    strategy_name: str,
    ranked: Rows,
    device_scores: LeaveOneOutScores | None,
    limit: int,
) -> dict[str, Any]:
    """Expectation and what more samples would buy.

    With too few samples the known devices tell what to expect of one more like them; where they do not
    either, why there is no expectation.
    """
    from transfer.errors import TransferError

    strategy = strategy_for(strategy_name, onboarding.regime, None)
    try:
        estimate = expectation(onboarding, adapted, strategy, ranked)
    except TransferError as error:
        by_devices = (
            None if device_scores is None else device_scores.expected(strategy_name, len(onboarding.few_shot))
        )
        if device_scores is None or by_devices is None:
            return {"expected": None, "reason": str(error), "more": []}
        return {
            "expected": {
                **_figures(*by_devices),
                "samples": 0,
                "devices": len(device_scores.devices),
                "regime": onboarding.regime.value,
            },
            "reason": str(error),
            "more": more_samples(
                device_scores, strategy_name, by_devices[0].value, len(onboarding.few_shot), limit
            ),
        }
    return {
        "expected": {
            **_figures(estimate.top1, estimate.top5),
            "samples": estimate.samples,
            "workloads": estimate.workloads,
            "regime": onboarding.regime.value,
        },
        "more": more_samples(
            device_scores, strategy_name, estimate.top1.value, len(onboarding.few_shot), limit
        ),
    }


def more_samples(
    device_scores: LeaveOneOutScores | None, strategy: str, now: float, k: int, limit: int
) -> list[dict[str, float]]:
    """What more samples would buy, by what they bought on the known devices."""
    if device_scores is None or strategy not in device_scores.top1:
        return []
    gains = []
    present_top1 = device_scores.at(max(k, 1)).get(strategy)
    for more in (2 * k, 4 * k):
        larger_top1 = device_scores.at(more).get(strategy)
        if present_top1 is not None and larger_top1 is not None and k < more <= limit:
            gains.append({"samples": more, "top1": round(min(1.0, now + larger_top1 - present_top1), 4)})
    return gains


def _figures(top1: Estimate, top5: Estimate) -> dict[str, Any]:
    return {
        "top1": round(top1.value, 4),
        "top1_interval": [round(top1.low, 4), round(top1.high, 4)],
        "top5": round(top5.value, 4),
        "top5_interval": [round(top5.low, 4), round(top5.high, 4)],
    }


def _hidden(onboarding: Onboarding) -> Dataset:
    """What the head may look at when it ranks: the source devices', or nothing where nobody has measured."""
    from transfer.evaluate.onboarding_cases import Regime

    visible = np.zeros(onboarding.dataset.latency_secs.shape, dtype=np.bool_)
    if onboarding.regime is not Regime.BOTH_NEW:
        visible[onboarding.source_rows] = True
        visible[:, onboarding.dataset.column(onboarding.target)] = False
    return onboarding.dataset.where(visible)


def folds(onboarding: Onboarding) -> list[NDArray[np.bool_]]:
    """Masks over the few-shot set: what is held back in turn, whole workloads where workloads will be new."""
    from transfer.evaluate.onboarding_cases import Regime

    random = np.random.default_rng(onboarding.seed)
    group = onboarding.dataset.group[onboarding.few_shot]
    if onboarding.regime is Regime.BOTH_NEW:
        groups = random.permutation(np.unique(group))
        parts: Sequence[NDArray[np.bool_]] = [np.isin(group, groups[fold::_FOLDS]) for fold in range(_FOLDS)]
    else:
        # In every workload its share, so that held-back ones can be compared with each other.
        order = random.permutation(len(group))
        order = order[np.argsort(group[order], kind="stable")]
        fold = np.empty(len(group), dtype=np.int64)
        fold[order] = np.arange(len(group)) % _FOLDS
        parts = [fold == number for number in range(_FOLDS)]
    return [part for part in parts if part.any() and not part.all()]
