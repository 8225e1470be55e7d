"""A stranger's database is imported, then the fleet measures: nothing of it runs, what is honest is derived.

Real Ray, real agents, real programs: what `fleet collect` does, and what a daemon does by itself.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from rich.console import Console

from agents.records import (
    DERIVED,
    Candidate,
    DeviceId,
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
from fleet.daemon.daemon import SPOOL, UpOptions
from fleet.daemon.embedded import run_embedded
from fleet.drivers.session import EngineSession
from fleet.engine.context import CoordinatorSettings, EngineContext
from fleet.engine.coordinator import Coordinator
from fleet.engine.notices import Notices
from fleet.planner.collect import Collection
from fleet.planner.settings import CollectSettings
from fleet.store.store import Store
from fleet.transport.ray_transport import RayOptions, RayTransport
from tests.conftest import each_below
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

pytestmark = [
    pytest.mark.ray,
    pytest.mark.tvm,
    pytest.mark.timeout(600),
    # On a busy host Ray may need a second start, and forgets the processes of the first one, which are ended.
    pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning"),
]


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


class Seen(NamedTuple):
    """What was seen while the engine ran; the workload as our agent listed it."""

    workload: Workload
    listening: set[str]
    ray_mode: str
    niceness: set[int]


def agent_of(device_id: DeviceId) -> list[int]:
    """The process that holds the spool of a device, and those below it."""

    def look(process: psutil.Process) -> tuple[psutil.Process, bool]:
        return process, any(Path(one.path).parts[-3:-1] == (SPOOL, device_id) for one in process.open_files())

    [agent] = [process for process, is_agent in each_below(os.getpid(), look) if is_agent]
    return [agent.pid, *(child.pid for child in agent.children(recursive=True))]


def collect(session: EngineSession, spec: DeviceSpec, matmul: Workload, log: Log) -> Seen:
    """Measure one workload."""
    session.ready([GENERIC])
    sockets = each_below(os.getpid(), lambda process: process.net_connections("tcp"))
    how = CollectSettings(samples=8, minimum=6, exploration=0.5, noise=2)
    collection = Collection(session, {GENERIC: spec}, how, log)
    listed = collection.network_workloads(["bert-tiny"])
    workload = next(one for one in listed if one.workload_id == matmul.workload_id)
    collection.run([workload])
    collection.measure_noise()
    return Seen(
        workload,
        {one.laddr.ip for some in sockets for one in some if one.status == psutil.CONN_LISTEN},
        os.environ["RAY_AUTH_MODE"],
        {psutil.Process(pid).nice() for pid in agent_of(GENERIC)},
    )


def check_engine(seen: Seen) -> None:
    """It was reached from this host only, at the priority of its fleet, and leaves nothing behind."""
    assert seen.listening
    assert seen.listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert seen.ray_mode == "token"
    assert seen.niceness == {psutil.Process().nice()}
    assert not {"raylet", "gcs_server"} & set(each_below(os.getpid(), lambda process: process.name()))
    assert not {"driver", "engine", "channel in"} & {one.name for one in threading.enumerate()}


def test_a_collection_runs_nothing_of_an_imported_log_and_leaves_nothing_behind(
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
    seen = run_embedded(
        settings,
        RequestKind.COLLECTION,
        {"devices": [GENERIC]},
        UpOptions(models=tmp_path / "models"),
        Console(quiet=True),
        lambda session: collect(session, generic_spec, matmul, log),
    )
    store = Store.read(tmp_path / "store")
    records = list(store.records(device_id=GENERIC))
    check_engine(seen)
    assert {len(one.run_secs) for one in records[before:] if one.run_secs} == {QUICK.repeat}
    assert store.devices()[GENERIC].descriptor.logical_cores == psutil.cpu_count()
    # The stranger's module is under no id of ours any more.
    assert store.own_workloads()[matmul.workload_id] == seen.workload
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
