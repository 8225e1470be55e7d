"""What a collection asks a state file: what devices have of a workload, and what is known of its candidates.

`fleet.state.questions` has these questions among others. Each reads the rows of one workload.
"""

from __future__ import annotations

from collections.abc import Sequence

from agents.records import CandidateId, DeviceId, WorkloadId
from fleet.state.coverage_questions import CoverageQuestions
from fleet.state.rows import CandidateTraits
from fleet.state.schema import state_errors


class CollectionQuestions(CoverageQuestions):
    """Questions about all candidates of a workload."""

    def recorded(
        self, workload_id: WorkloadId, device_id: DeviceId, environment_id: str | None = None
    ) -> set[CandidateId]:
        """Candidates of a workload that a device has results of, lost ones too, in one environment or any."""
        find = self._labels.find
        where, values = "workload = ? AND device = ?", [find(workload_id), find(device_id)]
        if environment_id is not None:
            where, values = f"{where} AND environment = ?", [*values, find(environment_id)]
        with state_errors("reading the state file", self.path):
            rows = self._connection.execute(f"SELECT candidate FROM result WHERE {where}", values)
            return {CandidateId(value.hex()) for (value,) in rows}

    def traits(self, families: Sequence[str], workload_id: WorkloadId) -> dict[CandidateId, CandidateTraits]:
        """What is known of the candidates of a workload, in the order in which they became known.

        One that several families know has the origin that it has in the first of them, and is blocked where
        it is in any.
        """
        find = self._labels.find
        traits: dict[CandidateId, CandidateTraits] = {}
        with state_errors("reading the state file", self.path):
            for family in families:
                for value, *others in self._connection.execute(
                    "SELECT id, dialect, origin, is_blocked FROM candidate"
                    " WHERE family = ? AND workload = ? ORDER BY number",
                    (find(family), find(workload_id)),
                ):
                    candidate_id, trait = CandidateId(value.hex()), CandidateTraits(*others)
                    earlier = traits.setdefault(candidate_id, trait)
                    if trait.is_blocked and not earlier.is_blocked:
                        traits[candidate_id] = earlier._replace(is_blocked=True)
        return traits
