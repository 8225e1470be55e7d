"""One primitive as one row of slots: categories and numbers.

`StepTable` encodes each distinct primitive once; a search asks for the same tilings again and again, so most
steps of a batch are one dictionary look-up. Called by `transfer.features.extractor` only.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.arrays import Groups, Singles
from transfer.language.primitives import (
    DETAIL_COUNT,
    KIND_COUNT,
    ROLE_COUNT,
    UNKNOWN,
    Kind,
    Primitive,
    detail_index,
    kind_index,
    role_index,
)

#: Buckets that block names fall into, by hash: an open vocabulary.
_BLOCK_BUCKETS = 30
#: Axis positions with an index of their own; deeper ones share the last.
AXES = 12
#: Factors kept of one split, innermost first. Five levels: TVM's CUDA tiling, its deepest.
FACTORS = 5
_OTHERS = 3

CATEGORY_SIZES: tuple[tuple[str, int], ...] = (
    ("kind", KIND_COUNT),
    ("role", ROLE_COUNT),
    ("detail", DETAIL_COUNT),
    ("block", _BLOCK_BUCKETS + 2),
    ("axis", AXES + 2),
)

NUMBER_NAMES: tuple[str, ...] = (
    "extent",
    *(f"factor_{place}" for place in range(FACTORS)),
    *(f"tile_{place}" for place in range(1, FACTORS - 1)),
    "factors",
    "inner_is_one",
    "inner_by_4",
    "inner_by_8",
    "inner_by_16",
    "count",
    "value",
    "has_value",
    "depth",
    "has_depth",
    "around",
    "inside",
    *(f"other_{place}" for place in range(_OTHERS)),
)

#: Place of each slot by name.
CATEGORY_PLACE = {name: place for place, (name, _) in enumerate(CATEGORY_SIZES)}
NUMBER_PLACE = {name: place for place, name in enumerate(NUMBER_NAMES)}

_SPLITS = frozenset({Kind.SP, Kind.FSP, Kind.FFSP})
_NUMBERED_NAME = re.compile(r"(_\d+)+$")
#: Longest name that is kept, and whose number is looked for: the search takes the square of the length.
_LONGEST_NAME = 256


def _log(value: int) -> float:
    return math.log2(1 + abs(value))


def block_bucket(name: str) -> int:
    """Index of a block name; numbered copies (`T_add_1`) share the bucket of their first."""
    return _named_bucket(name) if len(name) <= _LONGEST_NAME else _hashed_bucket(name)


@lru_cache(maxsize=4096)
def _named_bucket(name: str) -> int:
    return _hashed_bucket(_NUMBERED_NAME.sub("", name)) if name else UNKNOWN


def _hashed_bucket(name: str) -> int:
    # JSON may escape half of a pair of UTF-16, which no other encoding takes.
    return 2 + zlib.crc32(name.encode(errors="surrogatepass")) % _BLOCK_BUCKETS


def encode(step: Primitive) -> tuple[list[int], list[float]]:
    """Slots of one primitive, in the order of `CATEGORY_SIZES` and `NUMBER_NAMES`."""
    block, role, detail = step.names
    axis, numbers = -1, step.numbers
    slots: dict[str, float] = {}
    if step.kind in _SPLITS and len(numbers) >= 3:
        axis, slots = numbers[0], _split_slots(numbers[1], numbers[2:])
    elif step.kind is Kind.CA and len(numbers) == 3:
        depth, around, inside = numbers
        slots = {"around": _log(around), "inside": _log(inside)}
        slots |= {"has_depth": float(depth >= 0), "depth": _log(max(0, depth))}
    elif step.kind is Kind.AN and len(numbers) == 2:
        axis, slots = numbers[0], {"value": _log(numbers[1]), "has_value": 1.0}
    elif step.kind is Kind.PR and len(numbers) == 1:
        slots = {"value": _log(numbers[0]), "has_value": 1.0}
    elif step.kind in (Kind.FU, Kind.RE) and numbers:
        slots = {"count": _log(numbers[0]), "extent": _log(numbers[1]) if len(numbers) > 1 else 0.0}
    else:
        axis = numbers[0] if step.kind is Kind.RF and numbers else -1
        slots = {
            f"other_{place}": math.copysign(_log(number), number)
            for place, number in enumerate(numbers[:_OTHERS])
        }
    categories = [
        kind_index(step.kind),
        role_index(role),
        detail_index(detail),
        block_bucket(block),
        UNKNOWN if axis < 0 else 2 + min(axis, AXES - 1),
    ]
    return categories, [slots.get(name, 0.0) for name in NUMBER_NAMES]


def _split_slots(extent: int, factors: tuple[int, ...]) -> dict[str, float]:
    """Slots of a split: factors innermost first, and the tiles that they multiply up to."""
    inner, tile = factors[-1], 1
    slots = {"extent": _log(extent), "factors": float(len(factors)), "inner_is_one": float(inner == 1)}
    for place, factor in enumerate(reversed(factors[-FACTORS:])):
        slots[f"factor_{place}"] = _log(factor)
        tile *= max(1, factor)
        if 1 <= place < FACTORS - 1:
            slots[f"tile_{place}"] = _log(tile)
    for width in (4, 8, 16):
        slots[f"inner_by_{width}"] = float(inner > 0 and inner % width == 0)
    return slots


class StepTable:
    """Rows of slots of every distinct primitive met so far; row 0 is padding.

    Args:
        limit: Distinct primitives kept (about 600 bytes each) before the table starts over; None: no end.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        #: How often the table started over: rows from before mean nothing after.
        self.restarts = 0
        self._ids: dict[tuple[Any, ...], int] = {}
        self._categories: list[list[int]] = []
        self._numbers: list[list[float]] = []
        self._clear()

    def _clear(self) -> None:
        self._ids.clear()
        self._categories[:] = [[0] * len(CATEGORY_SIZES)]
        self._numbers[:] = [[0.0] * len(NUMBER_NAMES)]
        self._size = 0
        # Fresh arrays: blocks made before hold views of the old ones.
        self._category_rows: NDArray[np.int16] = np.zeros((0, len(CATEGORY_SIZES)), dtype=np.int16)
        self._number_rows: Singles = np.zeros((0, len(NUMBER_NAMES)), dtype=np.float32)

    def look_up(self, sequences: Sequence[Sequence[Primitive]], max_steps: int) -> Groups:
        """Row of the table for each step.

        Args:
            sequences: N sequences, none longer than `max_steps`.
            max_steps: Steps L of the result.

        Returns:
            (N, L) rows of what `rows` returns after this call, 0 where there is no step.
        """
        self.make_room()
        row_by_step = self._ids
        flat: list[int] = []
        for sequence in sequences:
            for step in sequence:
                # What a step does to which stage is left out: encoders do not read it.
                row = row_by_step.get(step[:3])
                flat.append(self._add(step) if row is None else row)
        return laid_out(flat, [len(sequence) for sequence in sequences], max_steps)

    def make_room(self) -> None:
        """Start over if the table is full."""
        if self._limit is not None and len(self._ids) > self._limit:
            self._clear()
            self.restarts += 1

    def row(self, step: Primitive) -> int:
        """Row of one step; never starts the table over."""
        row = self._ids.get(step[:3])
        return self._add(step) if row is None else row

    def _add(self, step: Primitive) -> int:
        row = self._size + len(self._numbers)
        categories, numbers = encode(step)
        self._categories.append(categories)
        self._numbers.append(numbers)
        self._ids[step[:3]] = row
        return row

    def rows(self) -> tuple[NDArray[np.int16], Singles]:
        """The table: (T, C) categories and (T, F) numbers. Rows once returned never change."""
        if self._numbers:
            self._category_rows = _append(self._category_rows, self._size, self._categories)
            self._number_rows = _append(self._number_rows, self._size, self._numbers)
            self._size += len(self._numbers)
            self._categories.clear()
            self._numbers.clear()
        return self._category_rows[: self._size], self._number_rows[: self._size]


def laid_out(flat: Sequence[int], lengths: Sequence[int], max_steps: int) -> Groups:
    """(N, L) rows of sequences, one after the other in `flat`; 0 where there is no step."""
    mask = np.arange(max_steps) < np.asarray(lengths, dtype=np.int64)[:, None]
    rows = np.zeros(mask.shape, dtype=np.int32)
    rows[mask] = flat
    return rows


def _append(rows: NDArray[Any], size: int, new: list[Any]) -> NDArray[Any]:
    """Put rows behind the first `size` ones; room doubles, so that many small additions stay cheap."""
    if size + len(new) > len(rows):
        grown = np.zeros((2 * (size + len(new)), rows.shape[1]), dtype=rows.dtype)
        grown[:size] = rows[:size]
        rows = grown
    rows[size : size + len(new)] = new
    return rows
