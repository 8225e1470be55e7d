"""What is counted of each device: records, measured candidates, and those that it keeps losing.

`fleet.coverage.coverage` keeps one per device. It is made from the tallies of the state file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from agents.records import CandidateId, WorkloadId
from fleet.state.rows import Tally

#: A candidate that was lost this often is left alone until the device's agent is started again.
MAX_LOSSES = 2


@dataclass(slots=True)
class EnvironmentCounts:
    """What a device has in one environment, of the workloads that the fleet measures."""

    records: int = 0
    #: Candidates by workload.
    measured: dict[WorkloadId, int] = field(default_factory=dict)
    #: Candidates whose every measurement was lost: the attempt that comes next.
    lost: dict[CandidateId, int] = field(default_factory=dict)
    #: Unix seconds of the last record of a whole A/A run; 0 for never.
    noise_at: float = 0.0


@dataclass(slots=True)
class DeviceRow:
    """One device.

    Attributes:
        environment_id: The environment that it has now; empty while nobody knows.
        environments: By id of the environment.
        losses: Losses under the present agent, by candidate.
        given_up: Those of each workload that this agent has lost too often: gaps that are not planned.
    """

    environment_id: str = ""
    environments: dict[str, EnvironmentCounts] = field(default_factory=dict)
    losses: dict[CandidateId, int] = field(default_factory=dict)
    given_up: dict[WorkloadId, set[CandidateId]] = field(default_factory=dict)

    @property
    def now(self) -> EnvironmentCounts:
        """What it has in its present environment."""
        return self.of(self.environment_id)

    def of(self, environment_id: str) -> EnvironmentCounts:
        """What it has in an environment; nothing yet if nobody asked before."""
        return self.environments.setdefault(environment_id, EnvironmentCounts())

    def enter(self, environment_id: str) -> None:
        """Note its present environment; losses under its last agent are forgiven."""
        self.environment_id = environment_id
        self.losses.clear()
        self.given_up.clear()

    def load(
        self,
        tallies: Iterable[Tally],
        lost: Iterable[tuple[WorkloadId, str, CandidateId, int]],
        workload_ids: set[WorkloadId],
    ) -> None:
        """Count anew what the state file has of some workloads."""
        self.environments.clear()
        for tally in tallies:
            if tally.workload_id in workload_ids:
                counts = self.of(tally.environment_id)
                counts.records += tally.records
                counts.measured[tally.workload_id] = tally.measured
                counts.noise_at = max(counts.noise_at, tally.noise_at)
        for workload_id, environment_id, candidate_id, attempt in lost:
            if workload_id in workload_ids:
                self.of(environment_id).lost[candidate_id] = attempt

    def lose(
        self, environment_id: str, workload_id: WorkloadId, candidate_id: CandidateId, attempt: int
    ) -> None:
        """A lost candidate stays a gap, and its next record must differ in the attempt."""
        lost = self.of(environment_id).lost
        lost[candidate_id] = max(lost.get(candidate_id, 0), attempt + 1)
        if environment_id != self.environment_id:
            return
        self.losses[candidate_id] = self.losses.get(candidate_id, 0) + 1
        if self.losses[candidate_id] >= MAX_LOSSES:
            self.given_up.setdefault(workload_id, set()).add(candidate_id)

    def close_gap(self, environment_id: str, workload_id: WorkloadId, candidate_id: CandidateId) -> None:
        """A candidate that was lost is measured after all: it is no gap any more."""
        if self.of(environment_id).lost.pop(candidate_id, None) is not None:
            self.losses.pop(candidate_id, None)
            self.given_up.get(workload_id, set()).discard(candidate_id)
