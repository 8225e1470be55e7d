"""What a device's champion says of candidates that exist only as decisions: no trace is written or read.

`evolution.py` asks it thousands of times a round. Without a champion it gives the features alone. Imports
torch at the first question.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.records import DeviceId, Workload
from fleet.planner.candidate_ranker import CandidateRanker

if TYPE_CHECKING:
    from transfer.adapt.base import Adapted
    from transfer.features.blocks import FeatureBlock
    from transfer.features.extractor import Extractor
    from transfer.features.summary import Decided
    from transfer.language.trace_values import CompiledSpace
    from transfer.model.fleet_tlp import FleetTLP
    from transfer.search.decisions import Design
    from transfer.search.population import Individual

#: Scores below count as this: what is nearly impossible must not rule a fit.
_LEAST_SCORE = 1e-3


class Judged(NamedTuple):
    """Features of N candidates, and what the head makes of them."""

    #: (N, P).
    features: NDArray[np.float32]
    #: (N,) logarithms of scores, at most 0; all 0 without a head.
    log_scores: NDArray[np.float64]
    #: The candidates as a model reads them.
    block: FeatureBlock

    def take(self, places: NDArray[np.int64]) -> Judged:
        """The same of some of the candidates."""
        return Judged(self.features[places], self.log_scores[places], self.block.take(places))


class DecisionScorer:
    """Judges candidates of workloads for one device; not safe between threads."""

    def __init__(self, ranker: CandidateRanker, device_id: DeviceId) -> None:
        self._ranker = ranker
        self._device_id = device_id
        #: By identity of the design, which is kept alive beside it.
        self._spaces: dict[int, tuple[Design, CompiledSpace]] = {}
        #: The champion's version; empty without one.
        self.version = ""

    @property
    def serves(self) -> bool:
        """Whether there is a champion that can be asked."""
        return self._champion is not None

    def of_genes(
        self, workload: Workload, individuals: Sequence[Individual], *, draft: bool = False
    ) -> Judged:
        """Judge N candidates of a workload by their decisions. A draft asks the trees alone, in less time."""
        return self._judged(
            workload, [self._decided(workload, individual) for individual in individuals], draft=draft
        )

    def of_traces(self, workload: Workload, traces: Sequence[str]) -> Judged:
        """The same for traces; a workload's are of one dialect.

        Raises:
            TraceError: One cannot be read.
        """
        return self._judged(workload, [self._reader.decided(workload, trace) for trace in traces])

    def validity(self, judged: Judged) -> NDArray[np.float64]:
        """(N,) chances that candidates build and run; 1 where no failure was ever learnt from."""
        model = self._fleet_model
        if model is None or not model.tells_validity(self._device_id):
            return np.ones(len(judged.block))
        return model.validity(judged.block, self._device_id)

    def _judged(self, workload: Workload, decided: Sequence[Decided], *, draft: bool = False) -> Judged:
        from transfer.features.extractor import DEFAULT_SPEC
        from transfer.features.flat import flat_inputs

        head, model = self._champion, self._fleet_model
        block = self._reader.extract_decided(workload, decided, None if head is None else head.model.layout)
        features = flat_inputs(block, DEFAULT_SPEC.category_sizes) if model is None else model.flat(block)
        if head is None or not len(block):
            return Judged(features, np.zeros(len(block)), block)
        if draft and model is not None:
            drafted = model.draft(features, self._device_id)
            if drafted is not None:
                return Judged(features, np.clip(drafted, np.log(_LEAST_SCORE), 0.0), block)
        return Judged(features, np.log(np.maximum(head.score_unseen(block), _LEAST_SCORE)), block)

    @cached_property
    def _champion(self) -> Adapted | None:
        """That of the first question judges to the end: what was learnt of one says little of others."""
        head = self._ranker.head(self._device_id)
        if head is None:
            return None
        self.version = head[1].version
        return head[0]

    @cached_property
    def _fleet_model(self) -> FleetTLP | None:
        """The champion's model, if it has trees that draft and chances that candidates run."""
        from transfer.model.fleet_tlp import FleetTLP

        model = None if self._champion is None else self._champion.model
        return model if isinstance(model, FleetTLP) else None

    def _decided(self, workload: Workload, individual: Individual) -> Decided:
        from transfer.features.summary import Decided

        design = individual.design
        cached = self._spaces.get(id(design))
        if cached is None:
            space = self._reader.decided(workload, design.trace(individual.genes)).space
            cached = self._spaces[id(design)] = design, space
        return Decided(cached[1], design.decisions(individual.genes))

    @cached_property
    def _reader(self) -> Extractor:
        from transfer.features.extractor import Extractor

        return Extractor()
