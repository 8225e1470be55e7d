"""What the planner and its parts share: knowledge of candidates and devices, and how draws are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agents.records import DeviceId
from fleet.core.scheduling import EXPLORATION
from fleet.coverage.coverage import Coverage
from fleet.planner.candidate_pools import CandidatePools
from fleet.planner.imported_candidates import ImportedCandidates
from fleet.planner.pending_jobs import JobSink
from fleet.planner.plan_view import UncertaintyOf


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerContext:
    """All that a planner is given."""

    #: What is measured and what is known.
    coverage: Coverage
    #: Where new candidates are kept.
    pools: CandidatePools
    #: Name under which every device shares candidates (`fleet.planner.request_coalescer.sharing_names`).
    families: Mapping[DeviceId, str]
    #: What devices draw from (`fleet.planner.request_coalescer.space_of`).
    spaces: Mapping[DeviceId, str]
    #: Carries out what the planner asks for.
    job_sink: JobSink
    #: Of the draws.
    seed: int = 0
    #: Begins every job id, so that ids of different lives of the coordinator differ.
    token: str
    #: Share of the new candidates that is random.
    exploration: float = EXPLORATION
    #: What each device takes turns for with its neighbours (`fleet.planner.plan_view.turn_of`).
    turns: Mapping[DeviceId, str] = field(default_factory=dict)
    #: Whether the policy of a device lets it measure now.
    is_open: Callable[[DeviceId], bool] = lambda _: True
    #: How unsure heads are of workloads; without it no workload is preferred for that.
    uncertainty: UncertaintyOf | None = None
    #: Imported candidates that wait to be derived.
    imports: ImportedCandidates = field(default_factory=lambda: ImportedCandidates({}))
