"""From "this device has room" to jobs: gaps are filled at once, new candidates come from the device's agent.

`fleet.daemon.coordinator` calls it with what arrives and carries out what it asks for through `Outlet`. How
much of what is worth measuring is for `fleet.core.scheduling`; here it becomes candidates. It waits for
nothing: a wish that needs an answer of an agent or of the store is a *draft* until the answers are in.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from agents.messages import Proposed, ProposeRequest
from agents.records import Candidate, CandidateId, DeviceId, Workload, WorkloadId
from fleet.collection.mixing import mixed
from fleet.collection.planning import BATCH_SIZE
from fleet.collection.selection import choose_parents
from fleet.core.events import Job, JobId, Origin
from fleet.core.queues import Queues
from fleet.core.scheduling import Ask, Cell, DeviceView, FleetView, WorkloadView, plan
from fleet.daemon.coverage import Coverage
from fleet.daemon.drafts import Draft, Outlet
from fleet.daemon.excluding import Excluding
from fleet.daemon.pools import Pools

#: Devices whose best candidates others evolve from: its own, and those of some siblings.
_PARENT_DEVICES = 4
#: Candidates that are drawn for each one that a head chooses. The rest is dropped: drawing costs a hundredth
#: of measuring.
_DRAWN_FOR_HEAD = 4


class Feeder:
    """Makes jobs for devices with room.

    Args:
        coverage: What is measured and what is known.
        pools: Where new candidates are kept.
        families: Family of every device.
        outlet: Carries out what it asks for.
        seed: Of the draws.
        token: Begins every job id, so that ids of different lives of the coordinator differ.

    Attributes:
        queues: The jobs that have not ended.
        hosts: Host of each device that is up.
        heads: Devices with a head of the champion.
        intervals: Widths of the head's interval by device and workload, where they are known.
    """

    def __init__(
        self,
        coverage: Coverage,
        pools: Pools,
        families: Mapping[DeviceId, str],
        outlet: Outlet,
        *,
        seed: int,
        token: str,
    ) -> None:
        self._coverage = coverage
        self._pools = pools
        self._families = families
        self._outlet = outlet
        self._seed = seed
        self._token = token
        self._numbers = itertools.count(1)
        self._workloads: dict[DeviceId, Mapping[WorkloadId, Workload]] = {}
        self._drafts: dict[DeviceId, Draft] = {}
        #: Wishes to evolve whose parents are looked for.
        self._asks: dict[str, Ask] = {}
        #: Wishes whose candidates a head is to choose, while they are drawn and ranked.
        self._guided: dict[str, Ask] = {}
        self._excluding = Excluding(coverage)
        self.queues = Queues()
        self.hosts: dict[DeviceId, str] = {}
        self.heads: set[DeviceId] = set()
        self.intervals: dict[tuple[DeviceId, WorkloadId], float] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no draft waits for an answer."""
        return not self._drafts

    def set_workloads(self, device_ids: Iterable[DeviceId], workloads: Sequence[Workload]) -> None:
        """Say what some devices measure."""
        by_id = {one.workload_id: one for one in workloads}
        for device_id in device_ids:
            self._workloads[device_id] = by_id

    def workloads_of(self, device_id: DeviceId) -> Mapping[WorkloadId, Workload]:
        """What a device measures; empty while nobody knows."""
        return self._workloads.get(device_id, {})

    def want(self, room: Mapping[DeviceId, int]) -> None:
        """Plan for devices with room; those whose last wish is still open are left to it."""
        groups: dict[int, dict[DeviceId, int]] = {}
        for device_id, count in room.items():
            workloads = self._workloads.get(device_id)
            if workloads and device_id not in self._drafts:
                groups.setdefault(id(workloads), {})[device_id] = count
        for group in groups.values():
            for device_id in group:
                self._drafts[device_id] = Draft()
            for ask in plan(self._view(group), group, self._seed + next(self._numbers)):
                self._serve(ask)
            for device_id in group:
                self._settle(device_id)

    def proposed(self, message: Proposed) -> None:
        """Take in candidates that an agent has made."""
        request, device_id = message.request, message.device_id
        workload_id = request.workload.workload_id
        draft = self._answered(device_id, request.request_id)
        guided = self._guided.pop(request.request_id, None)
        fresh, is_end = self._excluding.answered(message)
        if is_end:
            self._coverage.exhaust(self._families[device_id], workload_id)
        if draft is not None and guided is not None and len(fresh) > guided.count:
            request_id = self._request_id()
            self._guided[request_id] = guided
            draft.waiting.add(request_id)
            self._outlet.rank(device_id, request_id, request.workload, list(fresh.values()))
            return
        self._keep(draft, device_id, workload_id, fresh)

    def ranked(
        self, device_id: DeviceId, request_id: str, candidates: Sequence[Candidate], version: str
    ) -> None:
        """Take in drawn candidates in the order of the device's head, the most promising first.

        Args:
            device_id: The device.
            request_id: As given to `Outlet.rank`.
            candidates: All that were drawn; in the order of drawing where no head could be asked.
            version: The model that ranked them; empty where none did.
        """
        ask = self._guided.pop(request_id, None)
        draft = self._answered(device_id, request_id)
        if ask is None or draft is None:
            return
        # A wish for random ones may have drawn the same meanwhile.
        known = self._pools.get(
            self._families[device_id], ask.workload_id, [one.candidate_id for one in candidates]
        )
        fresh = [one for one in candidates if one.candidate_id not in known]
        chosen = {one.candidate_id: one for one in fresh[: ask.count]}
        if version:
            chosen = {key: replace(one, origin=Origin.MODEL.value) for key, one in chosen.items()}
            draft.versions.update(dict.fromkeys(chosen, version))
        self._keep(draft, device_id, ask.workload_id, chosen)

    def failed(self, device_id: DeviceId, request_id: str) -> None:
        """Note that a request has no result."""
        self._asks.pop(request_id, None)
        self._guided.pop(request_id, None)
        self._excluding.forget(request_id)
        self._answered(device_id, request_id)
        self._settle(device_id)

    def searched(self, device_id: DeviceId, request_id: str) -> None:
        """Go on with a wish whose parents were looked for; without any, its candidates are random."""
        ask = self._asks.pop(request_id, None)
        if ask is not None and self._answered(device_id, request_id) is not None:
            self._ask_agent(ask, self._parents(ask)[0])
            self._settle(device_id)

    def agent_gone(self, device_id: DeviceId) -> None:
        """Let go of what a device's agent was asked for; what was chosen so far becomes jobs."""
        if (draft := self._drafts.get(device_id)) is not None:
            for request_id in draft.waiting:
                self._excluding.forget(request_id)
            draft.waiting.clear()
            self._settle(device_id)

    def _view(self, device_ids: Iterable[DeviceId]) -> FleetView:
        devices: dict[DeviceId, DeviceView] = {}
        workloads: Mapping[WorkloadId, Workload] = {}
        for device_id in device_ids:
            workloads = self._workloads[device_id]
            devices[device_id] = DeviceView(
                device_id=device_id,
                records=self._coverage.records(device_id),
                has_head=device_id in self.heads,
                host=self.hosts.get(device_id, ""),
                cells={one: self._cell(device_id, one) for one in workloads},
            )
        views = {
            one.workload_id: WorkloadView(weight=float(one.weight), flops=one.flops)
            for one in workloads.values()
        }
        return FleetView(devices=devices, workloads=views)

    def _cell(self, device_id: DeviceId, workload_id: WorkloadId) -> Cell:
        family = self._families[device_id]
        measured = self._coverage.measured(device_id, workload_id)
        queued = self.queues.waiting(device_id, workload_id)
        return Cell(
            measured=measured,
            queued=queued,
            unpaired=max(0, self._coverage.unmeasured(device_id, workload_id) - queued),
            interval=self.intervals.get((device_id, workload_id)),
            is_exhausted=self._coverage.is_exhausted(family, workload_id),
        )

    def _serve(self, ask: Ask) -> None:
        """Begin one wish of the plan."""
        draft = self._drafts[ask.device_id]
        if ask.origin is Origin.PAIRED:
            taken = self.queues.taken(ask.device_id) | {one for _, one in draft.chosen}
            found = self._coverage.gaps(ask.device_id, ask.workload_id, ask.count, taken)
            draft.chosen += [(ask.workload_id, one) for one in found]
            draft.origins[Origin.PAIRED] += len(found)
        elif ask.origin is Origin.RANDOM:
            self._ask_agent(ask, [])
        else:
            traces, missing = self._parents(ask)
            if missing:
                request_id = self._request_id()
                self._asks[request_id] = ask
                draft.waiting.add(request_id)
                self._outlet.search(ask.device_id, request_id, missing)
            else:
                self._ask_agent(ask, traces)

    def _parents(self, ask: Ask) -> tuple[list[str], list[CandidateId]]:
        """Traces of the best candidates of some devices in turn, and those whose traces are not at hand."""
        family = self._families[ask.device_id]
        best = self._coverage.best(ask.device_id, ask.workload_id, _PARENT_DEVICES)
        wanted = [CandidateId(one) for one in choose_parents(best)]
        at_hand = self._pools.get(family, ask.workload_id, wanted)
        traces = [at_hand[one].trace for one in wanted if one in at_hand]
        return traces, [one for one in wanted if one not in at_hand]

    def _ask_agent(self, ask: Ask, parents: Sequence[str]) -> None:
        request_id = self._request_id()
        told = self._excluding.tell(request_id, self._families[ask.device_id], ask.workload_id)
        is_guided = ask.origin is Origin.MODEL
        request = ProposeRequest(
            request_id=request_id,
            workload=self._workloads[ask.device_id][ask.workload_id],
            count=ask.count * (_DRAWN_FOR_HEAD if is_guided else 1),
            # Draws of a seed are the same each time: another one for what comes on top.
            seed=(self._seed + told.known) % 2**31,
            parents=tuple(parents),
            exclude=told.ids,
        )
        self._drafts[ask.device_id].waiting.add(request.request_id)
        if is_guided:
            self._guided[request.request_id] = ask
        self._outlet.propose(ask.device_id, request)

    def _request_id(self) -> str:
        return f"{self._token}/r{next(self._numbers)}"

    def _answered(self, device_id: DeviceId, request_id: str) -> Draft | None:
        """The draft that waited for a request; None where nothing does any more."""
        draft = self._drafts.get(device_id)
        if draft is None or request_id not in draft.waiting:
            return None
        draft.waiting.discard(request_id)
        return draft

    def _keep(
        self,
        draft: Draft | None,
        device_id: DeviceId,
        workload_id: WorkloadId,
        fresh: Mapping[CandidateId, Candidate],
    ) -> None:
        """Keep new candidates for all devices of the family, and choose them for this one."""
        family = self._families[device_id]
        # What a sibling has drawn and measured meanwhile is in the store.
        kept = [one for key, one in fresh.items() if not self._coverage.is_stored(family, workload_id, key)]
        self._pools.remember(family, fresh.values())
        if kept:
            self._pools.add(family, workload_id, kept)
        if fresh:
            self._coverage.propose(family, workload_id, list(fresh))
        if draft is not None:
            self._take(draft, device_id, workload_id, fresh.values())
        self._settle(device_id)

    def _take(
        self, draft: Draft, device_id: DeviceId, workload_id: WorkloadId, fresh: Iterable[Candidate]
    ) -> None:
        queued = self.queues.taken(device_id)
        for one in fresh:
            # A job of an earlier life may wait for one whose file is gone, and that is drawn again now.
            if one.candidate_id not in queued:
                draft.chosen.append((workload_id, one.candidate_id))
                draft.origins[one.origin] += 1

    def _settle(self, device_id: DeviceId) -> None:
        """Make jobs of a draft that waits for nothing, or has enough for one already."""
        draft = self._drafts.get(device_id)
        if draft is None or (draft.waiting and len(draft.chosen) < BATCH_SIZE):
            return
        if not draft.waiting:
            del self._drafts[device_id]
        chosen, draft.chosen = draft.chosen, []
        alike: dict[tuple[int, str], list[tuple[WorkloadId, CandidateId]]] = {}
        for workload_id, one in dict.fromkeys(chosen):
            key = self._coverage.next_attempt(device_id, one), draft.versions.get(one, "")
            alike.setdefault(key, []).append((workload_id, one))
        for (attempt, version), pairs in sorted(alike.items()):
            origin = str(Origin.MODEL if version else draft.origins.most_common(1)[0][0])
            for part in mixed(pairs, random.Random(f"{self._seed}/{next(self._numbers)}")):
                self._outlet.submit(self.job(device_id, part, origin, attempt, version))

    def job(
        self,
        device_id: DeviceId,
        part: Sequence[tuple[WorkloadId, CandidateId]],
        origin: str,
        attempt: int,
        model_version: str = "",
    ) -> Job:
        """Make a job with a new id."""
        return Job(
            job_id=JobId(f"{self._token}-{next(self._numbers)}"),
            device_id=device_id,
            workload_ids=tuple(dict.fromkeys(workload_id for workload_id, _ in part)),
            candidate_ids=tuple(one for _, one in part),
            origin=origin,
            attempt=attempt,
            expected_secs=self.queues.candidate_secs(device_id) * len(part),
            model_version=model_version,
        )


__all__ = ["Feeder", "Outlet"]
