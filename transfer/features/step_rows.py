"""Rows of a step table for candidates of compiled design spaces, without making their steps anew.

Within one design space only the decisions change, and each step is made from a few of them: a split from one
tile. So a form, a space under some sampled compute locations, keeps the rows of the steps that are the same
for all candidates; for each other step it keeps the row by the decisions that it is made from. A further
candidate costs a look-up a decision. Called by `transfer.features.extractor` only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from transfer.features.slots import StepTable
from transfer.features.summary import tiled_block
from transfer.language.primitives import Primitive
from transfer.language.trace_values import CompiledSpace, Decisions, Fill

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
