"""What `fleet.coverage.coverage` asks a state file, of a few candidates at a time: point look-ups by keys.

`fleet.state.questions` has these questions among others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from agents.records import CandidateId, DeviceId, WorkloadId
from fleet.state.attempts import attempts_of, marks, packed_ids, parts
from fleet.state.contents import Contents
from fleet.state.rows import LOST
from fleet.state.schema import IN_GROUP, state_errors

#: What a family knows of a workload.
_IN_SPACE = "family = ? AND workload = ?"


class CoverageQuestions(Contents):
    """Questions about a few results and candidates."""

    def attempts(
        self,
        workload_id: WorkloadId,
        device_id: DeviceId,
        environment_id: str,
        candidate_ids: Iterable[CandidateId],
    ) -> Iterator[tuple[CandidateId, int, bool]]:
        """Yield what a device has of some candidates: id, attempt, and whether that was lost."""
        find = self._labels.find
        group = find(workload_id), find(device_id), find(environment_id)
        with state_errors("reading the state file", self.path):
            attempts = attempts_of(self._connection, group, packed_ids(candidate_ids))
        for candidate, outcomes in attempts.items():
            candidate_id = CandidateId(candidate.hex())
            for attempt, outcome in outcomes.items():
                yield candidate_id, attempt, outcome == LOST

    def measured_among(
        self,
        workload_id: WorkloadId,
        device_id: DeviceId,
        environment_id: str,
        candidate_ids: Iterable[CandidateId],
    ) -> set[CandidateId]:
        """Those of some candidates that a device has measured, and not only lost."""
        attempts = self.attempts(workload_id, device_id, environment_id, candidate_ids)
        return {candidate_id for candidate_id, _, is_lost in attempts if not is_lost}

    def known_among(
        self,
        family: str,
        workload_id: WorkloadId,
        candidate_ids: Iterable[CandidateId],
        *,
        is_settled: bool = False,
    ) -> set[CandidateId]:
        """Those of some candidates that a family knows; `is_settled` for those that wait no more."""
        space = self._labels.find(family), self._labels.find(workload_id)
        condition = " AND NOT is_waiting" if is_settled else ""
        with state_errors("reading the state file", self.path):
            return {
                CandidateId(value.hex())
                for values in parts(packed_ids(candidate_ids))
                for (value,) in self._connection.execute(
                    f"SELECT id FROM candidate WHERE {_IN_SPACE} AND id IN ({marks(values)}){condition}",
                    (*space, *values),
                )
            }

    def candidate_count(self, families: Sequence[str], workload_id: WorkloadId) -> int:
        """How many candidates of a workload some families know; those that several know count once."""
        find = self._labels.find
        workload = find(workload_id)
        with state_errors("reading the state file", self.path):
            counts = [
                self._connection.execute(
                    f"SELECT count(*) FROM candidate WHERE {_IN_SPACE}", (find(family), workload)
                ).fetchone()[0]
                for family in families
            ]
            if len([count for count in counts if count]) <= 1:
                return int(sum(counts))
            names = [find(family) for family in families]
            [count] = self._connection.execute(
                "SELECT count(DISTINCT id) FROM candidate"
                f" WHERE family IN ({', '.join('?' * len(names))}) AND workload = ?",
                (*names, workload),
            ).fetchone()
            return int(count)

    def blocked(self, family: str, workload_id: WorkloadId) -> set[CandidateId]:
        """Candidates of a workload that a family is not to plan."""
        space = self._labels.find(family), self._labels.find(workload_id)
        with state_errors("reading the state file", self.path):
            return {
                CandidateId(value.hex())
                for (value,) in self._connection.execute(
                    f"SELECT id FROM candidate WHERE {_IN_SPACE} AND is_blocked", space
                )
            }

    def latest(self, family: str, workload_id: WorkloadId, most: int) -> list[CandidateId]:
        """The candidates of a workload that became known last, up to so many, in that order."""
        space = self._labels.find(family), self._labels.find(workload_id)
        with state_errors("reading the state file", self.path):
            rows = self._connection.execute(
                f"SELECT id FROM candidate WHERE {_IN_SPACE} ORDER BY number DESC LIMIT ?", (*space, most)
            ).fetchall()
        return [CandidateId(value.hex()) for (value,) in reversed(rows)]

    def last_number(self, family: str, workload_id: WorkloadId) -> int:
        """Number of the candidate of a workload that became known last; 0 where there is none."""
        space = self._labels.find(family), self._labels.find(workload_id)
        with state_errors("reading the state file", self.path):
            row = self._connection.execute(
                f"SELECT number FROM candidate WHERE {_IN_SPACE} ORDER BY number DESC LIMIT 1", space
            ).fetchone()
        return 0 if row is None else int(row[0])

    def lost(self, device_id: DeviceId) -> list[tuple[WorkloadId, str, CandidateId, int]]:
        """Candidates whose every measurement on a device in an environment was lost.

        Returns:
            Workload, environment, id, and the attempt that comes next.
        """
        text = self._labels.text
        with state_errors("reading the state file", self.path):
            return [
                (WorkloadId(text(workload)), text(environment), CandidateId(value.hex()), attempt)
                for workload, environment, value, attempt in self._connection.execute(
                    "SELECT workload, environment, candidate, max(attempt) + 1 FROM result AS lost"
                    f" WHERE device = ? AND outcome = {LOST} AND NOT EXISTS (SELECT 1 FROM result"
                    " WHERE workload = lost.workload AND device = lost.device"
                    " AND environment = lost.environment AND candidate = lost.candidate"
                    f" AND outcome != {LOST}) GROUP BY environment, workload, candidate",
                    (self._labels.find(device_id),),
                )
            ]

    def fastest(
        self, workload_id: WorkloadId, device_id: DeviceId, environment_id: str
    ) -> list[tuple[float, CandidateId]]:
        """The few fastest candidates of a workload on a device: seconds and id, the best first."""
        find = self._labels.find
        with state_errors("reading the state file", self.path):
            return [
                (secs, CandidateId(value.hex()))
                for secs, value in self._connection.execute(
                    f"SELECT latency_secs, candidate FROM fastest WHERE {IN_GROUP} ORDER BY 1, 2",
                    (find(workload_id), find(device_id), find(environment_id)),
                )
            ]
