"""What the planner is given: what is known, and what it may ask for.

Its parts (`job_planner.py`, `job_queues.py`, `candidate_requests.py`, `workload_discovery.py`) read one
`PlannerContext`; `fleet.engine.context` makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agents.device.messages import ProposeRequest
from agents.records import DeviceId, DeviceSpec, Workload, WorkloadId
from fleet.core.events import Job
from fleet.core.scheduling import EXPLORATION
from fleet.coverage.coverage import Coverage
from fleet.planner.candidate_ranker import CandidateRanker
from fleet.planner.imported_candidates import ImportedCandidates
from fleet.store.trace_lookup import StoreThread

#: How unsure the head of a device is of some workloads (`fleet.planner.candidate_ranker.uncertainty`).
UncertaintyOf = Callable[[DeviceId, Mapping[WorkloadId, Workload]], Mapping[WorkloadId, float]]


def no_uncertainty(
    device_id: DeviceId, workloads: Mapping[WorkloadId, Workload]
) -> Mapping[WorkloadId, float]:
    """Stands in where no head was judged."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerContext:
    """All that the planner is given: what is known, and what it may ask for. Nothing of it waits.

    Made by `fleet.engine.context`.
    """

    #: Candidates that are measured, and those that are known.
    coverage: Coverage
    #: All known devices.
    specs: Mapping[DeviceId, DeviceSpec]
    #: What devices draw from (`fleet.planner.candidate_requests.space_of`).
    spaces: Mapping[DeviceId, str]
    #: Asks the agent of a device for candidates; `JobPlanner.proposed` or `JobPlanner.failed` follows.
    propose: Callable[[DeviceId, ProposeRequest], None]
    #: Takes every job.
    submit: Callable[[Job], None]
    #: Tells people what they should know.
    log: Callable[..., None]
    #: Searches in the store, and ranks.
    thread: StoreThread
    #: Lets heads choose among drawn candidates; without one, those drawn first are taken.
    ranker: CandidateRanker | None = None
    #: Of the draws.
    seed: int = 0
    #: Begins every job id, so that ids of different lives of the coordinator differ.
    token: str
    #: Share of the new candidates that is random.
    exploration: float = EXPLORATION
    #: Resource that each device shares in turns with its neighbours (`fleet.planner.job_queues.turn_of`).
    turns: Mapping[DeviceId, str] = field(default_factory=dict)
    #: Whether the policy of a device lets it measure now.
    is_open: Callable[[DeviceId], bool] = lambda _: True
    #: How unsure heads are of workloads; without it no workload is preferred for that.
    uncertainty: UncertaintyOf = no_uncertainty
    #: Imported candidates that wait to be derived.
    imports: ImportedCandidates = field(default_factory=lambda: ImportedCandidates({}))
