"""Numbers that follow from the tile factors of a multi-level tiling.

For each candidate: factors by axis, what lies inside each cut of the loop nest, bytes that the cuts touch
and move, vector lanes and accumulators, the innermost loops that really iterate. Called by
`transfer.features.summary` with candidates of one workload at a time; knows nothing of steps other than
splits.

Legend: n candidates of one workload, A axes of the tiled block, J tile levels (innermost first).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transfer.arrays import Floats, Ints, Mask, Singles
from transfer.features.box_access import BlockAccess
from transfer.features.slots import AXES, CATEGORY_PLACE, FACTORS, NUMBER_PLACE
from transfer.language.primitives import REDUCTION, SPATIAL, Kind, Role, detail_index, kind_index, role_index

_SPATIAL_AXES, _SPATIAL_LEVELS = 4, 4
_REDUCTION_AXES, _REDUCTION_LEVELS = 3, 2
#: Place of each spatial factor, innermost first, by the number of factors: on a CPU and with a GPU's blocks
#: and threads. Fewer levels than those of the cuts below are spread so that what lies outside of all
#: reductions, or is a block or thread, means the same; AutoTVM's templates have two to four.
_LEVELS = np.tile(np.arange(FACTORS), (2, FACTORS + 1, 1))
_LEVELS[0, 2] = (0, 3, 1, 2, 4)
_LEVELS[0, 3] = (0, 2, 3, 1, 4)
_LEVELS[1, 2] = (0, 4, 1, 2, 3)
_LEVELS[1, 3] = (0, 2, 4, 1, 3)
_LEVELS[1, 4] = (0, 2, 3, 4, 1)
#: Level that a spatial axis without a split belongs to, on a CPU and on a GPU, and that of a reduction.
_WHOLE_SPATIAL, _WHOLE_REDUCTION = (3, 4), 1
#: (spatial, reduction) levels inside each cut of the loop nest, innermost cut first. The nests are TVM's
#: multi-level tilings SSRSRS (CPU) and SSSRRSRS (GPU).
_CUTS = ((1, 0), (1, 1), (2, 1), (2, 3), (3, 3), (5, 3))
#: Memories whose traffic is estimated: sixteen vectors of 32 bytes, and half of common first and second
#: level caches (what streams through takes the other half).
_CAPACITIES = {"registers": 512, "l1": 16 * 1024, "l2": 256 * 1024}
#: Lanes of a 4-byte element in vectors of 16, 32 and 64 bytes.
_LANES = (4, 8, 16)
#: Loops with more than one iteration that are described, innermost first.
_LOOPS = 2

TILE_NAMES: tuple[str, ...] = (
    *(f"spatial_{axis}_factor_{level}" for axis in range(_SPATIAL_AXES) for level in range(_SPATIAL_LEVELS)),
    *(f"reduction_{a}_factor_{level}" for a in range(_REDUCTION_AXES) for level in range(_REDUCTION_LEVELS)),
    *(f"cut_{cut}_{what}" for cut in range(len(_CUTS)) for what in ("spatial", "reduction")),
    *(f"waste_{lanes}_lanes" for lanes in _LANES),
    *(f"by_{lanes}_lanes" for lanes in _LANES),
    *(f"accumulators_{lanes}_lanes" for lanes in _LANES),
    "scalar",
    "rows_per_vector",
    "vector_steps",
    "outer_reduction",
    *(f"loop_{place}_{what}" for place in range(_LOOPS) for what in ("extent", "reduction")),
)
MEMORY_NAMES: tuple[str, ...] = (
    *(f"cut_{cut}_{what}" for cut in range(len(_CUTS)) for what in ("bytes", "write_bytes", "intensity")),
    *(f"traffic_{name}" for name in _CAPACITIES),
    "contiguous_reads",
    "broadcast_reads",
    "strided_reads",
    "contiguous_write",
    *(f"loop_{place}_{what}" for place in range(_LOOPS) for what in ("contiguous", "unused")),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tiles:
    """Tile factors of n candidates that tile the same axes of the same block."""

    #: (n, A, J) factors, 1 where there is none.
    factors: Floats
    #: (A,) True at reductions.
    reduction: Mask

    def inside(self, spatial_levels: int, reduction_levels: int) -> Floats:
        """(n, A) iterations of each axis inside so many of its innermost levels."""
        levels = np.where(self.reduction, reduction_levels, spatial_levels)
        is_inside = np.arange(self.factors.shape[2]) < levels[:, None]
        return np.asarray(np.where(is_inside, self.factors, 1).prod(axis=2))


def read_tiles(categories: NDArray[np.int16], numbers: Singles, on_gpu: Mask) -> tuple[Floats, Mask, Mask]:
    """Tile factors of the tiled block, out of the slots of N sequences.

    Args:
        categories: (N, L, C) category slots.
        numbers: (N, L, F) number slots.
        on_gpu: (N,) True where fewer than five spatial levels still are blocks and threads.

    Returns:
        (N, AXES, J) factors, 1 where there is none; (N, AXES) True at reductions; (N, AXES) True at axes that
        are split.
    """
    axis = categories[:, :, CATEGORY_PLACE["axis"]].astype(np.int64) - 2
    detail = categories[:, :, CATEGORY_PLACE["detail"]]
    split = (
        (categories[:, :, CATEGORY_PLACE["kind"]] == kind_index(Kind.SP))
        & (categories[:, :, CATEGORY_PLACE["role"]] == role_index(Role.TILED))
        & ((detail == detail_index(SPATIAL)) | (detail == detail_index(REDUCTION)))
        & (axis >= 0)
    )
    row, step = np.nonzero(split)
    place = axis[row, step]
    first = NUMBER_PLACE["factor_0"]
    factors = np.rint(np.exp2(numbers[row, step, first : first + FACTORS].astype(np.float64)) - 1)
    reduces = detail[row, step] == detail_index(REDUCTION)
    count = np.clip(numbers[row, step, NUMBER_PLACE["factors"]].astype(np.int64), 0, FACTORS)
    levels = np.where(reduces[:, None], np.arange(FACTORS), _LEVELS[on_gpu[row].astype(np.int64), count])
    tiles = np.ones((len(categories), AXES, FACTORS))
    tiles[row[:, None], place[:, None], levels] = np.maximum(1, factors)
    reduction = np.zeros(tiles.shape[:2], dtype=np.bool_)
    reduction[row, place] = reduces
    is_split = np.zeros_like(reduction)
    is_split[row, place] = True
    return tiles, reduction, is_split


def tiles_of_access(factors: Floats, is_split: Mask, reduction: Mask, access: BlockAccess) -> Tiles | None:
    """Tiles of every axis of an access; None where the schedule tiles other axes than it has.

    Args:
        factors: (n, AXES, J) factors of candidates that tile the same axes.
        is_split: (AXES,) True at axes that are split.
        reduction: (AXES,) True at reductions.
        access: Where it numbers its axes, those that the schedule does not split count as one level.
    """
    axes = np.array(access.axes or range(len(access.extents)))
    is_reduction = ~np.array(access.spatial)
    split = is_split[axes] if len(axes) <= AXES else np.zeros(0, dtype=np.bool_)
    if not len(split) or split.sum() != is_split.sum() or (not access.axes and not split.all()):
        return None
    if access.axes and (reduction[axes] != is_reduction)[split].any():
        return None
    completed = factors[:, axes]
    for place in np.flatnonzero(~split):
        level = _WHOLE_REDUCTION if is_reduction[place] else _WHOLE_SPATIAL[access.on_gpu]
        completed[:, place, level] = access.extents[place]
    return Tiles(factors=completed, reduction=is_reduction if access.axes else reduction[axes])


def describe_tiles(tiles: Tiles) -> dict[str, Floats]:
    """Numbers of `TILE_NAMES` that the tiles have, (n,) each; sizes as log2."""
    columns: dict[str, Floats] = {}
    logs = np.log2(tiles.factors)
    spatial, reduction = np.flatnonzero(~tiles.reduction)[::-1], np.flatnonzero(tiles.reduction)[::-1]
    for name, places, levels in (
        ("spatial", spatial[:_SPATIAL_AXES], _SPATIAL_LEVELS),
        ("reduction", reduction[:_REDUCTION_AXES], _REDUCTION_LEVELS),
    ):
        for number, place in enumerate(places):
            for level in range(levels):
                columns[f"{name}_{number}_factor_{level}"] = logs[:, place, level]
    for cut, levels_inside in enumerate(_CUTS):
        inside = np.log2(tiles.inside(*levels_inside))
        columns[f"cut_{cut}_spatial"] = inside[:, ~tiles.reduction].sum(axis=1)
        columns[f"cut_{cut}_reduction"] = inside[:, tiles.reduction].sum(axis=1)
    columns["outer_reduction"] = columns["cut_5_reduction"] - columns["cut_1_reduction"]
    extents, axes = _real_loops(tiles)
    for place in range(extents.shape[1]):
        columns[f"loop_{place}_extent"] = np.log2(extents[:, place])
        columns[f"loop_{place}_reduction"] = tiles.reduction[axes[:, place]].astype(np.float64)
    if len(spatial):
        lane = tiles.factors[:, spatial[0], 0]
        rows = columns["cut_0_spatial"] - np.log2(lane)
        columns["scalar"] = (lane == 1).astype(np.float64)
        columns["rows_per_vector"] = rows
        columns["vector_steps"] = rows + columns["cut_1_reduction"]
        for lanes in _LANES:
            vectors = np.ceil(lane / lanes)
            columns[f"waste_{lanes}_lanes"] = np.log2(vectors * lanes / lane)
            columns[f"by_{lanes}_lanes"] = (lane % lanes == 0).astype(np.float64)
            columns[f"accumulators_{lanes}_lanes"] = rows + np.log2(vectors)
    return columns


def describe_memory(tiles: Tiles, access: BlockAccess) -> dict[str, Floats]:
    """Numbers of `MEMORY_NAMES`, (n,) each; bytes as log2(1 + x).

    Args:
        tiles: Tiles of every axis of the block, in the order of its loops.
        access: How one iteration of the block touches memory.
    """
    columns: dict[str, Floats] = {}
    insides = np.stack([tiles.inside(*levels) for levels in _CUTS])
    sizes = [buffer.elements(insides) * buffer.element_bytes for buffer in access.buffers]
    total = np.maximum(1, np.sum(sizes, axis=0))
    written = np.sum(
        [size for size, buffer in zip(sizes, access.buffers, strict=True) if buffer.is_write], axis=0
    )
    iterations = insides.prod(axis=2)
    trips = iterations[-1] / iterations
    for cut in range(len(_CUTS)):
        columns[f"cut_{cut}_bytes"] = np.log2(1 + total[cut])
        columns[f"cut_{cut}_write_bytes"] = np.log2(1 + written[cut])
        columns[f"cut_{cut}_intensity"] = np.log2(iterations[cut] / total[cut])
    each = np.arange(total.shape[1])
    for name, capacity in _CAPACITIES.items():
        # The largest tile that fits is loaded once a trip of the loops around it; where none fits, the
        # smallest one is.
        fits = total <= capacity
        largest = np.where(fits.any(axis=0), len(fits) - 1 - fits[::-1].argmax(axis=0), 0)
        columns[f"traffic_{name}"] = np.log2(1 + total[largest, each] * trips[largest, each])
    # (buffers, A) elements between neighbouring iterations of each axis.
    strides = np.array(
        [[buffer.stride(axis) for axis in range(len(tiles.reduction))] for buffer in access.buffers]
    )
    writes = np.array([buffer.is_write for buffer in access.buffers])
    spatial = np.flatnonzero(~tiles.reduction)
    if len(spatial):
        last = strides[:, spatial[-1]]
        ones = np.ones(total.shape[1])
        columns["contiguous_reads"] = ones * (last[~writes] == 1).sum()
        columns["broadcast_reads"] = ones * (last[~writes] == 0).sum()
        columns["strided_reads"] = ones * (last[~writes] > 1).sum()
        columns["contiguous_write"] = ones * (last[writes] == 1).all()
    _, axes = _real_loops(tiles)
    for place in range(axes.shape[1]):
        columns[f"loop_{place}_contiguous"] = (strides == 1).sum(axis=0)[axes[:, place]].astype(np.float64)
        columns[f"loop_{place}_unused"] = (strides == 0).sum(axis=0)[axes[:, place]].astype(np.float64)
    return columns


def _real_loops(tiles: Tiles) -> tuple[Floats, Ints]:
    """Extents and axes of the innermost loops with more than one iteration, (n, _LOOPS) each.

    Where there are fewer such loops, the outermost loop stands in.
    """
    levels: list[tuple[bool, int]] = []
    done = (0, 0)
    for cut in _CUTS:
        levels += [(False, level) for level in range(done[0], cut[0])]
        levels += [(True, level) for level in range(done[1], cut[1])]
        done = cut
    nest = [
        (axis, level)
        for is_reduction, level in levels
        for axis in np.flatnonzero(tiles.reduction == is_reduction)[::-1].tolist()
    ]
    order = np.array([axis for axis, _ in nest])
    extents = np.stack([tiles.factors[:, axis, level] for axis, level in nest], axis=1)
    # A stable sort by "is a single iteration" brings the real loops to the front, innermost first.
    real = np.argsort(extents == 1, axis=1, kind="stable")[:, :_LOOPS]
    return np.take_along_axis(extents, real, axis=1), order[real]
