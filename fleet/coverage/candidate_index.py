"""Candidates and their places: some 20 bytes each, found by id.

The candidates of `fleet.coverage.matrix` stand in it. An id of a foreign table that is no hash of ours is
hashed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from agents.records import CandidateId
from fleet.store.delta.ids import each_key, keys_of

#: New candidates are in a dictionary until they are this many, or this share of the others.
MERGE_AT = 512
MERGE_SHARE = 1 / 16

#: Bytes of an id, and of its hexadecimal text.
ID_BYTES = 16
_DIGITS = 2 * ID_BYTES

Raw = NDArray[np.bytes_]


class CandidateIndex:
    """The candidates of one workload, numbered in the order in which they were added.

    Args:
        ids: Candidates to begin with, (16 n,) bytes in the order of their places; not changed.
        order: (n,) their places in the order of the ids; not changed.

    Raises:
        ValueError: There are not as many of one as of the other.
    """

    def __init__(self, ids: NDArray[np.uint8] | None = None, order: NDArray[np.int32] | None = None) -> None:
        self._ids: Raw = np.empty(0, f"S{ID_BYTES}") if ids is None else ids.view(f"S{ID_BYTES}")
        #: Places in the order of the ids.
        self._order: NDArray[np.int32] = np.empty(0, dtype=np.int32) if order is None else order
        if len(self._ids) != len(self._order):
            raise ValueError(f"{len(self._ids)} candidates, but {len(self._order)} of them in order")
        self._new: dict[bytes, int] = {}
        self._new_ids: list[bytes] = []

    def __len__(self) -> int:
        return len(self._ids) + len(self._new)

    def place(self, candidate_ids: Iterable[CandidateId]) -> list[int]:
        """Give a few candidates places, those without one the next; returns the place of each."""
        keys = each_key(keys_of(list(candidate_ids)))
        places = self._places(keys)
        for number, place in enumerate(places):
            if place < 0:
                key, following = keys[number], len(self)
                # An id that comes twice got its place a moment ago.
                places[number] = self._new.setdefault(key, following)
                if places[number] == following:
                    self._new_ids.append(key)
        if len(self._new) >= max(MERGE_AT, len(self._ids) * MERGE_SHARE):
            self._merge_new()
        return places

    def add(self, raw: Raw) -> NDArray[np.int64]:
        """Do the same by arrays alone: for the start, when a whole store comes in."""
        self._merge_new()
        unknown = raw[self._sorted_places(raw) < 0]
        if len(unknown):
            _, first = np.unique(unknown, return_index=True)
            self._merge(unknown[np.sort(first)])
        return self._sorted_places(raw)

    def arrays(self) -> tuple[Raw, NDArray[np.int32]]:
        """All candidates in the order of their places, and the places in the order of the ids."""
        self._merge_new()
        return self._ids, self._order

    def find(self, candidate_ids: Iterable[CandidateId]) -> list[int]:
        """Place of each candidate, -1 for one that has none."""
        return self._places(each_key(keys_of(list(candidate_ids))))

    def id_at(self, place: int) -> CandidateId:
        """The candidate at a place."""
        if place < len(self._ids):
            return CandidateId(self._ids[place : place + 1].tobytes().hex())
        return CandidateId(self._new_ids[place - len(self._ids)].hex())

    def latest(self, most: int) -> list[CandidateId]:
        """The candidates that were added last, up to so many, in the order of their places."""
        new = self._new_ids[max(0, len(self._new_ids) - most) :]
        old = self._ids[max(0, len(self._ids) - (most - len(new))) :]
        text = old.tobytes().hex() + b"".join(new).hex()
        return [CandidateId(text[start : start + _DIGITS]) for start in range(0, len(text), _DIGITS)]

    def _sorted_places(self, raw: Raw) -> NDArray[np.int64]:
        """Place of each id among the sorted ones, -1 where it is not there."""
        if not len(self._ids) or not len(raw):
            return np.full(len(raw), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self._ids, raw, sorter=self._order), len(self._ids) - 1)
        places = self._order[at].astype(np.int64)
        return np.where(self._ids[places] == raw, places, -1)

    def _places(self, keys: Sequence[bytes]) -> list[int]:
        places = [self._new.get(key, -1) for key in keys]
        if len(self._ids) and -1 in places:
            old = self._sorted_places(np.frombuffer(b"".join(keys), dtype=self._ids.dtype)).tolist()
            places = [place if place >= 0 else there for place, there in zip(places, old, strict=True)]
        return places

    def _merge_new(self) -> None:
        if self._new:
            self._merge(np.frombuffer(b"".join(self._new_ids), dtype=self._ids.dtype))

    def _merge(self, new: Raw) -> None:
        """Add candidates at the end: those of the dictionary of new ones, or others while it is empty."""
        order = np.argsort(new, kind="stable")
        at = np.searchsorted(self._ids, new[order], sorter=self._order)
        self._order = np.insert(self._order, at, (order + len(self._ids)).astype(np.int32))
        self._ids = np.concatenate([self._ids, new])
        self._new, self._new_ids = {}, []
