"""The jobs that have not ended: which candidates wait in them, how long one takes, and how new ones are made.

`fleet.planner.job_planner` asks when it plans; `fleet.engine.effects` notes jobs that begin and end. Nothing
is chosen here.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from agents.records import CandidateId, DeviceId, DeviceKind, DeviceSpec, Workload, WorkloadId
from fleet.core.events import Job, JobId, Origin
from fleet.core.scheduling import NEW_RECORDS, Ask, Cell, DeviceView, FleetView
from fleet.planner.batch_plan import BATCH_SIZE, cut, mixed
from fleet.planner.planner_context import PlannerContext

#: Weight of the last batch in what a candidate is expected to take.
_LEARNING = 0.2


class Queues:
    """The open jobs of all devices."""

    def __init__(self) -> None:
        self._jobs: dict[JobId, Job] = {}
        self._job_by_candidate: dict[DeviceId, dict[CandidateId, JobId]] = {}
        #: Candidates that were measured and the seconds that they took; the older, the less they count.
        self._took: dict[DeviceId, tuple[float, float]] = {}

    def jobs(self) -> Iterable[Job]:
        """Jobs that were opened and not closed."""
        return self._jobs.values()

    def opened(self, job: Job) -> None:
        """Note a job whose candidates are taken, until `closed`; quarantined ones stay taken too.

        Twice does no harm: who makes a job notes it at once, and again when it is durable.
        """
        if job.job_id in self._jobs:
            return
        self._jobs[job.job_id] = job
        self._job_by_candidate.setdefault(job.device_id, {}).update(
            dict.fromkeys(job.candidate_ids, job.job_id)
        )

    def closed(self, job_id: JobId) -> None:
        """Note the end of a job."""
        job = self._jobs.pop(job_id, None)
        if job is None:
            return
        job_by_candidate = self._job_by_candidate[job.device_id]
        for candidate_id in job.candidate_ids:
            if job_by_candidate.get(candidate_id) == job_id:
                del job_by_candidate[candidate_id]

    def took(self, device_id: DeviceId, candidates: int, device_secs: float) -> None:
        """Learn how long a candidate takes, from any part of a batch."""
        if device_secs > 0:
            share = (1 - _LEARNING) ** (candidates / BATCH_SIZE)
            count, secs = self._took.get(device_id, (0.0, 0.0))
            self._took[device_id] = share * count + candidates, share * secs + device_secs

    def candidate_ids(self, device_id: DeviceId) -> Set[CandidateId]:
        """Candidates in the jobs of a device."""
        return self._job_by_candidate.get(device_id, {}).keys()

    def jobs_of(
        self, device_id: DeviceId, candidate_ids: Iterable[CandidateId], attempt: int
    ) -> dict[CandidateId, Job]:
        """The jobs of requests in which some candidates of a device wait to be measured, of one attempt.

        Those of the background may have to wait for the request that asks.
        """
        job_by_candidate = self._job_by_candidate.get(device_id, {})
        jobs: dict[CandidateId, Job] = {}
        for candidate_id in job_by_candidate.keys() & set(candidate_ids):
            job = self._jobs[job_by_candidate[candidate_id]]
            if job.attempt == attempt and job.request_id:
                jobs[candidate_id] = job
        return jobs

    def waiting(self, device_id: DeviceId) -> Counter[WorkloadId]:
        """About how many candidates of each workload are in these jobs: it only matters for their balance."""
        counts: Counter[WorkloadId] = Counter()
        for job_id in set(self._job_by_candidate.get(device_id, {}).values()):
            job = self._jobs[job_id]
            for workload_id in job.workload_ids:
                counts[workload_id] += round(len(job.candidate_ids) / len(job.workload_ids))
        return counts

    def candidate_secs(self, device_id: DeviceId) -> float:
        """Seconds of a device that a candidate takes; 0 while nobody knows."""
        count, secs = self._took.get(device_id, (0.0, 0.0))
        return secs / count if count else 0.0


class Chosen(NamedTuple):
    """Why a candidate is measured."""

    workload_id: WorkloadId
    origin: str
    #: Whose head chose it; empty where none did.
    model_version: str = ""


@dataclass(slots=True)
class PendingJob:
    """Jobs of one device in the making."""

    #: Candidates that were chosen so far.
    chosen: dict[CandidateId, Chosen] = field(default_factory=dict)
    #: Requests that have no answer yet, and the part of the plan that each is for.
    waiting: dict[str, Ask] = field(default_factory=dict)


class JobFactory:
    """Makes jobs and numbers of one life of a coordinator."""

    def __init__(self, context: PlannerContext, queues: Queues) -> None:
        self._token, self._seed, self._coverage = context.token, context.seed, context.coverage
        self._queues = queues
        self._numbers = itertools.count(1)

    def number(self) -> int:
        """The next number; each is given out once."""
        return next(self._numbers)

    def request_id(self) -> str:
        """The id of a new request for candidates."""
        return f"{self._token}/r{self.number()}"

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
            job_id=JobId(f"{self._token}-{self.number()}"),
            device_id=device_id,
            workload_ids=tuple(dict.fromkeys(workload_id for workload_id, _ in part)),
            candidate_ids=tuple(candidate_id for _, candidate_id in part),
            origin=origin,
            attempt=attempt,
            expected_secs=self._queues.candidate_secs(device_id) * len(part),
            model_version=model_version,
        )

    def jobs_of(self, device_id: DeviceId, chosen: Mapping[CandidateId, Chosen]) -> Iterator[Job]:
        """Make jobs of chosen candidates: those of one attempt and one version together."""
        attempts = self._coverage.next_attempts(device_id)
        alike: dict[tuple[int, str], dict[WorkloadId, list[CandidateId]]] = {}
        for candidate_id, choice in chosen.items():
            key = attempts.get(candidate_id, 0), choice.model_version
            alike.setdefault(key, {}).setdefault(choice.workload_id, []).append(candidate_id)
        for attempt, version in sorted(alike):
            mixes = mixed(alike[attempt, version], random.Random(f"{self._seed}/{self.number()}"))
            for part in (part for mix in mixes for part in cut(mix)):
                origins = Counter(chosen[candidate_id].origin for candidate_id in part)
                origin = Origin.MODEL.value if version else origins.most_common(1)[0][0]
                pairs = [(chosen[candidate_id].workload_id, candidate_id) for candidate_id in part]
                yield self.job(device_id, pairs, origin, attempt, version)


# What the plan sees of the fleet: counts of the devices that ask, and of those that they may wait for.
#
# `fleet.planner.job_planner` has one and asks it for a view before each plan (`fleet.core.scheduling`). It
# decides nothing.


def turn_of(spec: DeviceSpec) -> str:
    """What a device takes turns for with others of its host; empty where it shares nothing with any."""
    if spec.kind is DeviceKind.LOCAL:
        return "cores"
    return f"cuda-{spec.index}" if spec.kind is DeviceKind.CUDA else ""


class PlanViews:
    """Makes the views.

    Attributes:
        hosts: Host of each device that is up.
        heads: Devices with a head of the champion.
    """

    def __init__(self, context: PlannerContext, queues: Queues) -> None:
        self._context, self._coverage, self._queues = context, context.coverage, queues
        self.hosts: dict[DeviceId, str] = {}
        self.heads: set[DeviceId] = set()

    def view(
        self,
        device_ids: Iterable[DeviceId],
        workloads_of: Mapping[DeviceId, Mapping[WorkloadId, Workload]],
    ) -> FleetView:
        """Draw the view for devices that ask, all of which measure the same workloads.

        Returns:
            With the new devices that share timing cores with any of them.
        """
        asking = list(device_ids)
        workloads = workloads_of[asking[0]] if asking else {}
        devices = {device_id: self._device(device_id, workloads) for device_id in asking}
        shared = {device.host for device in devices.values()} - {""}
        for device_id in self._context.turns if shared else ():
            is_alike = workloads_of.get(device_id) is workloads and self._place(device_id) in shared
            # Nobody waits for one that has enough records, so its counts are not needed.
            if is_alike and device_id not in devices and self._coverage.records(device_id) < NEW_RECORDS:
                devices[device_id] = self._device(device_id, workloads)
        weighted = {workload.workload_id: workload.weight * workload.flops for workload in workloads.values()}
        return FleetView(devices=devices, workloads=weighted)

    def _place(self, device_id: DeviceId) -> str:
        """What it takes turns for, and where; empty where it shares nothing, or has no agent."""
        host, turn = self.hosts.get(device_id), self._context.turns.get(device_id)
        return f"{host} {turn}" if host and turn else ""

    def _device(self, device_id: DeviceId, workloads: Mapping[WorkloadId, Workload]) -> DeviceView:
        has_head = device_id in self.heads
        unsure = self._context.uncertainty(device_id, workloads) if has_head else {}
        records = self._coverage.records(device_id)
        # Only new ones are waited for, and only where there is something to share and their policy is open.
        place = self._place(device_id)
        is_up = device_id in self.hosts and (
            not place or records >= NEW_RECORDS or self._context.is_open(device_id)
        )
        return DeviceView(
            device_id=device_id,
            records=records,
            has_head=has_head,
            host=place,
            is_up=is_up,
            cells=self._cells(device_id, workloads, unsure),
        )

    def _cells(
        self, device_id: DeviceId, workloads: Iterable[WorkloadId], unsure: Mapping[WorkloadId, float]
    ) -> dict[WorkloadId, Cell]:
        cells: dict[WorkloadId, Cell] = {}
        family, imports = self._coverage.families[device_id], self._context.imports
        waiting = self._queues.waiting(device_id)
        for workload_id, measured, gaps, is_exhausted in self._coverage.counts(device_id, workloads):
            queued = waiting[workload_id]
            cells[workload_id] = Cell(
                measured=measured,
                queued=queued,
                unpaired=max(0, gaps - queued) + imports.count(family, workload_id),
                interval=unsure.get(workload_id),
                is_exhausted=is_exhausted,
            )
        return cells
