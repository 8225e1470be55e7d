"""Evolution of a population of candidates by their scores: several generations, nothing built or replayed.

The first generation is drawn at random, and near the best measured candidates; each further one are mutants
and crossings of the best so far. What comes out are all candidates that were scored, the best first. Ansor
(Zheng et al. 2020, section 5.1) and MetaSchedule evolve so; they replay every child, here it is numbers.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from transfer.arrays import Floats
from transfer.search.decisions import Design, DesignTable, Genes, Value

#: A value that so many candidates of a design had was tried.
_RARE = 4
#: Tries at a child that is not known yet, for each one wanted.
_TRIES = 4


class Individual(NamedTuple):
    """A candidate of a workload."""

    design: Design
    genes: Genes


Score = Callable[[Sequence[Individual]], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolutionSettings:
    """How large a population is. A larger one finds more of the scorer's errors, and no faster programs."""

    #: Drawn at random, and mutants of the best measured ones, in the first generation.
    drawn: int = 256
    mutants: int = 256
    #: After the first.
    generations: int = 2
    #: Of each further generation.
    children: int = 256
    #: Of the best so far, from which children come.
    parents: int = 96
    #: Share of children with two parents.
    crossed: float = 0.35


def evolve(
    table: DesignTable,
    elites: Sequence[Individual],
    score: Score,
    excluded: Collection[Individual],
    settings: EvolutionSettings,
    seed: str,
) -> list[Individual]:
    """Evolve candidates of one workload; gives all that were scored, the best first.

    Args:
        table: Designs to draw from; at least one.
        elites: The best measured candidates, best first.
        score: Logarithms of speeds, or anything that is higher for better ones; must not depend on company.
        excluded: Candidates that are not wanted: measured, or refused.
        settings: How many.
        seed: Equal arguments give equal populations.
    """
    dice = random.Random(f"evolution/{seed}")
    drawn = set(excluded)
    designs = table.designs
    fresh = _fresh(settings.drawn, drawn, lambda: _drawn(dice.choice(designs), dice))
    if elites:
        ranks = _chances(len(elites), 1)

        def mutant() -> Individual:
            return _mutant(dice.choices(elites, cum_weights=ranks)[0], table, dice)

        fresh += _fresh(settings.mutants, drawn, mutant)
    individuals, scores = fresh, score(fresh) if fresh else np.zeros(0)
    for _ in range(settings.generations):
        order = np.argsort(-scores, kind="stable")[: settings.parents]
        parents = [*elites[: settings.parents // 8], *(individuals[place] for place in order.tolist())]
        if not parents:
            break
        chances = _chances(len(parents), 2)

        def child(parents: Sequence[Individual] = parents, chances: Sequence[float] = chances) -> Individual:
            first = dice.choices(parents, cum_weights=chances)[0]
            if dice.random() < settings.crossed:
                return _crossed(first, dice.choices(parents, cum_weights=chances)[0], table, dice)
            return _mutant(first, table, dice)

        children = _fresh(settings.children, drawn, child)
        if not children:
            break
        individuals = individuals + children
        scores = np.concatenate([scores, score(children)])
    order = np.argsort(-scores, kind="stable")
    return [individuals[place] for place in order.tolist()]


def turned(leaders: Iterable[Individual], excluded: Collection[Individual]) -> list[Individual]:
    """Leaders with one choice or compute location changed to a value hardly ever tried in their design.

    A scorer that saw a value once, among bad tiles, holds it for bad and never asks for it beside good ones.

    Args:
        leaders: The best measured candidates, best first.
        excluded: Candidates that are not wanted: measured, or refused.

    Returns:
        Each of another value; those that were tried least come first.
    """
    tries = Counter(
        (individual.design, place, gene)
        for individual in excluded
        for place, gene in enumerate(individual.genes)
    )
    variants: dict[tuple[Design, int, Value], Individual] = {}
    for leader in leaders:
        for position, genes in leader.design.turned(leader.genes):
            variant = Individual(leader.design, genes)
            if variant not in excluded:
                variants.setdefault((leader.design, position, genes[position]), variant)
    rare = sorted((key for key in variants if tries[key] < _RARE), key=tries.__getitem__)
    return [variants[key] for key in rare]


def _chances(count: int, first: int) -> list[float]:
    """Cumulative weights by rank, 1 / `first` for the best: drawing with them skips adding them up again."""
    return list(accumulate(1 / (first + rank) for rank in range(count)))


def _fresh(count: int, drawn: set[Individual], make: Callable[[], Individual]) -> list[Individual]:
    """Up to `count` candidates that nobody has seen, which then are."""
    fresh: list[Individual] = []
    for _ in range(_TRIES * count):
        if len(fresh) == count:
            break
        individual = make()
        if individual not in drawn:
            drawn.add(individual)
            fresh.append(individual)
    return fresh


def _drawn(design: Design, dice: random.Random) -> Individual:
    return Individual(design, design.draw(dice))


def _mutant(parent: Individual, table: DesignTable, dice: random.Random) -> Individual:
    """A mutant; now and then in another design whose genes have the same form."""
    design = parent.design
    alike = table.alike(design)
    if len(alike) > 1 and dice.random() < 1 / (1 + len(design.places)):
        design = dice.choice(alike)
        return Individual(design, design.cross(parent.genes, parent.genes, dice))
    return Individual(design, design.mutate(parent.genes, dice))


def _crossed(first: Individual, second: Individual, table: DesignTable, dice: random.Random) -> Individual:
    if second.design is not first.design and second.design not in table.alike(first.design):
        return _mutant(first, table, dice)
    return Individual(first.design, first.design.cross(first.genes, second.genes, dice))
