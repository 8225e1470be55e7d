"""Two real Ray nodes on the loopback interface, one of them killed; who may join."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from agents.device.messages import AgentGone, AgentRefused, AgentUp, Heartbeat, Message
from agents.records import DeviceId, DeviceSpec
from fleet.errors import FleetError
from fleet.transport.host_versions import own_versions
from fleet.transport.ray_transport import RayOptions, RayTransport
from tests.transport_fixtures import PROTOCOL, first, poll_until

pytestmark = [pytest.mark.ray, pytest.mark.tvm, pytest.mark.slow, pytest.mark.timeout(300)]

HERE, THERE = DeviceId("board-1"), DeviceId("board-2")


#: Three nodes; the last has packages of its own in the folder that the argument names. `ray start` refuses a
#: second node on the loopback interface, and the suite opens no other.
SCRIPT = """
import json, sys, time
from ray.cluster_utils import Cluster
cluster = Cluster()
nodes = {}
for name, more in (("board-1", {}), ("board-2", {}), ("board-4", {"env_vars": {"PYTHONPATH": sys.argv[1]}})):
    nodes[name] = cluster.add_node(
        resources={f"device:{name}": 1},
        num_cpus=1, object_store_memory=100 << 20, include_dashboard=False, **more,
    )
raylets = {name: node.all_processes["raylet"][0].process.pid for name, node in nodes.items()}
print(json.dumps([cluster.address, raylets]), flush=True)
time.sleep(600)
"""


@dataclass(frozen=True)
class Nodes:
    """A cluster: its address, and the raylet of the node that offers each board; board-1 is of the head."""

    address: str
    raylets: dict[str, psutil.Process]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes for all tests of this file, which end them one after another."""
    folder = tmp_path_factory.mktemp("cluster")
    given = {
        "RAY_AUTH_MODE": "token",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_worker_niceness": "0",
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    everything = []
    with pytest.MonkeyPatch.context() as patch, (folder / "cluster.log").open("wb") as log:
        for name, value in given.items():
            patch.setenv(name, value)
        nodes = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(other_project(folder))],
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        try:
            with nodes.stdout as stream:
                line = stream.readline()
            assert line, (folder / "cluster.log").read_text()
            address, raylets = json.loads(line)
            everything = psutil.Process(nodes.pid).children(recursive=True)
            yield Nodes(address, {name: psutil.Process(pid) for name, pid in raylets.items()})
        finally:
            nodes.kill()
            nodes.wait()
            for one in everything:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()


def joined(cluster: Nodes, specs: Iterable[DeviceSpec], folder: Path) -> RayTransport:
    there = str(folder / "there")
    options = RayOptions(address=cluster.address, remote_spool_root=there, heartbeat_secs=0.3)
    return RayTransport(specs, folder / "here", PROTOCOL, options)


def other_project(folder: Path) -> Path:
    """A folder for `PYTHONPATH`: a version of the project with none of our modules, and another TVM."""
    other = folder / "other"
    for name, version in {"tensor_fleet": "9.8.7", "apache_tvm": "0.99"}.items():
        info = other / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (other / "agents").mkdir()
    (other / "agents" / "__init__.py").write_text("")
    return other


def test_a_host_with_another_version_is_refused_before_anything_of_ours_runs_there(
    cluster: Nodes, generic_spec: DeviceSpec, tmp_path: Path
) -> None:
    near, far = (replace(generic_spec, device_id=DeviceId(name)) for name in ("board-1", "board-4"))
    root = tmp_path / "there"
    transport = joined(cluster, [near, far], tmp_path)
    try:
        transport.start(far, 1)
        transport.start(near, 1)
        found = poll_until(transport, lambda messages: first(messages, AgentRefused) is not None, 60.0)
        refused = first(found, AgentRefused)
        assert refused.device_id == "board-4"
        ours = own_versions()
        assert f"tensor-fleet 9.8.7 (coordinator: {ours['tensor-fleet']})" in refused.reason
        assert f"apache-tvm 0.99 (coordinator: {ours['apache-tvm']})" in refused.reason
        assert "\n" not in refused.reason
        found += poll_until(transport, lambda messages: ups(messages) == {HERE}, 60.0)
        assert [one for one in found if one.device_id == "board-4"] == [refused]
        assert not root.exists()
        # Its host is asked again with each start: it may have been mended.
        transport.start(far, 2)
        again = first(poll_until(transport, lambda ms: first(ms, AgentRefused) is not None), AgentRefused)
        assert again == replace(refused, incarnation=2)
    finally:
        transport.close(10.0)


def test_the_devices_of_a_dead_host_are_gone_and_the_others_go_on(
    cluster: Nodes, generic_spec: DeviceSpec, tmp_path: Path
) -> None:
    specs = {name: replace(generic_spec, device_id=name) for name in (HERE, THERE)}
    transport = joined(cluster, specs.values(), tmp_path)
    try:
        for spec in specs.values():
            transport.start(spec, 1)
        transport.start(replace(generic_spec, device_id=DeviceId("board-3")), 1)
        found = poll_until(transport, lambda messages: ups(messages) == {HERE, THERE}, 120.0)
        unknown = first(found, AgentGone, "board-3")
        assert isinstance(unknown, AgentGone)
        assert "no living host of the cluster offers device:board-3" in unknown.reason
        assert (tmp_path / "here" / HERE / "lock").exists()
        assert (tmp_path / "there" / THERE / "lock").exists()

        # Stopped by a signal, an agent of another host is ended there.
        first_life = psutil.Process(transport.pids()[THERE, 1])
        first_life.suspend()
        transport.stop(THERE, 1, kill=True)
        poll_until(transport, lambda messages: first(messages, AgentGone, THERE) is not None)
        transport.start(specs[THERE], 2)
        poll_until(transport, lambda messages: ups(messages) == {THERE})

        agent = psutil.Process(transport.pids()[THERE, 2])
        agent.suspend()  # it must end with its host all the same
        cluster.raylets[THERE].kill()
        died = poll_until(transport, lambda messages: first(messages, AgentGone) is not None)
        [gone] = [one for one in died if isinstance(one, AgentGone)]
        assert (gone.device_id, gone.incarnation, gone.was_asked) == (THERE, 2, False)
        assert gone.is_blameless
        assert not psutil.wait_procs([agent], 10)[1]
        poll_until(transport, lambda messages: first(messages, Heartbeat, HERE) is not None)
        transport.start(specs[THERE], 3)
        again = first(poll_until(transport, lambda ms: first(ms, AgentGone) is not None), AgentGone)
        assert "no living host" in again.reason
    finally:
        transport.close(10.0)


def test_a_coordinator_whose_raylet_has_ended_says_so_and_ends(cluster: Nodes, tmp_path: Path) -> None:
    transport = joined(cluster, [], tmp_path)
    try:
        cluster.raylets["board-4"].kill()
        assert transport.poll(1.5) == []  # another host is another matter
        cluster.raylets[HERE].kill()
        with pytest.raises(FleetError, match="its raylet ended; have `ray start` run again here"):
            poll_until(transport, lambda _: False, 20.0)
    finally:
        transport.close(5.0)


def ups(messages: list[Message]) -> set[DeviceId]:
    return {one.device_id for one in messages if isinstance(one, AgentUp)}
