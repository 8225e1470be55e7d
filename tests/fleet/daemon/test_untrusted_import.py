"""A stranger's database is imported, then the fleet measures: nothing of it runs, what is honest is derived.

Real Ray, real agents, real programs: what `fleet collect` does, and what a daemon does by itself.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agents.records import (
    DERIVED,
    Candidate,
    DeviceSpec,
    Outcome,
    Record,
    Workload,
    canonical_json,
    claimed_id,
    is_imported,
)
from agents.sandbox.job import CandidateJob
from agents.sandbox.pool import WorkerPool
from benchmarks.made_up import FixedDevices
from fleet.config.sections import WorkloadsSection
from fleet.config.settings import FleetConfig
from fleet.core.words import Limits, RequestKind
from fleet.daemon.daemon import UpOptions
from fleet.daemon.embedded import run_embedded
from fleet.drivers.session import EngineSession
from fleet.engine.context import CoordinatorSettings, EngineContext
from fleet.engine.coordinator import Coordinator
from fleet.engine.notices import Notices
from fleet.planner.collect import Collection
from fleet.planner.settings import CollectSettings
from fleet.store.store import Store
from fleet.transport.ray_transport import RayOptions, RayTransport
from tests.fleet.planner.test_collection import Log
from tests.host_fixtures import write_generic_device
from tests.hostile_fixtures import (
    GENERIC,
    QUICK,
    check_records,
    forge,
    honest_traces,
    hostile_traces,
)

pytestmark = [pytest.mark.ray, pytest.mark.tvm, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def honest(pool: WorkerPool, matmul: Workload) -> list[Any]:
    return honest_traces(pool, matmul)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that is there if a stranger's command ran."""
    return tmp_path / "ran"


@pytest.fixture
def hostile(honest: list[Any], marker: Path) -> list[Any]:
    return hostile_traces(honest, marker)


def collect(session: EngineSession, spec: DeviceSpec, matmul: Workload, log: Log) -> Workload:
    """Measure one workload, and give its module as our agent listed it."""
    session.ready([GENERIC])
    how = CollectSettings(samples=8, minimum=6, exploration=0.5, noise=2)
    collection = Collection(session, {GENERIC: spec}, how, log)
    listed = collection.network_workloads(["bert-tiny"])
    workload = next(one for one in listed if one.workload_id == matmul.workload_id)
    collection.run([workload])
    collection.measure_noise()
    return workload


def test_a_collection_runs_nothing_of_an_imported_log(
    generic_spec: DeviceSpec,
    matmul: Workload,
    honest: list[Any],
    hostile: list[Any],
    marker: Path,
    tmp_path: Path,
) -> None:
    log = Log()
    with Store.open(tmp_path / "store") as store:
        forge(store, tmp_path, matmul, honest, hostile)
        before = len(list(store.records(device_id=GENERIC)))
    write_generic_device(tmp_path / "hardware")
    names = ("repeat", "extra_repeats", "min_repeat_ms", "visits", "reject_interval", "early_stop_ratio")
    settings = FleetConfig.model_validate(
        {
            "store": {"path": str(tmp_path / "store")},
            "devices": {"folder": str(tmp_path / "hardware")},
            "protocol": {name: getattr(QUICK, name) for name in names},
        }
    )
    workload = run_embedded(
        settings,
        RequestKind.COLLECTION,
        {"devices": [GENERIC]},
        UpOptions(models=tmp_path / "models"),
        Console(quiet=True),
        lambda session: collect(session, generic_spec, matmul, log),
    )
    store = Store.read(tmp_path / "store")
    records = list(store.records(device_id=GENERIC))
    # The stranger's module is under no id of ours any more.
    assert store.own_workloads()[matmul.workload_id] == workload
    imported = [one for one in store.workloads() if is_imported(one)]
    assert [claimed_id(one) for one in imported] == [matmul.workload_id]
    assert not marker.exists()
    check_records(records, before, hostile, honest)
    assert log.refusals == {
        matmul.workload_id: {
            "the instruction's inputs or attributes are not on the list": 1,
            "an index map is no integer arithmetic": 2,
            "its decisions do not fit our loops": 1,
        }
    }


def test_a_coordinator_runs_nothing_of_an_imported_log(
    generic_spec: DeviceSpec,
    matmul: Workload,
    honest: list[Any],
    hostile: list[Any],
    marker: Path,
    tmp_path: Path,
) -> None:
    lines = []
    notices = Notices()
    notices.log = lambda text, **_: lines.append(text)  # type: ignore[method-assign]
    choice = WorkloadsSection(
        networks=("bert-tiny",), count=10, min_flops=matmul.flops - 1, max_flops=matmul.flops + 1
    )
    told = CoordinatorSettings(
        protocol=QUICK, choice=choice, limits=Limits(job_candidates=8), exploration=1.0
    )
    with Store.open(tmp_path / "store") as store:
        forge(store, tmp_path, matmul, honest, hostile)
        transport = RayTransport([generic_spec], tmp_path / "spool", QUICK, RayOptions(heartbeat_secs=0.5))
        try:
            coordinator = Coordinator(
                EngineContext(
                    root=tmp_path / "root",
                    store=store,
                    transport=transport,
                    source=FixedDevices({GENERIC: generic_spec}),
                    settings=told,
                    notices=notices,
                )
            )
            ends_at = time.monotonic() + 300
            while len(derived_on(store)) < len(honest) and time.monotonic() < ends_at:
                coordinator.turn(0.1)
            coordinator.stop()
            while not coordinator.is_quiet and time.monotonic() < ends_at:
                coordinator.turn(0.1)
            coordinator.close()
        finally:
            transport.close(20.0)
    assert not marker.exists()
    check_records(list(Store.read(tmp_path / "store").records(device_id=GENERIC)), 0, hostile, honest)
    said = [one for one in lines if "imported candidates are not measured" in one]
    assert said
    assert all(one.startswith(matmul.name) for one in said)
    assert coordinator.view()["store"]["imports_refused"] == len(hostile)


def derived_on(store: Store) -> list[Record]:
    """Records of derived candidates that the store has by now."""
    return [one for one in store.records(device_id=GENERIC) if one.origin == DERIVED]


def test_a_worker_process_refuses_a_hostile_trace_whoever_sends_it(
    pool: WorkerPool, matmul: Workload, hostile: list[Any], marker: Path
) -> None:
    """Beneath all else: here a coordinator was fooled."""
    traces = [canonical_json(one) for one in hostile[:3]]
    candidates = [Candidate(workload_id=matmul.workload_id, trace=one) for one in traces]
    jobs = [CandidateJob(candidate=one, workload=matmul, protocol=QUICK) for one in candidates]
    results = list(pool.run(jobs))
    assert {one.outcome for one in results} == {Outcome.BUILD_FAILED}
    assert all("the trace is refused" in one.error for one in results)
    assert not marker.exists()
