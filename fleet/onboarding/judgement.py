"""Whether an onboarded head may serve: by the rule of all heads, on samples that it is made without.

A head from samples meets the champion and the shipped head on workloads of the samples. Each sample is scored
by a head that learnt from other workloads. A workload judges nobody if the source model or a rival has learnt
from it; but what heads of one origin were both taught gives none of them a lead. Called by
`fleet.onboarding.head_version`. Imports torch when called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agents.records import DeviceId, WorkloadId
from fleet.errors import FleetError
from fleet.models.head_scores import HeadCache
from fleet.models.promotion import LEAST_JUDGED, DeviceDecision, Incumbent, held_back, judge
from fleet.models.registry import Registry
from fleet.models.registry_file import Champion
from fleet.models.shipped_heads import ShippedHeads
from fleet.models.shipped_model import SHIPPED_KEY, ShippedModelError
from fleet.models.standings import LEAST_RANKED, Standing, standing
from fleet.models.versions import ORIGIN, training_workloads
from fleet.onboarding.adaptation import Onboarding, Rows, strategy_for
from fleet.store.reader import StoreReader
from transfer.errors import TransferError

if TYPE_CHECKING:
    from transfer.adapt.base import Adapted

_WORDS = 200


def origin_of(version: str, manifest: Mapping[str, Any]) -> str:
    """The model that the weights of a version go back to."""
    return str(manifest.get(ORIGIN) or manifest.get(SHIPPED_KEY) or version)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Opponent:
    """A head that the new one must not be worse than."""

    name: str
    head: Adapted
    origin: str
    learnt: frozenset[WorkloadId]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleJudge:
    """Judges heads that an onboarding makes for its target."""

    registry: Registry
    store: StoreReader
    shipped: ShippedHeads

    def decide(self, onboarding: Onboarding, strategy_name: str, adapted: Adapted) -> DeviceDecision:
        """Decide whether a new head serves; `strategy_name` made it, or chose what did."""
        device_id = DeviceId(onboarding.target)
        serving = self._serving(device_id)
        opponents, gone, why_not = self._opponents(device_id, serving)
        rows = _judging_rows(onboarding, opponents)
        lack = _lack(onboarding, rows) if opponents else ""
        challenger, rivals = None, [Incumbent(name=each.name, standing=None) for each in opponents]
        if opponents and not lack and not why_not:
            try:
                scores = _held_back(onboarding, str(adapted.notes.get("strategy", strategy_name)))
            except TransferError as error:
                why_not = f"it cannot be judged ({str(error)[:_WORDS]})"
            else:
                challenger = _standing(onboarding, rows, scores[np.isin(onboarding.few_shot, rows)])
                rivals = [
                    Incumbent(name=each.name, standing=_asked(onboarding, rows, each)) for each in opponents
                ]
        if why_not and not rivals:
            rivals = [Incumbent(name="the shipped head", standing=None)]
        verdict = judge(
            device_id,
            challenger,
            rivals,
            served_by="" if serving is None or gone else serving.version,
            why_not=why_not or lack,
            gone=gone,
        )
        if serving is not None:
            pinned_to = serving.version if serving.pinned_at is not None else ""
            verdict = held_back(verdict, pinned_to=pinned_to, rolled_back_from=serving.rolled_back_from)
            verdict = replace(verdict, instead_of=serving.version)
        return replace(verdict, model_kind=adapted.model.kind)

    def _serving(self, device_id: DeviceId) -> Champion | None:
        """Who serves the device; where that cannot any more, the shipped head takes its place."""
        serving = self.registry.champions().get(device_id)
        if serving is None:
            return None
        try:
            HeadCache(self.registry).head(serving.ref)
        except (FleetError, TransferError) as error:
            why = f"{serving.version} cannot serve any more ({str(error)[:_WORDS]})"
            with suppress(ShippedModelError):
                self.shipped.serve_instead(serving, why)
        return self.registry.champions()[device_id]

    def _opponents(self, device_id: DeviceId, serving: Champion | None) -> tuple[list[_Opponent], str, str]:
        """Champion and shipped head; why a champion cannot serve any more; why nothing can be judged."""
        opponents: list[_Opponent] = []
        gone = ""
        manifest: Mapping[str, Any] = {}
        if serving is not None:
            try:
                manifest = self.registry.manifest(serving.version)
                champion = _Opponent(
                    name=serving.version,
                    head=HeadCache(self.registry).head(serving.ref),
                    origin=origin_of(serving.version, manifest),
                    learnt=training_workloads(self.store, manifest),
                )
                opponents.append(champion)
            except (FleetError, TransferError) as error:
                gone = f"{serving.version} cannot serve any more ({str(error)[:_WORDS]})"
        try:
            head = self.shipped.head(device_id)
        except ShippedModelError as error:
            return opponents, gone, str(error)
        if head is not None and not (opponents and head.is_of(manifest)):
            name = f"the shipped head ({head.shipped.name})"
            origin, learnt = head.shipped.name, head.shipped.trained_workloads
            shipped = _Opponent(name=name, head=head.adapted, origin=origin, learnt=learnt)
            opponents.append(shipped)
        return opponents, gone, ""


def _judging_rows(onboarding: Onboarding, opponents: Sequence[_Opponent]) -> Rows:
    """Rows of the samples that ran, of workloads with enough of them that give no head a lead."""
    dataset = onboarding.dataset
    unfair: set[WorkloadId] = set()
    for opponent in opponents:
        is_kin = opponent.origin == onboarding.origin
        unfair |= opponent.learnt - onboarding.inherited if is_kin else opponent.learnt | onboarding.inherited
    is_fair = np.array([workload_id not in unfair for workload_id in dataset.workload_ids], dtype=np.bool_)
    rows = onboarding.few_shot[np.isfinite(onboarding.latency[onboarding.few_shot])]
    rows = rows[is_fair[dataset.group[rows]]]
    counts = np.bincount(dataset.group[rows], minlength=len(dataset.workload_ids))
    chosen: Rows = rows[counts[dataset.group[rows]] >= LEAST_RANKED]
    return chosen


def _lack(onboarding: Onboarding, rows: Rows) -> str:
    """What an onboarding lacks to judge its head; empty where the samples suffice."""
    group = onboarding.dataset.group
    count = len(np.unique(group[rows]))
    if count >= LEAST_JUDGED:
        return ""
    return (
        f"needs samples of {LEAST_JUDGED - count} more workloads to be judged: {count} of "
        f"{len(np.unique(group[onboarding.few_shot]))} can judge it, for {LEAST_RANKED} samples ran of each, "
        f"and only the head itself learns from them; {LEAST_JUDGED} must"
    )


def _held_back(onboarding: Onboarding, strategy_name: str) -> NDArray[np.float64]:
    """(k,) scores of the samples by heads made from samples of other workloads, NaN where none was."""
    from transfer.adapt.base import Regime
    from transfer.adapt.guard import folds

    dataset, few_shot = onboarding.dataset, onboarding.few_shot
    strategy = strategy_for(strategy_name, onboarding.regime)
    scores = np.full(len(few_shot), np.nan)
    for held in folds(dataset.group[few_shot], Regime.BOTH_NEW, onboarding.seed):
        fold = onboarding.adapt(strategy, few_shot[~held])
        scores[held] = fold.score_unseen(dataset.features.take(few_shot[held]))
    return scores


def _asked(onboarding: Onboarding, rows: Rows, opponent: _Opponent) -> Standing | None:
    return _standing(onboarding, rows, opponent.head.score_unseen(onboarding.dataset.features.take(rows)))


def _standing(onboarding: Onboarding, rows: Rows, scores: NDArray[np.float64]) -> Standing | None:
    """How (m,) scores order the samples at `rows`."""
    return standing(scores, onboarding.latency[rows], onboarding.dataset.group[rows], 0.0)
