"""Whom a new head of a device meets: its champion and the shipped head, as far as they can be asked.

`fleet.models.judge` judges by it on held-out workloads, `fleet.onboarding.judgement` on samples. It imports
torch when called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agents.records import DeviceId, WorkloadId
from fleet.errors import FleetError
from fleet.models.head_scores import HeadCache
from fleet.models.promotion import DeviceDecision, Incumbent, held_back, judge
from fleet.models.registry_file import Champion
from fleet.models.shipped_heads import ShippedHead, ShippedHeads
from fleet.models.shipped_model import SHIPPED_KEY, ShippedModelError
from fleet.models.standings import Standing, standing
from fleet.models.versions import INHERITED, ORIGIN, learnt_workloads
from transfer.errors import TransferError

if TYPE_CHECKING:
    from transfer.adapt.base import Adapted
    from transfer.data.dataset import Dataset

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

    def rivals(self, dataset: Dataset, rows: NDArray[np.int64], floor: float) -> list[Incumbent]:
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
        floor: float = 0.0,
        why_not: str = "",
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


def head_standing(head: Adapted, dataset: Dataset, rows: NDArray[np.int64], floor: float) -> Standing | None:
    """How a head orders some measured rows as a search asks it; None where no workload has enough of them."""
    if not len(rows):
        return None
    scores = head.score_unseen(dataset.features.take(rows))
    latency = dataset.latency_secs[rows, dataset.column(head.device_id)]
    return standing(scores, latency, dataset.group[rows], floor)
