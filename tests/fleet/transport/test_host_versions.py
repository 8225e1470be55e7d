"""Hosts with other versions than the coordinator: what they are told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from fleet.errors import FleetError
from fleet.transport import ray_session, ray_start
from fleet.transport.host_versions import SHARED_PACKAGES, join_refusal, own_versions, version_refusal
from fleet.transport.ray_session import COORDINATOR_SETTINGS
from fleet.transport.ray_start import NODE_SETTINGS

OURS = {"tensor-fleet": "0.1.0", "apache-tvm": "0.27.0.post1", "python": "3.11.7"}


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ({"tensor-fleet": "0.2.0"}, "tensor-fleet 0.2.0 (coordinator: 0.1.0)"),
        ({"tensor-fleet": ""}, "tensor-fleet none (coordinator: 0.1.0)"),
        ({"apache-tvm": "0.26.0"}, "apache-tvm 0.26.0 (coordinator: 0.27.0.post1)"),
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


def test_a_host_tells_what_the_coordinator_compares() -> None:
    from agents.device.ray_actors import host_versions

    found = host_versions._function(SHARED_PACKAGES)
    assert found.pop("host")
    assert found == own_versions()


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


def test_a_coordinator_that_joins_finds_a_link_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    [first, second] = COORDINATOR_SETTINGS
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 32)
    monkeypatch.setenv(first, "7")
    monkeypatch.setenv(second, "")
    monkeypatch.delenv(second)
    monkeypatch.setattr(ray_session, "_connect", lambda **_: None)
    ray_session.join_ray("head:6379")
    assert (os.environ[first], os.environ[second]) == ("7", COORDINATOR_SETTINGS[second])
    # The head would give up a host as soon as its connection.
    assert not COORDINATOR_SETTINGS.keys() & ray_start.environment({}).keys()


@pytest.mark.parametrize("address", [["--address=h:1"], ["--address", "h:1"]])
def test_a_start_of_ray_names_the_address_that_it_was_given(
    address: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.scripts.scripts.cli.main", Mock(side_effect=rays_refusal()))
    line = ray_start.start([*address, "--block"])
    assert line.startswith("the Ray cluster at h:1 refuses this host: ")


def test_a_start_of_ray_passes_other_words_of_ray_on() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fleet.transport.ray_start", "--no-such-option"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        env=dict(os.environ),
    )
    assert done.returncode == 2
    assert "--no-such-option" in done.stderr
