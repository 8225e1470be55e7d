"""`fleet up`: ready, stopped in order, killed and started again, one a folder, and nothing of others runs."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import psutil
import pytest
import yaml
from rich.console import Console

from agents.records import DeviceId
from agents.row_file import read_rows
from agents.spool.disk_spool import FILE
from fleet.api.client import ADDRESS
from fleet.config.device_folder import retire_file
from fleet.config.settings import FleetConfig, load_fleet
from fleet.core.events import DevicePolicy, TimeWindow
from fleet.daemon.daemon import UpOptions, run_daemon
from fleet.engine.context import CoordinatorSettings
from fleet.errors import FleetError, StoreFull
from fleet.store.store import Store
from fleet.transport.local import LocalTransport
from tests.conftest import until
from tests.coordinator_fixtures import ALL, recorded_file, write_replay_device
from tests.daemon_fixtures import ROOT, Up, fleet_command
from tests.refresh_fixtures import DEVICES, make_store, some_workloads


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A fleet file with two replay devices."""
    recorded = recorded_file(tmp_path)
    folder = tmp_path / "hardware"
    folder.mkdir()
    for name in ("one", "two"):
        write_replay_device(folder, name, recorded)
    value = {
        "schema": 1,
        "devices": {"folder": str(folder), "ids": ["one", "two"]},
        "workloads": {"noise_samples": 0},
        "store": {"path": str(tmp_path / "runs" / "store")},
        "daemon": {"root": str(tmp_path / "runs" / "fleet"), "refresh": False, "api_host": ""},
    }
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(value))
    return path


@pytest.fixture
def started() -> Iterator[list[Up]]:
    made = []
    yield made
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


@pytest.fixture(scope="session")
def ending() -> Iterator[list[psutil.Process]]:
    """Processes of which none is left behind when all tests are through."""
    processes = []
    yield processes
    # What Ray starts beside its agents takes a minute to see that a killed coordinator is gone.
    _, alive = psutil.wait_procs(processes, timeout=90)
    assert alive == []


def records(settings: Path, *devices: str) -> int:
    """Records of some devices, or of all."""
    try:
        counts = Store.read(settings.parent / "runs" / "store").counts()
    except FleetError:
        return 0
    return sum(one.records for device, one in counts.items() if device in devices or not devices)


def spooled(settings: Path) -> int:
    """Records that wait in the spools of the devices."""
    files = list((settings.parent / "runs" / "spool").glob(f"*/{FILE}"))
    assert files
    return sum(len(read_rows(path)) for path in files)


def children_of(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def local_transport(settings: FleetConfig, *_: Any, **__: Any) -> LocalTransport:
    folder = Path(settings.store.path).parent / "spool"
    return LocalTransport(protocol=settings.timing_protocol(), spool_root=folder)


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents in this process, over records that are known to be sound."""
    monkeypatch.setattr("fleet.daemon.daemon._transport", local_transport)
    monkeypatch.setattr("fleet.daemon.replay_files.check_apart", lambda *_: None)


def said_by(settings: Path, serve: Any = None, **options: Any) -> str:
    """What a daemon in this process says until it ends."""
    text = io.StringIO()
    told = UpOptions(models=settings.parent / "models", **options)
    run_daemon(load_fleet(settings).config, told, Console(file=text), serve=serve)
    return text.getvalue()


@pytest.mark.usefixtures("local")
def test_once_drains_and_returns(settings: Path, tmp_path: Path) -> None:
    api, views = mock.Mock(url="http://127.0.0.1:1"), []

    def serve(coordinator: Any, folder: Path, quiet_cores: tuple[int, ...]) -> Any:
        views.append(coordinator.view())
        assert folder.is_dir()
        return api

    text = said_by(settings, serve, once=True)
    assert 0 < records(settings) <= 2 * ALL
    assert spooled(settings) == 0, "the next start has nothing to bring again"
    assert api.close.called
    assert set(views[0]["devices"]) == {"one", "two"}
    assert "fleet is up: 2 devices, API http://127.0.0.1:1, store" in text
    assert text.rstrip().endswith("fleet is down; the same command continues")
    assert not (tmp_path / "runs" / "fleet" / "daemon.pid").exists()


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order_and_handlers_come_back(settings: Path, number: int) -> None:
    before = signal.getsignal(number)
    address = settings.parent / "runs" / "fleet" / ADDRESS
    address.parent.mkdir(parents=True)
    address.write_text('{"url": "http://127.0.0.1:8640", "pid": 1, "started": 1}')

    def serve(coordinator: Any, folder: Path, quiet_cores: tuple[int, ...]) -> Any:
        assert not address.exists(), "it was of one that was killed"
        os.kill(os.getpid(), number)
        return mock.Mock(url="")

    assert "stopping: no new batch begins" in said_by(settings, serve)
    assert signal.getsignal(number) is before


def coordinator_settings(settings: Path, **changes: Any) -> CoordinatorSettings:
    """What a daemon with some other settings tells its coordinator."""
    config = load_fleet(settings, {name.replace("__", "."): value for name, value in changes.items()}).config
    with (
        mock.patch("fleet.daemon.daemon.Coordinator", side_effect=FleetError("far enough")) as made,
        pytest.raises(FleetError, match="far enough"),
    ):
        run_daemon(config, UpOptions(models=settings.parent / "models"), Console(quiet=True))
    [context] = made.call_args.args
    return context.settings


@pytest.mark.usefixtures("local")
def test_policies_become_those_of_the_devices_chosen_or_not(settings: Path) -> None:
    two = {"secs_per_hour": 900.0, "idle_only": True, "windows": ["22:00-06:30"]}
    told = coordinator_settings(
        settings,
        daemon__policies={"two": two},
        daemon__policy={"secs_per_day": 60.0},
        daemon__training_records=7,
        workloads__exploration=0.3,
    )
    daily = DevicePolicy(secs_per_day=60.0)
    assert told.policy_of(DeviceId("one")) == told.policy_of(DeviceId("to-come")) == daily
    window = TimeWindow(begin_secs=22 * 3600.0, end_secs=6.5 * 3600.0)
    limited = DevicePolicy(secs_per_hour=900.0, idle_only=True, windows=(window,))
    assert told.policy_of(DeviceId("two")) == limited
    assert (told.limits.training_records, told.exploration) == (7, 0.3)
    # Also of a device that is not chosen this time, or has left.
    chosen = {"devices__ids": ("one",), "daemon__policies": {"two": two}}
    assert list(coordinator_settings(settings, **chosen).policies) == ["two"]
    retire_file(settings.parent / "hardware", settings.parent / "hardware" / "two.yaml")
    assert list(coordinator_settings(settings, **chosen).policies) == ["two"]


@pytest.mark.usefixtures("local")
def test_a_policy_of_no_device_is_told_before_anything_begins(settings: Path, tmp_path: Path) -> None:
    config = load_fleet(settings, {"daemon.policies": {"onne": {}}}).config
    with pytest.raises(FleetError, match=r"daemon\.policies: no device 'onne' in .*; did you mean 'one'"):
        run_daemon(config, UpOptions(models=tmp_path / "models", for_secs=0.0), Console(quiet=True))
    assert not Path(config.store.path).exists()


@pytest.mark.usefixtures("local")
def test_the_end_of_a_daemon_on_a_disk_that_became_read_only_tells_of_the_disk(settings: Path) -> None:
    unlink = mock.patch.object(Path, "unlink", side_effect=OSError(errno.EROFS, "Read-only"))

    def serve(*_: Any) -> NoReturn:
        unlink.start()
        raise FleetError("what was being done")

    with pytest.raises(FleetError, match="what was being done"):
        said_by(settings, serve)
    unlink.stop()
    assert "fleet is down" in said_by(settings, for_secs=0.0), "the lock was let go of"


@pytest.mark.usefixtures("local")
def test_a_start_on_a_full_disk_takes_no_folder_from_its_store(settings: Path, tmp_path: Path) -> None:
    def full(path: Path, _: str) -> None:
        path.open("w").close()  # what is left of a file that was to be written again
        raise OSError(errno.ENOSPC, "No space left on device")

    said_by(settings, for_secs=0.0)
    with mock.patch.object(Path, "write_text", full), pytest.raises(StoreFull):
        said_by(settings, for_secs=0.0)
    another = load_fleet(settings, {"store.path": str(tmp_path / "another")}).config
    with pytest.raises(FleetError, match="belongs to the store"):
        run_daemon(another, UpOptions(models=tmp_path / "models", for_secs=0.0), Console(quiet=True))


@pytest.fixture
def trains(settings: Path, tmp_path: Path) -> Path:
    """The same fleet with the API, a trainer, and a store that a training can learn from."""
    value = yaml.safe_load(settings.read_text())
    value["daemon"] |= {"refresh": True, "api_host": "127.0.0.1", "api_port": 0}
    value["training"] = {"epochs": 1}
    settings.write_text(yaml.safe_dump(value))
    make_store(tmp_path / "runs" / "store", some_workloads(8, 4), candidates=8)
    return settings


#: Names that processes of ours and of Ray import early or late, and those of our own packages.
HOSTILE = ("agents", "fleet", "transfer", "json", "numpy", "psutil", "ray", "sitecustomize", "usercustomize")
#: What an installer writes for the command.
SCRIPT = "import sys\nfrom fleet.cli.app import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


class FolderOfOthers:
    """A folder with modules of a stranger, in which a user without a umask calls the installed command."""

    def __init__(self, folder: Path) -> None:
        self.present, self.marker, self._script = folder / "present", folder / "ran", folder / "fleet"
        self.present.mkdir()
        self._script.write_text(SCRIPT)
        code = f"open({str(self.marker)!r}, 'a').write(__name__ + chr(10))\n"
        for name in HOSTILE:
            if name in ("agents", "numpy"):
                (self.present / name).mkdir()
                (self.present / name / "__init__.py").write_text(code)
            else:
                (self.present / f"{name}.py").write_text(code)

    def up(self, settings: Path, *options: str) -> Up:
        # A checkout is found without being installed.
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        where = {"cwd": self.present, "umask": 0, "env": environment}
        return Up(settings, *options, program=(str(self._script),), **where)


def world_writable(folder: Path) -> list[str]:
    """Files and folders below one that other users may write."""
    every = [path for path in folder.rglob("*") if not path.is_symlink()]
    return [str(path.relative_to(folder)) for path in every if path.stat().st_mode & stat.S_IWOTH]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_request_outlives_its_client_and_a_killed_daemon_and_nothing_is_left_behind(
    trains: Path, tmp_path: Path, started: list[Up], ending: list[psutil.Process]
) -> None:
    models, others = str(tmp_path / "models"), FolderOfOthers(tmp_path)
    up = others.up(trains, "--models", models)
    started.append(up)
    assert "2 devices" in up.wait_for_line("fleet is up")
    # A client that goes away loses nothing, nor does a daemon that is killed.
    detached = fleet_command(trains, "train", "--models", models, "--device", "one", "--detach", "--json")
    second = fleet_command(trains, "up")
    out, told = detached.communicate(timeout=120)
    assert detached.returncode == 0, told
    (accepted,) = json.loads(out)
    assert accepted["arguments"] == {"family": "cpu", "devices": ["one"]}
    _, told = second.communicate(timeout=60)
    assert second.returncode == 1
    named, refused = told.splitlines()
    assert named.startswith(f"settings: {trains}; store: {trains.parent}")
    assert f"runs on {trains.parent}/runs/fleet already: process {up.process.pid}" in refused
    up.wait_for_line("up on")
    below = children_of(up.process.pid)
    assert below
    assert up.end(signal.SIGKILL) == -signal.SIGKILL
    up = others.up(trains, "--models", models)
    started.append(up)
    up.wait_for_line("fleet is up")
    follower = fleet_command(trains, "requests", "follow", accepted["id"])
    to_the_end = fleet_command(trains, "requests", "follow", accepted["id"], "--json")
    first_line = follower.stderr.readline()
    assert first_line.split(":")[0].strip() in ("queued", "running", "succeeded")
    if not first_line.startswith("succeeded"):
        follower.send_signal(signal.SIGINT)
        told = follower.communicate(timeout=60)[1]
        assert f"request {accepted['id']} continues" in told
        assert follower.returncode == 128 + signal.SIGINT
    out, told = to_the_end.communicate(timeout=300)
    ended = json.loads(out)
    assert ended["state"] == "succeeded", told
    result = ended["result"]
    assert set(result["serves"]) | set(result["kept_champions"]) >= set(DEVICES)
    assert not result["serves"] or (tmp_path / "models" / result["version"]).is_dir()
    # Meanwhile both devices have measured what there is, and each candidate once.
    until(lambda: records(trains, "one", "two") >= 2 * ALL, 60)
    below += children_of(up.process.pid)
    assert up.end(signal.SIGTERM) == 0
    assert records(trains, "one", "two") == 2 * ALL
    ending.extend(below)
    assert not others.marker.exists(), f"modules of the present folder ran: {others.marker.read_text()}"
    assert world_writable(tmp_path / "runs") == []
