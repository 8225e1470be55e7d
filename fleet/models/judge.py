"""Ask challenger, champion and shipped head about the same held-out candidates, device by device.

The bridge between a registry's models and the pure decisions of `fleet.models.promotion`; called by the
refresh and by `fleet train`. `fleet onboard` judges on samples (`fleet.onboarding.head_version`). Imports
torch when called.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from agents.records import DeviceId, WorkloadId
from fleet.json_types import Json, JsonDict
from fleet.models.opponents import HeadCache, Opponents, head_standing, opponents_of
from fleet.models.promotion import (
    LEAST_JUDGED,
    DecisionKind,
    DeviceDecision,
    Incumbent,
    Rank,
    compared,
    lacking,
    shipped_takes,
)
from fleet.models.registry import Registry
from fleet.models.shipped_model import ShippedHeads
from fleet.models.standings import LEAST_RANKED, Standing
from fleet.models.training_rows import JudgedRows
from fleet.models.versions import DatasetSnapshot, held_out, measured_workloads, training_workloads
from fleet.store.reader import StoreReader
from transfer.arrays import Rows

if TYPE_CHECKING:
    from transfer.model.tlp_model import TlpModel


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ground:
    """What the heads of one device are judged on, and whom a challenger must not be worse than."""

    opponents: Opponents
    #: Measured candidates of held-out workloads that no version of the comparison has learnt from.
    rows: Rows
    #: Noise floor of the device.
    floor: float
    rivals: list[Incumbent]
    #: Why nothing can be judged; empty where it can.
    why_not: str


class Judge:
    """Compares heads on what a snapshot holds of clean held-out workloads; nothing of it is learnt from.

    Args:
        shipped: Heads of the shipped model for the devices of the registry and the store.
        snapshot: What was measured.
        judged: Which measurements no model chose, and which are not suspect: those that are both judge.
        learnt: Workloads that the challengers have learnt from, or what they went on from
            (`training_workloads`).
    """

    def __init__(
        self,
        *,
        shipped: ShippedHeads,
        snapshot: DatasetSnapshot,
        judged: JudgedRows,
        learnt: Collection[WorkloadId],
    ) -> None:
        self._shipped, self._snapshot = shipped, snapshot
        self._floors, self._heads = judged.floors, HeadCache(shipped.registry)
        dataset = snapshot.dataset
        held = held_out(snapshot.workloads[workload_id] for workload_id in dataset.workload_ids)
        self._held = held.difference(learnt)
        #: (N, D) masks.
        self._not_ranked, self._steady = judged.not_ranked(dataset), judged.steady(dataset)
        self._grounds: dict[str, _Ground] = {}

    def verdicts(self, models: Sequence[TlpModel], heads: Sequence[str]) -> list[list[DeviceDecision]]:
        """Decide about the heads of one or several challengers, all judged on the same candidates.

        Of equals the first goes first.

        Returns:
            Of each challenger one decision a head; at most one challenger takes the place of a champion.

        Raises:
            TransferError: The dataset lacks features that a challenger or a champion reads.
        """
        by_head = [best_of([self._verdict(model, DeviceId(head)) for model in models]) for head in heads]
        return [[of_head[place] for of_head in by_head] for place in range(len(models))]

    def give_back(self, heads: Sequence[str]) -> dict[str, str]:
        """Let the shipped head serve devices of `heads` whose champion is clearly worse, or cannot serve.

        For devices that no challenger has taken. One that is pinned, or whose shipped head was left by hand,
        keeps its champion.

        Returns:
            Why, by device.
        """
        reasons: dict[str, str] = {}
        for device_id in heads:
            ground = self._ground(DeviceId(device_id))
            opponents = ground.opponents
            champion, shipped = opponents.champion, opponents.shipped
            if champion is None or shipped is None:
                continue
            if opponents.gone:
                if self._shipped.serve_instead(champion, opponents.gone):
                    reasons[device_id] = opponents.gone
                continue
            if ground.why_not or champion.pinned_at is not None:
                continue
            serving, box = ground.rivals
            if (decision := shipped_takes(device_id, serving, box, ground.floor)) is None:
                continue
            said = {"reason": decision.reason, "judged": decision.judged, "instead_of": champion.version}
            if self._shipped.serve(shipped, said):
                reasons[device_id] = decision.reason
        return reasons

    def _verdict(self, model: TlpModel, device_id: DeviceId) -> tuple[DeviceDecision, Standing | None]:
        from transfer.adapt.base import Adapted

        ground = self._ground(device_id)
        # It has nothing beside it yet.
        mine = Adapted(device_id=device_id, model=model)
        challenger = head_standing(mine, self._snapshot.dataset, ground.rows, ground.floor)
        verdict = ground.opponents.decide(
            challenger, ground.rivals, model.kind, floor=ground.floor, why_not=ground.why_not
        )
        return self._with_workload_figures(verdict, challenger), challenger

    def _ground(self, device_id: DeviceId) -> _Ground:
        if device_id not in self._grounds:
            opponents = opponents_of(device_id, self._shipped, self._heads)
            floor = self._floors.get(device_id, 0.0)
            learnt = (opponent.learnt for opponent in opponents.heads)
            fair = self._held.difference(*learnt)
            rows = self._rows(device_id, fair)
            self._grounds[device_id] = _Ground(
                opponents=opponents,
                rows=rows,
                floor=floor,
                rivals=opponents.rivals(self._snapshot.dataset, rows, floor),
                why_not=opponents.why_not or self._why_few(device_id, fair),
            )
        return self._grounds[device_id]

    def _why_few(self, device_id: DeviceId, workload_ids: Collection[WorkloadId]) -> str:
        """What a device lacks whose held-out measurements are suspect and else too few; empty for others."""
        dataset = self._snapshot.dataset
        rows = self._rows(device_id, workload_ids, steady_only=False)
        if not len(rows):
            return ""
        steady = rows[self._steady[rows, dataset.column(device_id)]]
        count = int((np.bincount(dataset.group[steady]) >= LEAST_RANKED).sum()) if len(steady) else 0
        suspect = len(rows) - len(steady)
        if count >= LEAST_JUDGED or not suspect:
            return ""
        return (
            f"{lacking(count, LEAST_JUDGED - count)}; {suspect} of its {len(rows)} measurements of them are "
            "suspect, and judge nobody"
        )

    def _with_workload_figures(self, verdict: DeviceDecision, challenger: Standing | None) -> DeviceDecision:
        """A verdict with the figures of each workload, from which the fleet plans what to measure.

        By workload: `operator`, `candidates` measured, `pairs` (share in the right order) and `width` of its
        90 % interval (`fleet.models.standings.pair_figures`).
        """
        if verdict.judged is None or challenger is None:
            return verdict
        names = [self._snapshot.dataset.workload_ids[number] for number in challenger.groups.tolist()]
        by_workload = {
            str(name): {
                "operator": self._snapshot.workloads[name].operator,
                "candidates": int(challenger.counts[place]),
                "pairs": round(float(challenger.right[place] / max(challenger.decided[place], 1)), 4),
                "width": round(float(challenger.width[place]), 4),
            }
            for place, name in enumerate(names)
        }
        return replace(verdict, judged={**verdict.judged, "by_workload": by_workload})

    def _rows(
        self, device_id: str, workload_ids: Collection[WorkloadId], *, steady_only: bool = True
    ) -> Rows:
        """Measured candidates, not chosen by a model, of some workloads; suspect ones only if asked for."""
        dataset = self._snapshot.dataset
        if device_id not in dataset.device_ids:
            return np.zeros(0, dtype=np.int64)
        column = dataset.column(device_id)
        is_chosen = np.array(
            [workload_id in workload_ids for workload_id in dataset.workload_ids], dtype=np.bool_
        )
        measured = np.isfinite(dataset.latency_secs[:, column]) & self._not_ranked[:, column]
        if steady_only:
            measured &= self._steady[:, column]
        return np.flatnonzero(is_chosen[dataset.group] & measured)


def best_of(challengers: Sequence[tuple[DeviceDecision, Standing | None]]) -> list[DeviceDecision]:
    """Let one of several challengers for a device take the place: the first, unless a later one is better.

    Better is what `compared` says of both on the same candidates. Of two that noise cannot tell apart the
    first takes it. `challengers` holds what was decided of each against the champion, and its standing, in
    order.
    """
    best: int | None = None
    for place, (verdict, standing_of) in enumerate(challengers):
        if not verdict.moves_on:
            continue
        if best is not None:
            first, before = challengers[best]
            # Who moves on unjudged has nothing that a later one could be better by.
            if standing_of is None or before is None:
                continue
            if compared(standing_of, before, first.model_kind).rank is not Rank.BETTER:
                continue
        best = place
    if best is None or len(challengers) == 1:
        return [verdict for verdict, _ in challengers]
    winner = challengers[best][0].model_kind
    return [
        replace(
            verdict,
            kind=DecisionKind.OUTDONE,
            reason=f"{winner} of the same training goes first; {verdict.reason}",
        )
        if verdict.moves_on and place != best
        else verdict
        for place, (verdict, _) in enumerate(challengers)
    ]


def contaminated_parents(
    reader: StoreReader,
    manifests: Mapping[str, Json],
    device_ids: Collection[DeviceId],
    version: int,
) -> frozenset[str]:
    """Of some versions those that leave too few held-out workloads to judge what goes on from them.

    The held-out workloads are of those that some devices have records of at a version of the table. Where
    they are too few to judge anybody, no start is to blame.
    """
    measured = measured_workloads(reader, device_ids, version)
    held = held_out(
        workload for workload_id, workload in reader.workloads().items() if workload_id in measured
    )
    if len(held) < LEAST_JUDGED:
        return frozenset()
    return frozenset(
        name
        for name, manifest in manifests.items()
        if len(held - training_workloads(reader, manifest)) < LEAST_JUDGED
    )


def publish_if_better(
    registry: Registry,
    model: TlpModel,
    manifest: Json,
    verdicts: Sequence[DeviceDecision],
    beside: Mapping[str, bytes] | None = None,
) -> tuple[str, list[str]]:
    """Keep a challenger as a version and let it serve the devices that it won; the others keep why not.

    `beside` are further files, as of `Registry.add`.

    Returns:
        Its name, and the devices that it serves from now on.
    """
    version = registry.add(model, manifest, beside)
    won = {
        verdict.device_id: {
            "reason": verdict.reason,
            "judged": verdict.judged,
            "instead_of": verdict.instead_of,
        }
        for verdict in verdicts
        if verdict.moves_on
    }
    return version, registry.publish(version, won, retained=retention_reasons(verdicts, version))


def retention_reasons(verdicts: Sequence[DeviceDecision], challenger: str) -> dict[str, str]:
    """Why champions stay, by device, as a registry keeps it."""
    return {
        verdict.device_id: f"{challenger}: {verdict.reason}" for verdict in verdicts if not verdict.moves_on
    }


def counting_verdicts(each: Sequence[Sequence[DeviceDecision]]) -> list[DeviceDecision]:
    """Of each device the decision (`Judge.verdicts`) on who takes the place; else that on the first one."""
    return [
        next((verdict for verdict in of_head if verdict.moves_on), of_head[0])
        for of_head in zip(*each, strict=True)
    ]


def verdicts_as_json(verdicts: Sequence[DeviceDecision]) -> JsonDict:
    """Verdicts by device, as plain values."""
    return {
        verdict.device_id: {
            "kind": str(verdict.kind),
            "serves": verdict.moves_on,
            "model_kind": verdict.model_kind or None,
            "reason": verdict.reason,
            "judged": verdict.judged,
        }
        for verdict in verdicts
    }
