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


@pytest.mark.parametrize("kind", [DeviceKind.RPC, DeviceKind.CUDA])
def test_builders_keep_off_the_cores_that_local_devices_time_on(kind: DeviceKind) -> None:
    allowed = cores(spec(kind, 1), LOCAL, ELSEWHERE)
    assert not {0, 4, 2, 6, 3, 7} & set(allowed)
    assert 1 in allowed


def test_the_cores_of_a_board_are_not_those_of_this_host() -> None:
    board = spec(DeviceKind.RPC, 0)
    assert cores(board, LOCAL) == (1, 2, 3, 5, 6, 7)
    assert cores(board) == EIGHT
    assert cores(LOCAL, board) == EIGHT


def test_a_gpu_keeps_its_own_core_even_where_a_local_device_times_on_it() -> None:
    assert cores(spec(DeviceKind.CUDA, 0), LOCAL) == (0, 1, 2, 3, 5, 6, 7)


def test_local_devices_on_the_same_cores_may_use_everything_and_others_spare_each_other() -> None:
    twin = make_spec("twin", cores=(0,))
    assert cores(LOCAL, twin) == EIGHT
    allowed = cores(LOCAL, ELSEWHERE)
    assert allowed == (0, 1, 4, 5)
    assert set(quiet_cores(LOCAL.cores, allowed, SMT)) == {1, 5}


def test_where_nothing_is_left_everything_is_allowed() -> None:
    assert cores(spec(DeviceKind.RPC), LOCAL, usable=(0,)) == (0,)
    assert cores(spec(DeviceKind.RPC), LOCAL, usable=(0, 4)) == (4,)


def test_a_start_that_fails_leaves_our_handlers_of_signals(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def init(**_: object) -> None:
        for number in before:
            signal.signal(number, lambda *_: sys.exit(1))
        raise RuntimeError("The current node timed out during startup")

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("fleet.transport.ray_session.RayFolder", lambda: RayFolder(tmp_path))
    with pytest.raises(FleetError, match="does not start"):
        start_ray(2)
    assert {number: signal.getsignal(number) for number in before} == before


def test_a_start_that_fails_ends_its_own_processes_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rays: list[subprocess.Popen[bytes]] = []
    others: list[subprocess.Popen[bytes]] = []

    def init(*, _temp_dir: str, **_: object) -> None:
        sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
        rays.append(subprocess.Popen([*sleep, f"--log_dir={_temp_dir}/session/logs"]))
        others.append(subprocess.Popen(sleep))  # by another thread of a daemon, as a training is
        raise RuntimeError("no room")

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("fleet.transport.ray_session.RayFolder", lambda: RayFolder(tmp_path))
    try:
        with pytest.raises(FleetError, match="does not start"):
            start_ray(2)
        assert [psutil.pid_exists(one.pid) for one in rays] == [False]
        assert [one.poll() for one in others] == [None]
    finally:
        for one in [*rays, *others]:
            one.kill()
            one.wait()
