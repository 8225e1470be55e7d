"""What the parts of the planner share: what is known, jobs in the making, and what they may ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from agents.device.messages import ProposeRequest
from agents.records import Candidate, CandidateId, DeviceId, DeviceSpec, Workload
from fleet.core.events import Job
from fleet.core.scheduling import EXPLORATION
from fleet.coverage.coverage import Coverage
from fleet.planner.candidate_pools import CandidatePools
from fleet.planner.candidate_ranker import CandidateRanker
from fleet.planner.imported_candidates import ImportedCandidates, imported_traces
from fleet.planner.plan_view import UncertaintyOf
from fleet.store.trace_lookup import ImportedAsked, StoreThread
from fleet.transport.transport import AgentTransport


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Candidates that wait for the opinion of a head, as they come back from the thread."""

    device_id: DeviceId
    request_id: str
    candidates: tuple[Candidate, ...]


def _ranked(ranker: CandidateRanker | None, workload: Workload, drawn: Drawn) -> tuple[list[Candidate], str]:
    """The candidates in the order of the device's head, and its version; as drawn where there is no head."""
    ranking = ranker.rank(workload, drawn.device_id, drawn.candidates) if ranker is not None else None
    if ranking is None:
        return list(drawn.candidates), ""
    return ranking.first(drawn.candidates, len(drawn.candidates)), ranking.model.version


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSink:
    """What a planner may ask for; nothing of it waits."""

    transport: AgentTransport
    #: Incarnation of each agent that is up.
    up: Mapping[DeviceId, int]
    thread: StoreThread
    #: All known devices.
    specs: Mapping[DeviceId, DeviceSpec]
    ranker: CandidateRanker | None
    #: Told what people should know.
    log: Callable[..., None]
    #: Told of every job.
    submit: Callable[[Job], None]

    def propose(self, device_id: DeviceId, request: ProposeRequest) -> None:
        """Ask the agent of a device for candidates; `JobPlanner.proposed` or `JobPlanner.failed` follows."""
        self.transport.propose(device_id, self.up[device_id], request)

    def search_imported(
        self, device_id: DeviceId, request_id: str, candidate_ids: Sequence[CandidateId]
    ) -> None:
        """Look for traces of imported candidates in the store; `JobPlanner.found_imported` follows."""
        family = self.specs[device_id].family
        question = partial(imported_traces, family=family, candidate_ids=list(candidate_ids))
        self.thread.ask(ImportedAsked(device_id=device_id, request_id=request_id), question)

    def underived(self, workload: Workload, reasons: Mapping[str, int]) -> None:
        """Tell people that imported candidates are not measured: how many, by reason."""
        counts = "; ".join(f"{reason} ({count})" for reason, count in sorted(reasons.items()))
        text = f"{workload.name}: {sum(reasons.values())} imported candidates are not measured: {counts}"
        self.log(text, kind="imported")

    def rank(
        self, device_id: DeviceId, request_id: str, workload: Workload, candidates: Sequence[Candidate]
    ) -> None:
        """Put candidates in the order of the device's head; `JobPlanner.ranked` follows."""
        question = Drawn(device_id=device_id, request_id=request_id, candidates=tuple(candidates))
        self.thread.do(question, partial(_ranked, self.ranker, workload, question))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerContext:
    """All that a planner is given."""

    #: Candidates that are measured, and those that are known.
    coverage: Coverage
    #: Where new candidates are kept.
    pools: CandidatePools
    #: Name under which every device shares candidates (`fleet.planner.candidate_requests.sharing_names`).
    families: Mapping[DeviceId, str]
    #: What devices draw from (`fleet.planner.candidate_requests.space_of`).
    spaces: Mapping[DeviceId, str]
    #: Carries out what the planner asks for.
    job_sink: JobSink
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
