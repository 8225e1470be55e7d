"""One vector of numbers a candidate, for models that read no sequence, such as trees.

Legend: N candidates, n rows of a call, L steps, P columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.features.blocks import FeatureBlock
from transfer.features.locations import describe_locations
from transfer.features.slots import NUMBER_NAMES

#: Candidates pooled at once; bounds the memory of the intermediate arrays at about 100 MB.
_POOL_ROWS = 8192


def flat_inputs(
    features: FeatureBlock,
    category_sizes: Sequence[int],
    rows: NDArray[np.int64] | None = None,
    *,
    place: bool = False,
    locations: bool = True,
) -> NDArray[np.float32]:
    """Features without their sequence.

    Args:
        features: N candidates.
        category_sizes: Values of each category slot.
        rows: Row numbers, default all.
        place: Whether the place in the design space stands behind all else.
        locations: Whether it says where producers are computed, if the steps have the slots of this program.

    Returns:
        (n, P): summary, workload vector, how often each value of each category slot occurs among the steps,
        mean and largest value of each number slot over the steps, locations (`LOCATION_NAMES`), place. No row
        depends on the others.
    """
    chosen = np.arange(len(features)) if rows is None else rows
    parts = [
        _flatten(features.take(chosen[start : start + _POOL_ROWS]), category_sizes, place, locations)
        for start in range(0, max(1, len(chosen)), _POOL_ROWS)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _flatten(
    block: FeatureBlock, category_sizes: Sequence[int], place: bool, locations: bool
) -> NDArray[np.float32]:
    mask, categories = block.mask, block.categories
    row, step = np.nonzero(mask)
    parts: list[NDArray[Any]] = [block.summary, block.workload]
    for slot, size in enumerate(category_sizes):
        values = categories[row, step, slot].astype(np.int64)
        parts.append(np.bincount(row * size + values, minlength=len(block) * size).reshape(-1, size))
    steps = np.maximum(1, mask.sum(axis=1))[:, None]
    present = mask[:, :, None]
    numbers = block.numbers.astype(np.float32)
    parts.append(np.where(present, numbers, 0).sum(axis=1) / steps)
    largest = np.where(present, numbers, -np.inf).max(axis=1, initial=-np.inf)
    parts.append(np.where(mask.any(axis=1, keepdims=True), largest, 0))
    if locations and numbers.shape[2] == len(NUMBER_NAMES):
        parts += [np.stack(describe_locations(categories, numbers), axis=1)]
    if place:
        parts.append(block.place)
    return np.concatenate(parts, axis=1, dtype=np.float32)
