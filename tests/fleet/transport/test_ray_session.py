"""Starts of Ray: cores of the devices of a host, signals, hosts with other versions than the coordinator's.

`test_untrusted_import.py` starts Ray for real.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from agents.device.device_cores import agent_cores
from agents.records import DeviceKind
from fleet.errors import FleetError
from fleet.transport import ray_session, ray_start
from fleet.transport.host_versions import join_refusal, version_refusal
from fleet.transport.ray_folder import RayFolder
from fleet.transport.ray_session import start_ray
from fleet.transport.ray_start import NODE_SETTINGS
from tests.record_fixtures import make_spec
from tests.table_fixtures import rows

#: A device of this host, others there, and cores that may be used if they are not all of 0 to 7; the cores
#: that the device's agent has. CPUs 0 and 4 share a physical core, and so on.
DEVICES = """
    rpc 1     | local 0, local 2 3  | -> 15
    cuda 1    | local 0, local 2 3  | -> 15
    rpc 0     | local 0             | -> 123567
    # The cores of a board are not those of this host.
    rpc 0     |                     | -> 01234567
    local 0   | rpc 0               | -> 01234567
    # A GPU keeps its own core; on the same cores devices take turns.
    cuda 0    | local 0             | -> 0123567
    local 0   | local 0             | -> 01234567
    local 0   | local 2 3           | -> 0145
    # Where nothing is left everything is allowed.
    rpc 0     | local 0        | 0    -> 0
    rpc 0     | local 0        | 04   -> 4
"""


@pytest.mark.parametrize(("devices", "expected"), [row for row in rows(DEVICES) if row[1]])
def test_devices_spare_the_cores_that_others_of_this_host_time_on(devices: str, expected: str) -> None:
    one, others, usable = (cell.strip() for cell in devices.split("|"))
    specs = []
    for number, text in enumerate(filter(None, [one, *others.split(",")])):
        kind, *cores = text.split()
        specs.append(make_spec(f"dev-{number}", kind=DeviceKind(kind), cores=tuple(map(int, cores))))
    found = agent_cores(
        specs[0], specs, tuple(map(int, usable or "01234567")), ((0, 4), (1, 5), (2, 6), (3, 7))
    )
    assert "".join(map(str, found)) == expected


@pytest.fixture
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fleet.transport.ray_session.RayFolder", lambda: RayFolder(tmp_path))


@pytest.mark.usefixtures("_folder")
def test_a_start_that_fails_leaves_our_handlers_of_signals_and_ends_its_own_processes_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    processes = {}

    def init(*, _temp_dir: str, **_: object) -> None:
        for number in before:
            signal.signal(number, lambda *_: sys.exit(1))
        processes["Ray's"] = subprocess.Popen([*sleep, f"--log_dir={_temp_dir}/session/logs"])
        processes["another thread's"] = subprocess.Popen(sleep)  # as a training of a daemon is
        raise RuntimeError("no room")

    monkeypatch.setattr("ray.init", init)
    try:
        with pytest.raises(FleetError, match="does not start"):
            start_ray(2)
        assert not psutil.pid_exists(processes["Ray's"].pid)
        assert processes["another thread's"].poll() is None
        assert {number: signal.getsignal(number) for number in before} == before
    finally:
        for one in processes.values():
            one.kill()
            one.wait()


# ---- hosts with other versions: what they are told ----

OURS = {"tensor-fleet": "0.1.0", "apache-tvm": "0.27.0.post1", "python": "3.11.7"}


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ({"tensor-fleet": ""}, "tensor-fleet none (coordinator: 0.1.0)"),
        (
            {"tensor-fleet": "1", "python": "3.12.1"},
            "tensor-fleet 1 (coordinator: 0.1.0), python 3.12.1 (coordinator: 3.11.7)",
        ),
    ],
)
def test_every_version_that_differs_is_named_beside_ours(theirs: dict[str, str], said: str) -> None:
    line = version_refusal({**OURS, "host": "far", **theirs}, OURS)
    assert line == f"its host far has {said}; install the coordinator's versions there"
    assert version_refusal({**OURS, "host": "far"}, OURS) is None


def rays_refusal() -> RuntimeError:
    """What Ray says to a process of this host where the cluster has another Python."""
    import ray
    from ray._private.utils import check_version_info

    with pytest.raises(RuntimeError) as caught:
        check_version_info({"ray_version": ray.__version__, "python_version": "3.12.1"}, "node 10.8.0.2")
    return caught.value


def test_rays_own_refusal_becomes_one_line_for_a_coordinator_too(monkeypatch: pytest.MonkeyPatch) -> None:
    here = ".".join(map(str, sys.version_info[:3]))
    assert join_refusal(str(rays_refusal()), "head:6379") == (
        f"the Ray cluster at head:6379 refuses this host: it has Python {here} (cluster: 3.12.1); "
        "use the cluster's version here"
    )
    assert join_refusal("no such host", "head:6379") is None
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 32)
    monkeypatch.setattr(ray_session, "_connect", Mock(side_effect=rays_refusal()))
    with pytest.raises(FleetError, match=r"refuses this host: it has Python \S+ \(cluster: 3\.12\.1\)"):
        ray_session.join_ray("head:6379")


def test_what_the_user_has_set_goes_before_what_a_start_of_ray_needs_and_documents() -> None:
    found = ray_start.environment({"RAY_worker_niceness": "3", "HOME": "/root"})
    mine = {"RAY_worker_niceness": "3", "HOME": "/root"}
    assert found == {**mine, "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", **NODE_SETTINGS}
    text = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text()
    assert all(f"{name}={value}`" in text for name, value in ray_start.environment({}).items())


@pytest.mark.parametrize("address", [["--address=h:1"], ["--address", "h:1"]])
def test_a_start_of_ray_names_the_address_that_it_was_given(
    address: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.scripts.scripts.cli.main", Mock(side_effect=rays_refusal()))
    line = ray_start.start([*address, "--block"])
    assert line.startswith("the Ray cluster at h:1 refuses this host: ")


def test_a_start_of_ray_passes_other_words_of_ray_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        ray_start.start(["--no-such-option"])
    assert ended.value.code == 2
    assert "--no-such-option" in capsys.readouterr().err
