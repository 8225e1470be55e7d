"""Jobs with ids of their own, made of chosen candidates. It chooses nothing."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence

from agents.records import CandidateId, DeviceId, WorkloadId
from fleet.collection.batch_plan import BATCH_SIZE, WORKLOADS_PER_BATCH
from fleet.core.events import Job, JobId, Origin
from fleet.coverage.coverage import Coverage
from fleet.planner.context import PendingJob
from fleet.planner.queues import Queues


class JobFactory:
    """Makes jobs and numbers of one life of a coordinator."""

    def __init__(self, token: str, seed: int, queues: Queues, coverage: Coverage) -> None:
        self._token, self._seed, self._queues, self._coverage = token, seed, queues, coverage
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

    def jobs_of(self, device_id: DeviceId, pending: PendingJob) -> Iterator[Job]:
        """Make jobs of all that was chosen so far: candidates of one attempt and one version together."""
        chosen, pending.chosen = pending.chosen, {}
        origin_of, pending.origins = pending.origins, {}
        attempts = self._coverage.next_attempts(device_id)
        alike: dict[tuple[int, str], list[tuple[WorkloadId, CandidateId]]] = {}
        for candidate_id, workload_id in chosen.items():
            key = attempts.get(candidate_id, 0), pending.versions.get(candidate_id, "")
            alike.setdefault(key, []).append((workload_id, candidate_id))
        for (attempt, version), pairs in sorted(alike.items()):
            for part in mixed(pairs, random.Random(f"{self._seed}/{self.number()}")):
                origins = Counter(origin_of[candidate_id] for _, candidate_id in part)
                origin = Origin.MODEL.value if version else origins.most_common(1)[0][0]
                yield self.job(device_id, part, origin, attempt, version)


def mixed(
    chosen: Sequence[tuple[WorkloadId, CandidateId]], draws: random.Random
) -> list[list[tuple[WorkloadId, CandidateId]]]:
    """Cut candidates into jobs of a few workloads each, in random order."""
    by_workload: dict[WorkloadId, list[tuple[WorkloadId, CandidateId]]] = {}
    for pair in chosen:
        by_workload.setdefault(pair[0], []).append(pair)
    order = draws.sample(sorted(by_workload), len(by_workload))
    parts: list[list[tuple[WorkloadId, CandidateId]]] = []
    for start in range(0, len(order), WORKLOADS_PER_BATCH):
        mix = [
            pair
            for workload_id in order[start : start + WORKLOADS_PER_BATCH]
            for pair in by_workload[workload_id]
        ]
        mix.sort(key=lambda _: draws.random())  # a shuffle takes five times as long
        parts += [mix[first : first + BATCH_SIZE] for first in range(0, len(mix), BATCH_SIZE)]
    return parts
