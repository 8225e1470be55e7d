"""The Ray that this process is connected to, and the hosts of its cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agents.host.process_control import ProcessName, is_alive
from fleet.transport.host_versions import SHARED_PACKAGES

#: Ray's processes without which it does not work.
_SERVERS = frozenset({"raylet", "gcs_server"})
#: Hosts come and go; looking takes some milliseconds.
_NODES_SECS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A living host of the cluster."""

    node_id: str
    #: Custom resources that it offers.
    resources: frozenset[str]


class Cluster:
    """The Ray that this process is connected to.

    Args:
        is_own: Whether this process started it, with its own Python and packages.
    """

    def __init__(self, *, is_own: bool) -> None:
        import psutil
        import ray

        self._servers = {
            child.name(): ProcessName.of(child.pid)
            for child in psutil.Process().children()
            if is_own and child.name() in _SERVERS
        }
        self.is_own = is_own
        self.own_node = Node(node_id=ray.get_runtime_context().get_node_id(), resources=frozenset())
        self._nodes: list[Node] = []
        self._looked_at = -_NODES_SECS
        self._keepers: dict[str, Any] = {}
        if not is_own:
            self._servers = self._raylet_here()

    def broken(self) -> str | None:
        """Why this Ray will not work again; None while it may. Cheap.

        Without its raylet nothing starts any more; without its head Ray ends this process after a minute. Of
        a cluster only this host's raylet can be seen.
        """
        ended = [name for name, process in self._servers.items() if not is_alive(process)]
        return f"its {ended[0]} ended" if ended else None

    def is_host_dead(self) -> bool:
        """Whether the cluster has given up the host that this process runs on."""
        return self.own_node.node_id not in {node.node_id for node in self._look()}

    def node_with(self, resource: str) -> Node | None:
        """The living host that offers a resource."""
        return next((node for node in self._look() if resource in node.resources), None)

    def ready(self, calls: list[Any], timeout_secs: float) -> list[Any]:
        """The calls that are over; waits for the first one."""
        import ray

        if not calls:
            time.sleep(timeout_secs)
            return []
        done, _ = ray.wait(calls, num_returns=1, timeout=timeout_secs)
        if done:
            done, _ = ray.wait(calls, num_returns=len(calls), timeout=0)
        return list(done)

    def wait_all(self, calls: Sequence[Any], timeout_secs: float) -> bool:
        """Wait until all calls are over, however they end; false if some are not in the time."""
        import ray

        if not calls:
            return True
        _, unfinished = ray.wait(list(calls), num_returns=len(calls), timeout=timeout_secs)
        return not unfinished

    def keeper(self, node_id: str) -> Any | None:
        """What ends processes on another host; None for this one."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        from agents.device.ray_actors import ProcessControlActor

        if node_id == self.own_node.node_id:
            return None
        if node_id not in self._keepers:
            where = On(node_id, soft=False)
            self._keepers[node_id] = ProcessControlActor.options(scheduling_strategy=where).remote()  # type: ignore[attr-defined]
        return self._keepers[node_id]

    def versions(self, node_id: str) -> Any:
        """Ask a host for what its processes run: the call to wait for (`ray_actors.host_versions`)."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        from agents.device.ray_actors import host_versions

        return host_versions.options(scheduling_strategy=On(node_id, soft=False)).remote(SHARED_PACKAGES)

    def _raylet_here(self) -> dict[str, ProcessName]:
        """The raylet of this host where somebody else started it: the one with its socket."""
        import psutil
        import ray

        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        path = next(
            (node["RayletSocketName"] for node in nodes if node["NodeID"] == self.own_node.node_id), None
        )
        for process in psutil.process_iter(["cmdline"]):
            if f"--raylet_socket_name={path}" in (process.info["cmdline"] or ()):
                return {"raylet": ProcessName.of(process.pid)}
        return {}

    def _look(self) -> list[Node]:
        """The living hosts, as of a moment ago."""
        import ray

        now = time.monotonic()
        if now >= self._looked_at + _NODES_SECS:
            self._looked_at = now
            self._nodes = [
                Node(node_id=node["NodeID"], resources=frozenset(node["Resources"]))
                for node in ray.nodes()  # type: ignore[no-untyped-call]
                if node["Alive"]
            ]
        return self._nodes

    def leave(self) -> None:
        """End the connection, and Ray if it is our own."""
        import ray

        self._keepers.clear()
        ray.shutdown()
