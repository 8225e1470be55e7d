"""Values of a MetaSchedule trace that wait for decisions, and what fills them in.

Called by `transfer.language.meta_schedule` only; knows nothing of instructions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from transfer.errors import TraceError
from transfer.language.primitives import MAX_NUMBER, Primitive, extent_product

#: Sets of sampled compute locations kept per design space before starting over.
_TAIL_LIMIT = 2048
#: Loops that are fused into one at most; real schedules fuse some twenty.
_MOST_FUSED = 1024
#: Loops of one nest, and factors of one split, that are multiplied at most; a longer nest counts as unknown.
_DEEPEST_NEST = 256
#: Forms of decisions kept per design space before starting over.
_FORM_LIMIT = 4096

#: By the index of the instruction: a number, or a list or tuple of them.
Decisions = Mapping[int, Any]
Fill = Callable[[Decisions], Primitive]


class Hole(NamedTuple):
    """A step that waits for decisions."""

    #: In the template.
    place: int
    #: Instructions whose decisions it is made from; no other decision changes it.
    reads: tuple[int, ...]
    make: Fill


class Tail(NamedTuple):
    """Compiled steps."""

    template: tuple[Primitive, ...]
    holes: tuple[Hole, ...]

    def fill(self, decisions: Decisions) -> list[Primitive]:
        """Steps under some decisions.

        Raises:
            TraceError: A decision is missing or of another form.
        """
        steps = list(self.template)
        for place, _, make in self.holes:
            steps[place] = make(decisions)
        return steps


class CompiledSpace:
    """A compiled design space.

    Args:
        head: Its steps up to the first sampled compute location.
        locations: Instructions that sample a compute location.
        follow: Compiles what comes after the head, given these locations.

    Attributes:
        size: About how much of it is kept for later, in steps and decisions.
    """

    def __init__(
        self,
        head: Tail,
        locations: tuple[int, ...],
        follow: Callable[[tuple[int, ...]], Tail],
    ) -> None:
        self.size = 0
        self._head = head
        self._locations = locations
        self._follow = follow
        self._tails: dict[tuple[int, ...], Tail] = {}
        self._filled: set[tuple[object, ...]] = set()

    def check(self, decisions: Decisions) -> None:
        """Raise what `fill` would; of tile factors only the number matters, so one of each form is filled.

        Raises:
            TraceError: A decision is missing or of another form.
        """
        form = tuple(
            (place, (len(value),) if isinstance(value, list | tuple) else value)
            for place, value in decisions.items()
        )
        if form in self._filled:
            return
        self.fill(decisions)
        if len(self._filled) >= _FORM_LIMIT:
            self._filled.clear()
        self._filled.add(form)
        self.size += len(form)

    def fill(self, decisions: Decisions) -> tuple[Primitive, ...]:
        """Steps of the candidate with these decisions.

        Raises:
            TraceError: A decision is missing or of another form.
        """
        return tuple(step for part in self.parts(decisions) for step in part.fill(decisions))

    def parts(self, decisions: Decisions) -> tuple[Tail, ...]:
        """Compiled steps of all candidates with the same sampled compute locations, in one or two parts.

        Raises:
            TraceError: A location is missing or of another form.
        """
        if not self._locations:
            return (self._head,)
        locations = self.sampled_locations(decisions)
        tail = self._tails.get(locations)
        if tail is None:
            if len(self._tails) >= _TAIL_LIMIT:
                self._tails.clear()
            tail = self._tails[locations] = self._follow(locations)
            self.size += 2 * len(tail.template)
        return self._head, tail

    def sampled_locations(self, decisions: Decisions) -> tuple[int, ...]:
        """The decisions that the form of the steps depends on: the numbers alone depend on all others.

        Raises:
            TraceError: A location is missing or of another form.
        """
        return tuple(resolve(Sampled(place), decisions) for place in self._locations)


class Sampled(NamedTuple):
    """A number that a decision gives: item `place` of its list, one of `choices`, or the decision itself."""

    instruction: int
    place: int = -1
    choices: tuple[Any, ...] = ()


class Product(NamedTuple):
    """The extent of fused loops; no part is a product (`product`)."""

    parts: tuple[Amount, ...]


#: A number known now, or one that decisions will give. 0 stands for unknown in extents and factors.
Amount: TypeAlias = "int | Sampled | Product"


def product(parts: Iterable[Amount]) -> Product:
    """The extent of loops fused into one, of which some were fused before.

    Raises:
        TraceError: A loop is fused again and again, as no schedule does: every step may double its parts.
    """
    flat: list[Amount] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, Product) else (part,))
        if len(flat) > _MOST_FUSED:
            raise TraceError(f"MetaSchedule trace fuses more than {_MOST_FUSED} loops into one")
    return Product(tuple(flat))


def resolve(amount: Amount, decisions: Decisions) -> int:
    """Value of an amount under some decisions.

    Raises:
        TraceError: The decision it needs is missing or of another form.
    """
    if isinstance(amount, int):
        return amount
    if isinstance(amount, Product):
        whole = math.prod(resolve(part, decisions) for part in amount.parts)
        return max(-MAX_NUMBER, min(whole, MAX_NUMBER))
    decision = decisions.get(amount.instruction)
    if amount.place >= 0:
        if isinstance(decision, list | tuple) and amount.place < len(decision):
            return int(decision[amount.place])
    elif isinstance(decision, int):
        if not amount.choices:
            return decision
        if 0 <= decision < len(amount.choices):
            return as_int(amount.choices[decision])
    raise TraceError(
        f"MetaSchedule instruction {amount.instruction} has the unusable decision {decision!r:.80}"
    )


def instructions_of(amounts: Iterable[Amount]) -> tuple[int, ...]:
    """Instructions whose decisions give some amounts."""
    instructions: set[int] = set()
    for amount in amounts:
        if isinstance(amount, Product):
            instructions.update(instructions_of(amount.parts))
        elif isinstance(amount, Sampled):
            instructions.add(amount.instruction)
    return tuple(sorted(instructions))


def as_int(value: Any) -> int:
    """A literal as an integer, cut to 64 bits; 0 for anything that is no number."""
    if not isinstance(value, int | float) or value != value:
        return 0
    return int(min(max(value, -MAX_NUMBER), MAX_NUMBER))


def tile_maker(instruction: int, parts: int, axis: int, step: Primitive) -> Fill:
    """What makes the split of an axis by one perfect tile: the step that traces mostly consist of."""
    kind, _, names, stage, loops, targets = step

    def make(decisions: Decisions) -> Primitive:
        factors = decisions.get(instruction)
        if not isinstance(factors, list | tuple) or len(factors) != parts:
            raise TraceError(
                f"MetaSchedule instruction {instruction} needs {parts} tile factors, got {factors!r:.80}"
            )
        whole = math.prod(factors) if parts <= _DEEPEST_NEST else extent_product(factors)
        whole = max(-MAX_NUMBER, min(whole, MAX_NUMBER))
        return Primitive(kind, (axis, whole, *factors), names, stage, loops, targets)

    return make


def location_maker(place: int, extents: Sequence[Amount], counted: Sequence[bool], step: Primitive) -> Fill:
    """What makes a compute-at.

    Args:
        place: Depth of the loop in the nest; -1 unknown.
        extents: Extents of the nest, outermost first; empty where the trace does not tell.
        counted: Loops that count as iterations inside the location.
        step: Without its numbers.
    """
    kind, _, names, stage, loops, targets = step
    measure = _extents_maker(extents)
    is_known = 0 <= place < len(extents) <= _DEEPEST_NEST

    def make(decisions: Decisions) -> Primitive:
        around = inside = 0
        if is_known:
            sizes = measure(decisions)
            around = math.prod(sizes[: place + 1])
            inside = math.prod(itertools.compress(sizes[place + 1 :], counted[place + 1 :]))
        return Primitive(kind, (place, around, inside), names, stage, loops, targets)

    return make


def _extents_maker(extents: Sequence[Amount]) -> Callable[[Decisions], list[int]]:
    """What resolves the extents of a loop nest; nearly all are tile factors, so that case is short."""
    pairs = [
        (extent.instruction, extent.place)
        for extent in extents
        if isinstance(extent, Sampled) and extent.place >= 0
    ]

    def tiles(decisions: Decisions) -> list[int]:
        try:
            return [decisions[instruction][place] for instruction, place in pairs]
        except (KeyError, IndexError, TypeError) as error:
            raise TraceError(f"MetaSchedule trace lacks the tile factors of a loop: {error!r}") from None

    if len(pairs) == len(extents):
        return tiles
    return lambda decisions: [resolve(extent, decisions) for extent in extents]
