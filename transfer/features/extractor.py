"""Schedules as arrays: primitive sequences into fixed slots, workloads into vectors.

One `Extractor` serves training (`transfer.data`), evaluation and scoring inside a search, so they
cannot drift apart: it reads stored traces of every dialect, and those of schedules in memory to the same
bits. TLP crops raw integers to a fixed width; here every number has a slot of its own, sizes are logarithms,
and what is absent is told from what is zero. Knows nothing of latencies or models, and imports no TVM.

Legend: N candidates, L steps, C category slots, F number slots, V workload slots, S summary slots.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from agents.records import Candidate, Workload, canonical_json, content_hash
from transfer.arrays import Groups, Singles
from transfer.errors import TraceError, TransferError
from transfer.features.blocks import FeatureBlock, PublishedLayout, published_features
from transfer.features.hardware import HARDWARE_NAMES
from transfer.features.live_traces import LiveReader
from transfer.features.slots import CATEGORY_SIZES, NUMBER_NAMES, StepTable, laid_out
from transfer.features.summary import SUMMARY_NAMES, Decided, StepRows, Summariser, tiled_block
from transfer.language.dialects import READERS
from transfer.language.meta_schedule import MetaScheduleReader
from transfer.language.primitives import Kind, Primitive, vocabulary_hash

# What a workload is, as numbers: operator, amount of work, shapes.
#
# Published TLP gives the network no workload, so equal step lists of different programs get one score.

#: Operators with a slot of their own: TVM's operator suite (`te_workload.CONFIGS`); others are hashed.
_OPERATORS = ("C1D", "C2D", "C3D", "GMM", "GRP", "DIL", "DEP", "T2D", "CAP", "NRM", "SFM", "CBR", "TBG")
_OPERATOR_BUCKETS = 4
#: Dimensions kept of each shape, last ones first: the last is contiguous in memory.
_DIMENSIONS = 5
#: Arguments whose shape is kept: the output, then the inputs in order.
_SHAPES = ("output", "input_0", "input_1")

WORKLOAD_NAMES: tuple[str, ...] = (
    *(f"operator_{name}" for name in _OPERATORS),
    *(f"operator_bucket_{bucket}" for bucket in range(_OPERATOR_BUCKETS)),
    "flops",
    "bytes",
    "flops_per_byte",
    "arguments",
    *(f"{name}_{what}" for name in _SHAPES for what in ("size", "rank")),
    *(f"{name}_dim_{place}" for name in _SHAPES for place in range(_DIMENSIONS)),
    "flops_per_output",
    "half_precision",
    "integer",
)


def workload_vector(workload: Workload) -> Singles:
    """Describe one workload; sizes as log2(1 + x), ratios as log2.

    Returns:
        (V,) values in the order of `WORKLOAD_NAMES`.
    """
    is_listed = workload.operator in _OPERATORS
    bucket = zlib.crc32(workload.operator.encode()) % _OPERATOR_BUCKETS
    shapes = workload.arg_shapes
    output = shapes[-1] if shapes else ()
    picked = (output, *shapes[:-1], (), ())[: len(_SHAPES)]
    moved = max(1, workload.bytes_moved)
    flops = max(0.0, workload.flops)
    values = [
        *(float(workload.operator == name) for name in _OPERATORS),
        *(float(not is_listed and bucket == place) for place in range(_OPERATOR_BUCKETS)),
        math.log2(1 + flops),
        math.log2(1 + moved),
        math.log2((1 + flops) / moved),
        float(len(shapes)),
    ]
    for shape in picked:
        values += [math.log2(1 + math.prod(shape)) if shape else 0.0, float(len(shape))]
    for shape in picked:
        last_first = (*reversed(shape), *(0,) * _DIMENSIONS)[:_DIMENSIONS]
        values += [math.log2(1 + extent) for extent in last_first]
    values += [
        math.log2((1 + flops) / max(1, math.prod(output))),
        float(any("16" in dtype for dtype in workload.arg_dtypes)),
        float(any("int" in dtype for dtype in workload.arg_dtypes)),
    ]
    return np.array(values, dtype=np.float32)


#: Distinct primitives that one extractor keeps before its table starts over.
_TABLE_LIMIT = 200_000
#: Candidates whose slots are laid out densely in one go, to summarise them.
_CHUNK = 4096

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
    #: Raise it when a slot changes its meaning without changing its name.
    version: int = 2

    @property
    def category_sizes(self) -> tuple[int, ...]:
        """Size of the vocabulary of each category slot."""
        return tuple(size for _, size in self.categories)

    @property
    def hash(self) -> str:
        """Identifies slots and vocabulary together."""
        return content_hash(canonical_json(asdict(self)), vocabulary_hash())


DEFAULT_SPEC = FeatureSpec()


class Extractor:
    """Makes features. Keeps caches between calls, so hold on to one; not safe between threads."""

    def __init__(self, spec: FeatureSpec = DEFAULT_SPEC) -> None:
        """Make an extractor; `spec` differs from `DEFAULT_SPEC` in `max_steps` at most."""
        self.spec = spec
        self._readers = {dialect: make() for dialect, make in READERS.items()}
        self._live = LiveReader()
        self._table = StepTable(_TABLE_LIMIT)
        self._rows = StepRows(self._table, self._crop_places)
        self._decided = MetaScheduleReader()
        self._summariser = Summariser()

    def extract(
        self, workload: Workload, candidates: Sequence[Candidate], layout: PublishedLayout | None = None
    ) -> FeatureBlock:
        """Features of some candidates (`BlockBuilder` takes those of many workloads).

        Args:
            workload: What all of them schedule.
            candidates: N candidates.
            layout: Of the published features that the block is to hold too; None for none.

        Raises:
            TraceError: A trace is not a schedule of its dialect.
            TransferError: A dialect has no reader.
        """
        sequences = [self.read(candidate, workload) for candidate in candidates]
        return self._steps_block(workload, sequences, layout)

    def extract_live(
        self,
        workload: Workload,
        schedules: Sequence[Any],
        layout: PublishedLayout | None = None,
    ) -> FeatureBlock:
        """Features of schedules in memory, equal to the last bit to those of their traces' JSON.

        Args:
            workload: What all of them schedule.
            schedules: TVM schedules with a trace (`tvm.s_tir.Schedule`); only `trace` is read.
            layout: As of `extract`.

        Raises:
            TraceError: A trace cannot be read.
        """
        candidates = [self._live.read(schedule.trace, workload) for schedule in schedules]
        return self.extract_decided(workload, candidates, layout)

    def extract_decided(
        self,
        workload: Workload,
        candidates: Sequence[Decided],
        layout: PublishedLayout | None = None,
    ) -> FeatureBlock:
        """Features of decisions made in compiled design spaces, equal to the last bit to those of traces.

        What a search asks for thousands of times: no trace is written or read (`decided` compiles one).

        Args:
            workload: What all of them schedule.
            candidates: N candidates.
            layout: As of `extract`.

        Raises:
            TraceError: A decision is missing or of another form.
        """
        if layout is not None:
            # Published features are made of the steps themselves.
            sequences = [candidate.space.fill(candidate.decisions) for candidate in candidates]
            return self._steps_block(workload, sequences, layout)
        form_rows = self._rows.find(candidates)
        lengths = [len(rows) for _, rows in form_rows]
        steps = laid_out([row for _, rows in form_rows for row in rows], lengths, self.spec.max_steps)
        tiled = [form.tiled for form, _ in form_rows]
        workloads = [workload] * len(candidates)
        return self._block(workload, steps, self._summary(workloads, steps, tiled, lengths, self._table))

    def decided(self, workload: Workload, trace: str) -> Decided:
        """The design space and the decisions of a MetaSchedule trace.

        Args:
            workload: What it schedules.
            trace: JSON text.

        Raises:
            TraceError: The text is not such a trace.
        """
        return Decided(*self._decided.space(trace, workload))

    def read(self, candidate: Candidate, workload: Workload | None = None) -> tuple[Primitive, ...]:
        """Primitives of one candidate; `workload` is what it schedules, where known.

        Raises:
            TraceError: The trace is not a schedule of its dialect.
            TransferError: The dialect has no reader.
        """
        reader = self._readers.get(candidate.dialect)
        if reader is None:
            dialects = ", ".join(sorted(self._readers))
            raise TransferError(f"no reader for dialect {candidate.dialect!r}; known: {dialects}")
        try:
            if workload is not None:
                self._summariser.accesses_of(workload)
            return reader.read(candidate.trace, workload)
        except TraceError as error:
            raise TraceError(
                f"candidate {candidate.candidate_id} of workload {candidate.workload_id}: {error}"
            ) from error

    def encode(
        self,
        workloads: Sequence[Workload],
        sequences: Sequence[tuple[Primitive, ...]],
        table: StepTable,
    ) -> tuple[Groups, Singles]:
        """Encode sequences with a table of the caller's.

        Args:
            workloads: The workload of each sequence.
            sequences: N sequences, of any length.
            table: Takes up the steps that it has not met.

        Returns:
            (N, L) rows of the table, and the (N, S) summaries.
        """
        cropped = [self.crop(sequence) for sequence in sequences]
        steps = table.look_up(cropped, self.spec.max_steps)
        tiled, lengths = map(tiled_block, cropped), map(len, cropped)
        return steps, self._summary(workloads, steps, [*tiled], [*lengths], table)

    def _summary(
        self,
        workloads: Sequence[Workload],
        steps: Groups,
        tiled: Sequence[str | None],
        lengths: Sequence[int],
        table: StepTable,
    ) -> Singles:
        """(N, S) summaries of (N, L) rows of a table."""
        categories, numbers = table.rows()
        summary = np.empty((len(steps), len(self.spec.summary_names)), dtype=np.float32)
        for start in range(0, len(steps), _CHUNK):
            part = slice(start, start + _CHUNK)
            used = steps[part, : max(lengths[part])]
            summary[part] = self._summariser.summarise(
                workloads[part], tiled[part], lengths[part], categories[used], numbers[used]
            )
        return summary

    def _steps_block(
        self,
        workload: Workload,
        sequences: Sequence[tuple[Primitive, ...]],
        layout: PublishedLayout | None,
    ) -> FeatureBlock:
        block = self._block(workload, *self.encode([workload] * len(sequences), sequences, self._table))
        return block if layout is None else replace(block, published=published_features(sequences, layout))

    def _block(self, workload: Workload, steps: Groups, summary: Singles) -> FeatureBlock:
        """The block of rows of the extractor's own table."""
        categories, numbers = self._table.rows()
        return FeatureBlock(
            steps=steps,
            step_categories=categories,
            step_numbers=numbers,
            workload_rows=np.zeros(len(steps), dtype=np.int32),
            workload_vectors=workload_vector(workload)[None],
            summary=summary,
        )

    def crop(self, sequence: tuple[Primitive, ...]) -> tuple[Primitive, ...]:
        """Drop the least telling steps of a sequence that is longer than L; the order stays."""
        if len(sequence) <= self.spec.max_steps:
            return sequence
        return tuple(sequence[place] for place in self._crop_places(sequence))

    def _crop_places(self, sequence: Sequence[Primitive]) -> list[int]:
        """Places of the steps that `crop` leaves; of their kinds only depends which they are."""
        excess = len(sequence) - self.spec.max_steps
        drop: set[int] = set()
        for kind in _EXPENDABLE:
            if excess <= len(drop):
                break
            places = [place for place, step in enumerate(sequence) if step.kind is kind]
            drop.update(places[: excess - len(drop)])
        return [place for place in range(len(sequence)) if place not in drop][: self.spec.max_steps]
