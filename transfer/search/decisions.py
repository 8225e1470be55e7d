"""Candidates as decisions in a design space: drawn, mutated and crossed in memory, in microseconds each.

MetaSchedule's mutators replay every mutant on a schedule, in some ten milliseconds. But a mutant differs from
its parent by numbers: how the prime factors of an axis are spread over its tiles, which unrolling limit was
chosen, at which loop a block is computed. Only what is to be measured needs a schedule (`derive` of
`agents.programs.design_space`, which refuses what does not fit). Knows traces as JSON; imports no TVM.

Drawing follows MetaSchedule's `SamplePerfectTile` (each prime factor goes to a random tile) and its
`MutateTileSize` (a factor moves from one tile of an axis to another).
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeAlias

from agents.records import canonical_json
from transfer.errors import TraceError
from transfer.language.meta_schedule import begins_postprocessing

#: What was sampled at one instruction: tile factors, or a number.
Value: TypeAlias = "tuple[int, ...] | int"
#: One value for each sampling instruction, in their order.
Genes: TypeAlias = tuple[Value, ...]

_TILE, _CHOICE, _LOCATION = "SamplePerfectTile", "SampleCategorical", "SampleComputeLocation"
#: Trial division ends here; what is left counts as one prime.
_LARGEST_PRIME = 1000
#: Tries to draw a tile whose innermost factor is within the limit.
_TRIES = 16
#: Chance that a mutated tile is drawn anew, instead of one factor moving.
_ANEW = 0.15
#: Chances of one, two and three mutations at once, cumulative.
_CHANGES = tuple(accumulate((0.6, 0.28, 0.12)))
#: Weight of a choice or location beside the 1 of a tile, where mutations are drawn.
_SMALL_WEIGHT = 0.7


@dataclass(slots=True, eq=False)
class Design:
    """The instructions of one design space up to post-processing, and what may be decided in them."""

    #: As JSON.
    instructions: list[Any]
    #: Sampling instructions, ascending.
    places: tuple[int, ...]
    #: Kind and attributes of each. Designs with equal forms can take over each other's genes.
    form: tuple[Any, ...]
    #: Extent of each tiled axis, 0 elsewhere.
    extents: tuple[int, ...]
    #: Compute locations met so far, by position among the places: which are possible only a schedule tells.
    locations: dict[int, list[int]] = field(default_factory=dict)
    #: Cumulative weights of the positions where mutations are drawn; empty until asked for.
    _chances: list[float] = field(default_factory=list)

    def meet(self, genes: Genes) -> None:
        """Note the compute locations of a candidate that exists."""
        for position, (kind, _) in enumerate(self.form):
            if kind == _LOCATION:
                values = self.locations.setdefault(position, [])
                if genes[position] not in values:
                    values.append(int(genes[position]))  # type: ignore[arg-type]  # a location is a number
                    self._chances.clear()

    def decisions(self, genes: Genes) -> dict[int, Value]:
        """Genes by instruction."""
        return dict(zip(self.places, genes, strict=True))

    def trace(self, genes: Genes) -> str:
        """The candidate as a trace without post-processing, canonical JSON."""
        return canonical_json(
            [self.instructions, [list(decision) for decision in self.decisions(genes).items()]]
        )

    def draw(self, dice: random.Random) -> Genes:
        """Genes drawn at random; compute locations are among those that were met."""
        return tuple(self._drawn(position, dice) for position in range(len(self.places)))

    def mutate(self, genes: Genes, dice: random.Random) -> Genes:
        """Genes with one to three values changed; may equal the old ones where there is nothing else."""
        if not self._chances:
            self._chances += accumulate(map(self._weight, range(len(genes))))
        if not genes or not self._chances[-1]:
            return genes
        changed = list(genes)
        [count] = dice.choices((1, 2, 3), cum_weights=_CHANGES)
        for position in dice.choices(range(len(genes)), cum_weights=self._chances, k=count):
            old = changed[position]
            if isinstance(old, tuple) and dice.random() >= _ANEW:
                changed[position] = _moved(old, self.form[position][1][1], dice)
            else:
                changed[position] = self._drawn(position, dice)
        return tuple(changed)

    def cross(self, first: Genes, second: Genes, dice: random.Random) -> Genes:
        """Each value from one of two parents of the same form; locations that were never met are drawn."""
        mixed = [
            first_value if dice.random() < 0.5 else second_value
            for first_value, second_value in zip(first, second, strict=True)
        ]
        for position, values in self.locations.items():
            if mixed[position] not in values:
                mixed[position] = dice.choice(values)
        return tuple(mixed)

    def turned(self, genes: Genes) -> list[tuple[int, Genes]]:
        """Genes with one choice or compute location changed, each beside its position."""
        neighbours = []
        for position, (kind, attributes) in enumerate(self.form):
            values = range(len(attributes[0])) if kind == _CHOICE else self.locations.get(position, ())
            neighbours += [
                (position, (*genes[:position], value, *genes[position + 1 :]))
                for value in values
                if value != genes[position]
            ]
        return neighbours

    def _weight(self, position: int) -> float:
        kind, attributes = self.form[position]
        if kind == _TILE:
            return float(self.extents[position] > 1)
        if kind == _CHOICE:
            return _SMALL_WEIGHT * (len(attributes[0]) > 1)
        return _SMALL_WEIGHT * (len(self.locations.get(position, ())) > 1)

    def _drawn(self, position: int, dice: random.Random) -> Value:
        kind, attributes = self.form[position]
        if kind == _TILE:
            return _tile(self.extents[position], attributes[0], attributes[1], dice)
        if kind == _CHOICE:
            return dice.randrange(len(attributes[0]))
        return dice.choice(self.locations[position])


class DesignTable:
    """Design spaces of one workload, as its traces show them."""

    def __init__(self) -> None:
        self._designs: dict[str, Design] = {}
        #: Designs of one form and extents share a list.
        self._alike: dict[Design, list[Design]] = {}

    @property
    def designs(self) -> list[Design]:
        """All designs, in the order in which they were met."""
        return list(self._designs.values())

    def alike(self, design: Design) -> Sequence[Design]:
        """Designs of this table whose genes have the same form and extents, itself among them."""
        return self._alike[design]

    def read(self, trace: str) -> tuple[Design, Genes]:
        """The design and the genes of a trace of the workload.

        Args:
            trace: JSON text of a MetaSchedule trace.

        Raises:
            TraceError: It is no such trace, or samples in a way that is not known here.
        """
        try:
            instructions, decisions = json.loads(trace)
            end = next(
                (
                    place
                    for place, instruction in enumerate(instructions)
                    if begins_postprocessing(instruction[0], instruction[2])
                ),
                len(instructions),
            )
            values = {int(place): value for place, value in decisions if place < end}
            own_instructions = instructions[:end]
            places = tuple(
                place
                for place, instruction in enumerate(own_instructions)
                if instruction[0].startswith("Sample")
            )
            form = tuple(
                (own_instructions[place][0], _frozen(own_instructions[place][2])) for place in places
            )
            genes: Genes = tuple(_frozen(values[place]) for place in places)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise TraceError(
                f"no MetaSchedule trace ({type(error).__name__}: {error}); it begins {trace[:60]!r}"
            ) from error
        for (kind, attributes), value in zip(form, genes, strict=True):
            if not _fits(kind, attributes, value):
                raise TraceError(f"a trace's {kind}{attributes} has the decision {value!r}")
        extents = tuple(math.prod(gene) if isinstance(gene, tuple) else 0 for gene in genes)
        key = canonical_json([own_instructions, extents])
        design = self._designs.get(key)
        if design is None:
            design = self._designs[key] = Design(own_instructions, places, form, extents)
            groups = self._alike.items()
            alike = next(
                (group for other, group in groups if (other.form, other.extents) == (form, extents)), []
            )
            alike.append(design)
            self._alike[design] = alike
        design.meet(genes)
        return design, genes


def _fits(kind: str, attributes: tuple[Any, ...], value: Any) -> bool:
    """Whether a value is one that mutations can start from."""
    if kind == _TILE:
        return (
            isinstance(value, tuple)
            and len(value) == attributes[0]
            and all(isinstance(factor, int) and factor > 0 for factor in value)
        )
    if kind == _CHOICE:
        return isinstance(value, int) and 0 <= value < len(attributes[0])
    return kind == _LOCATION and isinstance(value, int)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


@lru_cache(maxsize=4096)
def primes(extent: int) -> tuple[int, ...]:
    """Prime factors, ascending, with repetitions; what has no small ones counts as a prime."""
    factors: list[int] = []
    divisor = 2
    while divisor <= _LARGEST_PRIME and divisor * divisor <= extent:
        while extent % divisor == 0:
            factors.append(divisor)
            extent //= divisor
        divisor += 1
    return (*factors, extent) if extent > 1 else tuple(factors)


def _tile(extent: int, parts: int, most_inner: int, dice: random.Random) -> tuple[int, ...]:
    for _ in range(_TRIES):
        factors = [1] * parts
        for prime in primes(extent):
            factors[dice.randrange(parts)] *= prime
        if factors[-1] <= most_inner:
            return tuple(factors)
    # Nothing innermost is within any limit.
    return (extent, *[1] * (parts - 1))


def _moved(factors: tuple[int, ...], most_inner: int, dice: random.Random) -> tuple[int, ...]:
    """A divisor of one factor goes to another; the same factors where the innermost would be too large."""
    sources = [place for place, factor in enumerate(factors) if factor > 1]
    if not sources or len(factors) < 2:
        return factors
    source = dice.choice(sources)
    target = dice.choice([place for place in range(len(factors)) if place != source])
    movable = primes(factors[source])
    moved = math.prod(dice.sample(movable, dice.randint(1, len(movable))))
    changed = list(factors)
    changed[source] //= moved
    changed[target] *= moved
    return tuple(changed) if changed[-1] <= most_inner else factors
