"""Devices that answer at once, for the tests of what decides: no Ray, no TVM, latencies from a hash."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agents.device.worker import Batch
from agents.programs.derivation import Derivation
from agents.records import (
    Candidate,
    CandidateId,
    Descriptor,
    DeviceId,
    Outcome,
    Protocol,
    Record,
    Workload,
    content_hash,
)
from fleet.transport.ray_start import ActorDiedError
from tests.record_fixtures import make_descriptor, make_record


class Killed(BaseException):
    """Stands for a signal that ends the program."""


def latency_secs(device_id: str, trace: str) -> float:
    """The same for the same device and trace."""
    return (1 + int(content_hash(device_id, trace)[:6], 16)) * 1e-9


class FakeFleet:
    """The part of `RaySession` that a collection uses; calls are answered when they are submitted.

    Args:
        device_ids: Devices.
        fate: What becomes of a candidate on a device at an attempt: changes to its ok record.
        space: Random candidates that a workload has.
        children: Candidates that evolve from one parent.
    """

    def __init__(
        self,
        device_ids: Iterable[str],
        fate: Callable[[str, Candidate, int], dict[str, Any]] = lambda *_: {},
        *,
        space: int = 500,
        children: int = 500,
    ) -> None:
        self.device_ids = [DeviceId(one) for one in device_ids]
        self.fate = fate
        self.space, self.children = space, children
        #: What its agents list.
        self.listed: list[Workload] = []
        #: Batches after which the program is killed; never where None.
        self.kill_after: int | None = None
        #: Batches, counted from 0, in which the agent dies after half of them.
        self.deaths: set[int] = set()
        #: (device, method, arguments) of every call.
        self.calls: list[tuple[DeviceId, str, tuple[Any, ...]]] = []
        self.batches: list[tuple[DeviceId, Batch]] = []
        self._spool: dict[DeviceId, list[Record]] = {one: [] for one in self.device_ids}
        self._answers: dict[int, Any] = {}
        self._references = itertools.count()
        self._clock = itertools.count(1_700_000_000)

    def submit(self, device_id: DeviceId, method: str, *arguments: Any) -> int:
        self.calls.append((device_id, method, arguments))
        reference = next(self._references)
        self._answers[reference] = getattr(self, f"_{method}")(device_id, *arguments)
        return reference

    def wait(self, references: Iterable[int]) -> list[int]:
        return [min(references)]

    def result(self, reference: int, device_id: DeviceId) -> Any:
        answer = self._answers.pop(reference)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def call(self, device_id: DeviceId, method: str, *arguments: Any) -> Any:
        return self.result(self.submit(device_id, method, *arguments), device_id)

    def await_restart(self, device_id: DeviceId) -> None:
        pass

    def _descriptor(self, device_id: DeviceId) -> Descriptor:
        return make_descriptor()

    def _pids(self, device_id: DeviceId) -> list[int]:
        return [1]

    def _environment_id(self, device_id: DeviceId, protocol: Protocol) -> str:
        return content_hash(device_id, str(protocol))

    def _pending(self, device_id: DeviceId) -> list[Record]:
        return list(self._spool[device_id])

    def _acknowledge(self, device_id: DeviceId, record_ids: Sequence[str]) -> None:
        self._spool[device_id] = [r for r in self._spool[device_id] if r.record_id not in record_ids]

    def _propose(
        self, device_id: DeviceId, workload: Workload, count: int, seed: int, exclude: Sequence[CandidateId]
    ) -> list[Candidate]:
        drawn = (f"random-{seed}-{number}" for number in range(self.space))
        return self._fresh(workload, drawn, count, exclude, "random")

    def _evolve(
        self,
        device_id: DeviceId,
        workload: Workload,
        parents: Sequence[str],
        count: int,
        seed: int,
        exclude: Sequence[CandidateId],
    ) -> list[Candidate]:
        drawn = (f"{parent}/{number}" for number in range(self.children) for parent in parents)
        return self._fresh(workload, drawn, count, exclude, "evolved")

    def _network_workloads(self, device_id: DeviceId, networks: Sequence[str]) -> list[Workload]:
        return self.listed

    def _derive(self, device_id: DeviceId, workload: Workload, traces: Sequence[str]) -> Derivation:
        good = [f"derived-{one}" for one in traces if "evil" not in one]
        refused = Counter("its instructions are evil" for one in traces if "evil" in one)
        return Derivation(tuple(self._fresh(workload, good, len(good), (), "derived")), refused)

    def _fresh(
        self, workload: Workload, traces: Iterable[str], count: int, exclude: Sequence[str], origin: str
    ) -> list[Candidate]:
        made = (Candidate(workload_id=workload.workload_id, trace=trace, origin=origin) for trace in traces)
        return list(itertools.islice((one for one in made if one.candidate_id not in exclude), count))

    def _measure(self, device_id: DeviceId, batch: Batch) -> list[Record] | Exception:
        if self.kill_after is not None and len(self.batches) >= self.kill_after:
            raise Killed
        self.batches.append((device_id, batch))
        records = [self._record(device_id, batch, candidate) for candidate in batch.candidates]
        if len(self.batches) - 1 in self.deaths:
            self._spool[device_id] += records[: len(records) // 2]
            return ActorDiedError(f"device {device_id}: its agent process died")
        self._spool[device_id] += records
        return records

    def _record(self, device_id: DeviceId, batch: Batch, candidate: Candidate) -> Record:
        changes = self.fate(device_id, candidate, batch.attempt)
        is_ok = changes.get("outcome", Outcome.OK) is Outcome.OK
        return make_record(
            1,
            **{
                "device_id": device_id,
                "workload_id": candidate.workload_id,
                "candidate_id": candidate.candidate_id,
                "trace": candidate.trace,
                "origin": candidate.origin,
                "outcome": Outcome.OK,
                "run_secs": (latency_secs(device_id, candidate.trace),) if is_ok else (),
                "environment_id": self._environment_id(device_id, batch.protocol),
                "protocol": batch.protocol,
                "attempt": batch.attempt,
                "measured_at": float(next(self._clock)),
            }
            | changes,
        )
