"""Start Ray on this host, or join a cluster that runs.

One of the modules that import Ray (the others are `agents.device.ray_actors`, and here `ray_cluster`,
`ray_hosts` and `ray_start`). A Ray of our own listens on the loopback interface only,
which is checked after the start, asks for a token (`fleet.transport.ray_token`), and has a folder of its own
(`fleet.transport.ray_folder`).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psutil

from agents.host.process_control import import_environment
from agents.records import DeviceId
from fleet.errors import FleetError
from fleet.transport.host_versions import join_refusal
from fleet.transport.ray_folder import RayFolder
from fleet.transport.ray_token import give_cluster_token, give_own_token

if TYPE_CHECKING:
    from ray.job_config import JobConfig

_LOG = logging.getLogger(__name__)

#: With 0 Ray's own address is the loopback one on Linux too, and every port of it binds there; read when
#: Ray is first imported. The name is Ray's (`ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR`).
_LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
#: Ray's settings for the coordinator of a cluster, read when Ray is first imported. A connection that is
#: silent for so long is tried, and made anew soon: where a link was down for a minute, TCP itself finds only
#: a minute later that it is up again. Not for the head: it would give up hosts as soon as their connections.
COORDINATOR_SETTINGS = {
    "RAY_grpc_client_keepalive_time_ms": "30000",
    "RAY_grpc_client_keepalive_timeout_ms": "10000",
}
#: Room for what processes hand each other. Records and workloads are small; Ray's default takes a third of
#: the host's memory.
_OBJECT_STORE_BYTES = 256 << 20
#: How long what a failed start has left may take to end.
_END_SECS = 20.0
#: Methods of Ray's `Node` that start its autoscaler, its dashboard, and what sends its logs to a terminal.
#: They take 270 MB and two seconds of a core, and the start waits for the dashboard.
_UNUSED_SERVERS = ("start_monitor", "start_api_server", "start_log_monitor")
#: Ray gives its processes 30 s; on a host whose cores are all busy that may be too short.
_MOST_STARTS = 3


def resource_of(device_id: DeviceId) -> str:
    """Name of the custom resource that places the actor of a device on its host."""
    return f"device:{device_id}"


def start_ray(cores: int) -> RayFolder:
    """Start a Ray instance of our own on the loopback interface.

    Returns:
        Its folder, to be closed after `ray.shutdown`. Where Ray does not start, its logs stay there until the
        next start of a later process.

    Raises:
        FleetError: Ray runs already, does not start, or is not confined to loopback.
    """
    if "ray" not in sys.modules:
        os.environ[_LOOPBACK_VARIABLE] = "0"
    # Ray runs its workers at niceness 15, and what is timed would inherit it: any other program on the host
    # would then go first.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # Ray's own spelling
    give_own_token()
    folder = RayFolder()
    for attempt in range(1, _MOST_STARTS + 1):
        try:
            _connect(
                address="local",
                num_cpus=max(2, cores),
                object_store_memory=_OBJECT_STORE_BYTES,
                include_dashboard=False,
                _temp_dir=str(folder.inner),
            )
            break
        except FleetError:
            raise
        except Exception as error:
            _end_servers(folder)
            if isinstance(error, ModuleNotFoundError) and error.name == "ray":
                raise  # the command says which extra brings it
            if attempt == _MOST_STARTS or "timed out during startup" not in str(error):
                raise FleetError(
                    f"Ray does not start on this host: {error}; a session left behind ends with `ray stop`, "
                    f"and Ray needs some free space in {folder.path.parent} (RAY_TMPDIR names another place)"
                ) from error
            _LOG.warning("Ray did not start in its own time; trying again")
    import ray

    address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # Ray publishes no types for it
    if address != "127.0.0.1":
        ray.shutdown()
        raise FleetError(
            f"Ray would listen on {address} instead of 127.0.0.1: it was imported before this session could "
            f"confine it; set {_LOOPBACK_VARIABLE}=0 in the environment and start again"
        )
    return folder


def join_ray(address: str) -> None:
    """Join the Ray cluster of a head, `host:port`; this host is one of its nodes (`docs/cluster.md`).

    Raises:
        FleetError: There is no token, others may read it, there is no cluster, no node of it on this host, or
            its Ray or Python is another version.
    """
    give_cluster_token(address)
    for name, value in COORDINATOR_SETTINGS.items():
        os.environ.setdefault(name, value)
    if address.rpartition(":")[0] in {"127.0.0.1", "localhost"} and "ray" not in sys.modules:
        os.environ[_LOOPBACK_VARIABLE] = "0"
    try:
        _connect(address=address)
    except FleetError:
        raise
    except Exception as error:
        words = " ".join(str(error).split())
        if refusal := join_refusal(words, address):
            raise FleetError(refusal) from error
        raise FleetError(
            f"the Ray cluster at {address} cannot be joined: {words:.400}; its head must run, this host must "
            "have joined it with `ray start`, and both need the same token"
        ) from error


def _end_servers(folder: RayFolder) -> None:
    """End what a failed start has begun: it would go on without us.

    Other threads of a daemon start processes as well. Those of Ray all name its folder.
    """
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if any(folder.path.name in argument for argument in child.cmdline()):
                child.kill()
                child.wait(_END_SECS)


def _connect(**options: Any) -> None:
    """Call `ray.init` with what every session of ours wants."""
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    if ray.is_initialized():
        raise FleetError("Ray runs in this process already; end it with ray.shutdown() first")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with _import_environment(), _few_servers():
            ray.init(log_to_driver=False, logging_level=logging.ERROR, job_config=_job_config(), **options)
    finally:
        # Ray's handlers end the process at once; ours close what is open first. Ray sets its own even where
        # it does not start, and the next try must not take them for ours.
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


@contextmanager
def _import_environment() -> Iterator[None]:
    """Have the processes that start in the block find this project, and no module of the present folder.

    Not for longer: this process may belong to another program, whose children look where they always did.
    """
    variables = import_environment()
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _few_servers() -> Iterator[None]:
    """Have Ray start without the processes that nothing here asks; `ray.init` has no option for them.

    Another version of Ray, whose methods have other names, starts them all the same.
    """
    from ray._private.node import Node

    methods = {name: vars(Node)[name] for name in _UNUSED_SERVERS if name in vars(Node)}
    for name in methods:
        setattr(Node, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name, method in methods.items():
            setattr(Node, name, method)


def _job_config() -> JobConfig:
    """What Ray hears of this process: not the folders of its script and of its user.

    Every worker, on every host, would look for modules there first, with no confinement.
    """
    from ray.job_config import JobConfig

    class WithoutFolders(JobConfig):
        def _serialize(self) -> str:
            self._py_driver_sys_path.clear()
            return super()._serialize()

    return WithoutFolders()
