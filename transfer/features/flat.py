"""One vector of numbers a candidate, for models that read no sequence, such as trees.

A summary says how many producers there are and the largest numbers of all of them. Programs of several
reductions (softmax, norms) differ in nothing else than where each of them is computed and how it is split,
so trees could not tell their candidates apart. So the vector also says where a candidate computes its
producers, step by step. Who changes the meaning of these numbers raises `FeatureSpec.version`.

Legend: N candidates, n rows of a call, L steps, C category slots, F number slots, P columns, Q numbers of
locations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.arrays import Ints, Mask, Rows, Singles
from transfer.features.blocks import FeatureBlock
from transfer.features.slots import CATEGORY_PLACE, NUMBER_NAMES, NUMBER_PLACE
from transfer.language.primitives import Kind, Role, kind_index, role_index

#: Producers, nearest to the result first; factored reductions; splits of untiled blocks.
_PRODUCERS, _FACTORED, _SPLITS = 6, 2, 2
_WAYS = {"at": Kind.CA, "root": Kind.CR, "inlined": Kind.CI}
_AT = ("depth", "around", "inside")
#: Axis and size of the loop that a reduction is factored by (`Primitive.numbers` of RF).
_FACTOR = {"axis": "other_0", "size": "other_2"}
_SPLIT = ("extent", "factor_0", "factor_1")

LOCATION_NAMES: tuple[str, ...] = (
    *(f"producer_{place}_{name}" for place in range(_PRODUCERS) for name in (*_WAYS, *_AT)),
    *(f"rfactor_{place}_{name}" for place in range(_FACTORED) for name in _FACTOR),
    *(f"split_{place}_{name}" for place in range(_SPLITS) for name in _SPLIT),
)


def describe_locations(categories: NDArray[np.int16], numbers: Singles) -> list[Singles]:
    """Columns of some candidates.

    Args:
        categories: (N, L, C) category slots of the steps.
        numbers: (N, L, F) number slots.

    Returns:
        Q columns (N,) in the order of `LOCATION_NAMES`; 0 where a candidate has no such step.
    """
    kind, role = (categories[:, :, CATEGORY_PLACE[name]] for name in ("kind", "role"))
    is_kind = {
        step_kind: kind == kind_index(step_kind) for step_kind in (*_WAYS.values(), Kind.AN, Kind.RF, Kind.SP)
    }
    # What is inlined before the first annotation is inlined in all candidates of the design space.
    is_chosen = np.cumsum(is_kind[Kind.AN], axis=1) > 0
    is_producer = is_kind[Kind.CA] & (role != role_index(Role.WRITE_CACHE))
    is_producer |= is_kind[Kind.CR] | (is_kind[Kind.CI] & is_chosen)
    columns: list[Singles] = []
    rows = np.arange(len(kind))

    def read(is_there: Mask, step: Ints, name: str) -> Singles:
        return np.where(is_there, numbers[rows, step, NUMBER_PLACE[name]], np.float32(0))

    for is_there, step in _first(is_producer, _PRODUCERS):
        columns += [(is_there & is_kind[way][rows, step]).astype(np.float32) for way in _WAYS.values()]
        columns += [read(is_there, step, name) for name in _AT]
    for is_there, step in _first(is_kind[Kind.RF], _FACTORED):
        columns += [read(is_there, step, name) for name in _FACTOR.values()]
    for is_there, step in _first(is_kind[Kind.SP] & (role != role_index(Role.TILED)), _SPLITS):
        columns += [read(is_there, step, name) for name in _SPLIT]
    return columns


def _first(is_selected: Mask, count: int) -> Iterator[tuple[Mask, Ints]]:
    """(N,) whether there is a first, second ... wanted step, and (N,) its place, 0 where there is none."""
    number = np.cumsum(is_selected, axis=1)
    for place in range(count):
        matches = is_selected & (number == place + 1)
        yield matches.any(axis=1), matches.argmax(axis=1)


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
