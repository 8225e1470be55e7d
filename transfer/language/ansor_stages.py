"""Where Ansor's stages stand, and what their loops are, while a schedule is read or written.

Ansor names stages and loops by their position at the time a step is applied, and three steps insert stages.
`StageOrder` turns such positions into stable numbers and back; `StageLoops` remembers of each loop which
axis it came from and how far it runs, as far as the steps tell: a record does not say how many stages and
loops there are at the start, so both lists grow as positions are met. Called by `transfer.language.ansor`
and `transfer.language.to_ansor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from transfer.language.primitives import CREATED, MAX_NUMBER, Kind, extent_product

#: Loops of one stage that are followed; published schedules have some forty.
MOST_LOOPS = 256


class TooManyLoopsError(Exception):
    """A step on a stage that has, or would get, more loops than any schedule."""


class AnsorLoop(NamedTuple):
    """One loop of a stage."""

    #: Original axis of the stage, -1 for fused ones.
    axis: int
    #: Iterations, 0 unknown.
    extent: int
    #: Whether computing the stage elsewhere leaves the extent as it is: true of the inner pieces of a split.
    fixed: bool


class StageOrder:
    """Stable numbers of the stages, by position."""

    __slots__ = ("_created", "_numbers", "_originals")

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._originals = 0
        self._created = 0

    def number_at(self, position: int) -> int:
        """Stable number of the stage at a position."""
        numbers = self._numbers
        while position >= len(numbers):
            numbers.append(self._originals)
            self._originals += 1
        return numbers[position]

    def position_of(self, number: int) -> int:
        """Position of a stage; -1 for a created stage that does not exist."""
        if 0 <= number < CREATED:
            while number >= self._originals:
                self._numbers.append(self._originals)
                self._originals += 1
        try:
            return self._numbers.index(number)
        except ValueError:
            return -1

    def insert(self, kind: Kind, position: int) -> int:
        """Insert the stage that a CHW, CHR or RF on the stage at `position` makes; return its number.

        Ansor puts the computing half of a cache write and the partial result of a factored reduction at the
        stage's own position, a cache of its result behind it. The stage that computes keeps its number, and
        so does the one that a factored reduction ends in.
        """
        self.number_at(position)
        number = CREATED + self._created
        self._created += 1
        self._numbers.insert(position if kind is Kind.RF else position + 1, number)
        return number

    def skip(self) -> None:
        """Pass over a number: the stage that has it stands nowhere."""
        self._created += 1


class StageLoops:
    """Loops of every stage by stable number, outermost first; positions not met yet are whole axes."""

    __slots__ = ("_axes", "_loops", "_moved")

    def __init__(self) -> None:
        self._loops: dict[int, list[AnsorLoop]] = {}
        #: Original axes met so far, by stage.
        self._axes: dict[int, int] = {}
        self._moved: set[int] = set()

    def upto(self, stage: int, count: int) -> list[AnsorLoop]:
        """The loops met of a stage, at least `count` of them: the list itself.

        Raises:
            TooManyLoopsError: They are more than any stage has.
        """
        if count > MOST_LOOPS:
            raise TooManyLoopsError
        loops = self._loops.get(stage)
        if loops is None:
            loops = self._loops[stage] = []
            self._axes[stage] = 0
        if count > len(loops):
            axis = self._axes[stage]
            self._axes[stage] = axis + count - len(loops)
            loops.extend(AnsorLoop(axis + place, 0, False) for place in range(count - len(loops)))
        return loops

    def split(self, stage: int, position: int, factors: Sequence[int]) -> int:
        """Replace a loop by its pieces, outermost first; return its axis.

        Every factor but the outermost is fixed by the split, also where it was written the other way round.

        Raises:
            TooManyLoopsError: There would be more than any stage has.
        """
        loops = self.upto(stage, position + 1)
        if len(loops) + len(factors) > MOST_LOOPS:
            raise TooManyLoopsError
        axis, _, fixed = loops[position]
        pieces = [AnsorLoop(axis, factor, True) for factor in factors]
        if not fixed:
            pieces[0] = AnsorLoop(axis, 0 if stage in self._moved else factors[0], False)
        loops[position : position + 1] = pieces
        return axis

    def fuse(self, stage: int, first: int, count: int) -> int:
        """Fuse consecutive loops; return the extent of the result, 0 unknown."""
        loops = self.upto(stage, first + count)
        fused = loops[first : first + count]
        extent = extent_product([loop.extent for loop in fused])
        axis = fused[0].axis if count == 1 else -1
        loops[first : first + count] = [AnsorLoop(axis, extent, all(loop.fixed for loop in fused))]
        return extent

    def reorder(self, stage: int, order: Sequence[int]) -> bool:
        """Permute all loops of a stage; False, and nothing done, where `order` is no permutation of them."""
        loops = self.upto(stage, len(order))
        if len(order) != len(loops) or sorted(order) != list(range(len(loops))):
            return False
        loops[:] = [loops[place] for place in order]
        return True

    def move_to_root(self, stage: int) -> None:
        """Compute a stage at the root: forget the extents that no split fixes."""
        self._forget(stage)
        self._moved.discard(stage)

    def move_into(self, stage: int, target: int, position: int, *, followed: bool) -> None:
        """Compute a stage in the loops of another one.

        Args:
            stage: The stage.
            target: The other stage.
            position: The loop of the target inside of which the stage is computed.
            followed: Whether the target follows the splits of the stage: it has the same axes then, and
                needs of each as much as its loops inside the position run over. Elsewhere the extents that no
                split fixes are forgotten: bound inference makes them out of index expressions.
        """
        around = self.upto(target, position + 1)
        needed: dict[int, int] = {loop.axis: 1 for loop in around}
        for loop in around[position + 1 :]:
            # Pieces of other programs may multiply to numbers that no float holds.
            needed[loop.axis] = min(needed[loop.axis] * loop.extent, MAX_NUMBER)
        if followed and -1 not in needed and all(needed.values()):
            loops = self.upto(stage, 0)
            for place in range(len(loops) - 1, -1, -1):
                axis, extent, fixed = loops[place]
                if axis in needed:
                    # From the innermost piece outwards: each takes its factor of what is left to run over.
                    remaining = needed[axis]
                    factor = min(extent, remaining) if fixed else remaining
                    needed[axis] = -(-remaining // max(1, factor))
                    loops[place] = AnsorLoop(axis, factor, fixed)
        else:
            self._forget(stage)
        self._moved.add(stage)

    def _forget(self, stage: int) -> None:
        loops = self.upto(stage, 0)
        loops[:] = [loop if loop.fixed else AnsorLoop(loop.axis, 0, False) for loop in loops]

    def is_moved(self, stage: int) -> bool:
        """Whether a stage is computed in the loops of another one."""
        return stage in self._moved

    def factor_reduction(self, stage: int, partial: int, position: int, spatial: int) -> int:
        """Part a reduction: its loop becomes a spatial one of the partial stage; return the loop's extent.

        Args:
            stage: The reducing stage, which keeps its spatial loops and sums over the factored one.
            partial: The new stage of partial results.
            position: The factored loop.
            spatial: Where that loop comes in the partial stage: behind so many spatial loops.
        """
        loops = self.upto(stage, max(position + 1, spatial))
        factored = loops[position]
        others = [loop for place, loop in enumerate(loops) if place != position]
        self._loops[partial] = [
            AnsorLoop(axis, loop.extent, False)
            for axis, loop in enumerate([*others[:spatial], factored, *others[spatial:]])
        ]
        self._loops[stage] = [
            AnsorLoop(axis, loop.extent, False) for axis, loop in enumerate([*others[:spatial], factored])
        ]
        self._axes[partial], self._axes[stage] = len(self._loops[partial]), len(self._loops[stage])
        return factored.extent


def split_factors(extent: int, lengths: Sequence[int], inner_to_outer: bool) -> tuple[int, ...]:
    """Factors of a split, outermost first, the one that follows from the extent put in.

    Args:
        extent: Extent of the loop, 0 unknown.
        lengths: The factors that are written: all but the outermost, or all but the innermost.
        inner_to_outer: Which of the two.

    Returns:
        One factor more than `lengths`; 0 where it is unknown.
    """
    inside = extent_product(lengths)
    rest = -(-extent // inside) if inside else 0
    return (rest, *lengths) if inner_to_outer else (*lengths, rest)
