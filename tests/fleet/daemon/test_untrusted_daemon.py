"""A coordinator over a live device and a stranger's database: nothing of it runs, what is honest is derived.

Real agents on Ray, real programs.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from agents.records import DERIVED, DeviceSpec, Record, Workload
from agents.sandbox.pool import WorkerPool
from fleet.core.words import Limits
from fleet.engine.context import CoordinatorSettings, EngineContext
from fleet.engine.coordinator import Coordinator
from fleet.engine.notices import Notices
from fleet.planner.workload_discovery import WorkloadChoice
from fleet.store.store import Store
from fleet.transport.ray_transport import RayOptions, RayTransport
from tests.hostile_fixtures import GENERIC, QUICK, check_records, forge, honest_traces, hostile_traces

pytestmark = [pytest.mark.ray, pytest.mark.tvm, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def honest(pool: WorkerPool, matmul: Workload) -> list[Any]:
    return honest_traces(pool, matmul)


def test_a_coordinator_runs_nothing_of_an_imported_log(
    generic_spec: DeviceSpec,
    matmul: Workload,
    honest: list[Any],
    tmp_path: Path,
) -> None:
    marker = tmp_path / "ran"
    hostile = hostile_traces(honest, marker)
    lines: list[str] = []
    notices = Notices()
    notices.log = lambda text, **_: lines.append(text)  # type: ignore[method-assign]
    choice = WorkloadChoice(
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
                    specs={GENERIC: generic_spec},
                    settings=told,
                    notices=notices,
                )
            )
            until = time.monotonic() + 300
            while len(derived_on(coordinator, store)) < len(honest) and time.monotonic() < until:
                coordinator.turn(0.1)
            coordinator.stop()
            while not coordinator.is_quiet and time.monotonic() < until:
                coordinator.turn(0.1)
            coordinator.close()
        finally:
            transport.close(20.0)
    records = list(Store.read(tmp_path / "store").records(device_id=GENERIC))
    assert not marker.exists()
    check_records(records, 0, hostile, honest)
    said = [one for one in lines if "imported candidates are not measured" in one]
    assert said
    assert all(one.startswith(matmul.name) for one in said)
    assert coordinator.view()["store"]["imports_refused"] == len(hostile)


def derived_on(coordinator: Coordinator, store: Store) -> list[Record]:
    """Records of derived candidates that the store has by now."""
    return [one for one in store.records(device_id=GENERIC) if one.origin == DERIVED]
