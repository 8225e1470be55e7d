"""Whether an onboarded head may serve: by the rule of all heads, on samples that it is made without.

A head from samples meets the champion and the shipped head on workloads of the samples. Each sample is scored
by a head that learnt from other workloads. A workload judges nobody if the source model or a rival has learnt
from it; but what heads of one origin were both taught gives none of them a lead. Called by
`fleet.onboarding.head_version`. Imports torch when called.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from agents.records import DeviceId, WorkloadId
from fleet.models.head_scores import HeadCache
from fleet.models.opponents import Opponent, opponents_of
from fleet.models.promotion import LEAST_JUDGED, DeviceDecision
from fleet.models.shipped_heads import ShippedHeads
from fleet.models.shipped_model import ShippedModelError
from fleet.models.standings import LEAST_RANKED, standing
from fleet.onboarding.adaptation import Onboarding, Rows, strategy_for
from transfer.errors import TransferError

if TYPE_CHECKING:
    from transfer.adapt.base import Adapted

_WORDS = 200


def decide_by_samples(
    onboarding: Onboarding, shipped: ShippedHeads, strategy_name: str, adapted: Adapted
) -> DeviceDecision:
    """Decide whether a new head serves its device; `strategy_name` made it, or chose what did.

    A champion that cannot serve any more gives its place to the shipped head first.
    """
    from transfer.adapt.base import Regime

    device_id, heads = DeviceId(onboarding.target), HeadCache(shipped.registry)
    opponents = opponents_of(device_id, shipped, heads)
    if opponents.gone and opponents.champion is not None:
        with suppress(ShippedModelError):
            if shipped.serve_instead(opponents.champion, opponents.gone):
                opponents = opponents_of(device_id, shipped, heads)
    rows = _judging_rows(onboarding, opponents.heads)
    rivals = opponents.rivals(onboarding.dataset, rows, 0.0)
    why_not = opponents.why_not or (_lack(onboarding, rows) if rivals else "")
    challenger = None
    if rivals and not why_not:
        try:
            strategy = strategy_for(str(adapted.notes.get("strategy", strategy_name)), onboarding.regime)
            scores = onboarding.held_back(strategy, Regime.BOTH_NEW)
        except TransferError as error:
            why_not = f"it cannot be judged ({str(error)[:_WORDS]})"
        else:
            mine, group = scores[np.isin(onboarding.few_shot, rows)], onboarding.dataset.group[rows]
            challenger = standing(mine, onboarding.latency[rows], group, 0.0)
    return opponents.decide(challenger, rivals, adapted.model.kind, why_not=why_not)


def _judging_rows(onboarding: Onboarding, opponents: Sequence[Opponent]) -> Rows:
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
