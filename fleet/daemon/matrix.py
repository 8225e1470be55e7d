"""Pieces of the (candidate, device) matrix: the candidates of one workload, and what one device has of them.

Only `fleet.daemon.coverage` calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TypeVar

from agents.records import CandidateId, DeviceId, WorkloadId
from fleet.daemon.candidate_index import CandidateIndex

#: A candidate that was lost this often is left alone until the device's agent is started again.
MAX_LOSSES = 2

_Places = TypeVar("_Places")


@dataclass(slots=True)
class Space:
    """Candidates of one (family, workload)."""

    index: CandidateIndex = field(default_factory=CandidateIndex)
    #: One bit a place: whether the store holds a measurement of the candidate.
    stored: bytearray = field(default_factory=bytearray)
    #: Devices with a fastest candidate, in any environment.
    leaders: dict[DeviceId, None] = field(default_factory=dict)
    #: Candidates that are not to be planned.
    blocked: set[CandidateId] = field(default_factory=set)

    def among(self, bits: bytes | bytearray, candidate_ids: Collection[CandidateId]) -> set[CandidateId]:
        """Those of some candidates whose bits are set."""
        if not bits:
            return set()
        places, end = self.index.find(candidate_ids), 8 * len(bits)
        return {
            one
            for one, place in zip(candidate_ids, places, strict=True)
            if 0 <= place < end and bits[place >> 3] >> (place & 7) & 1
        }


@dataclass(slots=True)
class Row:
    """What one device has in one environment."""

    #: One bit a place of the workload's index.
    rows: dict[WorkloadId, bytearray] = field(default_factory=dict)
    measured: dict[WorkloadId, int] = field(default_factory=dict)
    records: int = 0
    best: dict[WorkloadId, list[tuple[float, CandidateId]]] = field(default_factory=dict)
    #: Candidates whose every measurement was lost: the attempt that comes next, and the losses of this agent.
    lost: dict[CandidateId, int] = field(default_factory=dict)
    losses: dict[CandidateId, int] = field(default_factory=dict)
    given_up: dict[WorkloadId, int] = field(default_factory=dict)
    #: Unix seconds of the last record of a whole A/A run.
    noise_at: float = 0.0

    def mark(
        self,
        workload_id: WorkloadId,
        space: Space,
        places: _Places,
        put: Callable[[bytearray, _Places], int],
    ) -> None:
        """Note measured candidates by their places; `put` sets bits and says how many are new."""
        bits = self.rows.setdefault(workload_id, bytearray())
        self.measured[workload_id] = self.measured.get(workload_id, 0) + put(bits, places)
        put(space.stored, places)

    def lose(self, workload_id: WorkloadId, space: Space, candidate_id: CandidateId, attempt: int) -> None:
        """A lost candidate stays a gap, and its next record must differ in the attempt."""
        space.index.place([candidate_id])
        if space.among(self.rows.get(workload_id, b""), [candidate_id]):
            return
        self.lost[candidate_id] = max(self.lost.get(candidate_id, 0), attempt + 1)
        self.losses[candidate_id] = self.losses.get(candidate_id, 0) + 1
        if self.losses[candidate_id] == MAX_LOSSES:
            self.given_up[workload_id] = self.given_up.get(workload_id, 0) + 1


__all__ = ["MAX_LOSSES", "Row", "Space"]
