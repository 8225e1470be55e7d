"""Pieces of the (candidate, device) matrix: the candidates of one workload, and what one device has of them.

Only `fleet.coverage.coverage` and those that fill it call it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from agents.records import CandidateId, DeviceId, WorkloadId
from fleet.coverage.candidate_index import CandidateIndex
from fleet.coverage.place_bits import PlaceBits

#: A candidate that was lost this often is left alone until the device's agent is started again.
MAX_LOSSES = 2
#: Fastest candidates of a workload that are remembered on each device: others evolve from them.
BEST = 4

_Places = TypeVar("_Places")


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
    spaces: dict[tuple[str, WorkloadId], Space] = field(default_factory=dict)
    #: By device and environment.
    rows: dict[tuple[DeviceId, str], Row] = field(default_factory=dict)

    def space(self, family: str, workload_id: WorkloadId) -> Space:
        """The candidates of a workload; none yet where nobody asked before."""
        space = self.spaces.get((family, workload_id))
        if space is None:
            space = self.spaces[family, workload_id] = Space()
        return space

    def row(self, device_id: DeviceId, environment_id: str) -> Row:
        """What a device has in an environment; nothing yet where nobody asked before."""
        row = self.rows.get((device_id, environment_id))
        if row is None:
            row = self.rows[device_id, environment_id] = Row()
        return row
