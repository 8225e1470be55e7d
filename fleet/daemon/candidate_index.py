"""Candidates and their places: some 20 bytes each, found by id.

Only `fleet.daemon.coverage` calls it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agents.records import CandidateId

#: New candidates are in a dictionary until they are this many, or this share of the others.
MERGE_AT = 512
MERGE_SHARE = 1 / 16

#: Bytes of an id, and of its hexadecimal text.
_WIDTH = 16
_DIGITS = 2 * _WIDTH

Raw = NDArray[np.bytes_]


def raw_ids(texts: NDArray[np.uint8]) -> Raw:
    """Turn hexadecimal texts, one after the other, into ids of 16 bytes."""
    digits = np.where(texts >= ord("a"), texts - (ord("a") - 10), texts - ord("0")).reshape(-1, 2)
    return np.ascontiguousarray(digits[:, 0] * 16 + digits[:, 1]).view(f"S{_WIDTH}")


class CandidateIndex:
    """The candidates of one workload, numbered in the order in which they were added."""

    def __init__(self) -> None:
        self._ids: Raw = np.empty(0, dtype=f"S{_WIDTH}")
        #: Places in the order of the ids.
        self._order: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self._new: dict[bytes, int] = {}
        self._new_ids: list[bytes] = []

    def __len__(self) -> int:
        return len(self._ids) + len(self._new)

    def add(self, raw: Raw) -> NDArray[np.int64]:
        """Give candidates places, those without one the next; returns the place of each."""
        places = self._sorted_places(raw)
        unknown = np.flatnonzero(places < 0)
        if len(unknown) > MERGE_AT:
            return self._add_many(raw)
        for number in unknown.tolist():
            # Not `raw[number]`: numpy drops zeros at the end of such values.
            one = raw[number : number + 1].tobytes()
            place = self._new.get(one)
            if place is None:
                place = self._new[one] = len(self._ids) + len(self._new_ids)
                self._new_ids.append(one)
            places[number] = place
        if len(self._new) >= max(MERGE_AT, len(self._ids) * MERGE_SHARE):
            self._merge(np.frombuffer(b"".join(self._new_ids), dtype=f"S{_WIDTH}"))
        return places

    def find(self, candidate_id: CandidateId) -> int | None:
        """Place of a candidate, or None."""
        one = bytes.fromhex(candidate_id)
        place = self._new.get(one)
        if place is None and len(self._ids):
            at = int(self._ids.searchsorted(np.frombuffer(one, self._ids.dtype), sorter=self._order)[0])
            if at < len(self._ids):
                there = int(self._order[at])
                place = there if self._ids[there : there + 1].tobytes() == one else None
        return place

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

    def _add_many(self, raw: Raw) -> NDArray[np.int64]:
        """As `add`, by arrays alone: for the start, when a whole store comes in."""
        if self._new:
            self._merge(np.frombuffer(b"".join(self._new_ids), dtype=f"S{_WIDTH}"))
        unknown = raw[self._sorted_places(raw) < 0]
        _, first = np.unique(unknown, return_index=True)
        self._merge(unknown[np.sort(first)])
        return self._sorted_places(raw)

    def _merge(self, new: Raw) -> None:
        """Add candidates at the end; the dictionary of new ones is among them, or empty."""
        order = np.argsort(new, kind="stable")
        at = np.searchsorted(self._ids, new[order], sorter=self._order)
        self._order = np.insert(self._order, at, (order + len(self._ids)).astype(np.int32))
        self._ids = np.concatenate([self._ids, new])
        self._new, self._new_ids = {}, []


def as_raw(candidate_ids: list[CandidateId]) -> Raw:
    """Turn ids into what an index takes."""
    return np.frombuffer(bytes.fromhex("".join(candidate_ids)), dtype=f"S{_WIDTH}")


__all__ = ["MERGE_AT", "CandidateIndex", "Raw", "as_raw", "raw_ids"]
