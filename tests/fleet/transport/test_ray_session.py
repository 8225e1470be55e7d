"""Cores of the devices of a host, and signals around a start; `test_collect.py` starts Ray for real."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from agents.device.device_cores import agent_cores, quiet_cores
from agents.records import DeviceKind, DeviceSpec
from fleet.errors import FleetError
from fleet.transport.ray_folder import RayFolder
from fleet.transport.ray_session import start_ray
from tests.record_fixtures import make_spec

EIGHT = tuple(range(8))
#: Eight logical CPUs on four physical cores.
SMT = ((0, 4), (1, 5), (2, 6), (3, 7))


def spec(kind: DeviceKind, *cores: int) -> DeviceSpec:
    return make_spec(f"{kind}-{'-'.join(map(str, cores))}", kind=kind, cores=cores or (0,))


LOCAL = spec(DeviceKind.LOCAL, 0)
ELSEWHERE = spec(DeviceKind.LOCAL, 2, 3)


def cores(one: DeviceSpec, *others: DeviceSpec, usable: tuple[int, ...] = EIGHT) -> tuple[int, ...]:
    return agent_cores(one, [one, *others], usable, SMT)


def test_devices_spare_the_cores_that_others_of_this_host_time_on() -> None:
    board, twin = spec(DeviceKind.RPC, 0), make_spec("twin", cores=(0,))
    for kind in (DeviceKind.RPC, DeviceKind.CUDA):
        assert cores(spec(kind, 1), LOCAL, ELSEWHERE) == (1, 5)
    assert cores(board, LOCAL) == (1, 2, 3, 5, 6, 7)
    assert cores(board) == cores(LOCAL, board) == EIGHT, "the cores of a board are not those of this host"
    assert cores(spec(DeviceKind.CUDA, 0), LOCAL) == (0, 1, 2, 3, 5, 6, 7), "a GPU keeps its own core"
    assert cores(LOCAL, twin) == EIGHT, "on the same cores they take turns"
    allowed = cores(LOCAL, ELSEWHERE)
    assert allowed == (0, 1, 4, 5)
    assert set(quiet_cores(LOCAL.cores, allowed, SMT)) == {1, 5}
    # Where nothing is left everything is allowed.
    assert cores(board, LOCAL, usable=(0,)) == (0,)
    assert cores(board, LOCAL, usable=(0, 4)) == (4,)


@pytest.fixture
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fleet.transport.ray_session.RayFolder", lambda: RayFolder(tmp_path))


@pytest.mark.usefixtures("_folder")
def test_a_start_that_fails_leaves_our_handlers_of_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def init(**_: object) -> None:
        for number in before:
            signal.signal(number, lambda *_: sys.exit(1))
        raise RuntimeError("The current node timed out during startup")

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(FleetError, match="does not start"):
        start_ray(2)
    assert {number: signal.getsignal(number) for number in before} == before


@pytest.mark.usefixtures("_folder")
def test_a_start_that_fails_ends_its_own_processes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    rays: list[subprocess.Popen[bytes]] = []
    others: list[subprocess.Popen[bytes]] = []

    def init(*, _temp_dir: str, **_: object) -> None:
        sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
        rays.append(subprocess.Popen([*sleep, f"--log_dir={_temp_dir}/session/logs"]))
        others.append(subprocess.Popen(sleep))  # by another thread of a daemon, as a training is
        raise RuntimeError("no room")

    monkeypatch.setattr("ray.init", init)
    try:
        with pytest.raises(FleetError, match="does not start"):
            start_ray(2)
        assert [psutil.pid_exists(one.pid) for one in rays] == [False]
        assert [one.poll() for one in others] == [None]
    finally:
        for one in [*rays, *others]:
            one.kill()
            one.wait()
