"""The knobs of one AutoTVM entity, applied one after the other to the loop nest of its template.

Called by `transfer.language.autotvm` only, which parses entities and finds templates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transfer.language.ansor_stages import split_factors
from transfer.language.autotvm_templates import INNER, LoopName, Template, is_reduction_knob
from transfer.language.primitives import MAX_NUMBER, REDUCTION, SPATIAL, Kind, Primitive, Role, extent_product

#: Items of one knob's value read at most.
MAX_VALUES = 32
#: Characters of a knob's name read at most.
MAX_NAME = 128

#: The operator's main stage.
_STAGE = 0
_WORDS = {"vec": "vectorize", "unroll": "unroll", "none": "none"}
#: Columns of a tensor core's tile by its rows, and its depth.
_WMMA_COLUMNS = {8: 32, 16: 16, 32: 8}
_WMMA_DEPTH = 16
_TENSOR_CORE_KNOBS = frozenset(
    {
        "block_row_warps",
        "block_col_warps",
        "warp_row_tiles",
        "warp_col_tiles",
        "chunk",
        "offset",
        "offsetCS",
        "vec",
        "wmma_m",
    }
)


def read_knobs(entity: list[Any], template: Template) -> tuple[Primitive, ...]:
    """Read the knobs of an entity."""
    return _Walk(template).take(entity)


class _BadValueError(Exception):
    """The value of a knob cannot be meant; the message says why."""


class _Walk:
    """Walks the knobs of one entity."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self._nest: list[LoopName] = [(axis, INNER) for axis in range(len(template.axes))]
        #: Factors of the axes split so far.
        self._factors: dict[int, tuple[int, ...]] = {}
        self._guessed: dict[str, int] = {}
        self._steps: list[Primitive] = []

    def take(self, entity: list[Any]) -> tuple[Primitive, ...]:
        """Read all knobs."""
        chosen = {knob[0]: knob[2] for knob in entity if _is_knob(knob)}
        tensor_core = len(self._template.axes) == 3 and chosen.keys() >= _TENSOR_CORE_KNOBS
        if tensor_core:
            self._tensor_core(chosen)
        for knob in entity:
            if not _is_knob(knob) or knob[1] not in _HANDLERS:
                self._unk()
                continue
            name, kind, value = knob
            if tensor_core and name in _TENSOR_CORE_KNOBS:
                continue
            try:
                _HANDLERS[kind](self, name, value)
            except _BadValueError:
                self._unk()
        return tuple(self._steps)

    def _unk(self) -> None:
        self._steps.append(Primitive(Kind.UNK))

    def _emit(
        self,
        kind: Kind,
        numbers: tuple[int, ...],
        detail: str,
        loops: tuple[int, ...] = (),
        role: Role = Role.TILED,
        stage: int = _STAGE,
    ) -> None:
        self._steps.append(Primitive(kind, numbers, ("", role.value, detail), stage, loops))

    def _position(self, loop: LoopName) -> int:
        """Where a loop of the template stands now, -1 nowhere."""
        axis, level = loop
        if axis in self._factors:
            level = level if level != INNER else len(self._factors[axis]) - 1
        elif level == 0:
            level = INNER
        return self._nest.index((axis, level)) if (axis, level) in self._nest else -1

    def _extent(self, loop: LoopName) -> int:
        axis, level = loop
        factors = self._factors.get(axis)
        return factors[level] if factors else self._template.axes[axis].extent

    def _split(self, name: str, value: Any) -> None:
        sizes = _whole_numbers(value, minimum=-1)
        if len(sizes) < 2 or sizes.count(-1) > 1 or -1 in sizes[1:]:
            raise _BadValueError("not factors with at most the first left open")
        aside = self._template.aside.get(name)
        if aside is not None:
            self._split_aside(*aside, sizes)
            return
        axis = self._template.axis_of(name)
        if axis >= 0:
            extent, is_reduction = self._template.axes[axis].extent, self._template.axes[axis].is_reduction
        else:
            # Axes nobody knows come behind those of the template.
            axis = len(self._template.axes) + self._guessed.setdefault(name, len(self._guessed))
            extent, is_reduction = 0, is_reduction_knob(name)
        self._split_axis(axis, extent, sizes, REDUCTION if is_reduction else SPATIAL)

    def _split_axis(self, axis: int, extent: int, sizes: list[int], detail: str) -> None:
        if sizes[0] >= 0:
            factors = tuple(sizes)
            extent = extent or extent_product(sizes)
        else:
            factors = split_factors(extent, sizes[1:], inner_to_outer=True)
        loops: tuple[int, ...] = ()
        if (axis, INNER) in self._nest and axis not in self._factors:
            position = self._nest.index((axis, INNER))
            self._nest[position : position + 1] = [(axis, level) for level in range(len(factors))]
            self._factors[axis] = factors
            loops = (position,)
        self._emit(Kind.SP, (axis, extent, *factors), detail, loops)

    def _split_aside(self, axis: int, writes: bool, sizes: list[int]) -> None:
        """A split of another stage: of the one that writes the result, or of the layout of the input."""
        if writes:
            inside = self._factors.get(axis, (0,))[-1]
            factors = split_factors(inside, sizes[1:], inner_to_outer=True)
            self._emit(Kind.SP, (axis, inside, *factors), SPATIAL, role=Role.WRITE_CACHE, stage=-1)
        else:
            extent = self._template.axes[axis].extent
            factors = split_factors(extent, sizes[1:], inner_to_outer=True)
            self._emit(Kind.LAYOUT, (factors[-1], factors[0], extent), "", role=Role.READ_CACHE, stage=-1)

    def _reorder(self, name: str, value: Any) -> None:
        order = _whole_numbers(value, minimum=0)
        if sorted(order) != list(range(len(order))) or not order:
            raise _BadValueError("not a permutation")
        listed = self._template.reorder
        loops: tuple[int, ...] = ()
        innermost = 0
        if len(order) == len(listed):
            innermost = self._extent(listed[order[-1]])
            loops = tuple(self._position(listed[place]) for place in order)
            if sorted(loops) == list(range(len(self._nest))):
                self._nest = [self._nest[place] for place in loops]
            else:
                loops = ()
        # Which of a template's orders was chosen shows in its innermost loop.
        self._emit(Kind.RE, (len(order), innermost), "", loops)

    def _annotate(self, name: str, value: Any) -> None:
        if not isinstance(value, list) or len(value) > MAX_VALUES:
            raise _BadValueError("not a list of annotations")
        if not all(isinstance(word, str) and word in _WORDS for word in value):
            raise _BadValueError("no such annotation")
        targets = self._template.annotated.get(name, ())
        for place, word in enumerate(value):
            self._annotate_loop(targets[place] if len(targets) == len(value) else None, _WORDS[word])

    def _annotate_loop(self, loop: LoopName | None, word: str) -> None:
        if loop is None:
            self._emit(Kind.AN, (-1, 0), word)
            return
        position = self._position(loop)
        self._emit(Kind.AN, (loop[0], self._extent(loop)), word, (position,) if position >= 0 else ())

    def _other(self, name: str, value: Any) -> None:
        """A plain choice: a split by one factor, an annotation by yes or no, else a pragma's value."""
        axis = self._template.axis_of(name)
        loops = self._template.annotated.get(name, ())
        if axis >= 0 and type(value) is int and 0 < value <= MAX_NUMBER:
            axis_kind = REDUCTION if self._template.axes[axis].is_reduction else SPATIAL
            self._split_axis(axis, self._template.axes[axis].extent, [-1, value], axis_kind)
        elif loops and isinstance(value, bool | int):
            for loop in loops:
                self._annotate_loop(loop, "unroll" if value else "none")
        elif isinstance(value, int) and abs(value) <= MAX_NUMBER:
            self._emit(Kind.PR, (int(value),), name)
        elif isinstance(value, str | float) or value is None:
            self._emit(Kind.PR, (), name)
        else:
            raise _BadValueError("not a plain value")

    def _tensor_core(self, chosen: dict[str, Any]) -> None:
        """The tiles of a tensor-core matrix product: blocks of warps of tiles of the hardware's own size."""
        size = {knob: chosen[knob] for knob in _TENSOR_CORE_KNOBS}
        rows = size["wmma_m"]
        if not all(type(number) is int and 0 <= number <= MAX_NUMBER for number in size.values()):
            self._unk()
            return
        columns = _WMMA_COLUMNS.get(rows, 0)
        tiles = (
            (size["block_row_warps"], size["warp_row_tiles"], rows),
            (size["block_col_warps"], size["warp_col_tiles"], columns),
            (size["chunk"], _WMMA_DEPTH),
        )
        for axis, (about, inside) in enumerate(zip(self._template.axes, tiles, strict=True)):
            detail = REDUCTION if about.is_reduction else SPATIAL
            self._split_axis(axis, about.extent, [-1, *inside], detail)
        self._emit(Kind.TENSORIZE, (rows, columns, _WMMA_DEPTH), "")
        depth = extent_product((size["chunk"], _WMMA_DEPTH))
        width = extent_product((size["block_col_warps"], size["warp_col_tiles"], columns))
        for role, factor, offset in (
            (Role.READ_CACHE, depth, size["offset"]),
            (Role.WRITE_CACHE, width, size["offsetCS"]),
        ):
            self._emit(Kind.SA, (0, factor, offset), "", role=role, stage=-1)
        self._emit(Kind.AN, (-1, size["vec"]), "vectorize", role=Role.READ_CACHE, stage=-1)


def _is_knob(knob: Any) -> bool:
    return (
        type(knob) is list
        and len(knob) == 3
        and type(knob[0]) is str
        and type(knob[1]) is str
        and len(knob[0]) <= MAX_NAME
    )


def _whole_numbers(value: Any, minimum: int) -> list[int]:
    """The value of a knob as integers.

    Raises:
        _BadValueError: It is something else.
    """
    if not isinstance(value, list) or len(value) > MAX_VALUES:
        raise _BadValueError("not a list")
    if not all(type(number) is int and minimum <= number <= MAX_NUMBER for number in value):
        raise _BadValueError("not whole numbers")
    return value


_HANDLERS: dict[str, Callable[[_Walk, str, Any], None]] = {
    "sp": _Walk._split,
    "re": _Walk._reorder,
    "an": _Walk._annotate,
    "ot": _Walk._other,
}
