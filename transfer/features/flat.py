"""One vector of numbers a candidate, for models that read no sequence, such as trees.

Legend: N candidates, n rows of a call, L steps, P columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.arrays import Rows, Singles
from transfer.features.blocks import FeatureBlock
from transfer.features.locations import LOCATION_NAMES, describe_locations
from transfer.features.slots import NUMBER_NAMES

#: Candidates pooled at once; bounds the memory of the intermediate arrays at about 100 MB.
_POOL_ROWS = 8192


def flat_inputs(
    features: FeatureBlock,
    category_sizes: Sequence[int],
    rows: Rows | None = None,
) -> Singles:
    """Features without their sequence.

    Args:
        features: N candidates.
        category_sizes: Values of each category slot.
        rows: Row numbers, default all.

    Returns:
        (n, P): summary, workload vector, how often each value of each category slot occurs among the steps,
        mean and largest value of each number slot over the steps, locations (`LOCATION_NAMES`) if the steps
        have the slots of this program. No row depends on the others.
    """
    chosen = np.arange(len(features)) if rows is None else rows
    parts = [
        _flatten(features.take(chosen[start : start + _POOL_ROWS]), category_sizes)
        for start in range(0, max(1, len(chosen)), _POOL_ROWS)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def location_columns(number_size: int) -> int:
    """Columns of locations behind all others, for steps with so many number slots; none for foreign slots."""
    return len(LOCATION_NAMES) if number_size == len(NUMBER_NAMES) else 0


def _flatten(block: FeatureBlock, category_sizes: Sequence[int]) -> Singles:
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
    if location_columns(numbers.shape[2]):
        parts.append(np.stack(describe_locations(categories, numbers), axis=1))
    return np.concatenate(parts, axis=1, dtype=np.float32)
