"""Collect records: candidates of workloads, each once on every device, into the store.

The shell around `selection.py`: it talks to the devices' agents and the store, and decides nothing that
`selection` could decide. Started again after any interruption it goes on with what is missing, because
proposals are drawn from a seed and the store tells what has been measured.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from typing import Protocol as TypingProtocol

from agents.records import (
    Candidate,
    CandidateId,
    DeviceId,
    DeviceSpec,
    Family,
    Protocol,
    Record,
    Workload,
    WorkloadId,
)
from fleet.errors import FleetError
from fleet.ray_session import ActorDiedError, RaySession
from fleet.selection import Job, plan_jobs, plan_remeasure
from fleet.store import Store

#: Batches that a device's agent holds: one runs, one waits, so the device never idles.
_IN_FLIGHT = 2
#: A batch that the agent died of this often ends the collection with an error.
_MAX_CRASHES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectSettings:
    """How much to collect, and how."""

    #: Candidates a workload.
    samples: int
    protocol: Protocol
    seed: int = 0
    batch_size: int = 12
    #: Candidates measured a second time on each device.
    remeasure: int = 0


class Watcher(TypingProtocol):
    """Sees the collection as it goes; for progress displays."""

    def phase(self, name: str, total: int) -> None:
        """A phase (`propose`, `measure`, `remeasure`) begins, with `total` steps in it."""

    def proposed(self, workload: Workload, candidates: int) -> None:
        """One workload has its candidates."""

    def stored(self, device_id: DeviceId, records: Sequence[Record]) -> None:
        """Records are durable."""


class Collection:
    """One collection over the devices of a session.

    Args:
        session: The devices' agents.
        store: Where records go; this is its only writer.
        specs: Specs of the session's devices.
        settings: How much, and how.
        watcher: Told of progress.
    """

    def __init__(
        self,
        session: RaySession,
        store: Store,
        specs: Mapping[DeviceId, DeviceSpec],
        settings: CollectSettings,
        watcher: Watcher,
    ) -> None:
        self._session = session
        self._store = store
        self._specs = specs
        self._settings = settings
        self._watcher = watcher

    def register(self) -> None:
        """Store what the devices are, and take over what their agents measured but never had acknowledged."""
        for device_id, spec in self._specs.items():
            self._store.put_device(spec, self._session.call(device_id, "descriptor"))
            self._take_over(device_id)

    def propose(self, workloads: Sequence[Workload]) -> dict[Family, dict[WorkloadId, list[Candidate]]]:
        """Fill the pool of each workload up to `samples` candidates, for each family of devices.

        Candidates that any device of the family has measured come first, so labels line up across devices;
        fresh random ones follow.
        """
        self._store.put_workloads(workloads)
        proposers: dict[Family, list[DeviceId]] = {}
        for device_id, spec in self._specs.items():
            proposers.setdefault(spec.family, []).append(device_id)
        self._watcher.phase("propose", len(workloads) * len(proposers))
        pools: dict[Family, dict[WorkloadId, list[Candidate]]] = {}
        for family, device_ids in proposers.items():
            siblings = [one for one, entry in self._store.devices().items() if entry.spec.family is family]
            known = known_candidates(self._store, siblings)
            pools[family] = {}
            for workload in workloads:
                pool = known.get(workload.workload_id, [])[: self._settings.samples]
                missing = self._settings.samples - len(pool)
                if missing > 0:
                    exclude = [candidate.candidate_id for candidate in pool]
                    # Drawn by one device for all: the space belongs to the family.
                    pool += self._session.call(
                        device_ids[0], "propose", workload, missing, self._settings.seed, exclude
                    )
                pools[family][workload.workload_id] = pool
                self._watcher.proposed(workload, len(pool))
        return pools

    def measure(
        self, pools: Mapping[Family, Mapping[WorkloadId, Sequence[Candidate]]], workloads: Sequence[Workload]
    ) -> None:
        """Measure every candidate of the pools once on every device of its family."""
        by_id = {workload.workload_id: workload for workload in workloads}
        jobs: list[Job] = []
        for family, family_pools in pools.items():
            device_ids = [device_id for device_id, spec in self._specs.items() if spec.family is family]
            jobs += plan_jobs(
                device_ids,
                family_pools,
                by_id,
                {device_id: self._measured(device_id) for device_id in device_ids},
                protocol=self._settings.protocol,
                batch_size=self._settings.batch_size,
                seed=self._settings.seed,
            )
        self._run("measure", jobs)

    def remeasure(self, workloads: Sequence[Workload]) -> None:
        """Measure some candidates of every device a second time, to show how far numbers repeat."""
        by_id = {workload.workload_id: workload for workload in workloads}
        jobs: list[Job] = []
        for device_id in self._specs:
            records = [r for r in self._store.records(device_id=device_id) if r.workload_id in by_id]
            jobs += plan_remeasure(
                records,
                by_id,
                protocol=self._settings.protocol,
                count=self._settings.remeasure,
                seed=self._settings.seed,
            )
        self._run("remeasure", jobs)

    def _run(self, phase: str, jobs: Sequence[Job]) -> None:
        """Keep every device busy until its jobs are done; store and acknowledge as batches come back."""
        self._watcher.phase(phase, sum(len(job.batch.candidates) for job in jobs))
        queues: dict[DeviceId, deque[Job]] = {}
        for job in jobs:
            queues.setdefault(job.device_id, deque()).append(job)
        running: dict[Any, Job] = {}
        while any(queues.values()) or running:
            for device_id, queue in queues.items():
                busy = sum(job.device_id == device_id for job in running.values())
                while queue and busy < _IN_FLIGHT:
                    job = queue.popleft()
                    running[self._session.submit(device_id, "measure", job.batch)] = job
                    busy += 1
            for reference in self._session.wait(running):
                job = running.pop(reference)
                try:
                    records = self._session.result(reference, job.device_id)
                except ActorDiedError as death:
                    queues[job.device_id].appendleft(self._after_crash(job, death))
                else:
                    self._keep(job.device_id, records)

    def _after_crash(self, job: Job, death: ActorDiedError) -> Job:
        """Take over what the dead agent had finished; what is left of the batch is tried again."""
        crashes = job.crashes + 1
        if crashes >= _MAX_CRASHES:
            names = ", ".join(sorted(candidate.candidate_id for candidate in job.batch.candidates))
            raise FleetError(
                f"device {job.device_id}: its agent died {crashes} times of one batch (candidates {names}); "
                f"last: {death}"
            ) from death
        self._session.await_restart(job.device_id)
        finished = {record.candidate_id for record in self._take_over(job.device_id)}
        left = tuple(c for c in job.batch.candidates if c.candidate_id not in finished)
        return replace(job, batch=replace(job.batch, candidates=left), crashes=crashes)

    def _take_over(self, device_id: DeviceId) -> list[Record]:
        records: list[Record] = self._session.call(device_id, "pending")
        if records:
            self._keep(device_id, records)
        return records

    def _keep(self, device_id: DeviceId, records: Sequence[Record]) -> None:
        """Make records durable, then let the agent forget them."""
        self._store.append(records)
        # Not waited for: the agent answers after the batch that it works on. Should it die before, the
        # records come back as `pending`, and the store knows them already.
        self._session.submit(device_id, "acknowledge", [record.record_id for record in records])
        self._watcher.stored(device_id, records)

    def _measured(self, device_id: DeviceId) -> set[CandidateId]:
        """Candidates that need no measurement: done in the environment that the device has now."""
        now = self._session.call(device_id, "environment_id", self._settings.protocol)
        return {candidate for candidate, environment in self._store.measured(device_id) if environment == now}


def known_candidates(store: Store, device_ids: Iterable[DeviceId]) -> dict[WorkloadId, list[Candidate]]:
    """Candidates that any of the devices has measured, by workload, in the order of their first record."""
    known: dict[WorkloadId, dict[CandidateId, Candidate]] = {}
    for device_id in device_ids:
        for record in store.records(device_id=device_id):
            candidate = Candidate(
                workload_id=record.workload_id, trace=record.trace, dialect=record.dialect, origin="paired"
            )
            known.setdefault(record.workload_id, {}).setdefault(record.candidate_id, candidate)
    return {workload_id: list(found.values()) for workload_id, found in known.items()}
