"""What agents are told not to draw, and whether what they drew is new all the same.

Only `fleet.planner.job_planner` calls it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from agents.records import Candidate, CandidateId, DeviceId, WorkloadId
from fleet.coverage.coverage import Coverage

#: Candidates that an agent is told, some 150 KB on the way to another process. In a space that has many more
#: few draws meet an older one.
MOST_EXCLUDED = 4096
#: Workloads whose excluded candidates are kept for the next device that asks, some 0.5 MB each.
_MOST_WORKLOADS = 64


@dataclass(frozen=True, slots=True)
class Excluded:
    """Candidates that an agent is told not to draw."""

    #: The latest that are known.
    ids: frozenset[CandidateId]
    #: How many are known.
    known_count: int

    @property
    def is_all(self) -> bool:
        """Whether these are all that are known."""
        return len(self.ids) == self.known_count

    def without(self, drawn: Sequence[Candidate]) -> dict[CandidateId, Candidate]:
        """What of an answer is not among these."""
        return {
            candidate.candidate_id: candidate for candidate in drawn if candidate.candidate_id not in self.ids
        }

    def is_end(self, drawn: Sequence[Candidate]) -> bool:
        """Whether random draws show that there are no other candidates."""
        return all(candidate.candidate_id in self.ids for candidate in drawn) if self.is_all else not drawn


class DedupFilter:
    """What is known of each workload, as far as agents are told."""

    def __init__(self, coverage: Coverage, most: int = MOST_EXCLUDED) -> None:
        self._coverage, self._most = coverage, most
        self._latest: dict[tuple[str, WorkloadId], Excluded] = {}

    def exclusions(self, family: str, workload_id: WorkloadId) -> Excluded:
        """What a request is to say; the same object while there is nothing new, for many devices ask."""
        known_count = self._coverage.candidate_count(family, workload_id)
        excluded = self._latest.pop((family, workload_id), None)
        if excluded is None or excluded.known_count != known_count:
            latest = self._coverage.latest(family, workload_id, self._most)
            excluded = Excluded(frozenset(latest), known_count)
        self._latest[family, workload_id] = (
            excluded  # at the end: those that nobody has asked for longest go first
        )
        if len(self._latest) > _MOST_WORKLOADS:
            del self._latest[next(iter(self._latest))]
        return excluded

    def fresh(
        self,
        excluded: Excluded,
        device_id: DeviceId,
        workload_id: WorkloadId,
        drawn: Mapping[CandidateId, Candidate],
        count: int,
    ) -> dict[CandidateId, Candidate]:
        """What of an answer is new to a device; what another device has drawn meanwhile is as good as new.

        Args:
            excluded: What the agent was told.
            device_id: The device.
            workload_id: What the candidates are of.
            drawn: Of those, what it was not told (`Excluded.without`).
            count: How many of them are looked at.
        """
        fresh = dict(islice(drawn.items(), count))
        if fresh and not excluded.is_all:
            for candidate_id in self._coverage.measured_among(device_id, workload_id, fresh):
                del fresh[candidate_id]
        return fresh
