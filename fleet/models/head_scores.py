"""A champion's scores: the heads of a registry held ready, and what they say of candidates' traces.

The coordinator's ranker and the API's scorer ask it. A head with what belongs to it (`transfer.adapt.kept`)
scores as it was judged, to the last bit. Features come from traces; nothing is lowered or built. Imports
torch at the first head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agents.records import Candidate, ModelRef, Workload
from fleet.models.registry_reader import RegistryReader
from transfer.errors import TransferError

if TYPE_CHECKING:
    from transfer.adapt.base import Adapted
    from transfer.features.extractor import Extractor
    from transfer.model.tlp_model import TlpModel

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
) -> tuple[NDArray[np.float64], dict[int, str]]:
    """Score N candidates of one workload.

    Returns:
        (N,) scores in (0, 1], higher is faster, 0 where a candidate cannot be read; and why, by place.

    Raises:
        TransferError: What can be read one by one has no features together.
    """
    scores = np.zeros(len(candidates))
    refused: dict[int, str] = {}
    workloads = {workload.workload_id: workload}
    layout = head.model.layout
    try:
        block = extractor.extract(workloads, candidates, layout)
    except TransferError:
        for place, candidate in enumerate(candidates):
            if why := _fault(extractor, workload, candidate):
                refused[place] = why
        readable_candidates = [
            candidate for place, candidate in enumerate(candidates) if place not in refused
        ]
        if not readable_candidates:
            return scores, refused
        block = extractor.extract(workloads, readable_candidates, layout)
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
