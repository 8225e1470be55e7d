"""A real Ray session, real actors, a real Delta table, real programs; and an agent killed in mid-batch."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest
from conftest import each_below

from agents.records import DeviceId, DeviceSpec, Family, Outcome, Protocol, Record, Workload, canonical_json
from fleet.collection.collect import Collection, CollectSettings
from fleet.errors import FleetError
from fleet.store.store import Store
from fleet.transport.ray_start import RaySession

pytestmark = [pytest.mark.ray, pytest.mark.tvm, pytest.mark.timeout(300)]

#: What is tested here must not depend on how quiet the host is.
QUICK = Protocol(
    repeat=3, extra_repeats=0, min_repeat_ms=2.0, visits=1, reject_interval=0.0, early_stop_ratio=0.0
)


class Log:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.phases: list[tuple[str, int]] = []
        self.first_stored = threading.Event()

    def phase(self, name: str, total: int) -> None:
        self.phases.append((name, total))

    def proposed(self, workload: Workload, candidates: int) -> None:
        assert candidates > 0

    def refused(self, workload: Workload, reasons: Mapping[str, int]) -> None:
        raise AssertionError(f"nothing was imported, but {reasons} of {workload.name}")

    def stored(self, device_id: DeviceId, records: Sequence[Record]) -> None:
        self.records += records
        self.first_stored.set()


@pytest.fixture(scope="module")
def specs(generic_spec: DeviceSpec) -> dict[DeviceId, DeviceSpec]:
    """Two devices that any x86 or Arm host can be: the same target under two names would be a twin."""
    other = dataclasses.replace(
        generic_spec,
        device_id=DeviceId("two-cores"),
        target_json=canonical_json({"kind": "llvm", "num-cores": 2}),
    )
    return {spec.device_id: spec for spec in (generic_spec, other)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("collect")


@pytest.fixture(scope="module")
def session(specs: dict[DeviceId, DeviceSpec], folder: Path) -> Iterator[RaySession]:
    with RaySession(list(specs.values()), folder / "spool") as running:
        yield running


def settings(samples: int, *, remeasure: int = 0) -> CollectSettings:
    return CollectSettings(samples=samples, protocol=QUICK, batch_size=4, remeasure=remeasure)


def first_hand(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if record.attempt == 0]


def collect(
    session: RaySession,
    store: Store,
    specs: dict[DeviceId, DeviceSpec],
    workloads: list[Workload],
    how: CollectSettings,
) -> Log:
    log = Log()
    collection = Collection(session, store, specs, how, log)
    collection.register()
    collection.measure(collection.propose(workloads), workloads)
    collection.remeasure(workloads)
    return log


def test_ray_listens_on_loopback_only_and_asks_for_a_token(session: RaySession) -> None:
    assert session.device_ids
    seen = each_below(os.getpid(), lambda process: process.net_connections("tcp"))
    listening = {one.laddr.ip for found in seen for one in found if one.status == psutil.CONN_LISTEN}
    assert listening
    assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert os.environ["RAY_AUTH_MODE"] == "token"


def test_what_is_timed_runs_at_the_priority_of_its_fleet(session: RaySession) -> None:
    pids = session.call(DeviceId("generic"), "pids")
    assert len(pids) >= 2
    assert {psutil.Process(pid).nice() for pid in pids} == {psutil.Process().nice()}


def test_every_device_measures_the_same_candidates_once(
    session: RaySession, specs: dict[DeviceId, DeviceSpec], bert_workloads: list[Workload], folder: Path
) -> None:
    chosen = [workload for workload in bert_workloads if workload.operator in {"GMM", "SFM"}][:2]
    with Store.open(folder / "store") as store:
        log = collect(session, store, specs, chosen, settings(5, remeasure=3))
        records = list(store.records())
        assert len(log.records) == len(records)
        # A drifting device has some of them measured once more than asked.
        assert sum(r.attempt > 0 for r in records) >= 2 * 3
        first = {
            device_id: {r.candidate_id for r in records if r.device_id == device_id and r.attempt == 0}
            for device_id in specs
        }
        assert first[DeviceId("generic")] == first[DeviceId("two-cores")]
        assert len(first[DeviceId("generic")]) == 10
        assert {record.outcome for record in records} == {Outcome.OK}
        assert all(len(record.run_secs) == QUICK.repeat for record in records)
        assert {workload.workload_id for workload in chosen} == set(store.workloads())
        entry = store.devices()[DeviceId("generic")]
        assert entry.descriptor is not None
        assert entry.descriptor.logical_cores == psutil.cpu_count()

        again = collect(session, store, specs, chosen, settings(5, remeasure=3))
        assert first_hand(again.records) == []
        more = collect(session, store, specs, chosen, settings(6, remeasure=3))
        assert len(first_hand(more.records)) == 2 * 2 * 1

    with Store.open(folder / "store") as store:
        assert len(first_hand(store.records())) == len(first_hand(records)) + 4


def test_an_agent_killed_in_mid_batch_costs_nothing(
    session: RaySession, specs: dict[DeviceId, DeviceSpec], matmul: Workload, folder: Path
) -> None:
    generic = DeviceId("generic")
    log = Log()
    with Store.open(folder / "killed") as store:
        collection = Collection(session, store, specs, settings(16), log)
        collection.register()
        pools = collection.propose([matmul])
        agent, *children = session.call(generic, "pids")

        def kill() -> None:
            log.first_stored.wait(120)
            os.kill(agent, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        collection.measure(pools, [matmul])
        killer.join()
        deadline = time.monotonic() + 5
        while any(psutil.pid_exists(pid) for pid in children) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(psutil.pid_exists(pid) for pid in children), "worker processes outlived their agent"
        assert session.call(generic, "pids")[0] != agent
        wanted = {candidate.candidate_id for candidate in pools[Family.CPU][matmul.workload_id]}
        for device_id in specs:
            found = [record.candidate_id for record in first_hand(store.records(device_id=device_id))]
            assert sorted(found) == sorted(wanted)
        assert session.call(generic, "pending") == []


def test_records_nobody_acknowledged_are_taken_over_at_the_next_start(
    session: RaySession, specs: dict[DeviceId, DeviceSpec], matmul: Workload, folder: Path
) -> None:
    generic = DeviceId("generic")
    with Store.open(folder / "pending") as store:
        collection = Collection(session, store, specs, settings(4), Log())
        pools = collection.propose([matmul])
        from agents.device.worker import Batch

        batch = Batch(
            candidates=tuple(pools[Family.CPU][matmul.workload_id]),
            workloads={matmul.workload_id: matmul},
            protocol=QUICK,
        )
        lost = session.call(generic, "measure", batch)
        assert list(store.records()) == []
        log = Log()
        Collection(session, store, specs, settings(4), log).register()
        assert sorted(r.record_id for r in store.records()) == sorted(r.record_id for r in lost)
        assert len(log.records) == len(lost) >= 4


def test_a_device_that_the_host_cannot_be_is_refused(
    session: RaySession, specs: dict[DeviceId, DeviceSpec]
) -> None:
    from agents.device.worker import DeviceRefusedError, DeviceWorker

    impossible = dataclasses.replace(specs[DeviceId("generic")], cores=(100_000,))
    with pytest.raises(DeviceRefusedError, match="100000"):
        DeviceWorker(impossible, Path("unused"))
    with pytest.raises(FleetError, match="already"):
        RaySession([impossible], Path("unused"))
