"""An engine whose devices answer at once, for the tests of what decides: no Ray, no TVM, no coordinator.

Latencies come from a hash. Records go into a real store.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from agents.records import (
    Candidate,
    CandidateId,
    DeviceId,
    DeviceSpec,
    Outcome,
    Record,
    Workload,
    WorkloadId,
    content_hash,
)
from fleet.drivers.session import DeviceUnusableError
from fleet.state.questions import StateReader
from fleet.state.schema import STATE
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from tests.record_fixtures import make_descriptor, make_record

_Value = TypeVar("_Value")
#: Of all devices.
_FAMILY = "cpu"


def latency_secs(device_id: str, trace: str) -> float:
    """The same for the same device and trace."""
    return (1 + int(content_hash(device_id, trace)[:6], 16)) * 1e-9


def done(value: _Value | Exception) -> Future[_Value]:
    """An answer that is there already."""
    future: Future[_Value] = Future()
    if isinstance(value, Exception):
        future.set_exception(value)
    else:
        future.set_result(value)
    return future


class FakeFleet:
    """Stands for `fleet.drivers.session.EngineSession`: every question is answered when it is asked.

    Args:
        specs: Devices.
        fate: What becomes of a candidate on a device at an attempt: changes to its ok record.
        space: Random candidates that a workload has.
        children: Candidates that evolve from one parent.
    """

    def __init__(
        self,
        specs: Mapping[DeviceId, DeviceSpec],
        fate: Callable[[str, Candidate, int], dict[str, Any]] = lambda *_: {},
        *,
        space: int = 500,
        children: int = 500,
    ) -> None:
        self.specs = dict(specs)
        self.fate = fate
        self.space, self.children = space, children
        #: What its agents list.
        self.listed: list[Workload] = []
        #: Batches, counted from 0 on each device, after which a device is out of order.
        self.lasts: dict[str, int] = {}
        #: Candidates whose job is put under quarantine: they give no record.
        self.killers: set[CandidateId] = set()
        #: What somebody else does before the next batch.
        self.meanwhile: Callable[[], object] | None = None
        #: (device, method, arguments) of every call.
        self.calls: list[tuple[DeviceId, str, tuple[Any, ...]]] = []
        self.batches: Counter[DeviceId] = Counter()
        self._store: Store | None = None
        self._reader: StoreReader | None = None
        self._known: set[tuple[DeviceId, CandidateId, int]] = set()
        self._clock = itertools.count(1_700_000_000)

    def use(self, store: Store) -> None:
        """Store what the devices are, and what they measure from here on."""
        self._store, self._reader = store, None
        for spec in self.specs.values():
            store.put_device(spec, make_descriptor())
        self._known = set(map(_key, store.records()))

    def ready(self, device_ids: Iterable[DeviceId]) -> None:
        for one in device_ids:
            self._asked(one, "ready")

    def environment_id(self, device_id: DeviceId) -> str:
        return content_hash(device_id, "environment")

    def network_workloads(self, device_id: DeviceId, networks: Sequence[str]) -> list[Workload]:
        self._asked(device_id, "network_workloads", networks)
        self._writer.put_workloads(self.listed, own=True)
        self._reader = None
        return self.listed

    def propose(
        self,
        device_id: DeviceId,
        workload: Workload,
        count: int,
        seed: int,
        exclude: Collection[CandidateId],
        parents: Sequence[str] = (),
    ) -> Future[list[Candidate]]:
        if parents:
            drawn = (f"{parent}/{number}" for number in range(self.children) for parent in parents)
            made = _fresh(workload, drawn, count, exclude, "evolved")
            return self._answer(made, device_id, "evolve", workload, parents, count, seed, exclude)
        drawn = (f"random-{seed}-{number}" for number in range(self.space))
        made = _fresh(workload, drawn, count, exclude, "random")
        return self._answer(made, device_id, "propose", workload, count, seed, exclude)

    def measure(
        self,
        device_id: DeviceId,
        candidates: Sequence[Candidate],
        *,
        attempt: int = 0,
        model_version: str = "",
    ) -> Future[list[Record]]:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        self.batches[device_id] += 1
        chosen = [one for one in candidates if one.candidate_id not in self.killers]
        records = [self._record(device_id, one, attempt, model_version) for one in chosen]
        if self._is_out(device_id):
            records = records[: len(records) // 2]
        self.learn(chosen, records)
        return self._answer(self._stored(records), device_id, "measure", candidates, attempt)

    def wait(self, futures: Iterable[Future[Any]]) -> list[Future[Any]]:
        return [next(iter(futures))]

    def store(self) -> StoreReader:
        if self._reader is None:
            self._reader = Store.read(self._writer.path)
        return self._reader

    def state(self) -> StateReader:
        return StateReader(self._writer.path / STATE)

    def parted_at(self, device_id: DeviceId) -> None:
        return None

    @property
    def _writer(self) -> Store:
        assert self._store is not None, "a test opens the store"
        return self._store

    def _asked(self, device_id: DeviceId, method: str, *arguments: Any) -> None:
        self.calls.append((device_id, method, arguments))
        if self._is_out(device_id):
            raise DeviceUnusableError(f"device {device_id}: it broke")

    def _answer(self, value: _Value, device_id: DeviceId, method: str, *arguments: Any) -> Future[_Value]:
        try:
            self._asked(device_id, method, *arguments)
        except DeviceUnusableError as error:
            return done(error)
        return done(value)

    def _is_out(self, device_id: DeviceId) -> bool:
        return self.batches[device_id] > self.lasts.get(device_id, self.batches[device_id])

    def learn(self, candidates: Iterable[Candidate], records: Iterable[Record]) -> None:
        """Make candidates known to their family, as a coordinator does."""
        of_workload: dict[WorkloadId, list[Candidate]] = {}
        for candidate in candidates:
            of_workload.setdefault(candidate.workload_id, []).append(candidate)
        with self._writer.state.turn() as turn:
            for workload_id, some in of_workload.items():
                turn.add_candidates(_FAMILY, workload_id, some)
                turn.settle_candidates(_FAMILY, workload_id, [one.candidate_id for one in some])
            for record in records:
                if record.is_quarantined:
                    turn.block(_FAMILY, record.workload_id, [record.candidate_id])

    def _stored(self, records: Sequence[Record]) -> list[Record]:
        """Store records; those of an attempt that is stored already do not come again."""
        fresh = [one for one in records if _key(one) not in self._known]
        self._writer.append(fresh)
        self._known.update(map(_key, fresh))
        self._reader = None
        return fresh

    def _record(self, device_id: DeviceId, candidate: Candidate, attempt: int, model_version: str) -> Record:
        changes = self.fate(device_id, candidate, attempt)
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
                "environment_id": self.environment_id(device_id),
                "attempt": attempt,
                "model_version": model_version,
                "measured_at": float(next(self._clock)),
            }
            | changes,
        )


def _key(record: Record) -> tuple[DeviceId, CandidateId, int]:
    return record.device_id, record.candidate_id, record.attempt


def _fresh(
    workload: Workload, traces: Iterable[str], count: int, exclude: Collection[str], origin: str
) -> list[Candidate]:
    made = (Candidate(workload_id=workload.workload_id, trace=trace, origin=origin) for trace in traces)
    return list(itertools.islice((one for one in made if one.candidate_id not in exclude), count))
