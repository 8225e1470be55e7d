"""What champions say before anything is measured: which candidates come first, and how unsure a head is.

A head ranks drawn candidates in milliseconds, and what it ranks first is measured with origin `model` and its
version, so that each version's worth can be told from its records. Features come from traces; nothing is
lowered or built. A new champion is picked up by itself. Imports torch at the first ranking.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.records import Candidate, DeviceId, ModelRef, Workload, WorkloadId
from fleet.errors import FleetError
from fleet.models.opponents import HeadCache, score_candidates
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

    def ranked(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those that could be read, the most promising first."""
        return [candidates[place] for place in self.order if self.scores[place] > 0]


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
        champion = self.head(device_id) if candidates else None
        if champion is None:
            return None
        head, ref = champion
        with self._lock:
            if self._extractor is None:
                from transfer.features.extractor import Extractor

                self._extractor = Extractor()
            scores, _ = score_candidates(head, self._extractor, workload, candidates)
        # Equal scores stay in the order in which they were proposed.
        order = np.argsort(-scores, kind="stable")
        return Ranking(order=tuple(order.tolist()), scores=tuple(scores.tolist()), model=ref)

    def head(self, device_id: str) -> tuple[Adapted, ModelRef] | None:
        """The champion of a device and its version; None as of `rank`."""
        from transfer.errors import TransferError

        ref = self._registry.champion(device_id)
        if ref is None or ref in self._refused:
            return None
        try:
            with self._lock:
                return self._heads.head(ref), ref
        except (FleetError, TransferError, OSError) as error:
            # Published versions never change: what cannot be read now will not be later.
            self._refused[ref] = str(error)
            return None

    def why_not(self, device_id: str) -> str:
        """Why the champion of a device cannot be asked; empty where it can, or where there is none."""
        ref = self._registry.champion(device_id)
        return "" if ref is None else self._refused.get(ref, "")


def uncertainty(
    registry: RegistryReader, device_id: DeviceId, workloads: Mapping[WorkloadId, Workload]
) -> dict[WorkloadId, float]:
    """How wide the interval of a device's head is on each workload.

    Returns:
        Width of the 90 % interval of the share of pairs that it puts right, 0 to 1. A workload that it was
        not judged on has the mean of its operator, or that of all if no other of the operator was judged.
        Empty if there is no champion, or it was not judged.
    """
    try:
        champion = registry.state().champions.get(device_id)
    except (FleetError, OSError):
        # Readers of models report the damage; the plan does without the scores.
        return {}
    if champion is None or not champion.judged:
        return {}
    return spread(champion.judged.get("by_workload", {}), workloads)


def spread(
    judged: Mapping[str, Mapping[str, Any]], workloads: Mapping[WorkloadId, Workload]
) -> dict[WorkloadId, float]:
    """Widths of all workloads from those of the judged ones (`fleet.models.judge.by_workload`)."""
    by_operator: dict[str, list[float]] = {}
    for scores in judged.values():
        by_operator.setdefault(str(scores["operator"]), []).append(float(scores["width"]))
    every = [width for widths in by_operator.values() for width in widths]
    if not every:
        return {}
    width_by_workload: dict[WorkloadId, float] = {}
    for workload_id, workload in workloads.items():
        own = judged.get(workload_id)
        alike = [float(own["width"])] if own is not None else by_operator.get(workload.operator, every)
        width_by_workload[workload_id] = sum(alike) / len(alike)
    return width_by_workload
