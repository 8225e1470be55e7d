"""Boxes of buffers that tiles of a block's loops touch.

Made by `transfer.features.access` and `transfer.features.access`, asked by
`transfer.features.summary` and `transfer.features.tiles`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from transfer.arrays import Floats

_ELEMENT_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferAccess:
    """One region that one iteration of a block reads or writes; A axes, K dimensions."""

    element_bytes: int
    shape: tuple[int, ...]
    #: (K, A) how far an index moves when an axis moves by one (by `divisors` where that is above 1).
    coefficients: Floats
    #: (K, A) iterations of an axis that share an index: 4 where 4 channels of a group do.
    divisors: Floats
    #: (K,) extent that one iteration touches.
    base: Floats
    is_write: bool

    def elements(self, tiles: Floats) -> Floats:
        """Elements in the box that tiles of the axes touch.

        Args:
            tiles: (..., A) iterations of each axis inside the tile.

        Returns:
            (...) elements, at least 1.
        """
        steps = np.ceil(tiles[..., None, :] / self.divisors) - 1
        reach = self.base + (steps * self.coefficients).sum(axis=-1)
        boxes = np.clip(np.ceil(reach), 1, np.maximum(1, self.shape))
        elements: Floats = boxes.prod(axis=-1)
        return elements

    def stride(self, axis: int) -> float:
        """Elements between the accesses of neighbouring iterations of an axis; 0 where they are the same."""
        # As floats, which have room for the product of any extents.
        weights = [math.prod(map(float, self.shape[place + 1 :])) for place in range(len(self.shape))]
        moves = np.where(self.divisors[:, axis] > 1, 0, self.coefficients[:, axis])
        return float(np.dot(moves, weights)) if self.shape else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockAccess:
    """The regions of one block; its A axes are its loops, outermost first."""

    extents: tuple[int, ...]
    spatial: tuple[bool, ...]
    buffers: tuple[BufferAccess, ...]
    #: (A,) number that the steps of a schedule give each axis; theirs is the order of the loops where empty.
    axes: tuple[int, ...] = ()
    #: Whether the outer tiles are a GPU's blocks and threads; False also where the schedule tells.
    on_gpu: bool = False


def element_bytes(dtype: str) -> int:
    """Bytes of one element; 1 where the name of the type does not tell."""
    return next((size for bits, size in _ELEMENT_BYTES.items() if dtype.endswith(bits)), 1)
