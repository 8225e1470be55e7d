"""Ask champion and challenger about the same held-out candidates, device by device.

The bridge between a registry's models and the pure decisions of `fleet.models.promotion`; called by the
refresh and by `fleet train`. `fleet onboard` asks only for what a manifest should say
(`training_provenance`): its few samples judge nothing (`fleet.models.versions.retention_reason`). Imports
torch when called.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agents.records import DeviceId, WorkloadId
from fleet.errors import FleetError, StoreError
from fleet.models.head_scores import HeadCache
from fleet.models.holdout import RULE, SHARE, clean, held_out
from fleet.models.promotion import (
    LEAST_JUDGED,
    DecisionKind,
    DeviceDecision,
    Standing,
    held_back,
    judge,
    standing,
)
from fleet.models.registry import Registry
from fleet.models.versions import DatasetSnapshot
from fleet.store.reader import StoreReader
from transfer.errors import TransferError

if TYPE_CHECKING:
    from transfer.adapt.base import Adapted
    from transfer.data.dataset import Dataset
    from transfer.model.tlp_model import TlpModel

#: Key of manifests with what the version that this one went on from has learnt from (`training_workloads`),
#: without what this one learnt from itself.
INHERITED = "inherited_workloads"
_WORDS = 200


@dataclass(slots=True, eq=False)
class Judge:
    """Compares heads on what a snapshot holds of clean held-out workloads; nothing of it is learnt from."""

    registry: Registry
    #: Tells what versions learnt from that do not say so themselves.
    reader: StoreReader
    snapshot: DatasetSnapshot
    #: (N, D) which measurements no model chose (`fleet.models.judged_rows`).
    not_ranked: NDArray[np.bool_]
    #: Noise floor by device; 0 where there is none.
    floors: Mapping[str, float]
    _heads: HeadCache = field(init=False)

    def __post_init__(self) -> None:
        self._heads = HeadCache(self.registry)

    def verdicts(
        self,
        models: Sequence[TlpModel],
        heads: Sequence[str],
        trained: Collection[WorkloadId],
        inherited: Collection[WorkloadId] = (),
    ) -> list[list[DeviceDecision]]:
        """Decide about the heads of one or several challengers, all judged on the same candidates.

        Of equals the first goes first. `trained` are the workloads that each of them has learnt from,
        `inherited` those that the version has which one of them went on from (`training_workloads`).

        Returns:
            Of each challenger one decision a head; at most one challenger takes the place of a champion.

        Raises:
            TransferError: The dataset lacks features that a challenger or a champion reads.
        """
        by_head = [
            best_of([self._verdict(model, DeviceId(head), trained, inherited) for model in models])
            for head in heads
        ]
        return [[of_head[place] for of_head in by_head] for place in range(len(models))]

    def _verdict(
        self,
        model: TlpModel,
        device_id: DeviceId,
        trained: Collection[WorkloadId],
        inherited: Collection[WorkloadId],
    ) -> tuple[DeviceDecision, Standing | None]:
        from transfer.adapt.base import Adapted

        dataset = self.snapshot.dataset
        held = held_out(self.snapshot.workloads[workload_id] for workload_id in dataset.workload_ids)
        floor = self.floors.get(device_id, 0.0)
        serving = self.registry.champions().get(device_id)
        gone = why_not = served_by = ""
        head, fair = None, clean(held, trained, inherited)
        learnt: Collection[WorkloadId] | None = ()
        if serving is not None:
            try:
                manifest = self.registry.manifest(serving.version)
                head = self._heads.head(serving.ref)
            except (FleetError, TransferError) as error:
                gone = f"{serving.version} cannot serve any more ({str(error)[:_WORDS]})"
            except OSError as error:
                # The disk may give it again the next time.
                why_not = f"{serving.version} cannot be read now ({str(error)[:_WORDS]})"
            else:
                served_by, learnt = serving.version, _learnt(self.reader, manifest)
                fair = clean(held, trained, inherited, learnt, manifest.get(INHERITED, ()))
                if fair is None:
                    why_not = f"nobody knows any more what {serving.version} learnt from"
            if why_not:
                verdict = judge(device_id, None, None, served_by=serving.version, why_not=why_not)
                return replace(verdict, model_kind=model.kind), None
        rows = self._rows(device_id, fair or frozenset())
        # It has nothing beside it yet.
        mine = Adapted(device_id=device_id, model=model)
        challenger = head_standing(mine, dataset, rows, floor)
        champion = None if head is None else head_standing(head, dataset, rows, floor)
        learnt_counts = len(trained), len(learnt or ())
        verdict = judge(
            device_id, challenger, champion, served_by=served_by, floor=floor, gone=gone, learnt=learnt_counts
        )
        if serving is not None:
            pinned_to = serving.version if serving.pinned_at is not None else ""
            verdict = held_back(verdict, pinned_to=pinned_to, rolled_back_from=serving.rolled_back_from)
            verdict = replace(verdict, instead_of=serving.version)
        return replace(self._with_workload_figures(verdict, challenger), model_kind=model.kind), challenger

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

    def _rows(self, device_id: str, workload_ids: Collection[WorkloadId]) -> NDArray[np.int64]:
        """Measured candidates, not chosen by a model, of some workloads."""
        dataset = self.snapshot.dataset
        if device_id not in dataset.device_ids:
            return np.zeros(0, dtype=np.int64)
        column = dataset.column(device_id)
        is_chosen = np.array(
            [workload_id in workload_ids for workload_id in dataset.workload_ids], dtype=np.bool_
        )
        measured = np.isfinite(dataset.latency_secs[:, column]) & self.not_ranked[:, column]
        return np.flatnonzero(is_chosen[dataset.group] & measured)


def best_of(challengers: Sequence[tuple[DeviceDecision, Standing | None]]) -> list[DeviceDecision]:
    """Let one of several challengers for a device take the place: the first, unless a later one is better.

    Better is what `judge` says of both on the same candidates. Of two that noise cannot tell apart the first
    takes it. `challengers` holds what was decided of each against the champion, and its standing, in order.
    """
    best: int | None = None
    for place, (verdict, standing_of) in enumerate(challengers):
        if not verdict.moves_on:
            continue
        if best is not None:
            first, before = challengers[best]
            against = judge(verdict.device_id, standing_of, before, served_by=first.model_kind)
            if against.kind is not DecisionKind.BETTER:
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


def training_workloads(reader: StoreReader, manifest: Mapping[str, Any]) -> frozenset[WorkloadId]:
    """Workloads that a version learnt from, or one that it went on from: its weights have seen them.

    Whatever goes on from it cannot be judged on them. All that the store knows where nobody knows which.
    """
    learnt = _learnt(reader, manifest)
    if learnt is None:
        return frozenset(reader.workloads())
    return frozenset(learnt) | frozenset(map(WorkloadId, manifest.get(INHERITED, ())))


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
    measured = _measured(reader, device_ids, version)
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


def _measured(reader: StoreReader, device_ids: Collection[str], version: int) -> set[WorkloadId]:
    """Workloads that some devices have records of at a version of the table."""
    batches = reader.columns(("workload_id",), device_ids=device_ids, version=version)
    return {
        WorkloadId(workload_id)
        for _, batch in batches
        for workload_id in batch.column(0).unique().to_pylist()
    }


def _learnt(reader: StoreReader, manifest: Mapping[str, Any]) -> Collection[WorkloadId] | None:
    """Workloads that a version itself learnt from; None where nobody knows."""
    if "trained_workloads" in manifest:
        return [WorkloadId(workload_id) for workload_id in manifest["trained_workloads"]]
    try:
        return _measured(reader, manifest["heads"], int(manifest["table_version"]))
    except (StoreError, KeyError, ValueError):
        return None


def training_provenance(
    dataset: Dataset,
    rows: NDArray[np.int64],
    heads: Sequence[str],
    data_until: Mapping[DeviceId, float] | Mapping[str, float],
    *,
    holds_out: bool,
) -> dict[str, Any]:
    """What a manifest says so that a version can be compared with others later.

    Args:
        dataset: What it learnt from.
        rows: Rows that its weights have seen, those that told when to stop included.
        heads: Heads that were trained.
        data_until: Unix seconds of the last record, by device: later ones are fresh to it.
        holds_out: Whether the held-out workloads were left out.
    """
    groups = np.unique(dataset.group[rows])
    measured = np.isfinite(dataset.latency_secs[rows])
    columns = {str(head): dataset.column(head) for head in heads}
    return {
        "trained_heads": list(heads),
        "trained_workloads": [dataset.workload_ids[number] for number in groups.tolist()],
        "records": {head: int(measured[:, column].sum()) for head, column in columns.items()},
        "data_until": {
            str(device_id): float(at) for device_id, at in data_until.items() if device_id in columns
        },
        "holdout": {"rule": RULE, "share": SHARE} if holds_out else None,
    }


def publish_if_better(
    registry: Registry, model: TlpModel, manifest: Mapping[str, Any], verdicts: Sequence[DeviceDecision]
) -> tuple[str, list[str]]:
    """Keep a challenger as a version and let it serve the devices that it won; the others keep why not.

    Returns:
        Its name, and the devices that it serves from now on.
    """
    version = registry.add(model, manifest)
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
