"""What agents are told not to draw, and whether what they drew is new all the same.

Only `fleet.daemon.feeding` calls it.
"""

from __future__ import annotations

from dataclasses import dataclass

from agents.messages import Proposed
from agents.records import Candidate, CandidateId, WorkloadId
from fleet.daemon.coverage import Coverage

#: Candidates that an agent is told, some 150 KB on the way to another process. In a space that has many more
#: few draws meet an older one.
MOST_EXCLUDED = 4096


@dataclass(frozen=True, slots=True)
class Excluded:
    """Candidates that an agent is told not to draw."""

    #: The latest that are known.
    ids: frozenset[CandidateId]
    #: How many are known.
    known: int


class Excluding:
    """What was told, by request: it does not come back with the answers.

    Args:
        coverage: Knows all candidates.
        most: How many an agent is told at most.
    """

    def __init__(self, coverage: Coverage, most: int = MOST_EXCLUDED) -> None:
        self._coverage, self._most = coverage, most
        self._latest: dict[tuple[str, WorkloadId], Excluded] = {}
        self._told: dict[str, Excluded] = {}

    def tell(self, request_id: str, family: str, workload_id: WorkloadId) -> Excluded:
        """What a request is to say; the same object while there is nothing new, for many devices ask."""
        known = self._coverage.known(family, workload_id)
        told = self._latest.get((family, workload_id))
        if told is None or told.known != known:
            latest = self._coverage.latest(family, workload_id, self._most)
            told = self._latest[family, workload_id] = Excluded(frozenset(latest), known)
        self._told[request_id] = told
        return told

    def forget(self, request_id: str) -> None:
        """Let go of a request that is not answered."""
        self._told.pop(request_id, None)

    def answered(self, message: Proposed) -> tuple[dict[CandidateId, Candidate], bool]:
        """The new candidates of an answer, and whether it shows that there are no others.

        One that a sibling has drawn meanwhile is as good as a new one.
        """
        told = self._told.pop(message.request.request_id, Excluded(frozenset(), 0))
        is_all = len(told.ids) == told.known
        device_id, workload_id = message.device_id, message.request.workload.workload_id
        fresh = {
            one.candidate_id: one
            for one in message.candidates
            if one.candidate_id not in told.ids
            and (is_all or not self._coverage.is_measured(device_id, workload_id, one.candidate_id))
        }
        is_end = not message.request.parents and not (fresh if is_all else message.candidates)
        return fresh, is_end


__all__ = ["MOST_EXCLUDED", "Excluded", "Excluding"]
