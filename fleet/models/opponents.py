"""Whom a new head of a device meets: its champion and the shipped head, as far as they can be asked.

`fleet.models.judge` judges by it on held-out workloads, `fleet.onboarding.head_version` on samples.
It imports torch when called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.records import Candidate, DeviceId, ModelRef, Workload, WorkloadId
from fleet.errors import FleetError
from fleet.models.promotion import DeviceDecision, Incumbent, held_back, judge
from fleet.models.registry_file import Champion
from fleet.models.registry_reader import RegistryReader
from fleet.models.shipped_model import SHIPPED_KEY, ShippedHead, ShippedHeads, ShippedModelError
from fleet.models.standings import Standing, standing
from fleet.models.versions import INHERITED, ORIGIN, learnt_workloads
from transfer.arrays import Floats, Rows
from transfer.errors import TransferError

if TYPE_CHECKING:
    from transfer.adapt.base import Adapted
    from transfer.data.dataset import Dataset
    from transfer.features.extractor import Extractor
    from transfer.model.tlp_model import TlpModel


# A champion's scores: the heads of a registry held ready, and what they say of candidates' traces.
#
# The coordinator's ranker and the API's scorer ask it. A head with what belongs to it
# (`transfer.adapt.kept`) scores as it was judged, to the last bit. Features come from traces; nothing is
# lowered or built. Imports torch at the first head.

#: Models held in memory: one version serves many devices.
_MOST_MODELS = 4
#: Heads with what belongs to them, which is up to 2 MB each.
_MOST_HEADS = 64


class HeadCache:
    """The heads of a registry that were asked for last, read once. Not safe between threads."""

    def __init__(self, registry: RegistryReader) -> None:
        self._registry = registry
        self._models: dict[tuple[str, str], TlpModel] = {}
        self._heads: dict[ModelRef, Adapted] = {}

    def head(self, ref: ModelRef) -> Adapted:
        """A head with what belongs to it.

        Raises:
            FleetError: The version is missing, or not the one that is meant.
            TransferError: It is damaged, reads other features, or has no such head.
            OSError: The disk does not give it.
        """
        from transfer.adapt.kept import head_of

        if ref not in self._heads:
            model = self._model(ref)
            manifest = self._registry.manifest(ref.version)
            head = head_of(model, self._registry.path(ref.version), manifest, ref.device_id)
            while len(self._heads) >= _MOST_HEADS:
                self._heads.pop(next(iter(self._heads)))
            self._heads[ref] = head
        return self._heads[ref]

    def _model(self, ref: ModelRef) -> TlpModel:
        """The model of a version; one for all devices that it serves."""
        key = ref.version, ref.sha256
        if key not in self._models:
            model, _ = self._registry.load(ref)
            while len(self._models) >= _MOST_MODELS:
                gone = next(iter(self._models))
                self._models.pop(gone)
                self._heads = {
                    head_ref: head for head_ref, head in self._heads.items() if head_ref.version != gone[0]
                }
            self._models[key] = model
        return self._models[key]


def score_candidates(
    head: Adapted, extractor: Extractor, workload: Workload, candidates: Sequence[Candidate]
) -> tuple[Floats, dict[int, str]]:
    """Score N candidates of one workload.

    Returns:
        (N,) scores in (0, 1], higher is faster, 0 where a candidate cannot be read; and why, by place.

    Raises:
        TransferError: What can be read one by one has no features together.
    """
    scores = np.zeros(len(candidates))
    refused: dict[int, str] = {}
    layout = head.model.layout
    try:
        block = extractor.extract(workload, candidates, layout)
    except TransferError:
        for place, candidate in enumerate(candidates):
            if why := _fault(extractor, workload, candidate):
                refused[place] = why
        readable_candidates = [
            candidate for place, candidate in enumerate(candidates) if place not in refused
        ]
        if not readable_candidates:
            return scores, refused
        block = extractor.extract(workload, readable_candidates, layout)
    readable = [place for place in range(len(candidates)) if place not in refused]
    if readable:
        scores[readable] = head.score_unseen(block)
    return scores, refused


def _fault(extractor: Extractor, workload: Workload, candidate: Candidate) -> str:
    """Why a candidate of the workload cannot be read; empty where it can."""
    if candidate.workload_id != workload.workload_id:
        return f"it is of workload {candidate.workload_id}, not {workload.workload_id}"
    try:
        extractor.read(candidate, workload)
    except TransferError as error:
        return str(error)
    return ""


#: Characters of an error in a reason.
_WORDS = 200


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Opponent:
    """A head that a new one must not be worse than."""

    name: str
    head: Adapted
    #: The model that its weights go back to.
    origin: str
    #: Workloads that it has learnt from, or what it went on from.
    learnt: frozenset[WorkloadId]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Opponents:
    """Whom the heads of one device meet."""

    device_id: DeviceId
    champion: Champion | None
    #: The champion first; then the shipped head, if that is another one.
    heads: Sequence[Opponent]
    #: The shipped head, if another head serves the device.
    shipped: ShippedHead | None
    #: Why nothing can be judged; empty where it can.
    why_not: str
    #: Why a champion that was there cannot serve any more; empty where none was.
    gone: str

    @property
    def served_by(self) -> str:
        """Version that serves on, as long as no other takes its place; empty for none."""
        return "" if self.champion is None or self.gone else self.champion.version

    def rivals(self, dataset: Dataset, rows: Rows, floor: float) -> list[Incumbent]:
        """How they order some rows; one without a standing where nothing can be judged."""
        if self.why_not:
            return [Incumbent(name=self.served_by or "the shipped head", standing=None)]
        return [
            Incumbent(name=each.name, standing=head_standing(each.head, dataset, rows, floor))
            for each in self.heads
        ]

    def decide(
        self,
        challenger: Standing | None,
        rivals: Sequence[Incumbent],
        model_kind: str,
        *,
        why_not: str,
        floor: float = 0.0,
    ) -> DeviceDecision:
        """The verdict of `promotion.judge`, unless a person does not want it."""
        verdict = judge(
            self.device_id,
            challenger,
            rivals,
            served_by=self.served_by,
            floor=floor,
            why_not=self.why_not or why_not,
            gone=self.gone,
        )
        if (champion := self.champion) is not None:
            pinned_to = champion.version if champion.pinned_at is not None else ""
            verdict = held_back(verdict, pinned_to=pinned_to, rolled_back_from=champion.rolled_back_from)
            verdict = replace(verdict, instead_of=champion.version)
        return replace(verdict, model_kind=model_kind)


def opponents_of(device_id: DeviceId, shipped: ShippedHeads, heads: HeadCache) -> Opponents:
    """Champion and shipped head of a device; one that cannot be asked says why."""
    champion = shipped.registry.champions().get(device_id)
    gone = why_not = ""
    opponents: list[Opponent] = []
    manifest: Mapping[str, Any] = {}
    if champion is not None:
        version = champion.version
        try:
            manifest = shipped.registry.manifest(version)
            head = heads.head(champion.ref)
        except (FleetError, TransferError) as error:
            gone = f"{version} cannot serve any more ({str(error)[:_WORDS]})"
        except OSError as error:
            # The disk may give it again the next time.
            why_not = f"{version} cannot be read now ({str(error)[:_WORDS]})"
        else:
            learnt = learnt_workloads(shipped.store, manifest)
            if learnt is None:
                why_not = f"nobody knows any more what {version} learnt from"
            workload_ids = frozenset([*(learnt or ()), *map(WorkloadId, manifest.get(INHERITED, ()))])
            origin = origin_of(version, manifest)
            opponents.append(Opponent(name=version, head=head, origin=origin, learnt=workload_ids))
    try:
        box = shipped.head(device_id)
    except ShippedModelError as error:
        box, why_not = None, why_not or str(error)
    if box is not None and opponents and box.is_of(manifest):
        box = None  # it is the champion
    if box is not None:
        origin, learnt = box.shipped.name, box.shipped.trained_workloads
        name = f"the shipped head ({origin})"
        opponents.append(Opponent(name=name, head=box.adapted, origin=origin, learnt=learnt))
    return Opponents(
        device_id=device_id,
        champion=champion,
        heads=opponents,
        shipped=box,
        why_not=why_not,
        gone=gone,
    )


def origin_of(version: str, manifest: Mapping[str, Any]) -> str:
    """The model that the weights of a version go back to."""
    return str(manifest.get(ORIGIN) or manifest.get(SHIPPED_KEY) or version)


def head_standing(head: Adapted, dataset: Dataset, rows: Rows, floor: float) -> Standing | None:
    """How a head orders some measured rows as a search asks it; None where no workload has enough of them."""
    if not len(rows):
        return None
    scores = head.score_unseen(dataset.features.take(rows))
    latency = dataset.latency_secs[rows, dataset.column(head.device_id)]
    return standing(scores, latency, dataset.group[rows], floor)
