"""Start Ray on this host, put one actor on each device, end both in order.

One of the modules that import Ray (the others are `agents.device.ray_actors`, `fleet.models.ray_train`, and
here `ray_cluster`, `ray_hosts` and `ray_start`). A Ray of our own listens on the loopback interface only,
which is checked after the start, asks for a token (`fleet.transport.ray_token`), and has a folder of its own
(`fleet.transport.ray_folder`).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from agents.device.device_cores import ELSEWHERE, agent_cores, quiet_cores
from agents.host.probe import core_groups
from agents.host.process_control import pin_process
from agents.records import DeviceId, DeviceSpec
from fleet.errors import FleetError
from fleet.transport.host_versions import join_refusal
from fleet.transport.ray_folder import RayFolder
from fleet.transport.ray_settings import COORDINATOR_SETTINGS
from fleet.transport.ray_token import give_cluster_token, give_own_token

_LOG = logging.getLogger(__name__)

#: With 0 Ray's own address is the loopback one on Linux too, and every port of it binds there; read when
#: Ray is first imported. The name is Ray's (`ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR`).
_LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
#: Records and workloads are small; Ray's default takes a third of the host's memory.
_OBJECT_STORE_BYTES = 256 << 20
_CLOSE_TIMEOUT_SEC = 20.0
_RESTART_TIMEOUT_SEC = 60.0
#: Ray gives its processes 30 s; on a host whose cores are all busy that may be too short.
_MOST_STARTS = 3
#: A fresh agent takes about a second to start.
_RESTART_POLL_SEC = 0.2


def resource_of(device_id: DeviceId) -> str:
    """Name of the custom resource that places the actor of a device on its host."""
    return f"device:{device_id}"


class RaySession:
    """A Ray instance of our own with one actor a device.

    Args:
        specs: Devices to reach; all on this host.
        spool_root: Folder for the devices' spools.

    Raises:
        FleetError: Ray does not start, is not confined to loopback, or an actor refuses its device.
    """

    def __init__(self, specs: Sequence[DeviceSpec], spool_root: Path) -> None:
        self._actors: dict[DeviceId, Any] = {}
        self._folder: RayFolder | None = None
        self._usable_cores = os.sched_getaffinity(0)
        # Ray's processes inherit this: with a dozen of them awake beside a timing, repeats differed by 7 %.
        timing = {core for spec in specs if spec.kind not in ELSEWHERE for core in spec.cores}
        # Threads of our own too: those of the store's libraries write while something is timed.
        pin_process(quiet_cores(sorted(timing), sorted(self._usable_cores), core_groups()))
        try:
            resources = {resource_of(spec.device_id): 1.0 for spec in specs}
            self._folder = start_ray(resources, len(self._usable_cores))
            self._create(specs, spool_root)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RaySession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def device_ids(self) -> list[DeviceId]:
        """Devices with a live actor, in the order of the specs."""
        return list(self._actors)

    def call(self, device_id: DeviceId, method: str, *arguments: Any) -> Any:
        """Call a method of a device's actor and wait for its answer.

        Raises:
            FleetError: The actor raised, or died.
        """
        return self.result(self.submit(device_id, method, *arguments), device_id)

    def await_restart(self, device_id: DeviceId) -> None:
        """Wait until the agent that Ray starts in place of a dead one answers.

        Raises:
            ActorDiedError: It does not within a minute.
        """
        deadline = time.monotonic() + _RESTART_TIMEOUT_SEC
        while True:
            try:
                self.call(device_id, "pids")
            except ActorDiedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RESTART_POLL_SEC)
            else:
                return

    def submit(self, device_id: DeviceId, method: str, *arguments: Any) -> Any:
        """Start a call; the returned reference goes to `wait` and `result`."""
        return getattr(self._actors[device_id], method).remote(*arguments)

    def wait(self, references: Iterable[Any], timeout_sec: float | None = None) -> list[Any]:
        """Wait until at least one call is over; returns those that are (empty on time-out)."""
        import ray

        ready, _ = ray.wait(list(references), num_returns=1, timeout=timeout_sec)
        return list(ready)

    def result(self, reference: Any, device_id: DeviceId) -> Any:
        """The answer of a call that is over.

        Raises:
            FleetError: The actor raised, or died.
        """
        import ray

        try:
            return ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise FleetError(f"device {device_id}: {error.cause}") from error
        except ray.exceptions.RayActorError as error:
            raise ActorDiedError(
                f"device {device_id}: its agent process died ({str(error).splitlines()[0]}); "
                "Ray starts a fresh one"
            ) from error

    def close(self) -> None:
        """End the agents' worker processes, the actors, and Ray."""
        import ray

        pin_process(sorted(self._usable_cores))
        if not ray.is_initialized():
            return
        references = [actor.close.remote() for actor in self._actors.values()]
        if references:
            ray.wait(references, num_returns=len(references), timeout=_CLOSE_TIMEOUT_SEC)
        for actor in self._actors.values():
            ray.kill(actor)
        self._actors.clear()
        ray.shutdown()
        if self._folder is not None:
            self._folder.close()

    def _create(self, specs: Sequence[DeviceSpec], spool_root: Path) -> None:
        from agents.device.ray_actors import create

        for spec in specs:
            folder = spool_root.absolute() / spec.device_id
            usable = agent_cores(spec, specs, sorted(self._usable_cores), core_groups())
            self._actors[spec.device_id] = create(spec, folder, resource_of(spec.device_id), usable)
        for device_id in list(self._actors):
            self.call(device_id, "pids")  # raises what the constructor raised


class ActorDiedError(FleetError):
    """The agent process of a device ended; a call to it has no answer, and Ray starts it afresh."""


def start_ray(
    resources: Mapping[str, float], cores: int, object_store_bytes: int = _OBJECT_STORE_BYTES
) -> RayFolder:
    """Start a Ray instance of our own on the loopback interface.

    Args:
        resources: Custom resources of this host.
        cores: Logical CPUs that it may use.
        object_store_bytes: Room for what processes hand each other.

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
        before = set(psutil.Process().children())
        try:
            _connect(
                address="local",
                num_cpus=max(2, cores),
                resources=dict(resources),
                object_store_memory=object_store_bytes,
                include_dashboard=False,
                _temp_dir=str(folder.inner),
            )
            break
        except FleetError:
            raise
        except Exception as error:
            # What it had started would go on without us.
            for child in set(psutil.Process().children()) - before:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
                    child.wait(_CLOSE_TIMEOUT_SEC)
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
    """Join a Ray cluster that runs, this host being one of its nodes (`docs/cluster.md`).

    Args:
        address: `host:port` of its head.

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


def _connect(**options: Any) -> None:
    """Call `ray.init` with what every session of ours wants."""
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    if ray.is_initialized():
        raise FleetError("Ray runs in this process already; end it with ray.shutdown() first")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    finally:
        # Ray's handlers end the process at once; ours close what is open first. Ray sets its own even where
        # it does not start, and the next try must not take them for ours.
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)
