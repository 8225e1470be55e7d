"""Which of the proposed candidates to measure first: a champion's head ranks them in milliseconds.

The coordinator calls it between proposing and measuring, and sends what it ranks first as a batch of origin
`model` with the version that ranked it, so that each version's worth can be told from its records. Features
come from traces; nothing is lowered or built. A new champion is picked up by itself. Imports torch at the
first ranking.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agents.records import Candidate, ModelRef, Workload
from fleet.errors import FleetError
from fleet.models.head_scores import HeadCache, score_candidates
from fleet.models.registry_reader import RegistryReader

if TYPE_CHECKING:
    from transfer.adapt.base import Adapted
    from transfer.features.extractor import Extractor


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """In which order to measure candidates, and who says so."""

    #: Places of the candidates, the most promising first; those that cannot be read are last.
    order: tuple[int, ...]
    #: Score of each candidate in (0, 1], by place; higher is faster, 0 where it cannot be read.
    scores: tuple[float, ...]
    model: ModelRef

    def first(self, candidates: Sequence[Candidate], count: int) -> list[Candidate]:
        """The most promising ones that could be read."""
        return [candidates[place] for place in self.order[:count] if self.scores[place] > 0]


class CandidateRanker:
    """Ranks candidates by the champions of a registry. May be called from several threads, one at a time."""

    def __init__(self, registry: RegistryReader) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._heads = HeadCache(registry)
        self._refused: dict[ModelRef, str] = {}
        self._extractor: Extractor | None = None

    def rank(self, workload: Workload, device_id: str, candidates: Sequence[Candidate]) -> Ranking | None:
        """Put candidates of one workload in the order in which a device should measure them.

        Returns:
            None where the device has no champion, or the champion cannot be asked (`why_not` says why): the
            caller measures at random then.
        """
        ref = self._registry.champion(device_id)
        if ref is None or ref in self._refused or not candidates:
            return None
        with self._lock:
            head = self._head(ref)
            if head is None:
                return None
            if self._extractor is None:
                from transfer.features.extractor import Extractor

                self._extractor = Extractor()
            scores, _ = score_candidates(head, self._extractor, workload, candidates)
        # Equal scores stay in the order in which they were proposed.
        order = np.argsort(-scores, kind="stable")
        return Ranking(order=tuple(order.tolist()), scores=tuple(scores.tolist()), model=ref)

    def head(self, device_id: str) -> tuple[Adapted, ModelRef] | None:
        """The champion of a device, for who makes features itself; None as of `rank`."""
        ref = self._registry.champion(device_id)
        if ref is None or ref in self._refused:
            return None
        with self._lock:
            head = self._head(ref)
        return None if head is None else (head, ref)

    def why_not(self, device_id: str) -> str:
        """Why the champion of a device cannot be asked; empty where it can, or where there is none."""
        ref = self._registry.champion(device_id)
        return "" if ref is None else self._refused.get(ref, "")

    def _head(self, ref: ModelRef) -> Adapted | None:
        """A champion with what belongs to its head; None, and why, where it cannot be read."""
        from transfer.errors import TransferError

        try:
            return self._heads.head(ref)
        except (FleetError, TransferError, OSError) as error:
            # Published versions never change: what cannot be read now will not be later.
            self._refused[ref] = str(error)
            return None
