"""An engine inside of a command: real Ray, real agents, real programs, a real table; an agent is killed.

One engine does all of it, for its start costs most. What replay devices show as well: `test_embedded.py`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from agents.records import DeviceId, DeviceSpec, Family, Outcome, Record, Workload
from agents.spool.disk_spool import Spool
from fleet.config.settings import FleetConfig, select_devices
from fleet.core.words import RequestKind
from fleet.daemon.daemon import SPOOL, UpOptions
from fleet.daemon.embedded import run_embedded
from fleet.drivers.session import EngineSession
from fleet.errors import FleetError
from fleet.planner.collect import Collection
from fleet.planner.settings import CollectSettings
from fleet.store.store import Store
from tests.conftest import each_below
from tests.fleet.planner.test_collection import Log
from tests.record_fixtures import make_record

pytestmark = [
    pytest.mark.ray,
    pytest.mark.tvm,
    pytest.mark.timeout(300),
    # On a busy host Ray may need a second start, and forgets the processes of the first one, which are ended.
    pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning"),
]

GENERIC, TWO_CORES = DeviceId("generic"), DeviceId("two-cores")
#: What is tested here must not depend on how quiet the host is.
QUICK = {
    **{"repeat": 3, "extra_repeats": 0, "min_repeat_ms": 2.0, "visits": 1},
    **{"reject_interval": 0.0, "early_stop_ratio": 0.0},
}
#: Of an earlier life, in the spool of a device: nobody acknowledged it.
PENDING = make_record(1, device="generic")


class KillingLog(Log):
    """A watcher that kills a process when the first records are stored."""

    def __init__(self) -> None:
        super().__init__()
        self.victim: int | None = None

    def stored(self, device_id: DeviceId, records: Sequence[Record]) -> None:
        super().stored(device_id, records)
        if self.victim is not None:
            os.kill(self.victim, signal.SIGKILL)
            self.victim = None


@dataclass
class Seen:
    """What was seen while the engine ran."""

    wanted: list[str] = field(default_factory=list)
    taken_over: list[str] = field(default_factory=list)
    listening: set[str] = field(default_factory=set)
    ray_mode: str = ""
    niceness: set[int] = field(default_factory=set)
    outlived: list[int] = field(default_factory=list)
    agents: list[int] = field(default_factory=list)
    again: list[Record] = field(default_factory=list)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> FleetConfig:
    """Two devices that any x86 or Arm host can be: the same target under two names would be a twin."""
    folder = tmp_path_factory.mktemp("collect")
    (folder / "hardware").mkdir()
    for name, count in ((GENERIC, 1), (TWO_CORES, 2)):
        (folder / "hardware" / f"{name}.yaml").write_text(
            f"schema: 1\ndevice_id: {name}\nkind: local\nfamily: cpu\n"
            f"target: {{kind: llvm, num-cores: {count}}}\n"
            f"threads: {count}\ncores: {list(range(count))}\n"
        )
    return FleetConfig.model_validate(
        {
            "store": {"path": str(folder / "store")},
            "devices": {"folder": str(folder / "hardware")},
            "protocol": QUICK,
        }
    )


@pytest.fixture(scope="module")
def seen(settings: FleetConfig, matmul: Workload) -> Seen:
    """Collect, and look about meanwhile."""
    with Spool(Path(settings.store.path).parent / SPOOL / GENERIC) as spool:
        spool.put([PENDING])
    specs = select_devices(settings)
    return run_embedded(
        settings,
        RequestKind.COLLECTION,
        {"devices": sorted(specs)},
        UpOptions(models=Path(settings.store.path).parent / "models"),
        Console(quiet=True),
        lambda session: collect(session, specs, matmul),
    )


def collect(session: EngineSession, specs: dict[DeviceId, DeviceSpec], matmul: Workload) -> Seen:
    session.ready(specs)
    seen = Seen(taken_over=[one.record_id for one in session.store().records()])
    seen.ray_mode = os.environ["RAY_AUTH_MODE"]
    sockets = each_below(os.getpid(), lambda process: process.net_connections("tcp"))
    seen.listening = {one.laddr.ip for found in sockets for one in found if one.status == psutil.CONN_LISTEN}
    how = CollectSettings(samples=8, batch_size=4, remeasure=2)
    log = KillingLog()
    collection = Collection(session, specs, how, log)
    listed = collection.network_workloads(["bert-tiny"])
    chosen = [one for one in listed if one.workload_id == matmul.workload_id]
    pools = collection.propose(chosen)
    seen.wanted = sorted(one.candidate_id for one in pools[Family.CPU][matmul.workload_id])

    agent, workers = agent_of(GENERIC)
    seen.niceness = {psutil.Process(pid).nice() for pid in (agent, *workers)}
    log.victim = agent
    collection.measure(pools)
    deadline = time.monotonic() + 10
    while (left := [pid for pid in workers if psutil.pid_exists(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    seen.outlived = left
    seen.agents = [agent, agent_of(GENERIC)[0]]
    collection.remeasure(chosen)
    again = Log()
    collection = Collection(session, specs, how, again)
    collection.measure(collection.propose(chosen))
    collection.remeasure(chosen)
    seen.again = again.records
    return seen


def agent_of(device_id: DeviceId) -> tuple[int, list[int]]:
    """The process that holds the spool of a device, and those below it."""

    def look(process: psutil.Process) -> tuple[psutil.Process, bool]:
        return process, any(Path(one.path).parts[-3:-1] == (SPOOL, device_id) for one in process.open_files())

    [agent] = [process for process, is_agent in each_below(os.getpid(), look) if is_agent]
    return agent.pid, [child.pid for child in agent.children(recursive=True)]


def first_hand(settings: FleetConfig, device_id: DeviceId) -> list[Record]:
    records = Store.read(settings.store.path).records(device_id=device_id)
    return [one for one in records if one.attempt == 0 and one.record_id != PENDING.record_id]


def test_ray_listens_on_loopback_only_and_agents_run_at_the_priority_of_their_fleet(seen: Seen) -> None:
    assert seen.listening
    assert seen.listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert seen.ray_mode == "token"
    assert seen.niceness == {psutil.Process().nice()}


def test_records_nobody_acknowledged_are_taken_over_at_the_next_start(
    seen: Seen, settings: FleetConfig
) -> None:
    assert seen.taken_over == [PENDING.record_id]
    with Spool(Path(settings.store.path).parent / SPOOL / GENERIC) as spool:
        assert spool.pending() == [], "all that was stored is acknowledged"


def test_every_device_measures_the_same_candidates_once_though_an_agent_is_killed_in_mid_batch(
    seen: Seen, settings: FleetConfig
) -> None:
    killed, following = seen.agents
    assert killed != following
    assert not psutil.pid_exists(killed)
    assert not seen.outlived, "worker processes outlived their agent"
    assert len(seen.wanted) == 8
    for device_id in (GENERIC, TWO_CORES):
        records = first_hand(settings, device_id)
        assert sorted(one.candidate_id for one in records) == seen.wanted
        assert {record.outcome for record in records} == {Outcome.OK}
        assert all(len(record.run_secs) == QUICK["repeat"] for record in records)
    store = Store.read(settings.store.path)
    # A drifting device has some of them measured once more than asked.
    assert sum(one.attempt > 0 for one in store.records()) >= 2 * 2
    entry = store.devices()[GENERIC]
    assert entry.descriptor is not None
    assert entry.descriptor.logical_cores == psutil.cpu_count()
    # Begun again, there is nothing left to measure.
    assert [one for one in seen.again if one.attempt == 0] == []


def test_nothing_is_left_behind(seen: Seen) -> None:
    assert seen.wanted
    assert not {"raylet", "gcs_server"} & set(each_below(os.getpid(), lambda process: process.name()))
    assert [one.name for one in threading.enumerate() if one.name in ("driver", "engine", "channel in")] == []


def test_a_device_that_the_host_cannot_be_is_refused(settings: FleetConfig, tmp_path: Path) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "box.yaml").write_text(
        "schema: 1\ndevice_id: box\nkind: local\nfamily: cpu\n"
        "target: {kind: llvm, num-cores: 1}\ncores: [100000]\n"
    )
    changes = {"folder": str(tmp_path / "hardware"), "ids": ("box",)}
    refused = settings.model_copy(update={"devices": settings.devices.model_copy(update=changes)})
    with pytest.raises(FleetError, match=r"^device box: .*100000") as caught:
        run_embedded(
            refused,
            RequestKind.COLLECTION,
            {"devices": ["box"]},
            UpOptions(models=tmp_path / "models"),
            Console(quiet=True),
            lambda session: None,
        )
    assert "\n" not in str(caught.value)
