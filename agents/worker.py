"""Everything one device can be asked for, as a plain class: probe, propose, measure, hand over records.

`actors.py` puts it on Ray without adding logic; tests use it as it is. It never imports TVM: what a
candidate may harm happens in the processes of `pool.py`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from agents.child import ChildSettings, workload_from_json
from agents.errors import AgentError
from agents.measure import host_lock_path, pin_process
from agents.pool import Result, WorkerPool
from agents.probe import core_groups, differences, environment, environment_id, probe
from agents.records import (
    Candidate,
    CandidateId,
    Descriptor,
    DeviceKind,
    DeviceSpec,
    Protocol,
    Record,
    Workload,
    WorkloadId,
    canonical_json,
)
from agents.spool import Spool

#: Kinds of device that this version can time.
_TVM_DEVICES = MappingProxyType({DeviceKind.LOCAL: "cpu", DeviceKind.CUDA: "cuda"})


class DeviceRefusedError(AgentError):
    """The host cannot be the device that its spec describes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Candidates to measure on one device, and how."""

    candidates: tuple[Candidate, ...]
    #: Every workload that the candidates name.
    workloads: Mapping[WorkloadId, Workload]
    protocol: Protocol
    #: Counted up for a measurement of the same candidate in the same environment.
    attempt: int = 0
    model_version: str = ""


def quiet_cores(
    timing_cores: Sequence[int], usable_cores: Sequence[int], groups: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """Cores for everything that must not disturb a timing.

    Args:
        timing_cores: Logical CPUs that time.
        usable_cores: Logical CPUs that may be used.
        groups: Logical CPUs by physical core: siblings of a timing core share its units.

    Returns:
        Usable CPUs outside the physical cores that time; where there are none, those that do not time
        themselves; where all of them do, all.
    """
    shared = {core for group in groups if set(group) & set(timing_cores) for core in group}
    for taken in (shared | set(timing_cores), set(timing_cores)):
        left = tuple(core for core in usable_cores if core not in taken)
        if left:
            return left
    return tuple(usable_cores)


def process_cores(timing_cores: Sequence[int], quiet: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Cores that each worker process of a device builds on, given those that must not disturb a timing.

    One process builds on the cores that do not time. A second one builds on the timing cores, under the
    host's timing lock: timing takes a small share of their time, compiling would leave them idle. Where
    all cores time, one process does everything.
    """
    one_for_all = bool(set(quiet) & set(timing_cores))
    return (tuple(timing_cores),) if one_for_all else (tuple(quiet), tuple(timing_cores))


class DeviceWorker:
    """One device and its worker processes.

    Args:
        spec: What the device claims to be.
        spool_folder: Where finished records wait until they are acknowledged; one folder a device.
        usable_cores: Logical CPUs that it may use; those that this process was given when None. The
            process itself moves to those that do not time.

    Raises:
        DeviceRefusedError: The host contradicts the spec, or the kind cannot be timed by this version.

    One thread at a time may use it.
    """

    def __init__(
        self, spec: DeviceSpec, spool_folder: Path, *, usable_cores: Sequence[int] | None = None
    ) -> None:
        self.spec = spec
        if usable_cores is not None:
            pin_process(usable_cores)
        self.descriptor: Descriptor = probe()
        faults = differences(spec, self.descriptor)
        if spec.kind not in _TVM_DEVICES:
            faults = [f"devices of kind {spec.kind} cannot be timed by this version; use kind local or cuda"]
        if faults:
            raise DeviceRefusedError(
                f"device {spec.device_id} is refused by host {self.descriptor.host}: {'; '.join(faults)}"
            )
        self._spool = Spool(spool_folder)
        quiet = quiet_cores(spec.cores, self.descriptor.usable_cores, core_groups())
        self._pool = WorkerPool(
            [
                ChildSettings(
                    target=spec.target,
                    device=_TVM_DEVICES[spec.kind],
                    index=spec.index,
                    timing_cores=spec.cores,
                    build_cores=cores,
                    lock_path=str(host_lock_path()),
                )
                for cores in process_cores(spec.cores, quiet)
            ],
            threads=spec.threads,
        )
        pin_process(quiet)
        self._pool.start()

    def close(self) -> None:
        """End the worker processes; records that nobody acknowledged stay in the spool."""
        self._pool.close()
        self._spool.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of the worker and its worker processes."""
        return [os.getpid(), *self._pool.pids]

    def network_workloads(self, networks: Sequence[str]) -> list[Workload]:
        """List the distinct workloads of known networks (see `agents.networks`), heaviest first.

        Raises:
            AgentError: A network is unknown.
        """
        answer = self._pool.ask({"op": "networks", "networks": list(networks)})
        if answer["event"] == "refused":
            raise AgentError(answer["error"])
        return [workload_from_json(value) for value in answer["workloads"]]

    def propose(
        self, workload: Workload, count: int, *, seed: int, exclude: Collection[CandidateId] = ()
    ) -> list[Candidate]:
        """Draw up to `count` random candidates of the workload's design space, none of `exclude`.

        The space belongs to the device's family, so another device of the family draws the same ones.
        """
        answer = self._pool.ask(
            {
                "op": "propose",
                "workload_id": workload.workload_id,
                "family": self.spec.family,
                "count": count,
                "seed": seed,
                "exclude": sorted(exclude),
            },
            workload,
        )
        return [Candidate(workload_id=workload.workload_id, trace=trace) for trace in answer["traces"]]

    def measure(self, batch: Batch) -> list[Record]:
        """Measure a batch; the records are on disk in the spool before they are returned.

        Every candidate gives a record, whatever becomes of it.
        """
        workloads = [batch.workloads[candidate.workload_id] for candidate in batch.candidates]
        lasting = self.environment_id(batch.protocol)
        records = [
            self._record(batch, batch.candidates[result.job], result, lasting)
            for result in self._pool.run(batch.candidates, workloads, batch.protocol)
        ]
        self._spool.put(records)
        return records

    def environment_id(self, protocol: Protocol) -> str:
        """Hash of what must be equal for two records of this device to be compared."""
        return environment_id(environment(self.spec.cores), self.spec, protocol)

    def pending(self) -> list[Record]:
        """Records that were measured but never acknowledged, oldest first."""
        return self._spool.pending()

    def acknowledge(self, record_ids: Collection[str]) -> None:
        """Forget records that the store holds for good."""
        self._spool.acknowledge(record_ids)

    def _record(self, batch: Batch, candidate: Candidate, result: Result, lasting: str) -> Record:
        return Record(
            device_id=self.spec.device_id,
            workload_id=candidate.workload_id,
            candidate_id=candidate.candidate_id,
            dialect=candidate.dialect,
            trace=candidate.trace,
            origin=candidate.origin,
            outcome=result.outcome,
            run_secs=result.run_secs,
            warmup_secs=result.warmup_secs,
            number=result.number,
            build_secs=result.build_secs,
            wait_secs=result.wait_secs,
            timing_secs=result.timing_secs,
            error=result.error,
            protocol=batch.protocol,
            environment=canonical_json(result.environment),
            environment_id=lasting,
            attempt=batch.attempt,
            measured_at=time.time(),
            model_version=batch.model_version,
        )
