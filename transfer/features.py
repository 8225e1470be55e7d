"""Schedules as arrays: primitive sequences into fixed slots, workloads into vectors.

One `Extractor` serves training (`transfer.dataset`) and scoring inside a search, so the two cannot drift
apart. TLP crops raw integers to a fixed width; here every number has a slot of its own, sizes
are logarithms, and what is absent is told from what is zero. Knows nothing of latencies or models.

Legend: N candidates, L steps, C category slots, F number slots, V workload slots, S summary slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.records import Candidate, Workload, WorkloadId, canonical_json, content_hash
from transfer.errors import TraceError, TransferError
from transfer.hardware import HARDWARE_NAMES, hardware_vector
from transfer.language.meta_schedule import MetaScheduleReader
from transfer.language.primitives import Kind, Primitive, Reader, vocabulary_hash
from transfer.slots import CATEGORY_SIZES, NUMBER_NAMES, StepTable
from transfer.summary import SUMMARY_NAMES, Summariser
from transfer.workload_vector import WORKLOAD_NAMES, workload_vector

#: Raise it when a slot changes its meaning without changing its name.
FEATURE_VERSION = 1

# When a sequence is longer than L, steps go in this order: the first kinds say least about a ranking.
_EXPENDABLE = (Kind.CI, Kind.UNANNOTATE, Kind.UNIT_LOOP, Kind.SCOPE, Kind.RE, Kind.FU)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSpec:
    """Names and sizes of every slot. A model is bound to the `hash` of the spec it was trained with."""

    #: (name, size of its vocabulary) of each category slot; 0 is padding, 1 is unknown.
    categories: tuple[tuple[str, int], ...] = CATEGORY_SIZES
    number_names: tuple[str, ...] = NUMBER_NAMES
    #: Most steps of a sequence (L).
    max_steps: int = 40
    workload_names: tuple[str, ...] = WORKLOAD_NAMES
    hardware_names: tuple[str, ...] = HARDWARE_NAMES
    summary_names: tuple[str, ...] = SUMMARY_NAMES
    version: int = FEATURE_VERSION

    @property
    def category_sizes(self) -> tuple[int, ...]:
        """Size of the vocabulary of each category slot."""
        return tuple(size for _, size in self.categories)

    @property
    def hash(self) -> str:
        """Identifies slots and vocabulary together."""
        return content_hash(canonical_json(asdict(self)), vocabulary_hash())


DEFAULT_SPEC = FeatureSpec()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureBlock:
    """Features of N candidates."""

    #: (N, L, C) indexes into the vocabularies; 0 at padding steps.
    categories: NDArray[np.int16]
    #: (N, L, F) numbers; 0 at padding steps.
    numbers: NDArray[np.float32]
    #: (N, L) True at real steps.
    mask: NDArray[np.bool_]
    #: (N, V) the workload of each candidate.
    workload: NDArray[np.float32]
    #: (N, S) derived numbers of each whole candidate.
    summary: NDArray[np.float32]

    def __len__(self) -> int:
        """Number of candidates."""
        return len(self.mask)

    def take(self, rows: NDArray[Any]) -> FeatureBlock:
        """Features of some rows (indexes or mask), in the order given."""
        return replace(
            self,
            categories=self.categories[rows],
            numbers=self.numbers[rows],
            mask=self.mask[rows],
            workload=self.workload[rows],
            summary=self.summary[rows],
        )


class Extractor:
    """Makes features. Keeps caches between calls, so hold on to one; not safe between threads."""

    def __init__(self, spec: FeatureSpec = DEFAULT_SPEC, readers: Mapping[str, Reader] | None = None) -> None:
        """Make an extractor.

        Args:
            spec: Slots to fill; only `max_steps` may differ from `DEFAULT_SPEC`.
            readers: Reader of each dialect; MetaSchedule alone where None.

        Raises:
            TransferError: This version of the project cannot fill the slots of `spec`.
        """
        if replace(spec, max_steps=DEFAULT_SPEC.max_steps) != DEFAULT_SPEC or spec.max_steps < 1:
            raise TransferError(
                f"cannot extract features of spec {spec.hash} (version {spec.version}): this version of the "
                f"project fills spec {DEFAULT_SPEC.hash} (version {FEATURE_VERSION}); train the model again"
            )
        self.spec = spec
        self._readers = dict(readers) if readers is not None else {"meta_schedule": MetaScheduleReader()}
        self._table = StepTable()
        self._summariser = Summariser()
        self._vectors: dict[WorkloadId, NDArray[np.float32]] = {}

    def extract(
        self,
        workloads: Sequence[Workload] | Mapping[WorkloadId, Workload],
        candidates: Sequence[Candidate],
    ) -> FeatureBlock:
        """Features of some candidates.

        Args:
            workloads: The workload of each candidate, or a mapping that holds all of them.
            candidates: Schedules of any mix of workloads.

        Raises:
            TraceError: A trace is not a schedule of its dialect.
            TransferError: A dialect has no reader, or a workload is missing.
        """
        rows = self._rows_of(workloads, candidates)
        sequences = [self._crop(self.read(candidate)) for candidate in candidates]
        step_ids, mask = self._table.look_up(sequences, self.spec.max_steps)
        categories, numbers = self._table.gather(step_ids)
        return FeatureBlock(
            categories=categories,
            numbers=numbers,
            mask=mask,
            workload=self._workload_vectors(rows),
            summary=self._summariser.summarise(rows, sequences, categories, numbers),
        )

    def read(self, candidate: Candidate) -> tuple[Primitive, ...]:
        """Primitives of one candidate.

        Raises:
            TraceError: The trace is not a schedule of its dialect.
            TransferError: The dialect has no reader.
        """
        reader = self._readers.get(candidate.dialect)
        if reader is None:
            known = ", ".join(sorted(self._readers))
            raise TransferError(f"no reader for dialect {candidate.dialect!r}; known: {known}")
        try:
            return reader.read(candidate.trace)
        except TraceError as error:
            raise TraceError(
                f"candidate {candidate.candidate_id} of workload {candidate.workload_id}: {error}"
            ) from error

    def _crop(self, sequence: tuple[Primitive, ...]) -> tuple[Primitive, ...]:
        """Drop the least telling steps of a sequence that is too long; the order stays."""
        excess = len(sequence) - self.spec.max_steps
        if excess <= 0:
            return sequence
        drop: set[int] = set()
        for kind in _EXPENDABLE:
            places = [place for place, step in enumerate(sequence) if step.kind is kind]
            drop.update(places[: excess - len(drop)])
        kept = [step for place, step in enumerate(sequence) if place not in drop]
        return tuple(kept[: self.spec.max_steps])

    def _rows_of(
        self,
        workloads: Sequence[Workload] | Mapping[WorkloadId, Workload],
        candidates: Sequence[Candidate],
    ) -> list[Workload]:
        """The workload of each candidate."""
        if isinstance(workloads, Mapping):
            missing = {one.workload_id for one in candidates} - workloads.keys()
            if missing:
                raise TransferError(f"{len(missing)} workloads are not given, first: {min(missing)}")
            return [workloads[one.workload_id] for one in candidates]
        if len(workloads) != len(candidates):
            raise TransferError(f"{len(workloads)} workloads for {len(candidates)} candidates: give one each")
        for workload, candidate in zip(workloads, candidates, strict=True):
            if workload.workload_id != candidate.workload_id:
                raise TransferError(
                    f"candidate {candidate.candidate_id} is of workload {candidate.workload_id}, "
                    f"got workload {workload.workload_id}"
                )
        return list(workloads)

    def _workload_vectors(self, rows: Sequence[Workload]) -> NDArray[np.float32]:
        """(N, V) vectors; each workload is described once."""
        out = np.empty((len(rows), len(self.spec.workload_names)), dtype=np.float32)
        for index, workload in enumerate(rows):
            vector = self._vectors.get(workload.workload_id)
            if vector is None:
                vector = self._vectors[workload.workload_id] = workload_vector(workload)
            out[index] = vector
        return out


__all__ = [
    "DEFAULT_SPEC",
    "FEATURE_VERSION",
    "Extractor",
    "FeatureBlock",
    "FeatureSpec",
    "hardware_vector",
]
