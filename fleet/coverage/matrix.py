"""Pieces of the (candidate, device) matrix: the candidates of one workload, and what one device has of them.

Only `fleet.coverage.coverage` and those that fill it call it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from agents.records import CandidateId, DeviceId, WorkloadId
from fleet.coverage.candidate_index import CandidateIndex

#: A candidate that was lost this often is left alone until the device's agent is started again.
MAX_LOSSES = 2
#: Fastest candidates of a workload that are remembered on each device: others evolve from them.
BEST = 4

#: Bytes of a chunk, and places in it.
CHUNK_BYTES = 512
_PLACES = 8 * CHUNK_BYTES

_Places = TypeVar("_Places")


class PlaceBits:
    """A set of places, such as those that a device has measured: one bit each, in the chunks with a bit set.

    A device may have measured a few of very many candidates.

    Attributes:
        chunks: By number: `CHUNK_BYTES` bytes; place p is bit p % 8 of byte p // 8 of all chunks in a row.
    """

    __slots__ = ("chunks",)

    def __init__(self) -> None:
        self.chunks: dict[int, bytearray] = {}

    def set_few(self, places: Sequence[int]) -> int:
        """As `set_many`, of places in any order: arrays pay from some fifty on."""
        new = 0
        for place in places:
            chunk = self._chunk(place // _PLACES)
            at, mask = (place % _PLACES) >> 3, 1 << (place & 7)
            if not chunk[at] & mask:
                chunk[at] |= mask
                new += 1
        return new

    def set_many(self, places: NDArray[np.int64]) -> int:
        """Set bits.

        Args:
            places: (n,) sorted, without repeats, at least one.

        Returns:
            How many were not set before.
        """
        numbers = places // _PLACES
        new = 0
        for part in np.split(places, np.flatnonzero(np.diff(numbers)) + 1):
            row = np.frombuffer(self._chunk(int(part[0]) // _PLACES), dtype=np.uint8)
            at, masks = (part % _PLACES) >> 3, np.left_shift(1, part & 7).astype(np.uint8)
            new += int(np.count_nonzero((row[at] & masks) == 0))
            np.bitwise_or.at(row, at, masks)
        return new

    def holds(self, place: int) -> bool:
        """Whether a bit is set."""
        chunk = self.chunks.get(place // _PLACES)
        return chunk is not None and bool(chunk[(place % _PLACES) >> 3] >> (place & 7) & 1)

    def places(self) -> NDArray[np.int64]:
        """Places whose bits are set, in order."""
        numbers = np.array(sorted(self.chunks), dtype=np.int64)
        row = np.frombuffer(b"".join(self.chunks[one] for one in numbers.tolist()), dtype=np.uint8)
        found = np.flatnonzero(np.unpackbits(row, bitorder="little"))
        return numbers[found // _PLACES] * _PLACES + found % _PLACES if len(found) else found

    def open_places(self, count: int) -> Iterator[int]:
        """Places below `count` whose bits are not set, in order; no more is looked at than is asked for."""
        for number in range(-(-count // _PLACES)):
            start = number * _PLACES
            chunk = self.chunks.get(number)
            if chunk is None:
                yield from range(start, min(start + _PLACES, count))
                continue
            row = ~np.frombuffer(bytes(chunk), dtype=np.uint8)
            for place in np.flatnonzero(np.unpackbits(row, bitorder="little")).tolist():
                if start + place < count:
                    yield start + place

    def _chunk(self, number: int) -> bytearray:
        chunk = self.chunks.get(number)
        if chunk is None:
            chunk = self.chunks[number] = bytearray(CHUNK_BYTES)
        return chunk


@dataclass(slots=True)
class Space:
    """Candidates of one (family, workload)."""

    index: CandidateIndex = field(default_factory=CandidateIndex)
    #: Whether the store holds a measurement of the candidate at a place.
    stored: PlaceBits = field(default_factory=PlaceBits)
    #: Devices with a fastest candidate, in any environment.
    leaders: dict[DeviceId, None] = field(default_factory=dict)
    #: Candidates that kill worker processes, as the store tells.
    quarantined: set[CandidateId] = field(default_factory=set)
    #: Candidates that are not to be planned, quarantined ones included.
    blocked: set[CandidateId] = field(default_factory=set)

    def quarantine(self, candidate_ids: Iterable[CandidateId]) -> None:
        """Note candidates that kill worker processes."""
        for one in candidate_ids:
            self.quarantined.add(one)
            self.blocked.add(one)

    def among(self, bits: PlaceBits, candidate_ids: Collection[CandidateId]) -> set[CandidateId]:
        """Those of some candidates whose bits are set."""
        places = self.index.find(candidate_ids) if bits.chunks else [-1] * len(candidate_ids)
        return {one for one, at in zip(candidate_ids, places, strict=True) if at >= 0 and bits.holds(at)}


@dataclass(slots=True)
class Row:
    """What one device has in one environment."""

    #: Measured candidates of each workload, one bit for each place in its index.
    rows: dict[WorkloadId, PlaceBits] = field(default_factory=dict)
    measured: dict[WorkloadId, int] = field(default_factory=dict)
    records: int = 0
    best: dict[WorkloadId, list[tuple[float, CandidateId]]] = field(default_factory=dict)
    #: Candidates whose every measurement was lost: the attempt that comes next, and the losses of this agent.
    lost: dict[CandidateId, int] = field(default_factory=dict)
    losses: dict[CandidateId, int] = field(default_factory=dict)
    #: Those of each workload that this agent has lost too often: gaps that are not planned.
    given_up: dict[WorkloadId, set[CandidateId]] = field(default_factory=dict)
    #: Unix seconds of the last record of a whole A/A run.
    noise_at: float = 0.0

    def mark(
        self,
        workload_id: WorkloadId,
        space: Space,
        places: _Places,
        put: Callable[[PlaceBits, _Places], int],
    ) -> None:
        """Note measured candidates by their places; `put` sets bits and says how many are new."""
        bits = self.rows.setdefault(workload_id, PlaceBits())
        self.measured[workload_id] = self.measured.get(workload_id, 0) + put(bits, places)
        put(space.stored, places)

    def lose(self, workload_id: WorkloadId, space: Space, candidate_id: CandidateId, attempt: int) -> None:
        """A lost candidate stays a gap, and its next record must differ in the attempt."""
        space.index.place([candidate_id])
        if space.among(self.rows.get(workload_id, PlaceBits()), [candidate_id]):
            return
        self.lost[candidate_id] = max(self.lost.get(candidate_id, 0), attempt + 1)
        self.losses[candidate_id] = self.losses.get(candidate_id, 0) + 1
        if self.losses[candidate_id] >= MAX_LOSSES:
            self.given_up.setdefault(workload_id, set()).add(candidate_id)

    def close_gap(self, workload_id: WorkloadId, candidate_id: CandidateId) -> None:
        """A candidate that was lost is measured after all, maybe for somebody else: it is no gap any more."""
        self.lost.pop(candidate_id, None)
        self.losses.pop(candidate_id, None)
        self.given_up.get(workload_id, set()).discard(candidate_id)

    def keep_best(self, workload_id: WorkloadId, secs: float, candidate_id: CandidateId) -> None:
        """Put a candidate among the fastest if it belongs there: what comes first makes no difference."""
        best = self.best.setdefault(workload_id, [])
        if len(best) == BEST and (secs, candidate_id) >= best[-1]:
            return
        fastest = min([secs, *(known for known, one in best if one == candidate_id)])
        best[:] = sorted(
            [*((known, one) for known, one in best if one != candidate_id), (fastest, candidate_id)]
        )
        del best[BEST:]


@dataclass(slots=True)
class Matrix:
    """All of it."""

    #: By family and workload.
    spaces: dict[tuple[str, WorkloadId], Space] = field(default_factory=lambda: defaultdict(Space))
    #: By device and environment.
    rows: dict[tuple[DeviceId, str], Row] = field(default_factory=lambda: defaultdict(Row))

    def space(self, family: str, workload_id: WorkloadId) -> Space:
        """The candidates of a workload; none yet where nobody asked before."""
        return self.spaces[family, workload_id]

    def row(self, device_id: DeviceId, environment_id: str) -> Row:
        """What a device has in an environment; nothing yet where nobody asked before."""
        return self.rows[device_id, environment_id]
