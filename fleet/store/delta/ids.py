"""Which record ids the table holds: sorted runs of 16 bytes an id, in memory or mapped from a file.

`fleet.store.store` asks it before it appends, `fleet.store.delta.index` keeps its runs on the disk. It knows
no folders and no table.

An id is the 32 hexadecimal digits of a hash (`agents.records.content_hash`), so its first half is as good as
random: a run is sorted by it alone, and compares the second half where the first one is found.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fleet.store.delta.schema import RECORD_ID_DIGITS

#: Bytes of one id; its key is two whole numbers of eight.
ID_BYTES = RECORD_ID_DIGITS // 2

#: New ids are kept in a set until they are this many, then sorted into a run.
MERGE_AT = 65_536

#: A run is joined with the one before it unless that one has twice as many ids, and never beyond this many:
#: joining four million takes a third of a second, and a search in one more run takes less than a join.
MOST_IN_RUN = 4_194_304

_DIGITS = re.compile(f"[0-9a-fA-F]{{{RECORD_ID_DIGITS}}}")

Halves = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class IdRun:
    """Ids in the order of their first halves."""

    #: First and second half of each id, as numbers.
    first: Halves
    second: Halves
    #: File that it is mapped from, and the sum of that; empty for one that is in no file.
    name: str = ""
    crc: int = 0

    def __len__(self) -> int:
        return len(self.first)

    @classmethod
    def of(cls, keys: bytes) -> IdRun:
        """Sort keys of 16 bytes each; two equal ones stay two."""
        halves = np.frombuffer(keys, dtype=">u8").reshape(-1, 2).astype(np.uint64)
        order = np.argsort(halves[:, 0])
        return cls(halves[order, 0], halves[order, 1])

    def joined(self, other: IdRun) -> IdRun:
        """One run of the ids of two."""
        first = np.concatenate([self.first, other.first])
        # Two sorted runs: the stable sort merges them in one pass.
        order = np.argsort(first, kind="stable")
        return IdRun(first[order], np.concatenate([self.second, other.second])[order])

    def holds(self, first: Halves, second: Halves) -> npt.NDArray[np.bool_]:
        """Say of each wanted id, given by its halves, whether it is here."""
        found = np.zeros(len(first), dtype=bool)
        if not len(self):
            return found
        at = np.searchsorted(self.first, first)
        open_ = np.arange(len(first))
        while len(open_):
            place = at[open_]
            inside = place < len(self)
            open_, place = open_[inside], place[inside]
            same = self.first[place] == first[open_]
            open_, place = open_[same], place[same]
            hit = self.second[place] == second[open_]
            found[open_[hit]] = True
            # Equal first halves of unlike ids: once in 10^12 ids by chance, but then it must be right.
            open_ = open_[~hit]
            at[open_] += 1
        return found


class RecordIds:
    """A set of record ids that only grows.

    Attributes:
        runs: All ids, largest run first; those added last may be in none yet, see `settle`. Others that hold
            the same ids may take their place, such as runs mapped from files.
    """

    def __init__(self, runs: Iterable[IdRun] = ()) -> None:
        self.runs = list(runs)
        self._new: set[bytes] = set()

    def __len__(self) -> int:
        return sum(map(len, self.runs)) + len(self._new)

    def known(self, ids: Sequence[str]) -> list[bool]:
        """Say of each id whether it is in the set."""
        return self._known(keys_of(ids))

    def _known(self, keys: bytes) -> list[bool]:
        if not self.runs:
            return [one in self._new for one in each_key(keys)]
        halves = np.frombuffer(keys, dtype=">u8").reshape(-1, 2).astype(np.uint64)
        # In order, neighbours are looked for among neighbours: two to three times faster in a large run.
        order = np.argsort(halves[:, 0])
        first, second = halves[order, 0], halves[order, 1]
        found = np.zeros(len(halves), dtype=bool)
        for run in self.runs:
            found[order] |= run.holds(first, second)
        return [hit or one in self._new for hit, one in zip(found.tolist(), each_key(keys), strict=True)]

    def add(self, ids: Iterable[str]) -> None:
        """Take up ids that are not in the set yet."""
        self._add(each_key(keys_of(list(ids))))

    def take(self, column: pa.Array) -> None:
        """Take up a column of ids; those that are in the set already do no harm."""
        keys = keys_of_column(column)
        self._add(
            one for one, is_known in zip(each_key(keys), self._known(keys), strict=True) if not is_known
        )

    def _add(self, keys: Iterable[bytes]) -> None:
        self._new.update(keys)
        if len(self._new) >= MERGE_AT:
            self.settle()

    def load(self, columns: Iterable[pa.Array]) -> None:
        """Take the ids of a whole table into an empty set: its `record_id` column in pieces of any length."""
        waiting = bytearray()
        for column in columns:
            waiting += keys_of_column(column)
            if len(waiting) >= MOST_IN_RUN * ID_BYTES:
                self._push(IdRun.of(bytes(waiting)))
                waiting.clear()
        if waiting:
            self._push(IdRun.of(bytes(waiting)))

    def settle(self) -> None:
        """Sort all ids into runs."""
        if self._new:
            self._push(IdRun.of(b"".join(self._new)))
            self._new.clear()

    def _push(self, run: IdRun) -> None:
        while (
            self.runs and len(self.runs[-1]) < 2 * len(run) and len(self.runs[-1]) + len(run) <= MOST_IN_RUN
        ):
            run = self.runs.pop().joined(run)
        self.runs.append(run)


def keys_of(ids: Sequence[str]) -> bytes:
    """The 16 bytes of each id, one after the other."""
    try:
        keys = bytes.fromhex("".join(ids))
    except ValueError:
        keys = b""
    if len(keys) == ID_BYTES * len(ids) and all(len(one) == RECORD_ID_DIGITS for one in ids):
        return keys
    return b"".join(map(_key, ids))


def keys_of_column(column: pa.Array) -> bytes:
    """The 16 bytes of each id of a text column, one after the other."""
    raw = column.cast(pa.binary())
    try:
        fixed = raw.cast(pa.binary(RECORD_ID_DIGITS))
    except pa.ArrowInvalid:
        return keys_of(column.to_pylist())
    data = fixed.buffers()[1]
    if data is None:
        return b""
    start = fixed.offset * RECORD_ID_DIGITS
    digits = memoryview(data)[start : start + len(fixed) * RECORD_ID_DIGITS]
    try:
        keys = bytes.fromhex(str(digits, "ascii"))
    except ValueError:
        keys = b""
    return keys if len(keys) == ID_BYTES * len(fixed) else keys_of(column.to_pylist())


def _key(one: str) -> bytes:
    """An id that is no hash of ours, from a foreign table, is hashed."""
    if _DIGITS.fullmatch(one):
        return bytes.fromhex(one)
    return hashlib.sha256(one.encode("utf-8", "surrogatepass")).digest()[:ID_BYTES]


def each_key(keys: bytes) -> list[bytes]:
    """Keys that stand one after the other, apart."""
    return [keys[start : start + ID_BYTES] for start in range(0, len(keys), ID_BYTES)]
