"""Refreshes as they run: real data flow, real processes, real kills."""

from __future__ import annotations

import errno
import io
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from agents.records import DeviceId
from fleet.core.events import (
    Event,
    ModelPublished,
    ModelRolledBack,
    ReasonKind,
    TrainingFailed,
    TrainingFinished,
    TrainingReason,
    TrainingStarted,
)
from fleet.engine.notices import Notices, announce_event
from fleet.models.registry import Registry
from fleet.models.registry_file import REGISTRY
from fleet.models.training import EPOCHS
from fleet.models.versions import train_config
from fleet.refresh.refresh_child import refresh_cores, unfinished
from fleet.refresh.refresher import Refresher, RefreshSettings
from fleet.refresh.request import RefreshRequest
from fleet.refresh.run import run_refresh, run_start
from fleet.store.store import Store
from tests.dataset_fixtures import cpu_device
from tests.disk_fixtures import failing
from tests.model_scenarios import ModelScenario
from tests.refresh_fixtures import (
    DEVICES,
    append,
    make_store,
    records_for,
    request_in,
    small_model,
    some_workloads,
)
from tests.scenario_fixtures import read_scenarios
from transfer.adapt.maml import Maml
from transfer.features.extractor import DEFAULT_SPEC
from transfer.model import checkpoint

pytestmark = pytest.mark.usefixtures("few_trees")

#: Workloads that are learnt from, then those that judge.
LEARNT, HELD = (lambda made: (made[:10], made[10:]))(some_workloads(10, 9))


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of two devices whose latencies follow from the schedules."""
    folder = tmp_path_factory.mktemp("collected")
    make_store(folder / "store", [*LEARNT, *HELD], candidates=12)
    return folder


@pytest.fixture(scope="module")
def trained(collected: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same after its first refresh: both devices have a champion."""
    folder = tmp_path_factory.mktemp("trained")
    shutil.copytree(collected, folder, dirs_exist_ok=True)
    assert run_refresh(request_in(folder))["published"] == list(DEVICES)
    return folder


@pytest.fixture
def request_(collected: Path, tmp_path: Path) -> RefreshRequest:
    """A refresh of a store that nobody has learnt from, its own for each test."""
    shutil.copytree(collected, tmp_path, dirs_exist_ok=True)
    return request_in(tmp_path)


@pytest.fixture
def refreshed(trained: Path, tmp_path: Path) -> RefreshRequest:
    """The refresh that ran already, its own for each test."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return request_in(tmp_path)


def again(request: RefreshRequest, name: str, **changes: Any) -> RefreshRequest:
    return replace(request, request_id=name, folder=f"{request.folder}-{name}", **changes)


def registry_of(request: RefreshRequest) -> Registry:
    return Registry(Path(request.models))


def wait_for(is_so: Callable[[], bool], turn: Callable[[], object] = lambda: None) -> None:
    until = time.monotonic() + 150
    while not is_so():
        assert time.monotonic() < until
        turn()
        time.sleep(0.02)


def hang(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have trainings do nothing for ever."""
    (folder / "hanging.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr("fleet.refresh.refresh_child._MODULE", "hanging")


def test_a_start_of_meta_learning_is_made_for_devices_that_arrive(
    refreshed: RefreshRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = partial(Maml, outer_steps=2)
    monkeypatch.setattr("fleet.refresh.run.Maml", quick)
    [version] = {champion.version for champion in registry_of(refreshed).champions().values()}
    assert run_start(again(refreshed, "start", kind="start", version=version))["version"] == version
    folder = registry_of(refreshed).path(version)
    source, _ = checkpoint.load_fleet_tlp(folder, DEFAULT_SPEC)
    config = train_config(refreshed.epochs)
    assert quick(starts=folder).has_start(source, config, refreshed.seed)
    assert not quick(starts=folder).has_start(source, config, refreshed.seed + 1)


SCENARIOS = read_scenarios(Path(__file__).with_name("refresh_scenarios.txt"))


@pytest.mark.parametrize("title", SCENARIOS)
def test_a_scenario(title: str, collected: Path, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(collected if "first" in title else trained, tmp_path, dirs_exist_ok=True)
    lines = [line.replace("$held", HELD[0].workload_id) for line in SCENARIOS[title]]
    ModelScenario(tmp_path, [*LEARNT, *HELD]).play(lines)


# ---- in a process of its own ----


# ---- the coordinator's side ----


def polled(refresher: Refresher, *, until: type[Event]) -> list[Event]:
    found: list[Event] = []
    wait_for(lambda: any(isinstance(one, until) for one in found), lambda: found.extend(refresher.poll()))
    return found


def make_refresher(request: RefreshRequest, **changes: Any) -> Refresher:
    values = {"epochs": 2, "watch_secs": 0.0, "watch_records": 50, **changes}
    settings = RefreshSettings(**{"shipped": False, **values})
    registry = Registry(Path(request.models))
    refresher = Refresher(registry, Path(request.store), Path(request.folder), settings)
    made.append(refresher)
    return refresher


@pytest.fixture(autouse=True)
def _leave_no_process() -> Iterator[None]:
    yield
    while made:
        made.pop().close()


made: list[Refresher] = []


@pytest.mark.slow
def test_the_coordinator_hears_of_start_publication_and_end_in_this_order(request_: RefreshRequest) -> None:
    refresher = make_refresher(request_, makes_starts=True)
    assert refresher.poll() == []
    refresher.start("cpu", [TrainingReason(kind=ReasonKind.NEW_RECORDS, text="672 new records")])
    assert refresher.view["state"] == "training"
    events = polled(refresher, until=TrainingFinished)
    assert [type(one) for one in events] == [TrainingStarted, ModelPublished, TrainingFinished]
    _, published, finished = events
    assert (published.version, published.device_ids) == ("v000001", DEVICES)
    assert (finished.version, finished.text) == ("v000001", "2 first")
    registry = registry_of(request_)
    assert registry.manifest("v000001")["reasons"] == ["672 new records"]
    assert refresher.view["state"] == "idle"
    assert refresher.view["last"]["ok"] is True
    assert unfinished(Path(request_.folder) / "cpu") is None

    # Somebody else changes a champion: the coordinator hears of that, too.
    registry.publish(registry.add(checkpoint.load(registry.path("v000001"))[0], {}), {"box.b": {}})
    registry.use("box.b", registry.before("box.b"), reason="by hand")
    assert [(type(one), getattr(one, "reason", "")) for one in refresher.poll()] == [
        (ModelPublished, ""),
        (ModelRolledBack, "by hand"),
    ]
    # A pin changes nobody who serves.
    registry.use("box.b", registry.champions()[DeviceId("box.b")].version, reason="", pins=True)
    registry.unpin("box.b", reason="")
    assert refresher.poll() == []
    # Meanwhile idle time is for a start of meta-learning, until a training comes.
    assert refresher.view["state"] == "preparing"
    refresher.start("cpu", ["more records"])
    assert refresher.view["state"] == "training"
    refresher.stop("cpu")
    refresher.poll()
    assert refresher.view["state"] == "preparing"
    refresher.close()
    # A coordinator that starts learns who serves.
    refresher = make_refresher(request_)
    assert [type(one) for one in refresher.poll()] == [ModelPublished]

    # Enough new records ask for a look at the champions.
    refresher.records_stored(DeviceId("box.a"), "cpu", 49)
    refresher.poll()
    assert refresher.view["state"] == "idle"
    refresher.records_stored(DeviceId("box.a"), "cpu", 1)
    refresher.poll()
    assert refresher.view["state"] == "looking"
    told: list[Event] = []
    wait_for(lambda: refresher.view["state"] != "looking", lambda: told.extend(refresher.poll()))
    assert told == []
    assert refresher.view["last_look"]["looks"]["box.a"]["freshness"] == "too_few"
    refresher.close()


def test_after_an_older_list_of_champions_was_restored_no_change_is_told_twice(
    refreshed: RefreshRequest,
) -> None:
    registry, refresher = registry_of(refreshed), make_refresher(refreshed)
    path = registry.folder / REGISTRY
    older = path.read_bytes()
    refresher.poll()
    registry.publish(registry.add(small_model(*DEVICES), {}), {"box.a": {}})
    assert len(refresher.poll()) == 1
    path.write_bytes(older)
    assert refresher.poll() == []
    registry.publish(registry.add(small_model(*DEVICES), {}), {"box.b": {}})
    [told] = refresher.poll()
    assert isinstance(told, ModelPublished)
    assert (told.version, told.device_ids) == ("v000003", ("box.b",))


def test_a_failure_shows_the_end_of_standard_error(
    request_: RefreshRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Modules in the folder that the daemon was started from are none of the process's.
    (tmp_path / "random.py").write_text("raise SystemExit('a module of the user was run')")
    monkeypatch.chdir(tmp_path)
    refresher = make_refresher(request_)
    refresher.start("gpu", ["test"])
    # A disk that became read-only meanwhile ends no coordinator.
    monkeypatch.setattr(Path, "unlink", failing(errno.EROFS))
    failed = polled(refresher, until=TrainingFailed)[-1]
    assert "its process ended with code 1: " in failed.reason
    assert failed.reason.endswith("knows no device of the family gpu; collect first")
    assert unfinished(Path(request_.folder) / "gpu") is None


def test_a_store_with_too_few_records_is_no_fault(tmp_path: Path) -> None:
    make_store(tmp_path / "store", LEARNT[:2], candidates=12)
    request = request_in(tmp_path)
    refresher = make_refresher(request)
    refresher.start("cpu", ["test"])
    failed = polled(refresher, until=TrainingFailed)[-1]
    assert failed.wants_records
    assert failed.reason.startswith("no device has enough to learn from: 24 ok candidates in 2 workloads")
    notices = Notices(Console(file=(out := io.StringIO()), width=300))
    announce_event(failed, notices)
    assert "training for cpu waits for records: no device has enough" in out.getvalue()
    assert notices.alarms == []


@pytest.mark.slow
def test_a_stopped_coordinator_leaves_no_process_and_a_request_to_go_on_with(
    request_: RefreshRequest,
) -> None:
    refresher = make_refresher(request_, epochs=12)
    refresher.start("cpu", ["test"])
    child = refresher._child
    wait_for(lambda: any(Path(request_.folder).glob(f"cpu/{EPOCHS}/*/epoch-*")), refresher.poll)
    # What runs says how far it is, once its first line is whole, and is not the training of another family.
    wait_for(lambda: refresher.view["epochs"], refresher.poll)
    epochs = refresher.view["epochs"]
    assert (epochs["of"], epochs["done"] >= 1, epochs["left_secs"] > 0) == (12, True, True)
    assert epochs["finding"].startswith(f"epoch {epochs['done']} of at most 12, loss ")
    refresher.stop("gpu")
    assert refresher.view["state"] == "training"
    refresher.close()
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
    assert unfinished(Path(request_.folder) / "cpu") is not None

    # Records that came meanwhile are for the next refresh: the plan holds.
    append(Path(request_.store), records_for(LEARNT[2:3], 20, seed=9))
    second = make_refresher(request_)
    second.start("cpu", ["test", "and more"])
    assert isinstance(polled(second, until=TrainingFinished)[-1], TrainingFinished)
    assert second.view["last"]["resumed_epochs"] > 0
    manifest = registry_of(request_).manifest("v000001")
    assert manifest["train"]["epochs"] == 12
    assert manifest["table_version"] < Store.read(Path(request_.store)).version


def test_a_training_that_nobody_wants_any_more_leaves_nothing(
    request_: RefreshRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang(monkeypatch, tmp_path)
    refresher = make_refresher(request_)
    refresher.start("cpu", [])
    refresher.stop("cpu")
    assert refresher.poll() == []
    assert (refresher.view["state"], refresher.view["epochs"]) == ("idle", {})
    assert unfinished(Path(request_.folder) / "cpu") is None, "the next one begins anew"


def test_a_killed_process_is_tried_again_but_not_for_ever(
    request_: RefreshRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang(monkeypatch, tmp_path)
    refresher = make_refresher(request_)
    for attempt in range(3):
        refresher.start("cpu", ["test"])
        os.kill(refresher._child.pid, signal.SIGKILL)
        failed = polled(refresher, until=TrainingFailed)[-1]
        assert failed.reason.startswith("its process was ended by SIGKILL")
        assert (unfinished(Path(request_.folder) / "cpu") is None) == (attempt == 2)


def test_a_training_over_its_deadline_is_ended_and_not_gone_on_with(
    request_: RefreshRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang(monkeypatch, tmp_path)
    refresher = make_refresher(request_, deadline_secs=1.0)
    refresher.start("cpu", ["test"])
    failed = polled(refresher, until=TrainingFailed)[-1]
    assert failed.reason == "it was not done after 1 s (daemon.training_deadline_secs)"
    assert failed.is_hopeless
    assert unfinished(Path(request_.folder) / "cpu") is None


def test_a_refresh_stays_away_from_the_cores_that_time() -> None:
    spec, _ = cpu_device("box.a")
    usable = sorted(os.sched_getaffinity(0))
    cores = refresh_cores([msgspec.structs.replace(spec, cores=(usable[0],))])
    if len(usable) > 1:
        assert usable[0] not in cores
    assert set() < set(cores) <= set(usable)
