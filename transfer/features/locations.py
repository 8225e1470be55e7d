"""Where a candidate computes its producers, step by step: numbers for models that read no sequence.

A summary says how many producers there are and the largest numbers of all of them. Programs of several
reductions (softmax, norms) differ in nothing else than where each of them is computed and how it is split,
so trees could not tell their candidates apart. These numbers follow from the steps that a block holds
already. Called by `transfer.features.flat` only. Who changes their meaning raises `FEATURE_VERSION`.

Legend: N candidates, L steps, C category slots, F number slots, Q numbers of this page.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from transfer.arrays import Ints, Mask, Singles
from transfer.features.slots import CATEGORY_PLACE, NUMBER_PLACE
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
