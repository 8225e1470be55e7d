"""The Ray skin over `DeviceWorker` and `ReplayWorker`: an actor a device, no logic of its own.

One of the two modules that import Ray (the other is `fleet.ray_session`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ray

from agents.records import (
    Candidate,
    CandidateId,
    Descriptor,
    DeviceKind,
    DeviceSpec,
    Protocol,
    Record,
    Workload,
)
from agents.replay import ReplayWorker
from agents.worker import Batch, DeviceWorker


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0)
class DeviceActor:
    """`DeviceWorker` behind a Ray handle; restarted by Ray when its process dies, never retried.

    Calls are not retried because a measurement is not idempotent for the device; what was measured is in
    the spool, and the fresh actor hands it over as `pending`.
    """

    def __init__(self, spec: DeviceSpec, spool_folder: str, usable_cores: list[int]) -> None:
        worker = ReplayWorker if spec.kind is DeviceKind.REPLAY else DeviceWorker
        self._worker = worker(spec, Path(spool_folder), usable_cores=usable_cores)

    def descriptor(self) -> Descriptor:
        """See `DeviceWorker.descriptor`."""
        return self._worker.descriptor

    def network_workloads(self, networks: list[str]) -> list[Workload]:
        """See `DeviceWorker.network_workloads`."""
        return self._worker.network_workloads(networks)

    def propose(
        self, workload: Workload, count: int, seed: int, exclude: list[CandidateId]
    ) -> list[Candidate]:
        """See `DeviceWorker.propose`."""
        return self._worker.propose(workload, count, seed=seed, exclude=frozenset(exclude))

    def evolve(
        self, workload: Workload, parents: list[str], count: int, seed: int, exclude: list[CandidateId]
    ) -> list[Candidate]:
        """See `DeviceWorker.evolve`."""
        return self._worker.evolve(workload, parents, count, seed=seed, exclude=frozenset(exclude))

    def measure(self, batch: Batch) -> list[Record]:
        """See `DeviceWorker.measure`."""
        return self._worker.measure(batch)

    def environment_id(self, protocol: Protocol) -> str:
        """See `DeviceWorker.environment_id`."""
        return self._worker.environment_id(protocol)

    def pending(self) -> list[Record]:
        """See `DeviceWorker.pending`."""
        return self._worker.pending()

    def acknowledge(self, record_ids: list[str]) -> None:
        """See `DeviceWorker.acknowledge`."""
        self._worker.acknowledge(record_ids)

    def pids(self) -> list[int]:
        """See `DeviceWorker.pids`."""
        return self._worker.pids

    def close(self) -> None:
        """See `DeviceWorker.close`."""
        self._worker.close()


def create(spec: DeviceSpec, spool_folder: Path, resource: str, usable_cores: Iterable[int]) -> Any:
    """Start the actor of one device where Ray has its custom resource; returns the handle."""
    return DeviceActor.options(  # type: ignore[attr-defined]  # added by ray.remote
        name=f"device-{spec.device_id}", resources={resource: 1}
    ).remote(spec, str(spool_folder), sorted(usable_cores))
