"""The way to agents in Ray actors: on this host with a Ray of our own, or in a cluster that runs.

A device that is measured has a process of its own, replay devices share processes. Each process has one call
out that fetches its messages (`AgentHost.take`); a call that fails is how the end of a process is heard of.
What is decided here is only what a process of ours needs to be ended.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from agents.device.device_cores import quiet_cores
from agents.device.messages import AgentGone, AgentRefused, AgentRequest, BeginAgent, Message, Stop
from agents.host.device_kinds import KINDS
from agents.host.probe import core_groups
from agents.host.process_control import pin_process
from agents.records import DeviceId, DeviceKind, DeviceSpec, Protocol
from fleet.errors import FleetError
from fleet.transport.ray_cluster import Cluster
from fleet.transport.ray_folder import RayFolder
from fleet.transport.ray_hosts import HostProcess
from fleet.transport.ray_session import join_ray, resource_of, start_ray
from fleet.transport.transport import HEARTBEAT_SECS, AgentTransport

_LOG = logging.getLogger(__name__)

#: Heartbeats of replay devices: a thousand of them say little that is new.
REPLAY_HEARTBEAT_SECS = 10.0
#: Replay devices in one process.
REPLAY_PER_PROCESS = 256
#: Longest that one call for messages waits on the agents' side.
_TAKE_SECS = 60.0
#: From the creation of a process to its first answer; importing takes a second on an idle core.
_START_SECS = 120.0
#: After which a killed process is killed by the kernel: by itself it does not end.
_INSIST_SECS = 0.5
#: After which a killed process that does not end is given up: its host is out of reach.
_KILL_SECS = 10.0
#: A process of several replay devices that does not stop one of them in this time hangs, and is killed.
_STOP_SECS = 10.0
#: How often the transport looks whether our own Ray still has its servers.
_LOOK_SECS = 1.0
_Key = tuple[DeviceId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """How agents are reached, and how often they speak."""

    #: `host:port` of a cluster's head; None starts a Ray of our own on the loopback interface.
    address: str | None = None
    #: Folder for the devices' spools on the other hosts of a cluster; `~` is the home of Ray's user there.
    remote_spool_root: str = "~/.local/state/tensor-fleet/spool"
    #: How often an agent says that it is alive, and an agent of a replay device.
    heartbeat_secs: float = HEARTBEAT_SECS
    replay_heartbeat_secs: float = REPLAY_HEARTBEAT_SECS
    #: Tells the devices whose agents say whether nobody else uses their hosts.
    is_idle_only: Callable[[DeviceId], bool] = lambda _: False
    #: Seconds in which this process ran: an agent must not be ended for a pause of ours.
    clock: Callable[[], float] = time.monotonic


class RayTransport(AgentTransport):
    """Implements `fleet.transport.transport.AgentTransport`.

    Args:
        specs: The devices known now; others may be started later. They tell which cores time something.
        spool_root: Folder of this host for the devices' spools.
        protocol: How the fleet measures.
        options: The cluster, and how often agents speak.

    Raises:
        FleetError: Ray does not start, is not confined to loopback, or the cluster cannot be joined.
    """

    def __init__(
        self,
        specs: Iterable[DeviceSpec],
        spool_root: Path,
        protocol: Protocol,
        options: RayOptions = RayOptions(),
    ) -> None:
        self._specs = {spec.device_id: spec for spec in specs}
        self._spool_root, self._protocol, self._options = spool_root.absolute(), protocol, options
        self._clock = options.clock
        self._processes: list[HostProcess] = []
        #: Numbers in the names of files: a name that comes again would give one process the words of another.
        self._numbers = itertools.count(1)
        self._places: dict[_Key, HostProcess] = {}
        self._news: list[Message] = []
        #: When a replay device that was told to stop should have.
        self._stops: dict[_Key, float] = {}
        self._usable = tuple(sorted(os.sched_getaffinity(0)))
        self._is_own = options.address is None
        #: Of our own Ray.
        self._folder: RayFolder | None = None
        self._look_again_at = 0.0
        #: Processes whose ends are not told yet: all hosts are asked at once, however many a lost one had.
        self._ended: list[HostProcess] = []
        self._quiet: tuple[int, ...] = ()
        self._spare_timing_cores()
        try:
            if options.address is None:
                self._folder = start_ray(len(self._usable))
            else:
                join_ray(options.address)
            self._cluster = Cluster(is_own=self._is_own)
        except BaseException:
            pin_process(self._usable)
            raise

    def start(self, spec: DeviceSpec, incarnation: int) -> None:
        """See `AgentTransport`."""
        self._specs[spec.device_id] = spec
        self._spare_timing_cores()
        key = (spec.device_id, incarnation)
        is_replay, options = spec.kind is DeviceKind.REPLAY, self._options
        node, neighbours = self._cluster.own_node, list(self._specs.values())
        if not self._is_own and not is_replay:
            host = self._cluster.node_with(resource_of(spec.device_id))
            if host is None:
                resource = resource_of(spec.device_id)
                reason = (
                    f"no living host of the cluster offers {resource}; its host offers it with `python -m "
                    f"fleet.transport.ray_start --address ... --resources '{{\"{resource}\": 1}}'`"
                )
                self._news.append(
                    AgentGone(
                        device_id=spec.device_id, incarnation=incarnation, reason=reason, is_host_gone=True
                    )
                )
                return
            node = host
            neighbours = [
                neighbour for neighbour in neighbours if resource_of(neighbour.device_id) in node.resources
            ]
        is_here = node.node_id == self._cluster.own_node.node_id
        root = str(self._spool_root) if is_here else self._options.remote_spool_root
        process = self._shared_process() if is_replay else None
        if process is None:
            name = f"replay-{next(self._numbers)}-{incarnation}" if is_replay else spec.device_id
            process = HostProcess(
                self._cluster,
                node,
                is_shared=is_replay,
                heartbeat_secs=options.replay_heartbeat_secs if is_replay else options.heartbeat_secs,
                stderr_path=f"{root}/{name}.stderr",
                resource=None if self._is_own or is_replay else resource_of(spec.device_id),
                clock=self._clock,
            )
            self._processes.append(process)
        process.keys.add(key)
        self._places[key] = process
        process.requests.append(
            BeginAgent(
                device_id=spec.device_id,
                incarnation=incarnation,
                spec=spec,
                protocol=spec.protocol(self._protocol),
                spool_folder=f"{root}/{spec.device_id}",
                usable_cores=self._usable if is_here else None,
                neighbours=tuple(neighbours),
                fleet_pids=self._fleet_pids(spec.device_id, is_here=is_here),
            )
        )

    def stop(self, device_id: DeviceId, incarnation: int, *, kill: bool) -> None:
        """See `AgentTransport`."""
        key = (device_id, incarnation)
        process = self._places.get(key)
        if process is None:
            return
        if kill and not process.is_shared:
            process.kill("it was told to stop at once")
            return
        process.requests.append(Stop(device_id=device_id, incarnation=incarnation, kill=kill))
        if kill:
            self._stops.setdefault(key, self._clock() + _STOP_SECS)

    def forget(self, device_id: DeviceId) -> None:
        """See `AgentTransport`. Its timing cores are free for others."""
        self._specs.pop(device_id, None)
        self._spare_timing_cores()

    def poll(self, timeout_secs: float) -> list[Message]:
        """See `AgentTransport`. What was asked since the last call is sent now.

        A Ray of our own that broke is started again, which takes some seconds; its agents are gone.

        Raises:
            FleetError: It cannot be started again, or the cluster has given up this host.
        """
        self._look_at_ray()
        for process in self._processes:
            process.send(_TAKE_SECS)
        self._look_at_clocks()
        calls = {process.call: process for process in self._processes if process.call is not None}
        is_due = bool(self._news) or any(process.is_end_due for process in self._ended)
        last_calls = [call for process in self._ended for call in process.calls]
        over = set(self._cluster.ready([*calls, *last_calls], 0.0 if is_due else timeout_secs))
        for call, process in calls.items():
            if call in over:
                self._receive(process)
        for process in self._ended:
            self._news += process.last_messages(over)
        self._ended = [process for process in self._ended if process.keys]
        news, self._news = self._news, []
        return news

    def close(self, timeout_secs: float) -> None:
        """See `AgentTransport`. Ends Ray, or leaves the cluster."""
        deadline = time.monotonic() + timeout_secs
        endings = [process.close() for process in self._processes if process.is_answering]
        self._cluster.wait_all(endings, max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            process.kill("the coordinator ended")
        for patience in (_INSIST_SECS, _KILL_SECS):
            calls = [process.call for process in self._processes if process.call is not None]
            if self._cluster.wait_all(calls, patience):
                break
            for process in self._processes:
                process.insist()
        self._processes.clear()
        self._places.clear()
        self._leave()
        pin_process(self._usable)

    def pids(self) -> dict[_Key, int]:
        """Process of each agent whose process has answered; several replay devices have the same one."""
        return {key: process.name.pid for key, process in self._places.items() if process.name is not None}

    def _fleet_pids(self, device_id: DeviceId, *, is_here: bool) -> tuple[int, ...] | None:
        """Processes whose work is the fleet's own on the host of an agent that must tell of others'."""
        if not self._options.is_idle_only(device_id):
            return None
        return (os.getpid(),) if is_here else ()

    def _ask(self, request: AgentRequest) -> None:
        process = self._places.get((request.device_id, request.incarnation))
        if process is not None:
            process.requests.append(request)

    def _receive(self, process: HostProcess) -> None:
        """Take what a call for messages gave: messages, or the end of the process."""
        messages, end = process.answer()
        for message in messages:
            key = (message.device_id, message.incarnation)
            if key not in process.keys:
                continue  # told as gone before its process could say so
            self._news.append(message)
            if isinstance(message, AgentGone | AgentRefused):
                process.keys.discard(key)
                self._forget(key)
                if not process.is_shared:
                    process.kill("")
        if end is not None:
            self._end(process, end)

    def _look_at_ray(self) -> None:
        """Start our Ray again if one of its servers has ended.

        Raises:
            FleetError: It is of a cluster; or it cannot be started again.
        """
        now = time.monotonic()
        if now < self._look_again_at:
            return
        self._look_again_at = now + _LOOK_SECS
        why = self._cluster.broken()
        if why is None:
            return
        if not self._is_own:
            raise FleetError(
                f"the Ray of this host broke down: {why}; have `ray start` run again here, then start again"
            )
        _LOG.warning("Ray is started again: %s", why)
        for process in list(self._processes):
            process.insist()
            self._end(process, f"Ray broke down: {why}", is_blameless=True)
        self._leave()
        self._folder = start_ray(len(self._usable))
        self._cluster = Cluster(is_own=True)

    def _leave(self) -> None:
        self._cluster.leave()
        if self._folder is not None:
            self._folder.close()

    def _look_at_clocks(self) -> None:
        now = self._clock()
        for process in list(self._processes):
            if process.killed_at is None:
                if process.name is None and now > process.began + _START_SECS:
                    process.kill(f"its process was not ready in {_START_SECS:g} s")
            elif now > process.killed_at + _KILL_SECS:
                process.is_host_gone = True
                self._end(process, f"its end could not be seen in {_KILL_SECS:g} s: its host is out of reach")
            elif now > process.killed_at + _INSIST_SECS:
                process.insist()
        for key, deadline in list(self._stops.items()):
            if now > deadline and key in self._places:
                del self._stops[key]
                self._places[key].kill("a replay device of its process did not stop when told to")

    def _end(self, process: HostProcess, reason: str, *, is_blameless: bool = False) -> None:
        """A process is no more, or out of reach: so are its agents."""
        self._processes.remove(process)
        if not self._is_own and process.killed_at is None and self._cluster.is_host_dead():
            raise FleetError(
                "the Ray cluster has given up this host (its raylet ended, or it was cut off from the head); "
                "have `ray start` run again here, then start again"
            )
        for key in process.keys:
            self._forget(key)
        process.end(reason, is_blameless=is_blameless)
        self._ended.append(process)

    def _forget(self, key: _Key) -> None:
        self._places.pop(key, None)
        self._stops.pop(key, None)

    def _shared_process(self) -> HostProcess | None:
        """A process for one more replay device."""
        for process in self._processes:
            has_room = process.is_shared and len(process.keys) < REPLAY_PER_PROCESS
            if has_room and process.killed_at is None:
                return process
        return None

    def _spare_timing_cores(self) -> None:
        """Keep this process, and the threads that write, off the cores that time something."""
        timing = {
            core for spec in self._specs.values() if KINDS[spec.kind].uses_host_cores for core in spec.cores
        }
        quiet = quiet_cores(sorted(timing), self._usable, core_groups())
        if quiet != self._quiet:
            self._quiet = quiet
            pin_process(quiet)
