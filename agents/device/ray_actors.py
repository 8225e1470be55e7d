"""The Ray skin over `AgentHost`: actors without logic of their own, made by `fleet.transport.ray_hosts`."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import ray

from agents.device.agent_host import AgentHost
from agents.device.messages import AgentRequest, Message
from agents.device.replay import ReplayWorkerFactory, open_device
from agents.host.process_control import (
    ProcessName,
    begin_process,
    cut_output,
    die_with_parent,
    end_process,
    keep_stderr,
    oom_kills,
    stderr_tail,
    work_or_end,
)


@ray.remote(  # type: ignore[call-overload]  # Ray's own types lack two of these
    num_cpus=0,
    max_restarts=0,
    max_task_retries=0,
    concurrency_groups={"take": 1},
    enable_task_events=False,
)
class AgentHostActor:
    """`AgentHost` behind a Ray handle: one device's agent, or `many` replay devices'. Ray never restarts it.

    The file at `stderr_path` gets what the process prints.
    """

    def __init__(self, many: bool, heartbeat_secs: float, stderr_path: str) -> None:
        begin_process()  # its Ray may have been started by other means than ours
        # An agent that is stopped by a signal would survive its raylet, and keep the spool.
        die_with_parent(os.getppid())
        keep_stderr(Path(stderr_path).expanduser())
        open_worker = ReplayWorkerFactory().open if many else open_device
        self._host = AgentHost(open_worker, host=socket.gethostname(), heartbeat_secs=heartbeat_secs)
        self._thread = threading.Thread(
            target=work_or_end, args=(self._host.serve,), name="agent", daemon=True
        )
        self._thread.start()

    def who(self) -> ProcessName:
        """The process that this runs in."""
        return ProcessName.of(os.getpid())

    def ask(self, requests: list[AgentRequest]) -> None:
        """See `AgentHost.ask`."""
        self._host.ask(requests)

    @ray.method(concurrency_group="take")
    def take(self, confirmed: int, timeout_secs: float) -> tuple[int, list[Message]]:
        """See `AgentHost.take`."""
        cut_output(2)
        return self._host.take(confirmed, timeout_secs)

    def close(self, requests: list[AgentRequest]) -> None:
        """End every agent after the request that it is doing, and the acknowledgements of the last ones."""
        self._host.ask(requests)
        self._host.close()
        self._thread.join()


@ray.remote(num_cpus=0, max_retries=0)
def host_versions(packages: Sequence[str]) -> dict[str, str]:
    """Versions of packages and of Python on the host that this runs on, and its name as `host`.

    Ray sends the function itself, and the answer is plain data. So it works with whatever version of this
    project the host has: nothing of it may be named here. The version of what is not installed is empty.
    """
    import importlib.metadata
    import platform
    import socket

    versions = {"python": platform.python_version(), "host": socket.gethostname()}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = ""
    return versions


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0)
class ProcessControlActor:
    """`agents.host.process_control` on another host of the cluster."""

    def end_process(self, name: ProcessName) -> bool:
        """See `agents.host.process_control.end_process`."""
        return end_process(name)

    def stderr_tail(self, path: str) -> str:
        """See `agents.host.process_control.stderr_tail`."""
        return stderr_tail(Path(path).expanduser())

    def oom_kills(self) -> int | None:
        """See `agents.host.process_control.oom_kills`."""
        return oom_kills()
