"""A candidate's place in the design space of its workload: its numbers beside those of a fixed sample.

A tile of 4 KB is large for one workload and small for another, and a model that was taught on some workloads
has to judge others. So the numbers of `transfer.features.tiles` are told a second time, in units of how much
they vary among random tilings of the same loops. The sample follows from extents and levels of a candidate's
own splits: it is the same in every process, nothing of it is kept, and no score depends on its company.
Called by `transfer.features.summary`; a search (`transfer.search.decisions`) factorises as samples are.

Legend: A axes of the tiled block, J tile levels, P numbers of `PLACE_NAMES`, n tilings of the sample.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from agents.records import content_hash
from transfer.features.box_access import BlockAccess
from transfer.features.tiles import MEMORY_NAMES, TILE_NAMES, Floats, Tiles, describe_memory, describe_tiles

#: Numbers of a summary that have a place; the first ones of `SUMMARY_NAMES`.
PLACE_NAMES: tuple[str, ...] = (*TILE_NAMES, *MEMORY_NAMES)
#: Says how samples are drawn: a model that was taught with other ones must not read these.
PLACE_HASH = content_hash("tilings 1", *PLACE_NAMES)

#: Tilings of a sample.
_TILINGS = 128
#: Largest innermost factor, as MetaSchedule draws them (`max_innermost_factor` of its rules).
_MOST_INNERMOST = 64
#: Draws of one factorisation before its innermost factor goes to the outermost level.
_MOST_DRAWS = 16
#: Trial division ends here; what is left counts as one prime. Extents beyond are no loops of real programs.
_LARGEST_PRIME, _LARGEST_EXTENT = 1000, 2.0**53
#: A number that varies less than this in the sample has no place.
_LEAST_STD = 1e-4


def place_scale(
    tiles: Tiles, levels: Sequence[Sequence[int]], access: BlockAccess | None
) -> NDArray[np.float32] | None:
    """Constants that turn numbers of a candidate into its place.

    Args:
        tiles: Of one candidate.
        levels: Tile levels of each axis that the schedule chose factors for, innermost first; none where an
            axis is not split.
        access: How the block touches memory, for tiles of all its axes; None where that is not known.

    Returns:
        (2, P) means and inverse deviations of the sample, 0 where a number does not vary; None where the
        extents are none of a real program.
    """
    extents = tiles.factors[0].prod(axis=1)
    if not (np.isfinite(extents).all() and (extents <= _LARGEST_EXTENT).all()):
        return None
    sample = Tiles(factors=_drawn(tiles.factors[0], levels), reduction=tiles.reduction)
    columns = describe_tiles(sample)
    if access is not None:
        columns |= describe_memory(sample, access)
    scale = np.zeros((2, len(PLACE_NAMES)))
    for place, name in enumerate(PLACE_NAMES):
        values = columns.get(name)
        if values is not None and np.isfinite(values).all() and (std := float(values.std())) > _LEAST_STD:
            scale[:, place] = values.mean(), 1 / std
    return scale.astype(np.float32)


def _drawn(factors: Floats, levels: Sequence[Sequence[int]]) -> Floats:
    """(n, A, J) random tilings of the loops that (A, J) factors tile; an axis without levels stays."""
    tilings = np.repeat(factors[None], _TILINGS, axis=0)
    for axis, of_axis in enumerate(levels):
        if len(of_axis) > 1:
            extent = int(factors[axis].prod())
            # Python's own generator: its numbers are the same in every version.
            draws = random.Random(f"{axis}/{extent}/{len(of_axis)}")
            tilings[:, axis] = 1.0
            for tiling in range(_TILINGS):
                tilings[tiling, axis, list(of_axis)] = _factors(primes(extent), len(of_axis), draws)
    return tilings


def _factors(prime_factors: Sequence[int], count: int, draws: random.Random) -> list[int]:
    """A product of primes as `count` factors, innermost first: each prime goes to any of them."""
    for _ in range(_MOST_DRAWS):
        factors = [1] * count
        for prime in prime_factors:
            factors[draws.randrange(count)] *= prime
        if factors[0] <= _MOST_INNERMOST:
            return factors
    factors[-1] *= factors[0]
    factors[0] = 1
    return factors


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
