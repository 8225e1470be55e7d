"""Ask challenger, champion and shipped head about the same held-out candidates, device by device.

The bridge between a registry's models and the pure decisions of `fleet.models.promotion`; called by the
refresh and by `fleet train`. `fleet onboard` judges on samples (`fleet.onboarding.judgement`). Imports torch
when called.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agents.records import DeviceId, WorkloadId
from fleet.errors import FleetError
from fleet.models.head_scores import HeadCache
from fleet.models.holdout import clean, held_out
from fleet.models.promotion import (
    LEAST_JUDGED,
    DecisionKind,
    DeviceDecision,
    Incumbent,
    Rank,
    compared,
    held_back,
    judge,
    lacking,
    shipped_takes,
)
from fleet.models.registry import Registry
from fleet.models.registry_file import Champion
from fleet.models.shipped_heads import ShippedHead, ShippedHeads
from fleet.models.shipped_model import ShippedModelError
from fleet.models.standings import LEAST_RANKED, Standing, standing
from fleet.models.versions import (
    INHERITED,
    DatasetSnapshot,
    learnt_workloads,
    measured_workloads,
    training_workloads,
)
from fleet.store.reader import StoreReader
from transfer.errors import TransferError

if TYPE_CHECKING:
    from transfer.adapt.base import Adapted
    from transfer.data.dataset import Dataset
    from transfer.model.tlp_model import TlpModel

_WORDS = 200


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ground:
    """What the heads of one device are judged on, and whom a challenger must not be worse than."""

    #: Measured candidates of held-out workloads that no version of the comparison has learnt from.
    rows: NDArray[np.int64]
    #: Noise floor of the device.
    floor: float
    champion: Champion | None
    #: Version that serves on, as long as no other takes its place; empty for none.
    served_by: str
    #: The champion first; then the shipped head, if that is another one.
    rivals: list[Incumbent]
    #: The shipped head, if another head serves the device.
    shipped: ShippedHead | None = None
    #: Why nothing can be judged; empty where it can.
    why_not: str = ""
    #: Why a champion that was there cannot serve any more; empty where none was.
    gone: str = ""


@dataclass(slots=True, eq=False, kw_only=True)
class Judge:
    """Compares heads on what a snapshot holds of clean held-out workloads; nothing of it is learnt from."""

    registry: Registry
    #: Tells what versions learnt from that do not say so themselves.
    reader: StoreReader
    snapshot: DatasetSnapshot
    #: (N, D) which measurements no model chose, and which are not suspect (`fleet.models.judged_rows`): those
    #: that are both judge.
    not_ranked: NDArray[np.bool_]
    steady: NDArray[np.bool_]
    #: Noise floor by device; 0 where there is none.
    floors: Mapping[str, float]
    shipped: ShippedHeads
    #: Workloads that the challengers have learnt from.
    trained: Collection[WorkloadId]
    #: Those that the version has which one of them went on from (`training_workloads`).
    inherited: Collection[WorkloadId] = ()
    _held: frozenset[WorkloadId] = field(init=False)
    _heads: HeadCache = field(init=False)
    _grounds: dict[str, _Ground] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._heads = HeadCache(self.registry)
        workload_ids = self.snapshot.dataset.workload_ids
        self._held = held_out(self.snapshot.workloads[workload_id] for workload_id in workload_ids)

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
        given: dict[str, str] = {}
        for device_id in heads:
            ground = self._ground(DeviceId(device_id))
            champion, shipped = ground.champion, ground.shipped
            if champion is None or shipped is None:
                continue
            if ground.gone:
                if self.shipped.serve_instead(champion, ground.gone):
                    given[device_id] = ground.gone
                continue
            if ground.why_not or champion.pinned_at is not None:
                continue
            serving, floor = ground.rivals
            if (decision := shipped_takes(device_id, serving, floor, ground.floor)) is None:
                continue
            said = {"reason": decision.reason, "judged": decision.judged, "instead_of": champion.version}
            if self.shipped.serve(shipped, said):
                given[device_id] = decision.reason
        return given

    def _verdict(self, model: TlpModel, device_id: DeviceId) -> tuple[DeviceDecision, Standing | None]:
        from transfer.adapt.base import Adapted

        ground = self._ground(device_id)
        # It has nothing beside it yet.
        mine = Adapted(device_id=device_id, model=model)
        challenger = head_standing(mine, self.snapshot.dataset, ground.rows, ground.floor)
        verdict = judge(
            device_id,
            challenger,
            ground.rivals,
            served_by=ground.served_by,
            floor=ground.floor,
            why_not=ground.why_not,
            gone=ground.gone,
        )
        if (serving := ground.champion) is not None:
            pinned_to = serving.version if serving.pinned_at is not None else ""
            verdict = held_back(verdict, pinned_to=pinned_to, rolled_back_from=serving.rolled_back_from)
            verdict = replace(verdict, instead_of=serving.version)
        return replace(self._with_workload_figures(verdict, challenger), model_kind=model.kind), challenger

    def _ground(self, device_id: DeviceId) -> _Ground:
        if device_id not in self._grounds:
            self._grounds[device_id] = self._new_ground(device_id)
        return self._grounds[device_id]

    def _new_ground(self, device_id: DeviceId) -> _Ground:
        """Whom the heads of a device meet, and on what; a head that cannot be asked says why."""
        floor = self.floors.get(device_id, 0.0)
        serving = self.registry.champions().get(device_id)
        gone = why_not = ""
        heads: list[tuple[str, Adapted]] = []
        learnt: list[Collection[WorkloadId] | None] = [self.trained, self.inherited]
        manifest: Mapping[str, Any] = {}
        if serving is not None:
            try:
                manifest = self.registry.manifest(serving.version)
                heads.append((serving.version, self._heads.head(serving.ref)))
            except (FleetError, TransferError) as error:
                gone = f"{serving.version} cannot serve any more ({str(error)[:_WORDS]})"
            except OSError as error:
                # The disk may give it again the next time.
                why_not = f"{serving.version} cannot be read now ({str(error)[:_WORDS]})"
            else:
                learnt += [learnt_workloads(self.reader, manifest), manifest.get(INHERITED, ())]
        try:
            shipped = self.shipped.head(device_id)
        except ShippedModelError as error:
            shipped, why_not = None, why_not or str(error)
        if shipped is not None and heads and shipped.is_of(manifest):
            shipped = None  # it is the champion
        if shipped is not None:
            heads.append((f"the shipped head ({shipped.shipped.name})", shipped.adapted))
            learnt.append(shipped.shipped.trained_workloads)
        fair = clean(self._held, *learnt)
        if fair is None and serving is not None:
            why_not = why_not or f"nobody knows any more what {serving.version} learnt from"
        served_by = "" if serving is None or gone else serving.version
        rows = self._rows(device_id, fair or frozenset())
        if why_not:
            rivals = [Incumbent(name=served_by or "the shipped head", standing=None)]
        else:
            rivals = [
                Incumbent(name=name, standing=head_standing(head, self.snapshot.dataset, rows, floor))
                for name, head in heads
            ]
        return _Ground(
            rows=rows,
            floor=floor,
            champion=serving,
            served_by=served_by,
            rivals=rivals,
            shipped=shipped,
            why_not=why_not or self._why_few(device_id, fair or frozenset()),
            gone=gone,
        )

    def _why_few(self, device_id: DeviceId, workload_ids: Collection[WorkloadId]) -> str:
        """What a device lacks whose held-out measurements are suspect and else too few; empty for others."""
        dataset = self.snapshot.dataset
        rows = self._rows(device_id, workload_ids, steady_only=False)
        if not len(rows):
            return ""
        steady = rows[self.steady[rows, dataset.column(device_id)]]
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
        90 % interval (`fleet.models.pairs.pair_width`).
        """
        if verdict.judged is None or challenger is None:
            return verdict
        names = [self.snapshot.dataset.workload_ids[number] for number in challenger.groups.tolist()]
        by_workload = {
            str(name): {
                "operator": self.snapshot.workloads[name].operator,
                "candidates": int(challenger.counts[place]),
                "pairs": round(float(challenger.right[place] / max(challenger.decided[place], 1)), 4),
                "width": round(float(challenger.width[place]), 4),
            }
            for place, name in enumerate(names)
        }
        return replace(verdict, judged={**verdict.judged, "by_workload": by_workload})

    def _rows(
        self, device_id: str, workload_ids: Collection[WorkloadId], *, steady_only: bool = True
    ) -> NDArray[np.int64]:
        """Measured candidates, not chosen by a model, of some workloads; suspect ones only if asked for."""
        dataset = self.snapshot.dataset
        if device_id not in dataset.device_ids:
            return np.zeros(0, dtype=np.int64)
        column = dataset.column(device_id)
        is_chosen = np.array(
            [workload_id in workload_ids for workload_id in dataset.workload_ids], dtype=np.bool_
        )
        measured = np.isfinite(dataset.latency_secs[:, column]) & self.not_ranked[:, column]
        if steady_only:
            measured &= self.steady[:, column]
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


def head_standing(head: Adapted, dataset: Dataset, rows: NDArray[np.int64], floor: float) -> Standing | None:
    """How a head orders some measured rows as a search asks it; None where no workload has enough of them."""
    if not len(rows):
        return None
    scores = head.score_unseen(dataset.features.take(rows))
    latency = dataset.latency_secs[rows, dataset.column(head.device_id)]
    return standing(scores, latency, dataset.group[rows], floor)


def contaminated_parents(
    reader: StoreReader,
    manifests: Mapping[str, Mapping[str, Any]],
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
    manifest: Mapping[str, Any],
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


def verdicts_as_json(verdicts: Sequence[DeviceDecision]) -> dict[str, Any]:
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
