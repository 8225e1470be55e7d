"""Canonical steps as Ansor's transform steps: what `transfer.language.ansor` reads, written again.

Called by the export of records and by the published TLP layout, which knows Ansor's steps only. A sequence
that was read from Ansor's steps comes back as the same steps; of one from another dialect the primitives
that Ansor lacks are left out. Whether Ansor could apply the result to some program is not asked:
the extents of another compiler's loops are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from transfer.language.ansor_stages import StageOrder, split_factors
from transfer.language.ansor_steps import ANNOTATIONS, MAX_POSITION
from transfer.language.primitives import CREATED, Kind, Primitive, Role, extent_product

_ANNOTATION_NUMBERS = {word: number for number, word in enumerate(ANNOTATIONS)} | {
    f"vthread.{axis}": ANNOTATIONS.index("vthread") for axis in "xyz"
}
_UNROLL = "auto_unroll_max_step"
# What MetaSchedule notes on the root block for the whole program, Ansor writes on the main stage.
_PRAGMAS = {"unroll_explicit": _UNROLL, "unroll_implicit": _UNROLL}
_MAKERS = frozenset({Kind.CHR, Kind.CHW, Kind.RF})
_OF_ONE_LOOP = frozenset({Kind.AN, Kind.SP, Kind.FSP, Kind.FFSP, Kind.RF})

#: Splits of one stage, and levels of them, that a later step is looked for among; real ones have sixteen.
_MOST_SPLITS, _MOST_LEVELS = 64, 16

Step = list[object]


def to_ansor_steps(steps: Sequence[Primitive]) -> list[Step]:
    """Write steps of any dialect in Ansor's form (record format v0.6).

    Returns:
        Lists `[tag, stage, ...]` of integers, short texts and lists of integers, ready for JSON.
    """
    writer = _Writer(steps)
    for step in steps:
        if (written := writer.write(step)) is not None:
            writer.steps.append(written)
    return writer.steps


class _Split(NamedTuple):
    """An SP written already, that others may follow."""

    place: int
    axis: int
    extent: int
    lengths: tuple[int, ...]


class _Writer:
    """Writes the steps of one schedule."""

    def __init__(self, steps: Sequence[Primitive]) -> None:
        self.steps: list[Step] = []
        self._order = StageOrder()
        self._splits: dict[int, list[_Split]] = {}
        self._main = next((step.stage for step in steps if step.names[1] == Role.TILED), -1)
        # Ansor counts the program's arguments as stages before all others. Where caches are made of the
        # reader's buffers, these stand for the arguments.
        self._arguments = max((1 + _buffer(step) for step in steps), default=0)

    def write(self, step: Primitive) -> Step | None:
        """Write one step; None where Ansor has nothing like it."""
        written = self._pragma(step) if step.kind is Kind.PR else self._written(step)
        if step.kind in _MAKERS:
            if written is None:
                self._order.skip()
            else:
                self._order.insert(step.kind, self._stage(step))
        return written

    def _written(self, step: Primitive) -> Step | None:
        handler = _HANDLERS.get(step.kind)
        position = self._stage(step) if handler else -1
        if handler is None or position < 0:
            return None
        head: Step = [step.kind.value, position]
        if step.kind in _OF_ONE_LOOP:
            if len(step.loops) != 1:
                return None
            head.append(step.loops[0])
        return handler(self, step, head)

    def _position(self, number: int) -> int:
        """Position of a stage, -1 unknown."""
        if number < 0:
            return -1
        return self._order.position_of(number if number >= CREATED else number + self._arguments)

    def _stage(self, step: Primitive) -> int:
        buffer = _buffer(step)
        return self._position(step.stage) if buffer < 0 else self._order.position_of(buffer)

    def _annotate(self, step: Primitive, head: Step) -> Step | None:
        number = _ANNOTATION_NUMBERS.get(step.names[2])
        return None if number is None else [*head, number]

    def _pragma(self, step: Primitive) -> Step | None:
        word = _PRAGMAS.get(step.names[2], step.names[2])
        position = self._position(step.stage if step.loops else self._main)
        if position < 0 or not word:
            return None
        text = f"{word}${step.numbers[0]}" if step.numbers else word
        return [Kind.PR.value, position, step.loops[0] if step.loops else 0, text]

    def _fuse(self, step: Primitive, head: Step) -> Step | None:
        return None if len(step.loops) != step.numbers[0] else [*head, list(step.loops)]

    def _reorder(self, step: Primitive, head: Step) -> Step | None:
        return [*head, list(step.loops)] if step.loops else None

    def _split(self, step: Primitive, head: Step) -> Step | None:
        if len(step.numbers) < 4:
            return None
        axis, extent, *factors = step.numbers
        inner_to_outer = _is_inner_to_outer(extent, factors)
        lengths = tuple(factors[1:] if inner_to_outer else factors[:-1])
        if step.kind is Kind.SP:
            splits = self._splits.setdefault(step.stage, [])
            if len(splits) < _MOST_SPLITS:
                splits.append(_Split(len(self.steps), axis, extent, lengths))
        return [Kind.SP.value, *head[1:], extent, list(lengths), int(inner_to_outer)]

    def _follow(self, step: Primitive, head: Step) -> Step | None:
        """A pointer to the split that gives the same factors; the factors themselves where there is none."""
        if len(step.numbers) < 4 or not step.targets:
            return self._split(step, head)
        axis, extent, _, *lengths = step.numbers
        count = len(lengths)
        sources = [
            split
            for split in self._splits.get(step.targets[0], ())
            if count <= len(split.lengths) + 1
            and [*split.lengths[: count - 1], extent_product(split.lengths[count - 1 :])] == lengths
        ]
        if not sources:
            return self._split(step, head)
        source = max(sources, key=lambda split: (split.extent == extent, split.axis == axis))
        return [*head, source.place, count]

    def _follow_fused(self, step: Primitive, head: Step) -> Step | None:
        """Pointers to the level whose product is the factor; the factor itself where there is none."""
        if len(step.numbers) != 4 or not step.targets:
            return self._split(step, head)
        _, extent, outer, inner = step.numbers
        inner_to_outer = _is_inner_to_outer(extent, (outer, inner))
        splits = self._splits.get(step.targets[0], [])
        deepest = max((len(split.lengths) for split in splits), default=0)
        # Ansor fetches with the threads that compute: all spatial splits, the last one first, at one level.
        spatial = [split for split in reversed(splits) if len(split.lengths) == deepest]
        for sources in (spatial, *([split] for split in splits)):
            for level in (1, 0, *range(2, min(deepest, _MOST_LEVELS))):
                if all(level < len(split.lengths) for split in sources) and extent_product(
                    [split.lengths[level] for split in sources]
                ) == (inner if inner_to_outer else outer):
                    return [*head, [split.place for split in sources], level, int(inner_to_outer)]
        return self._split(step, head)

    def _storage_align(self, step: Primitive, head: Step) -> Step | None:
        # MetaSchedule puts the buffer's index in front.
        return None if len(step.numbers) < 3 else [*head, *step.numbers[-3:]]

    def _compute_at(self, step: Primitive, head: Step) -> Step | None:
        target = self._position(step.targets[0]) if step.targets else -1
        return None if target < 0 or len(step.loops) != 1 else [*head, target, step.loops[0]]

    def _at_once(self, _step: Primitive, head: Step) -> Step:
        return head

    def _cache_read(self, step: Primitive, head: Step) -> Step | None:
        readers: list[object] = [self._position(target) for target in step.targets]
        return None if -1 in readers else [*head, step.names[2], readers]

    def _cache_write(self, step: Primitive, head: Step) -> Step:
        return [*head, step.names[2]]

    def _rfactor(self, step: Primitive, head: Step) -> Step | None:
        return None if len(step.numbers) < 2 else [*head, step.numbers[1]]


def _buffer(step: Primitive) -> int:
    """Buffer of the reader that a cache read names instead of a stage, -1 where it names a stage."""
    return min(step.numbers[0], MAX_POSITION) if step.kind is Kind.CHR and step.numbers else -1


def _is_inner_to_outer(extent: int, factors: Sequence[int]) -> bool:
    """Whether the outermost factor follows from the others, as nearly always; else the innermost does."""
    if not (factors[0] and factors[-1]):
        # The one that follows is the one that may be unknown.
        return not factors[0]
    return split_factors(extent, factors[1:], inner_to_outer=True) == tuple(factors) or split_factors(
        extent, factors[:-1], inner_to_outer=False
    ) != tuple(factors)


_HANDLERS: dict[Kind, Callable[[_Writer, Primitive, Step], Step | None]] = {
    Kind.AN: _Writer._annotate,
    Kind.FU: _Writer._fuse,
    Kind.RE: _Writer._reorder,
    Kind.SP: _Writer._split,
    Kind.FSP: _Writer._follow,
    Kind.FFSP: _Writer._follow_fused,
    Kind.SA: _Writer._storage_align,
    Kind.CA: _Writer._compute_at,
    Kind.CI: _Writer._at_once,
    Kind.CR: _Writer._at_once,
    Kind.CHR: _Writer._cache_read,
    Kind.CHW: _Writer._cache_write,
    Kind.RF: _Writer._rfactor,
}
