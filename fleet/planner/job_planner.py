"""From "this device has room" to jobs: gaps are filled at once, new candidates come from the device's agent.

`fleet.engine.coordinator` calls it with arrivals; its own questions go through `PlannerContext`. How much of
each kind is worth measuring is for `fleet.core.scheduling`; here it becomes candidates. It waits for
nothing: a request that needs an answer of an agent or of the store is *pending* until the answers are in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import msgspec

from agents.device.messages import Proposed
from agents.records import Candidate, CandidateId, DeviceId, Workload, WorkloadId
from fleet.core.events import Job, Origin
from fleet.core.scheduling import Ask, plan
from fleet.coverage.candidates import paired
from fleet.planner.batch_plan import BATCH_SIZE
from fleet.planner.candidate_ranker import CandidateRanker
from fleet.planner.candidate_requests import CandidateRequest, CandidateRequests
from fleet.planner.imported_candidates import imported_traces, underived
from fleet.planner.job_queues import Chosen, JobFactory, PendingJob, PlanViews, Queues
from fleet.planner.planner_context import PlannerContext
from fleet.planner.selection import choose_parents

#: Devices whose best candidates others evolve from: its own, and those of some others of its family.
_PARENT_DEVICES = 4
#: Candidates that are drawn for each one that a head chooses. The rest is dropped: drawing costs a hundredth
#: of measuring.
_DRAWN_FOR_HEAD = 4


class JobPlanner:
    """Makes jobs for devices with room.

    Attributes:
        queues: The jobs that have not ended.
        requests: Asks agents for candidates, for requests too.
        factory: Makes jobs, for requests too.
        hosts: Host of each device that is up.
        heads: Devices with a head of the champion.
    """

    def __init__(self, context: PlannerContext) -> None:
        self._context, self._coverage = context, context.coverage
        self._candidates = context.coverage.candidates
        self._imports, self._families = context.imports, context.coverage.families
        self._workloads: dict[DeviceId, Mapping[WorkloadId, Workload]] = {}
        self._pending: dict[DeviceId, PendingJob] = {}
        self.queues = Queues()
        self.requests = CandidateRequests(context)
        self.factory = JobFactory(context, self.queues)
        self._views = PlanViews(context, self.queues)
        self.hosts, self.heads = self._views.hosts, self._views.heads

    @property
    def is_idle(self) -> bool:
        """Whether no pending job waits for an answer."""
        return not self._pending

    def set_workloads(self, device_ids: Iterable[DeviceId], workloads: Sequence[Workload]) -> None:
        """Say what some devices measure."""
        by_id = {workload.workload_id: workload for workload in workloads}
        for device_id in device_ids:
            self._workloads[device_id] = by_id

    def workloads_of(self, device_id: DeviceId) -> Mapping[WorkloadId, Workload]:
        """What a device measures; empty while nobody knows."""
        return self._workloads.get(device_id, {})

    def submit(self, job: Job) -> None:
        """Hand in a job, whoever made it."""
        # Now, not when it is durable: another answer of this turn may hold the same candidates.
        self.queues.opened(job)
        self._context.submit(job)

    def want(self, room: Mapping[DeviceId, int]) -> None:
        """Plan for devices with room; those whose last request is still open are left to it."""
        groups: dict[int, dict[DeviceId, int]] = {}
        for device_id, count in room.items():
            workloads = self._workloads.get(device_id)
            if workloads and device_id not in self._pending:
                groups.setdefault(id(workloads), {})[device_id] = count
        for group in groups.values():
            for device_id in group:
                self._pending[device_id] = PendingJob()
            view, seed = self._views.view(group, self._workloads), self._context.seed + self.factory.number()
            for ask in plan(view, group, seed, self._context.exploration):
                self._serve(ask)
            self.requests.send()
            for device_id in group:
                self._settle(device_id)

    def proposed(self, message: Proposed) -> None:
        """Take in candidates that an agent has made."""
        question = self.requests.answered(message.request.request_id)
        if question is None:
            return
        first, excluded = question.requests[0], question.excluded
        family = self._families[message.device_id]
        workload_id = first.workload.workload_id
        if message.refused:
            self._imports.refused.update(message.refused)
            self._context.log(underived(first.workload, message.refused), kind="imported")
        if not first.parents and not first.foreign and excluded.is_end(message.candidates):
            self._candidates.exhaust((family, workload_id), excluded.known_count)
        drawn = excluded.without(message.candidates)
        # A request whose candidates a head is to choose is shared with nobody.
        if first.is_ranked and len(drawn) * _DRAWN_FOR_HEAD > first.count:
            drawn = self.requests.fresh(first, excluded, drawn)
            if (answered := self._answered(first.device_id, first.request_id)) is not None:
                self._rank(first, self._wait(*answered), list(drawn.values()))
            return
        self._know(family, workload_id, drawn)
        for request in question.requests:
            if (answered := self._answered(request.device_id, request.request_id)) is not None:
                pending, _ = answered
                fresh = self.requests.fresh(request, excluded, drawn)
                self._take(pending, request.device_id, workload_id, fresh)

    def ranked(
        self, device_id: DeviceId, request_id: str, candidates: Sequence[Candidate], version: str
    ) -> None:
        """Take in drawn candidates in the order of the device's head, the most promising first.

        Args:
            device_id: The device.
            request_id: Of the device's pending job.
            candidates: All that were drawn; in the order of drawing where no head could be asked.
            version: The model that ranked them; empty where none did.
        """
        if (answered := self._answered(device_id, request_id)) is None:
            return
        pending, ask = answered
        # A request for random ones may have drawn the same meanwhile.
        space = self._families[device_id], ask.workload_id
        drawn = {candidate.candidate_id: candidate for candidate in candidates}
        for candidate_id in self._candidates.among(space, drawn):
            del drawn[candidate_id]
        chosen = dict(islice(drawn.items(), ask.count))
        if version:
            chosen = {
                key: msgspec.structs.replace(candidate, origin=Origin.MODEL.value)
                for key, candidate in chosen.items()
            }
        self._know(*space, chosen)
        self._take(pending, device_id, ask.workload_id, chosen, version)

    def failed(self, device_id: DeviceId, request_id: str) -> None:
        """Note that a request has no result."""
        self._answered(device_id, request_id)
        self._settle(device_id)
        self.requests.unanswered([request_id], self._is_open)

    def found_imported(self, device_id: DeviceId, request_id: str, traces: Sequence[str]) -> None:
        """Have an agent derive candidates of our own from imported traces that were looked for."""
        if (answered := self._answered(device_id, request_id)) is not None:
            if traces:
                _, ask = answered
                self._ask_agent(ask, [], traces)
                self.requests.send()
            self._settle(device_id)

    def agent_gone(self, device_id: DeviceId) -> None:
        """Let go of what a device's agent was asked for; what was chosen so far becomes jobs."""
        self.hosts.pop(device_id, None)
        if (pending := self._pending.get(device_id)) is not None:
            unanswered = list(pending.waiting)
            pending.waiting.clear()
            self._settle(device_id)
            self.requests.unanswered(unanswered, self._is_open)

    def forget(self, device_id: DeviceId) -> None:
        """Let go of a device that left: nothing that was planned for it becomes a job."""
        if (pending := self._pending.get(device_id)) is not None:
            pending.chosen.clear()
        self.agent_gone(device_id)
        self._workloads.pop(device_id, None)

    def _serve(self, ask: Ask) -> None:
        """Begin one request of the plan."""
        pending = self._pending[ask.device_id]
        if ask.origin is Origin.PAIRED:
            unavailable = self.queues.candidate_ids(ask.device_id) | pending.chosen.keys()
            gaps = self._coverage.gaps(ask.device_id, ask.workload_id, ask.count, unavailable)
            pending.chosen |= dict.fromkeys(gaps, Chosen(ask.workload_id, Origin.PAIRED.value))
            family, short = self._families[ask.device_id], ask.count - len(gaps)
            if imported := self._imports.take(family, ask.workload_id, short):
                request_id = self._wait(pending, replace(ask, count=len(imported)))
                self._search_imported(ask.device_id, request_id, imported)
        elif ask.origin is Origin.RANDOM:
            self._ask_agent(ask, [])
        else:
            self._ask_agent(ask, self._parents(ask))

    def _search_imported(
        self, device_id: DeviceId, request_id: str, candidate_ids: Sequence[CandidateId]
    ) -> None:
        """Look for traces of imported candidates in the store; `found_imported` follows."""
        family = self._context.specs[device_id].family
        self._context.thread.ask(
            partial(imported_traces, family=family, candidate_ids=candidate_ids),
            lambda traces: self.found_imported(device_id, request_id, list((traces or {}).values())),
        )

    def _rank(self, request: CandidateRequest, request_id: str, drawn: list[Candidate]) -> None:
        """Put candidates in the order of the device's head; `ranked` follows."""
        device_id = request.device_id
        self._context.thread.do(
            partial(_ranked, self._context.ranker, request, drawn),
            lambda answer: self.ranked(device_id, request_id, *(answer or (drawn, ""))),
        )

    def _parents(self, ask: Ask) -> list[str]:
        """Traces of the best candidates of some devices in turn."""
        family = self._families[ask.device_id]
        best = self._coverage.best(ask.device_id, ask.workload_id, _PARENT_DEVICES)
        parents = [CandidateId(name) for name in choose_parents(best)]
        candidates = self._candidates.get((family, ask.workload_id), parents)
        return [candidates[name].trace for name in parents if name in candidates]

    def _ask_agent(self, ask: Ask, parents: Sequence[str], foreign: Sequence[str] = ()) -> None:
        is_ranked = ask.origin is Origin.MODEL
        request = CandidateRequest(
            device_id=ask.device_id,
            request_id=self._wait(self._pending[ask.device_id], ask),
            workload=self._workloads[ask.device_id][ask.workload_id],
            count=ask.count * (_DRAWN_FOR_HEAD if is_ranked else 1),
            parents=tuple(parents),
            foreign=tuple(foreign),
            is_ranked=is_ranked,
            is_idle=not self.queues.candidate_ids(ask.device_id),
        )
        self.requests.add(request)

    def _is_open(self, request: CandidateRequest) -> bool:
        pending = self._pending.get(request.device_id)
        return pending is not None and request.request_id in pending.waiting

    def _wait(self, pending: PendingJob, ask: Ask) -> str:
        """Have a pending job wait for a new request, whose id is the answer."""
        request_id = self.factory.request_id()
        pending.waiting[request_id] = ask
        return request_id

    def _answered(self, device_id: DeviceId, request_id: str) -> tuple[PendingJob, Ask] | None:
        """The pending job that waited for a request, and for what; None where none does any more."""
        pending = self._pending.get(device_id)
        if pending is None or request_id not in pending.waiting:
            return None
        return pending, pending.waiting.pop(request_id)

    def _know(self, family: str, workload_id: WorkloadId, fresh: Mapping[CandidateId, Candidate]) -> None:
        """Keep new candidates for all devices of a family."""
        space = family, workload_id
        # Candidates that another device has drawn and measured meanwhile are in the store.
        settled = self._candidates.among(space, fresh, is_settled=True)
        self._candidates.add(
            space,
            [paired(candidate) if name in settled else candidate for name, candidate in fresh.items()],
        )

    def _take(
        self,
        pending: PendingJob,
        device_id: DeviceId,
        workload_id: WorkloadId,
        fresh: Mapping[CandidateId, Candidate],
        version: str = "",
    ) -> None:
        """Choose new candidates for a device; with a version, as its head did."""
        queued = self.queues.candidate_ids(device_id)
        for candidate_id, candidate in fresh.items():
            # A job of an earlier life may wait for one whose file is gone, and that is drawn again now.
            if candidate_id not in queued:
                pending.chosen.setdefault(candidate_id, Chosen(workload_id, candidate.origin, version))
        self._settle(device_id)

    def _settle(self, device_id: DeviceId) -> None:
        """Make jobs of a pending one that waits for nothing, or has enough for one already."""
        pending = self._pending.get(device_id)
        if pending is None or (pending.waiting and len(pending.chosen) < BATCH_SIZE):
            return
        if not pending.waiting:
            del self._pending[device_id]
        chosen, pending.chosen = pending.chosen, {}
        for job in self.factory.jobs_of(device_id, chosen):
            self.submit(job)


def _ranked(
    ranker: CandidateRanker | None, request: CandidateRequest, drawn: list[Candidate]
) -> tuple[list[Candidate], str]:
    """The candidates in the order of the device's head, and its version; as drawn where there is no head."""
    ranking = ranker.rank(request.workload, request.device_id, drawn) if ranker is not None else None
    if ranking is None:
        return drawn, ""
    return ranking.ranked(drawn), ranking.model.version
