"""Derived numbers of a whole candidate: what a performance engineer would look at first.

Tiles and the memory they touch (`transfer.features.tiles`), unrolling, where the result is cached, where
producers are computed. They follow from sequence and workload alone, so they are the same for every device.
Called by `transfer.features.extractor` only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.records import Workload, WorkloadId
from transfer.arrays import Floats, Ints, Mask, Rows, Singles
from transfer.errors import BudgetError
from transfer.features.access import block_accesses
from transfer.features.box_access import BlockAccess
from transfer.features.slots import CATEGORY_PLACE, NUMBER_PLACE, StepTable
from transfer.features.tiles import (
    MEMORY_NAMES,
    TILE_NAMES,
    Tiles,
    describe_memory,
    describe_tiles,
    read_tiles,
    tiles_of_access,
)
from transfer.language.primitives import Kind, Primitive, Role, detail_index, kind_index, role_index
from transfer.language.trace_values import CompiledSpace, Decisions, Fill

_THREADS = ("blockIdx.x", "threadIdx.x", "vthread.x")
_WORDS = ("parallel", "vectorize")
#: Where a block is computed in the loops of another.
_AT = ("depth", "around", "inside")
#: Cuts of the loop nest that an unrolling limit may cover.
_UNROLLED_CUTS = 3
#: Largest magnitude of a number: a log2 of anything real is far below.
_BOUND = 1000.0

SUMMARY_NAMES: tuple[str, ...] = (
    *TILE_NAMES,
    *MEMORY_NAMES,
    "unroll",
    *(f"unrolled_cut_{cut}" for cut in range(_UNROLLED_CUTS)),
    "write_cache",
    "write_cache_depth",
    "write_cache_around",
    "write_cache_inside",
    "inlined",
    "at_root",
    "computed_at",
    "computed_at_around",
    "computed_at_inside",
    "parallel",
    "vectorize",
    *(f"{name.replace('.', '_')}_extent" for name in _THREADS),
    "rfactors",
    "tiled",
    "steps",
)
_PLACE = {name: place for place, name in enumerate(SUMMARY_NAMES)}


class Summariser:
    """Makes summaries; keeps the memory accesses of each workload met."""

    def __init__(self) -> None:
        self._accesses: dict[WorkloadId, dict[str, BlockAccess] | BudgetError] = {}

    def summarise(
        self,
        workloads: Sequence[Workload],
        tiled: Sequence[str | None],
        lengths: Sequence[int],
        categories: NDArray[np.int16],
        numbers: Singles,
    ) -> Singles:
        """Summaries of some candidates.

        Args:
            workloads: The workload of each candidate.
            tiled: Name of the block with the multi-level tiling (`tiled_block`) of each candidate.
            lengths: Primitives of each candidate.
            categories: (N, L, C) category slots of the primitives.
            numbers: (N, L, F) number slots.

        Returns:
            (N, S) values in the order of `SUMMARY_NAMES`, 0 where the schedule does not tell.
        """
        summary = np.zeros((len(workloads), len(SUMMARY_NAMES)))
        summary[:, _PLACE["steps"]] = lengths
        _describe_steps(summary, categories, numbers)
        groups: dict[tuple[WorkloadId, str], list[int]] = defaultdict(list)
        for row, (workload, block) in enumerate(zip(workloads, tiled, strict=True)):
            if block is not None:
                groups[workload.workload_id, block].append(row)
        accesses = {
            (workload_id, block): self.accesses_of(workloads[members[0]]).get(block)
            for (workload_id, block), members in groups.items()
        }
        on_gpu = np.zeros(len(workloads), dtype=np.bool_)
        for key, access in accesses.items():
            on_gpu[groups[key]] = access is not None and access.on_gpu
        factors, reduction, is_split = read_tiles(categories, numbers, on_gpu)
        # Factors that no program has may overflow; what comes of them is cut to the bound.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for key, members in groups.items():
                for rows in _same_axes(np.array(members), is_split, reduction):
                    first, access = rows[0], accesses[key]
                    whole = (
                        tiles_of_access(factors[rows], is_split[first], reduction[first], access)
                        if access is not None
                        else None
                    )
                    axes = np.flatnonzero(is_split[first])
                    tiles = whole or Tiles(factors=factors[rows][:, axes], reduction=reduction[first, axes])
                    summary[rows, _PLACE["tiled"]] = 1
                    columns = describe_tiles(tiles)
                    if access is not None and whole is not None:
                        columns |= describe_memory(whole, access)
                    for name, values in columns.items():
                        summary[rows, _PLACE[name]] = values
            _relate_unrolling(summary)
            bounded = np.clip(np.nan_to_num(summary, posinf=_BOUND, neginf=-_BOUND), -_BOUND, _BOUND)
        return bounded.astype(np.float32)

    def accesses_of(self, workload: Workload) -> dict[str, BlockAccess]:
        """Memory accesses of a workload's blocks by name, parsed at the first call.

        Raises:
            BudgetError: Its module takes more work to read than any real one: nothing of it is summarised.
        """
        accesses = self._accesses.get(workload.workload_id)
        if accesses is None:
            try:
                accesses = block_accesses(workload.module_json)
            except BudgetError as error:
                accesses = error
            self._accesses[workload.workload_id] = accesses
        if isinstance(accesses, BudgetError):
            raise BudgetError(str(accesses))
        return accesses


def tiled_block(sequence: Sequence[Primitive]) -> str | None:
    """Name of the block with the multi-level tiling."""
    for step in sequence:
        if step.kind is Kind.SP and step.names[1] == Role.TILED and step.names[2]:
            return step.names[0]
    return None


def _same_axes(rows: Rows, is_split: Mask, reduction: Mask) -> list[Ints]:
    """Rows parted by the axes that they tile, rows without any left out."""
    patterns, part = np.unique(
        np.concatenate([is_split[rows], reduction[rows]], axis=1), axis=0, return_inverse=True
    )
    return [rows[part.ravel() == place] for place in range(len(patterns)) if patterns[place].any()]


def _describe_steps(summary: Floats, categories: NDArray[np.int16], numbers: Singles) -> None:
    """Fill the numbers that come from single steps: annotations, caches, places of producers."""
    kind, role, detail = (categories[:, :, CATEGORY_PLACE[name]] for name in ("kind", "role", "detail"))
    value, extent = (numbers[:, :, NUMBER_PLACE[name]] for name in ("value", "extent"))

    def is_kind(step_kind: Kind) -> Mask:
        return np.asarray(kind == kind_index(step_kind))

    def largest(values: Singles, where: Mask) -> Singles:
        return np.asarray(np.where(where, values, 0).max(axis=1, initial=0))

    of_cache = role == role_index(Role.WRITE_CACHE)
    at_cache, at_producer = is_kind(Kind.CA) & of_cache, is_kind(Kind.CA) & ~of_cache
    annotated = is_kind(Kind.AN)
    columns = {
        "unroll": largest(value, is_kind(Kind.PR)),
        "write_cache": is_kind(Kind.CHW).any(axis=1),
        **{f"write_cache_{at}": largest(numbers[:, :, NUMBER_PLACE[at]], at_cache) for at in _AT},
        "inlined": is_kind(Kind.CI).sum(axis=1),
        "at_root": is_kind(Kind.CR).sum(axis=1),
        "computed_at": at_producer.sum(axis=1),
        **{f"computed_at_{at}": largest(numbers[:, :, NUMBER_PLACE[at]], at_producer) for at in _AT[1:]},
        "rfactors": is_kind(Kind.RF).sum(axis=1),
        **{word: largest(value, annotated & (detail == detail_index(word))) for word in _WORDS},
        **{
            f"{word.replace('.', '_')}_extent": largest(
                np.maximum(value, extent), annotated & (detail == detail_index(word))
            )
            for word in _THREADS
        },
    }
    for name, values in columns.items():
        summary[:, _PLACE[name]] = values


def _relate_unrolling(summary: Floats) -> None:
    """Whether the loops inside each inner cut stay under the unrolling limit; a vector counts once."""
    limit = np.log2(np.maximum(1, np.exp2(summary[:, _PLACE["unroll"]]) - 1))
    tiled = summary[:, _PLACE["tiled"]] > 0
    for cut in range(_UNROLLED_CUTS):
        inner = summary[:, _PLACE[f"cut_{cut}_spatial"]] + summary[:, _PLACE[f"cut_{cut}_reduction"]]
        steps = inner - summary[:, _PLACE["spatial_0_factor_0"]]
        summary[:, _PLACE[f"unrolled_cut_{cut}"]] = (limit > 0) & (steps <= limit) & tiled


# Rows of a step table for candidates of compiled design spaces, without making their steps anew.
#
# Within one design space only the decisions change, and each step is made from a few of them: a split from
# one tile. So a form, a space under some sampled compute locations, keeps the rows of the steps that are
# the same for all candidates; for each other step it keeps the row by the decisions that it is made from. A
# further candidate costs a look-up a decision. Called by `transfer.features.extractor` only.

#: Forms, and rows by decisions, that are kept before starting over.
_FORM_LIMIT, _ROW_LIMIT = 4096, 200_000


class Decided(NamedTuple):
    """A candidate as its design space and the decisions made in it, lists as tuples."""

    space: CompiledSpace
    decisions: Decisions


class _Hole(NamedTuple):
    place: int
    reads: tuple[int, ...]
    make: Fill
    #: Row by the decisions that are read: one alone, or a tuple of them.
    rows: dict[Any, int]


class Form(NamedTuple):
    """Candidates whose steps differ in their numbers only."""

    #: Rows of the steps that they share; 0 at the others.
    rows: list[int]
    holes: list[_Hole]
    #: Name of the block with the multi-level tiling.
    tiled: str | None


class StepRows:
    """Finds rows of candidates.

    Args:
        table: Takes up steps that it has not met.
        crop_places: Places of the steps that features are made of, of all steps of a candidate; which they
            are must depend on the kinds of the steps only.
    """

    def __init__(self, table: StepTable, crop_places: Callable[[Sequence[Primitive]], Sequence[int]]) -> None:
        self._table = table
        self._crop_places = crop_places
        #: By identity of the space, which is kept alive beside it, and by locations.
        self._forms: dict[tuple[int, tuple[int, ...]], tuple[CompiledSpace, Form]] = {}
        self._row_count = 0
        self._restarts = table.restarts

    def find(self, candidates: Sequence[Decided]) -> list[tuple[Form, list[int]]]:
        """The form and the (L,) rows of some candidates.

        Raises:
            TraceError: A decision is missing or of another form.
        """
        self._table.make_room()
        if (
            self._restarts != self._table.restarts
            or len(self._forms) >= _FORM_LIMIT
            or self._row_count > _ROW_LIMIT
        ):
            self._forms.clear()
            self._row_count, self._restarts = 0, self._table.restarts
        return [self._of(*candidate) for candidate in candidates]

    def _of(self, space: CompiledSpace, decisions: Decisions) -> tuple[Form, list[int]]:
        key = id(space), space.sampled_locations(decisions)
        entry = self._forms.get(key)
        if entry is None:
            entry = self._forms[key] = space, self._form(space, decisions)
        form = entry[1]
        rows = form.rows.copy()
        for place, reads, make, row_by_value in form.holes:
            try:
                read = (
                    decisions[reads[0]]
                    if len(reads) == 1
                    else tuple([decisions[instruction] for instruction in reads])
                )
                row = row_by_value.get(read)
            except (KeyError, TypeError):
                # Missing, or a list where a tuple should be: the step itself says what is wrong.
                row = self._table.row(make(decisions))
            else:
                if row is None:
                    row = row_by_value[read] = self._table.row(make(decisions))
                    self._row_count += 1
            rows[place] = row
        return form, rows

    def _form(self, space: CompiledSpace, decisions: Decisions) -> Form:
        steps: list[Primitive] = []
        holes: dict[int, tuple[tuple[int, ...], Fill]] = {}
        for part in space.parts(decisions):
            holes |= {len(steps) + hole.place: (hole.reads, hole.make) for hole in part.holes}
            steps += part.fill(decisions)
        cropped = self._crop_places(steps)
        return Form(
            rows=[0 if place in holes else self._table.row(steps[place]) for place in cropped],
            holes=[_Hole(new, *holes[old], {}) for new, old in enumerate(cropped) if old in holes],
            tiled=tiled_block([steps[place] for place in cropped]),
        )
