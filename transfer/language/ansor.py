"""Ansor's transform steps (record format v0.6) as primitive sequences.

A trace is the JSON text of the list of steps of one record: `[["SP",2,0,512,[1,8,4],1],...]`. Positions of
stages and loops become stable numbers and original axes, splits that follow others get real factors, and
annotations their names, so that an Ansor split and a MetaSchedule split say the same in the same fields.
Called by `transfer.features.extractor` and by the evaluation; knows nothing of records and files.

What a record does not say stays 0: extents of loops before their first split, and those that bound inference
makes where a stage is computed at another one that does not follow it (padding, caches that threads fetch).
The extents that Ansor writes for splits of such loops may be those of another program, from which a search
mutated this one: they are kept in the step that states them and trusted nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from agents.records import Workload
from transfer.language.ansor_stages import AnsorLoop, StageLoops, StageOrder, TooManyLoopsError, split_factors
from transfer.language.ansor_steps import (
    ANNOTATIONS,
    TILED_LENGTHS,
    is_well_formed,
    parse_steps,
)
from transfer.language.primitives import REDUCTION, SPATIAL, Kind, Primitive, Role, extent_product

_SPLITS = frozenset({Kind.SP, Kind.FSP, Kind.FFSP})
_TILED, _OTHER = Role.TILED.value, Role.OTHER.value
_MADE_ROLES = {
    Kind.CHW: Role.WRITE_CACHE.value,
    Kind.CHR: Role.READ_CACHE.value,
    Kind.RF: Role.RFACTOR.value,
}
_UNKNOWN = Primitive(Kind.UNK)


class AnsorReader:
    """Reads lists of transform steps; those that nobody knows, or that make no sense, become UNK."""

    def read(self, trace: str, workload: Workload | None = None) -> tuple[Primitive, ...]:
        """Read one trace.

        Args:
            trace: JSON text of a list of steps.
            workload: Not needed: Ansor's steps record the extents that they split.

        Returns:
            One primitive for each step, so that a step's index stays its own.

        Raises:
            TraceError: The text is not such a list, or is larger than any schedule.
        """
        return _Walk().take(parse_steps(trace))


def read_steps(steps: list[Any]) -> tuple[Primitive, ...]:
    """Read steps that are parsed already."""
    return _Walk().take(steps)


class _Raw(NamedTuple):
    """A step whose names wait for the roles of all stages."""

    kind: Kind
    numbers: tuple[int, ...]
    detail: str
    stage: int
    loops: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()


class _Split(NamedTuple):
    """An SP that later steps may follow."""

    stage: int
    axis: int
    extent: int
    lengths: list[int]


class _BadFieldsError(Exception):
    """The fields of a step contradict each other or the steps before; the message says how."""


class _Walk:
    """Walks the steps of one schedule."""

    def __init__(self) -> None:
        self._order = StageOrder()
        self._loops = StageLoops()
        #: Roles by stage, as plain text: what is not here is `OTHER`.
        self._roles: dict[int, str] = {}
        #: SP steps by index.
        self._splits: dict[int, _Split] = {}
        #: Most levels that a stage's axes are split into.
        self._levels: dict[int, int] = {}
        #: (stage, the stage whose splits it follows).
        self._followers: set[tuple[int, int]] = set()
        self._index = 0

    def take(self, steps: list[Any]) -> tuple[Primitive, ...]:
        """Read all steps."""
        raw: list[_Raw | None] = []
        for index, step in enumerate(steps):
            self._index = index
            made = None
            if is_well_formed(step):
                with suppress(_BadFieldsError, TooManyLoopsError):
                    made = _HANDLERS[step[0]](self, self._order.number_at(step[1]), *step[2:])
            raw.append(made)
        for stage, levels in self._levels.items():
            if levels > TILED_LENGTHS:
                self._roles.setdefault(stage, _TILED)
        return tuple([self._named(step) for step in raw])

    def _named(self, step: _Raw | None) -> Primitive:
        if step is None:
            return _UNKNOWN
        kind, numbers, detail, stage, loops, targets = step
        about = stage
        if kind in _SPLITS:
            followed = targets[0] if targets else stage
            if self._roles.get(followed) == _TILED:
                # The tiling structure gives each kind of axis its own number of levels, spatial ones more.
                levels = self._levels[followed]
                if kind is Kind.SP:
                    detail = SPATIAL if len(numbers) - 2 == levels else REDUCTION
                elif kind is Kind.FSP:
                    detail = SPATIAL
        elif kind is Kind.CHR and targets:
            # As in a MetaSchedule trace, a cache read is described by the block that reads.
            about = targets[0]
        role = self._roles.get(about, _OTHER)
        return Primitive(kind, numbers, ("", role, detail), stage, loops, targets)

    def _annotate(self, stage: int, position: int, word: int) -> _Raw:
        if word >= len(ANNOTATIONS):
            raise _BadFieldsError("no such annotation")
        axis, extent, _ = self._loops.upto(stage, position + 1)[position]
        return _Raw(Kind.AN, (axis, extent), ANNOTATIONS[word], stage, (position,))

    def _fuse(self, stage: int, positions: list[int]) -> _Raw:
        first = positions[0] if positions else 0
        if positions != list(range(first, first + len(positions))):
            raise _BadFieldsError("loops are not consecutive")
        if not positions:
            # A scalar has no loops; fusing none of them makes one.
            self._loops.upto(stage, 0).insert(0, AnsorLoop(-1, 1, fixed=True))
            return _Raw(Kind.FU, (0, 1), "", stage)
        extent = self._loops.fuse(stage, first, len(positions))
        return _Raw(Kind.FU, (len(positions), extent), "", stage, tuple(positions))

    def _pragma(self, stage: int, position: int, text: str) -> _Raw:
        word, dollar, value = text.rpartition("$")
        if dollar and value.isascii() and value.isdigit() and len(value) <= 18:
            return _Raw(Kind.PR, (int(value),), word, stage, (position,))
        return _Raw(Kind.PR, (), text, stage, (position,))

    def _reorder(self, stage: int, order: list[int]) -> _Raw:
        if not self._loops.reorder(stage, order):
            raise _BadFieldsError("not a permutation of the loops")
        return _Raw(Kind.RE, (len(order),), "", stage, tuple(order))

    def _split(
        self, stage: int, position: int, extent: int, lengths: list[int], inner_to_outer: int = 1
    ) -> _Raw:
        loop = self._loops.upto(stage, position + 1)[position]
        self._splits[self._index] = _Split(stage, loop.axis, extent or loop.extent, lengths)
        self._levels[stage] = max(self._levels.get(stage, 0), len(lengths) + 1)
        return self._divide(
            Kind.SP, stage, position, extent or loop.extent, lengths, inner_to_outer=bool(inner_to_outer)
        )

    def _follow(self, stage: int, position: int, source: int, count: int) -> _Raw:
        """A split by the first factors of another one; the last takes all that are left of it."""
        split = self._source(source)
        if not 1 <= count <= len(split.lengths) + 1:
            raise _BadFieldsError("more levels than the split has")
        lengths = [*split.lengths[: count - 1], extent_product(split.lengths[count - 1 :])]
        loop = self._loops.upto(stage, position + 1)[position]
        extent = loop.extent
        if len(split.lengths) >= TILED_LENGTHS and loop.axis == split.axis:
            # Ansor lets a stage follow the tiles of another of the same shape only, so the axis is as long.
            # In a reduction across threads the two axes have nothing in common but the threads.
            self._followers.add((stage, split.stage))
            extent = extent or (0 if self._loops.is_moved(stage) else split.extent)
        return self._divide(Kind.FSP, stage, position, extent, lengths, split.stage)

    def _follow_fused(
        self, stage: int, position: int, sources: list[int], level: int, inner_to_outer: int = 1
    ) -> _Raw:
        """A split by the product of one level of other splits: threads that fetch together."""
        splits = [self._source(source) for source in sources]
        if not splits or any(level >= len(split.lengths) for split in splits):
            raise _BadFieldsError("no such level")
        length = extent_product([split.lengths[level] for split in splits])
        extent = self._loops.upto(stage, position + 1)[position].extent
        return self._divide(
            Kind.FFSP,
            stage,
            position,
            extent,
            [length],
            splits[0].stage,
            inner_to_outer=bool(inner_to_outer),
        )

    def _source(self, index: int) -> _Split:
        split = self._splits.get(index)
        if split is None:
            raise _BadFieldsError("no split at the step it follows")
        return split

    def _divide(
        self,
        kind: Kind,
        stage: int,
        position: int,
        extent: int,
        lengths: list[int],
        *followed: int,
        inner_to_outer: bool = True,
    ) -> _Raw:
        factors = split_factors(extent, lengths, inner_to_outer)
        if self._loops.is_moved(stage) and not self._loops.upto(stage, position + 1)[position].extent:
            # The record's extent may be another program's, so what follows from it is not known.
            factors = (0, *lengths) if inner_to_outer else (*lengths, 0)
        axis = self._loops.split(stage, position, factors)
        return _Raw(kind, (axis, extent, *factors), "", stage, (position,), followed)

    def _storage_align(self, stage: int, position: int, factor: int, offset: int) -> _Raw:
        return _Raw(Kind.SA, (position, factor, offset), "", stage, (position,))

    def _compute_at(self, stage: int, target: int, position: int) -> _Raw:
        target_stage = self._order.number_at(target)
        extents = [loop.extent for loop in self._loops.upto(target_stage, position + 1)]
        around, inside = extent_product(extents[: position + 1]), extent_product(extents[position + 1 :])
        self._loops.move_into(
            stage, target_stage, position, followed=(target_stage, stage) in self._followers
        )
        return _Raw(Kind.CA, (position, around, inside), "", stage, (position,), (target_stage,))

    def _compute_inline(self, stage: int) -> _Raw:
        return _Raw(Kind.CI, (), "", stage)

    def _compute_root(self, stage: int) -> _Raw:
        self._loops.move_to_root(stage)
        return _Raw(Kind.CR, (), "", stage)

    def _cache_read(self, stage: int, scope: str, readers: list[int]) -> _Raw:
        numbers = tuple([self._order.number_at(reader) for reader in readers])
        self._insert(Kind.CHR, stage)
        # Ansor names the stage that is read, not the buffer's place among the reader's.
        return _Raw(Kind.CHR, (-1,), scope, stage, (), numbers)

    def _cache_write(self, stage: int, scope: str) -> _Raw:
        self._insert(Kind.CHW, stage)
        return _Raw(Kind.CHW, (0,), scope, stage)

    def _rfactor(self, stage: int, position: int, factor_axis: int) -> _Raw:
        axis = self._loops.upto(stage, position + 1)[position].axis
        partial = self._insert(Kind.RF, stage)
        extent = self._loops.factor_reduction(stage, partial, position, factor_axis)
        return _Raw(Kind.RF, (axis, factor_axis, extent), "", stage, (position,))

    def _insert(self, kind: Kind, stage: int) -> int:
        number = self._order.insert(kind, self._order.position_of(stage))
        self._roles[number] = _MADE_ROLES[kind]
        return number


_HANDLERS: dict[str, Callable[..., _Raw]] = {
    "AN": _Walk._annotate,
    "FU": _Walk._fuse,
    "PR": _Walk._pragma,
    "RE": _Walk._reorder,
    "SP": _Walk._split,
    "FSP": _Walk._follow,
    "FFSP": _Walk._follow_fused,
    "SA": _Walk._storage_align,
    "CA": _Walk._compute_at,
    "CI": _Walk._compute_inline,
    "CR": _Walk._compute_root,
    "CHR": _Walk._cache_read,
    "CHW": _Walk._cache_write,
    "RF": _Walk._rfactor,
}
