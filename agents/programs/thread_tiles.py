"""Tile sizes of a GPU's design space with as many threads as a GPU takes, drawn as TVM draws them.

MetaSchedule tiles each spatial loop for blocks, virtual threads, threads and two loops inside (its rule
`MultiLevelTiling`), and draws each tile by itself. Its post-processors refuse whatever has fewer threads than
a warp or more than a block holds: some nine draws in ten, after 8 ms each. Here tiles are drawn until their
threads fit, before anything is built of them, so the programs that pass are the same, as often as each other.

Called by `design_space.py`; pure, but for the design space that it reads.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

#: Factors of a spatial loop in MetaSchedule's tiling for GPUs, and the one that is bound to threads.
_FACTORS, _THREADS = 5, 2
_LOW, _HIGH = (f"meta_schedule.thread_extent_{end}_inclusive" for end in ("low", "high"))
#: Notes a block whose tiles are bound to warps, not threads: tensor cores are used by a warp at once.
_OF_WARPS, _WARP_THREADS = "warp_execution", 32
#: Draws after which the last one is taken, whatever its threads: a small workload may have none that fit.
_MOST_DRAWS = 1_000
#: Trial division ends here, so that the extent of a stranger's loop holds nobody up.
_LARGEST_DIVISOR = 1_000


@dataclass(frozen=True, slots=True)
class ThreadTiles:
    """The spatial tiles of one design space."""

    #: Their instructions, of TVM's kind `SamplePerfectTile`.
    tiles: list[Any]
    #: Of the loop that each tiles: its prime powers, and the largest innermost factor.
    loops: list[tuple[dict[int, int], int]]
    #: Fewest and most threads, or warps if tensor cores compute.
    bounds: tuple[int, int]

    @classmethod
    def of_space(cls, space: Any) -> ThreadTiles | None:
        """Those of a design space (`tvm.s_tir.schedule.Trace`); None where there is not one tiled block."""
        notes = {key: [step.inputs[1] for step in space.insts if _note(step) == key] for key in (_LOW, _HIGH)}
        if any(len(values) != 1 for values in notes.values()):
            return None
        tiles = [
            step
            for step in space.insts
            if step.kind.name == "SamplePerfectTile" and int(step.attrs[0]) == _FACTORS
        ]
        extents = [math.prod(map(int, space.decisions[tile])) for tile in tiles]
        loops = [
            (prime_powers(extent), int(tile.attrs[1])) for tile, extent in zip(tiles, extents, strict=True)
        ]
        size = _WARP_THREADS if any(_note(step) == _OF_WARPS for step in space.insts) else 1
        [low], [high] = notes.values()
        return cls(tiles, loops, (-(-int(low) // size), int(high) // size))

    def draw(self, draws: random.Random) -> dict[Any, list[int]]:
        """Draw the tile of each loop, outermost factor first, by its instruction."""
        low, high = self.bounds
        factors: list[list[int]] = []
        for _ in range(_MOST_DRAWS):
            factors = [draw_tile(powers, _FACTORS, most, draws) for powers, most in self.loops]
            if low <= math.prod(tile[_THREADS] for tile in factors) <= high:
                break
        return dict(zip(self.tiles, factors, strict=True))


def draw_tile(powers: dict[int, int], count: int, most_innermost: int, draws: random.Random) -> list[int]:
    """Draw `count` factors of the product of some prime powers as TVM's `SamplePerfectTile` does.

    All ways to share out the exponent of each prime are equally likely, but for those whose last factor is
    above `most_innermost`.
    """
    while True:
        tile = [1] * count
        for prime, exponent in powers.items():
            # Bars between stars: the places of all but the last end of a share.
            bars = sorted(draws.sample(range(exponent + count - 1), count - 1))
            shares = (after - before - 1 for before, after in pairwise((-1, *bars, exponent + count - 1)))
            tile = [factor * prime**share for factor, share in zip(tile, shares, strict=True)]
        if tile[-1] <= most_innermost:
            return tile


def prime_powers(number: int) -> dict[int, int]:
    """The exponent of each prime in a positive number; what has no small factors counts as a prime."""
    powers: dict[int, int] = {}
    divisor = 2
    while divisor <= _LARGEST_DIVISOR and divisor * divisor <= number:
        while number % divisor == 0:
            powers[divisor] = powers.get(divisor, 0) + 1
            number //= divisor
        divisor += 1
    if number > 1:
        powers[number] = powers.get(number, 0) + 1
    return powers


def _note(step: Any) -> str:
    """What an instruction notes on a block; empty for all others."""
    return str(step.attrs[0]) if step.kind.name == "Annotate" else ""
