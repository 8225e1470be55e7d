"""What a sequence of canonical steps does to a program: stages and their loops, step by step.

The same rules for every dialect, so that "a MetaSchedule split is an Ansor split" can be checked: against the
scheduled program for live candidates (`live_loop_nests`), against the extents that an Ansor record
repeats. Data that contradicts itself is noted in `mismatches`, never raised. Knows nothing of texts, TVM or
learning.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from transfer.language.primitives import CREATED, Kind, Primitive, Role
from transfer.language.program import ProgramStage

#: Annotations that say how a loop runs; others are notes for the compiler.
LOOP_WORDS = frozenset(
    {
        *("none", "unroll", "vectorize", "parallel", "vthread", "tensorize"),
        *(f"{unit}.{axis}" for unit in ("blockIdx", "threadIdx", "vthread") for axis in "xyz"),
    }
)
#: Deepest position that is followed in a stage whose number of loops is not known.
_POSITION_LIMIT = 256
#: Kinds that change a stage in ways that the steps do not tell.
_OPAQUE = frozenset({Kind.UNK, Kind.BLOCKIZE, Kind.TENSORIZE, Kind.REINDEX, Kind.DECOMPOSE, Kind.PAD_EINSUM})


class Loop(NamedTuple):
    """One loop."""

    #: Iterations; 0 unknown.
    extent: int
    #: Own axis of the stage that it came from; -1 for fused axes and unit loops.
    axis: int = -1
    annotation: str = ""
    #: Whether the extent rests on the bound inference of a compute-at instead of on steps.
    inferred: bool = False
    #: Whether it runs over reduction axes only; None unknown.
    reduction: bool | None = None


@dataclass(slots=True)
class Stage:
    """One stage and its own loops, outermost first."""

    number: int
    name: str = ""
    role: str = ""
    loops: list[Loop] = field(default_factory=list)
    #: (stage, position among its own loops) that the loops stand in; None at the root.
    at: tuple[int, int] | None = None
    inlined: bool = False
    #: Whether `loops` is all of them; else further ones may show up behind.
    complete: bool = False
    #: Axes of the stage, 0 unknown.
    axes: int = 0
    #: Whether an opaque step changed it: nothing is known of its loops any more.
    lost: bool = False


class Mismatch(NamedTuple):
    """A step that contradicts the ones before it."""

    #: Number of the step among those applied, from 0.
    step: int
    kind: Kind
    stage: int
    what: str
    expected: int
    got: int


class LoopNest:
    """The loops of a program while steps are applied to it.

    Args:
        initial: Extents of the own loops of the program's stages, by stage number, where they are known.
        fresh_loops: Whether compute-at makes the loops of a stage anew, one an axis, as TVM's does
            (MetaSchedule), and a factored reduction keeps the order of the loops. Else the stage keeps its
            loops, their extents unknown, and the factored axis is the last spatial one (Ansor).

    Attributes:
        stages: Every stage met, by its number.
        mismatches: Steps that contradict the ones before.
        determined: Steps by kind that left every loop they made or placed with an extent known from steps.
        inferred: The other steps by kind: some extent is unknown, or rests on bound inference.
    """

    def __init__(
        self, initial: Mapping[int, Sequence[int]] | None = None, *, fresh_loops: bool = False
    ) -> None:
        self.stages: dict[int, Stage] = {}
        self.mismatches: list[Mismatch] = []
        self.determined: Counter[Kind] = Counter()
        self.inferred: Counter[Kind] = Counter()
        self._fresh_loops = fresh_loops
        self._created = 0
        self._steps = 0
        for number, extents in (initial or {}).items():
            loops = [Loop(max(0, extent), axis) for axis, extent in enumerate(extents)]
            self.stages[number] = Stage(number, loops=loops, complete=True, axes=len(loops))

    @classmethod
    def of_program(cls, program: Sequence[ProgramStage]) -> LoopNest:
        """The nest of an unscheduled MetaSchedule workload; an empty program gives an empty nest."""
        nest = cls(fresh_loops=True)
        for number, one in enumerate(program):
            loops = [
                Loop(extent, axis, reduction=reduction)
                for axis, (extent, reduction) in enumerate(zip(one.extents, one.reductions, strict=True))
            ]
            nest.stages[number] = Stage(number, one.name, "", loops, one.at, complete=True, axes=one.axes)
        return nest

    def path(self, number: int) -> tuple[Loop, ...]:
        """Loops around a stage from the root on: those it stands in, then its own."""
        stage = self.stages[number]
        loops = list(stage.loops)
        seen = {number}
        while stage.at is not None and stage.at[0] not in seen:
            target, position = stage.at
            stage = self._stage(target)
            seen.add(target)
            loops[:0] = stage.loops[: position + 1]
        return tuple(loops)

    def supply(self, number: int, extents: Sequence[int]) -> None:
        """Put in extents that bound inference found for the own loops of a stage.

        Known extents stay. Another number of loops than known is a mismatch, unless the number was open.
        """
        stage = self._stage(number)
        if len(extents) != len(stage.loops) and (stage.complete or len(extents) < len(stage.loops)):
            self._mismatch(Kind.CA, number, "loops supplied", len(stage.loops), len(extents))
            return
        stage.loops += [Loop(0, inferred=True)] * (len(extents) - len(stage.loops))
        stage.loops = [
            loop if loop.extent else loop._replace(extent=extent, inferred=True)
            for loop, extent in zip(stage.loops, extents, strict=True)
        ]
        stage.complete = True

    def apply(self, step: Primitive) -> None:
        """Apply one step. A step of an unknown stage changes nothing and counts as inferred."""
        # Notes on the root block are about no loop.
        known = step.stage < 0 and step.names[1] == Role.ROOT
        if step.kind is Kind.RF:
            known = self._rfactor(step)
        elif step.kind in (Kind.CHR, Kind.CHW):
            known = self._cache(step)
        elif step.stage >= 0:
            stage = self._stage(step.stage)
            if step.kind in _OPAQUE:
                stage.lost, stage.loops, stage.complete = True, [], False
            elif not stage.lost:
                known = _CHANGES.get(step.kind, LoopNest._keep)(self, step, stage)
                if step.names[0] and not stage.name:
                    stage.name = step.names[0]
        (self.determined if known else self.inferred)[step.kind] += 1
        self._steps += 1

    def _stage(self, number: int) -> Stage:
        return self.stages.setdefault(number, Stage(number))

    def _mismatch(self, kind: Kind, stage: int, what: str, expected: int, got: int) -> None:
        self.mismatches.append(Mismatch(self._steps, kind, stage, what, expected, got))

    def _reach(self, kind: Kind, stage: Stage, position: int) -> bool:
        """Whether a stage has a loop at a position; an open stage gets it."""
        missing = position + 1 - len(stage.loops)
        if position < 0 or position > _POSITION_LIMIT or (missing > 0 and stage.complete):
            self._mismatch(kind, stage.number, "position", len(stage.loops), position)
            return False
        # Loops first met where the stage is computed at another one were made by bound inference.
        met = stage.at is not None
        stage.loops += [Loop(0, stage.axes + place, inferred=met) for place in range(missing)]
        stage.axes += max(0, missing)
        return True

    def _put(self, stage: Stage, first: int, last: int, new: Sequence[Loop]) -> None:
        """Replace loops; what stands in the nest moves along."""
        stage.loops[first : last + 1] = new
        gone = last - first + 1
        for one in self.stages.values():
            if one.at is None or one.at[0] != stage.number or one.at[1] < first:
                continue
            place = one.at[1]
            one.at = (stage.number, first + len(new) - 1 if place <= last else place + len(new) - gone)

    def _keep(self, step: Primitive, stage: Stage) -> bool:
        """A step that leaves loops as they are."""
        return True

    def _split(self, step: Primitive, stage: Stage) -> bool:
        factors = [max(0, factor) for factor in step.numbers[2:]]
        if not step.loops or not factors:
            return self._forget(stage)
        place = step.loops[0]
        if not self._reach(step.kind, stage, place):
            return False
        loop, recorded = stage.loops[place], max(0, step.numbers[1])
        if loop.extent and recorded and loop.extent != recorded:
            self._mismatch(step.kind, stage.number, "extent", loop.extent, recorded)
        # Factors were chosen for the extent that the step repeats.
        whole = recorded or loop.extent
        inner = math.prod(factor for factor in factors if factor)
        # A loop that bound inference sized lends its uncertainty to the factor that is left open only.
        rests_on_inference = [loop.inferred and not factor for factor in factors]
        if factors.count(0) == 1 and whole:
            factors[factors.index(0)] = -(-whole // inner)
        elif 0 not in factors and inner < whole:
            self._mismatch(step.kind, stage.number, "product of factors", whole, inner)
        pieces = [
            Loop(factor, loop.axis, "", is_inferred, loop.reduction)
            for factor, is_inferred in zip(factors, rests_on_inference, strict=True)
        ]
        self._put(stage, place, place, pieces)
        return all(piece.extent and not piece.inferred for piece in pieces)

    def _fuse(self, step: Primitive, stage: Stage) -> bool:
        if not step.loops:
            return self._forget(stage)
        first, last = step.loops[0], step.loops[-1]
        if step.loops != tuple(range(first, last + 1)):
            self._mismatch(
                step.kind, stage.number, "loops that follow each other", len(step.loops), last - first + 1
            )
            return False
        if not (self._reach(step.kind, stage, first) and self._reach(step.kind, stage, last)):
            return False
        loops = stage.loops[first : last + 1]
        extent = math.prod(loop.extent for loop in loops)
        recorded = step.numbers[1] if len(step.numbers) > 1 else 0
        if extent and recorded and extent != recorded:
            self._mismatch(step.kind, stage.number, "extent", extent, recorded)
        is_inferred = any(loop.inferred for loop in loops)
        unknown = any(loop.reduction is None for loop in loops)
        fused = Loop(
            extent or max(0, recorded),
            loops[0].axis if len(loops) == 1 else -1,
            loops[0].annotation if len(loops) == 1 else "",
            is_inferred,
            None if unknown else all(loop.reduction for loop in loops),
        )
        self._put(stage, first, last, [fused])
        return bool(fused.extent) and not is_inferred

    def _reorder(self, step: Primitive, stage: Stage) -> bool:
        order = step.loops
        if not order:
            return self._forget(stage)
        if sorted(order) != list(range(len(order))):
            self._mismatch(step.kind, stage.number, "a permutation", len(order), len(set(order)))
            return False
        if not self._reach(step.kind, stage, len(order) - 1):
            return False
        if len(stage.loops) != len(order):
            self._mismatch(step.kind, stage.number, "loops to reorder", len(stage.loops), len(order))
            return False
        stage.complete = True
        stage.loops = [stage.loops[place] for place in order]
        return all(loop.extent and not loop.inferred for loop in stage.loops)

    def _annotate(self, step: Primitive, stage: Stage) -> bool:
        if not step.loops:
            return True
        place = step.loops[0]
        if not self._reach(step.kind, stage, place):
            return False
        loop = stage.loops[place]
        if step.names[2] in LOOP_WORDS:
            word = "" if step.names[2] == "none" else step.names[2]
            stage.loops[place] = loop._replace(annotation=word)
        return loop.extent > 0 and not loop.inferred

    def _unit_loop(self, step: Primitive, stage: Stage) -> bool:
        if not step.loops:
            return self._forget(stage)
        place = step.loops[0]
        if place and not self._reach(step.kind, stage, place - 1):
            return False
        stage.loops.insert(place, Loop(1, reduction=False))
        for one in self.stages.values():
            if one.at is not None and one.at[0] == stage.number and one.at[1] >= place:
                one.at = (stage.number, one.at[1] + 1)
        return True

    def _forget(self, stage: Stage) -> bool:
        """A step on loops that nobody knows leaves nothing known."""
        stage.lost, stage.loops, stage.complete = True, [], False
        return False

    def _compute_at(self, step: Primitive, stage: Stage) -> bool:
        if self._fresh_loops:
            stage.loops = [Loop(0, axis, inferred=True) for axis in range(stage.axes)]
            stage.complete = stage.axes > 0
        else:
            stage.loops = [loop._replace(extent=0, inferred=True) for loop in stage.loops]
        stage.at = None
        if not step.targets or not step.loops:
            return self._forget(stage)
        target = self._stage(step.targets[0])
        if self._stands_in(target, stage.number):
            self._mismatch(
                step.kind, stage.number, "a target outside of the stage", stage.number, target.number
            )
            return False
        if not target.lost and self._reach(step.kind, target, step.loops[0]):
            stage.at = (target.number, step.loops[0])
        return not stage.loops and stage.complete

    def _stands_in(self, stage: Stage, number: int) -> bool:
        seen: set[int] = set()
        while stage.number not in seen:
            if stage.number == number:
                return True
            seen.add(stage.number)
            if stage.at is None:
                return False
            stage = self._stage(stage.at[0])
        return True

    def _compute_root(self, step: Primitive, stage: Stage) -> bool:
        # MetaSchedule has it for a sampled location that leaves the block where it is.
        if stage.at is None or self._fresh_loops:
            return True
        stage.at = None
        stage.loops = [loop._replace(extent=0, inferred=True) for loop in stage.loops]
        return False

    def _inline(self, step: Primitive, stage: Stage) -> bool:
        stage.inlined, stage.loops, stage.complete, stage.at = True, [], True, None
        return True

    def _create(self, name: str, role: Role) -> Stage:
        made = Stage(CREATED + self._created, name, str(role))
        self._created += 1
        self.stages[made.number] = made
        return made

    def _cache(self, step: Primitive) -> bool:
        # Its loops follow the region of the buffer, which steps do not tell; a compute-at mostly follows.
        self._create(step.names[0], Role.READ_CACHE if step.kind is Kind.CHR else Role.WRITE_CACHE)
        return False

    def _rfactor(self, step: Primitive) -> bool:
        made = self._create(step.names[0], Role.RFACTOR)
        if step.stage < 0:
            return False
        stage = self._stage(step.stage)
        if stage.lost or not step.loops or not self._reach(step.kind, stage, step.loops[0]):
            self._forget(stage)
            self._forget(made)
            return False
        place, spatial = step.loops[0], _spatial(step, stage, is_fresh=self._fresh_loops)
        loops = stage.loops
        made.at, made.complete = stage.at, stage.complete
        factored = loops[place]
        made.loops, made.axes = list(loops), len(loops)
        if not self._fresh_loops and spatial is not None:
            rest = [one for other, one in enumerate(loops) if other not in spatial and other != place]
            made.loops = [*(loops[one] for one in sorted(spatial)), factored, *rest]
        stage.loops, stage.complete = [], False
        if spatial is None:
            stage.axes = 0
            return False
        stage.loops = [loop for other, loop in enumerate(loops) if other in spatial or other == place]
        stage.axes, stage.complete = len(stage.loops), made.complete
        return all(loop.extent and not loop.inferred for loop in made.loops)


def _spatial(step: Primitive, stage: Stage, *, is_fresh: bool) -> Collection[int] | None:
    """Places of the loops that are no reduction; None where that is not known.

    Args:
        step: An rfactor.
        stage: Its stage.
        is_fresh: The factored stage gets fresh loops.
    """
    if all(loop.reduction is not None for loop in stage.loops):
        return {place for place, loop in enumerate(stage.loops) if not loop.reduction}
    if is_fresh or len(step.numbers) < 2 or not 0 <= step.numbers[1] <= step.loops[0]:
        return None
    # Ansor puts the factored axis behind the spatial ones, which come first in the nest.
    return range(step.numbers[1])


_CHANGES: dict[Kind, Callable[[LoopNest, Primitive, Stage], bool]] = {
    **dict.fromkeys((Kind.SP, Kind.FSP, Kind.FFSP), LoopNest._split),
    Kind.FU: LoopNest._fuse,
    Kind.RE: LoopNest._reorder,
    Kind.AN: LoopNest._annotate,
    Kind.UNIT_LOOP: LoopNest._unit_loop,
    Kind.CA: LoopNest._compute_at,
    Kind.CR: LoopNest._compute_root,
    Kind.CI: LoopNest._inline,
}
