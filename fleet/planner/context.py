"""All that the planner of the background is given: what is known, and what it may ask for.

Made by `fleet.engine.composition`, read by `fleet.planner.job_planner`. Nothing of it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agents.device.messages import ProposeRequest
from agents.records import DeviceId, DeviceSpec
from fleet.core.events import Job
from fleet.core.scheduling import EXPLORATION
from fleet.coverage.coverage import Coverage
from fleet.planner.candidate_ranker import CandidateRanker
from fleet.planner.imported_candidates import ImportedCandidates
from fleet.planner.plan_view import UncertaintyOf
from fleet.store.trace_lookup import StoreThread


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerContext:
    """What is known of devices and candidates, and who does what the planner asks for."""

    #: Candidates that are measured, and those that are known.
    coverage: Coverage
    #: All known devices.
    specs: Mapping[DeviceId, DeviceSpec]
    #: Name under which every device shares candidates (`fleet.planner.candidate_requests.sharing_names`).
    families: Mapping[DeviceId, str]
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
    #: Resource that each device shares in turns with its neighbours (`fleet.planner.plan_view.turn_of`).
    turns: Mapping[DeviceId, str] = field(default_factory=dict)
    #: Whether the policy of a device lets it measure now.
    is_open: Callable[[DeviceId], bool] = lambda _: True
    #: How unsure heads are of workloads; without it no workload is preferred for that.
    uncertainty: UncertaintyOf | None = None
    #: Imported candidates that wait to be derived.
    imports: ImportedCandidates = field(default_factory=lambda: ImportedCandidates({}))
