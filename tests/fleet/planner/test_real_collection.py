"""An engine inside of a command: real Ray, real agents, real programs, a real table.

What replay devices show as well: `test_embedded.py`. Agents that are killed: `test_ray_transport.py`.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from rich.console import Console

from agents.records import DeviceId, Family, Outcome, Workload
from fleet.config.settings import FleetConfig, select_devices
from fleet.core.words import RequestKind
from fleet.daemon.daemon import SPOOL, UpOptions
from fleet.daemon.embedded import run_embedded
from fleet.drivers.session import EngineSession
from fleet.planner.collect import Collection
from fleet.planner.settings import CollectSettings
from fleet.store.store import Store
from tests.conftest import each_below
from tests.fleet.planner.test_collection import Log

pytestmark = [
    pytest.mark.ray,
    pytest.mark.tvm,
    pytest.mark.timeout(300),
    # On a busy host Ray may need a second start, and forgets the processes of the first one, which are ended.
    pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning"),
]

#: What is tested here must not depend on how quiet the host is.
QUICK = {
    **{"repeat": 3, "extra_repeats": 0, "min_repeat_ms": 2.0, "visits": 1},
    **{"reject_interval": 0.0, "early_stop_ratio": 0.0},
}


class Seen(NamedTuple):
    """What was seen while the engine ran."""

    candidate_ids: list[str]
    listening: set[str]
    ray_mode: str
    niceness: set[int]


@pytest.fixture
def settings(tmp_path: Path) -> FleetConfig:
    """Two devices that any x86 or Arm host can be: the same target under two names would be a twin."""
    for name, count in (("generic", 1), ("two-cores", 2)):
        (tmp_path / f"{name}.yaml").write_text(
            f"schema: 1\ndevice_id: {name}\nkind: local\nfamily: cpu\n"
            f"target: {{kind: llvm, num-cores: {count}}}\n"
            f"threads: {count}\ncores: {list(range(count))}\n"
        )
    store, folder = str(tmp_path / "runs" / "store"), str(tmp_path)
    values = {"store": {"path": store}, "devices": {"folder": folder}, "protocol": QUICK}
    return FleetConfig.model_validate(values)


def test_a_collection_measures_on_loopback_at_the_priority_of_its_fleet_and_leaves_nothing_behind(
    settings: FleetConfig, matmul: Workload, tmp_path: Path
) -> None:
    specs = select_devices(settings)

    def collect(session: EngineSession) -> Seen:
        session.ready(specs)
        sockets = each_below(os.getpid(), lambda process: process.net_connections("tcp"))
        how = CollectSettings(samples=8, remeasure=2)
        collection = Collection(session, specs, how, Log())
        listed = collection.network_workloads(["bert-tiny"])
        chosen = [one for one in listed if one.workload_id == matmul.workload_id]
        pools = collection.propose(chosen)
        collection.measure(pools)
        collection.remeasure(chosen)
        return Seen(
            sorted(one.candidate_id for one in pools[Family.CPU][matmul.workload_id]),
            {one.laddr.ip for some in sockets for one in some if one.status == psutil.CONN_LISTEN},
            os.environ["RAY_AUTH_MODE"],
            {psutil.Process(pid).nice() for pid in agent_of(DeviceId("generic"))},
        )

    options, arguments = UpOptions(models=tmp_path / "models"), {"devices": sorted(specs)}
    seen = run_embedded(settings, RequestKind.COLLECTION, arguments, options, Console(quiet=True), collect)
    assert seen.listening
    assert seen.listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert seen.ray_mode == "token"
    assert seen.niceness == {psutil.Process().nice()}
    assert len(seen.candidate_ids) == 8
    store = Store.read(settings.store.path)
    for device_id in specs:
        records = [one for one in store.records(device_id=device_id) if one.attempt == 0]
        assert sorted(one.candidate_id for one in records) == seen.candidate_ids
        assert {record.outcome for record in records} == {Outcome.OK}
        assert all(len(record.run_secs) == QUICK["repeat"] for record in records)
        assert store.devices()[device_id].descriptor.logical_cores == psutil.cpu_count()
    # A drifting device has some of them measured once more than asked.
    assert sum(one.attempt > 0 for one in store.records()) >= 2 * 2
    assert not {"raylet", "gcs_server"} & set(each_below(os.getpid(), lambda process: process.name()))
    assert [one.name for one in threading.enumerate() if one.name in ("driver", "engine", "channel in")] == []


def agent_of(device_id: DeviceId) -> list[int]:
    """The process that holds the spool of a device, and those below it."""

    def look(process: psutil.Process) -> tuple[psutil.Process, bool]:
        return process, any(Path(one.path).parts[-3:-1] == (SPOOL, device_id) for one in process.open_files())

    [agent] = [process for process, is_agent in each_below(os.getpid(), look) if is_agent]
    return [agent.pid, *(child.pid for child in agent.children(recursive=True))]
