"""A real coordinator with many replay devices: the part `fleet` of `benchmarks.scale`.

The devices answer from records that are made up for load (`benchmarks.made_up`), through the same
`agents.device.replay` that answers from real ones, in processes of their own without Ray. Each runs one
`AgentHost` with many devices, as `agents.device.ray_actors` has it, behind a pipe: so the agents' work is not
the coordinator's, but what it costs to send requests and to receive messages is. On a host with few cores
they compete with the coordinator, so the coordinator's processor time is told apart.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from agents.device.agent_host import AgentHost
from agents.device.messages import AgentRequest, BeginAgent, Message, Stop
from agents.device.replay import ReplayWorkerFactory
from agents.records import Candidate, DeviceId, DeviceSpec, Protocol
from benchmarks.harness import Figures, ms_of, stopwatch
from benchmarks.made_up import (
    FixedDevices,
    device_name,
    made_up_rows,
    made_up_workloads,
    own_mb,
    put_measured,
    record_of,
    replay_specs,
)
from fleet.config.sections import WorkloadsSection
from fleet.engine.context import CoordinatorSettings, EngineContext
from fleet.engine.coordinator import Coordinator
from fleet.engine.notices import Notices
from fleet.interchange.export_store import export
from fleet.store.store import Store
from fleet.transport.transport import AgentTransport

#: How often every agent says that it is alive, as with `fleet.transport.ray_transport`.
_HEARTBEAT_SECS = 10.0


def _serve(pipe: Connection) -> None:
    """What each process does: one thread reads requests, one does them, this one sends messages."""
    factory = ReplayWorkerFactory()
    host = AgentHost(factory.open, host="load", heartbeat_secs=_HEARTBEAT_SECS)

    # One answer at a time, as with a call of `take` over Ray: what comes meanwhile is in the next one.
    may_send = threading.Semaphore()

    def read() -> None:
        while (asked := pipe.recv()) is not None:
            if asked:
                host.ask(asked)
            else:
                may_send.release()
        host.close()
        may_send.release()

    reader, worker = (threading.Thread(target=one, daemon=True) for one in (read, host.serve))
    reader.start()
    worker.start()
    taken = 0
    while True:
        may_send.acquire()
        messages: list[Message] = []
        while not messages and reader.is_alive():
            taken, messages = host.take(taken, 0.2)
        if not reader.is_alive():
            break
        pipe.send((messages, time.process_time()))
    worker.join()
    factory.close()
    pipe.close()


class ProcessTransport(AgentTransport):
    """Implements `fleet.transport.transport.AgentTransport` for replay devices whose processes do not die.

    Args:
        protocol: How the fleet measures.
        processes: Over how many processes the devices are spread.

    Attributes:
        agents_cpu_secs: Processor time that each process has taken.
        waited_secs: How long `poll` waited for the first message.
    """

    def __init__(self, *, protocol: Protocol, processes: int) -> None:
        # Spawned: a fork would share the memory of this process and what it has open.
        context = multiprocessing.get_context("spawn")
        self._protocol = protocol
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for _ in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._pipe_of: dict[DeviceId, Connection] = {}
        self._requests: dict[Connection, list[AgentRequest]] = {pipe: [] for pipe in self._pipes}
        self.agents_cpu_secs = dict.fromkeys(self._pipes, 0.0)
        self.waited_secs = 0.0

    def start(self, spec: DeviceSpec, incarnation: int) -> None:
        """See `AgentTransport`."""
        self._pipe_of.setdefault(spec.device_id, self._pipes[len(self._pipe_of) % len(self._pipes)])
        self._ask(
            BeginAgent(
                device_id=spec.device_id,
                incarnation=incarnation,
                spec=spec,
                protocol=spec.protocol(self._protocol),
                spool_folder="",
            )
        )

    def stop(self, device_id: DeviceId, incarnation: int, *, kill: bool) -> None:
        """See `AgentTransport`."""
        self._ask(Stop(device_id=device_id, incarnation=incarnation, kill=kill))

    def poll(self, timeout_secs: float) -> list[Message]:
        """Hand over the requests, then see `AgentTransport`."""
        for pipe, requests in self._requests.items():
            if requests:
                pipe.send(requests)
                requests.clear()
        elapsed = stopwatch()
        ready = wait(self._pipes, timeout_secs)
        self.waited_secs += elapsed()
        arrived: list[Message] = []
        for pipe in self._pipes:
            if pipe in ready:
                messages, self.agents_cpu_secs[pipe] = pipe.recv()
                arrived += messages
                pipe.send([])
        return arrived

    def close(self, timeout_secs: float = 5.0) -> None:
        """End every agent."""
        for pipe in self._pipes:
            pipe.send(None)
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            # What it sends last would hold its end up.
            with suppress(EOFError):
                while pipe.poll(timeout_secs):
                    pipe.recv_bytes()
            pipe.close()
            process.join(timeout_secs)

    def _ask(self, request: AgentRequest) -> None:
        self._requests[self._pipe_of[request.device_id]].append(request)


#: What the devices answer from.
RECORDED_WORKLOADS, RECORDED_CANDIDATES = 20, 256
_RECORDED_CHOICE = WorkloadsSection(
    networks=("resnet-50",), count=RECORDED_WORKLOADS, min_flops=0, max_flops=1e30
)

#: Processes of the devices.
_PROCESSES = 2
#: How long the coordinator runs, and the parts of that time that are reported apart: in the first ones all
#: devices begin at once.
_SECS, WINDOWS = 60.0, 12


def recorded_file(folder: Path, candidates: int = RECORDED_CANDIDATES) -> Path:
    """Records of one device, made up, as `fleet export` writes them: so many candidates of each workload."""
    rng, workloads = np.random.default_rng(3), made_up_workloads(RECORDED_WORKLOADS, "f")
    records = []
    for workload in workloads:
        rows = made_up_rows(rng, candidates).select(["trace", "run_secs"]).to_pylist()
        for row in rows:
            candidate = Candidate(workload_id=workload.workload_id, trace=row["trace"], dialect="autotvm")
            device = DeviceId("recorded")
            records.append(record_of(candidate, device_id=device, run_secs=tuple(row["run_secs"])))
    with Store.open(folder / "recorded-store") as store:
        put_measured(store, "recorded", workloads, records)
        path = folder / "recorded.parquet"
        export(store, path, "parquet")
    return path


def made_up_coordinator(
    root: Path,
    store: Store,
    transport: AgentTransport,
    specs: Mapping[DeviceId, DeviceSpec],
    choice: WorkloadsSection,
) -> Coordinator:
    """A coordinator of some devices, with the settings that users have."""
    return Coordinator(
        EngineContext(
            root=root,
            store=store,
            transport=transport,
            source=FixedDevices(specs),
            settings=CoordinatorSettings(protocol=Protocol(), choice=choice),
            notices=Notices(None),
        )
    )


def records_of(coordinator: Coordinator) -> int:
    """How many records a coordinator has counted."""
    return coordinator._parts.store.rows


def devices_up(view: Mapping[str, Any]) -> int:
    """How many devices of a coordinator's view can be used."""
    return sum(one["state"] in ("idle", "leased") for one in view["devices"].values())


@contextmanager
def recorded_fleet(folder: Path, devices: int) -> Iterator[tuple[Coordinator, ProcessTransport]]:
    """A coordinator of devices in other processes that answer from made-up records, until the block ends."""
    specs = replay_specs(map(device_name, range(devices)), recorded_file(folder))
    transport = ProcessTransport(protocol=Protocol(), processes=_PROCESSES)
    with Store.open(folder / "store") as store:
        coordinator = made_up_coordinator(folder / "root", store, transport, specs, _RECORDED_CHOICE)
        try:
            yield coordinator, transport
        finally:
            coordinator.close()
            transport.close()


def measure_fleet(folder: Path, *, devices: int) -> Figures:
    """Let a coordinator run for a minute after its devices are up."""
    turns: list[float] = []
    memory: list[float] = []
    windows: list[float] = []
    with recorded_fleet(folder, devices) as (coordinator, transport):
        began = time.perf_counter()
        while devices_up(coordinator.view()) < devices and time.perf_counter() - began < _SECS:
            coordinator.turn(0.05)
        up_secs, before = time.perf_counter() - began, records_of(coordinator)
        transport.waited_secs, agents_cpu_secs = 0.0, sum(transport.agents_cpu_secs.values())
        plans = _timed_plans(coordinator)
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(WINDOWS):
            window_began, window_before = time.perf_counter(), records_of(coordinator)
            while time.perf_counter() - window_began < _SECS / WINDOWS:
                started, waited = time.perf_counter(), transport.waited_secs
                coordinator.turn(0.05)
                turns.append(time.perf_counter() - started - (transport.waited_secs - waited))
            more = records_of(coordinator) - window_before
            windows.append(more / (time.perf_counter() - window_began))
            memory.append(own_mb())
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        records, view = records_of(coordinator) - before, coordinator.view()
    return {
        "devices": devices,
        "states": Counter(one["state"] for one in view["devices"].values()),
        "up_secs": up_secs,
        "records": records,
        "records_per_s": records / took,
        # Of this process alone; the devices' processes took `agents_cpu_secs`.
        "records_per_cpu_s": records / cpu,
        "records_per_s_of_windows": windows,
        "agents_cpu_secs": sum(transport.agents_cpu_secs.values()) - agents_cpu_secs,
        "waited_secs": transport.waited_secs,
        **ms_of("ms_per_turn", turns),
        # From a device that asks to its jobs, requests to agents included.
        **ms_of("plan_ms", plans),
        "memory_mb": memory,
    }


def _timed_plans(coordinator: Coordinator) -> list[float]:
    """Seconds that each device's plan takes from now on."""
    plans: list[float] = []
    planner = coordinator._parts.planner
    want = planner.want

    def timed(room: Mapping[DeviceId, int]) -> None:
        elapsed = stopwatch()
        want(room)
        plans.extend([(elapsed()) / len(room)] * len(room))

    planner.want = timed  # type: ignore[method-assign]
    return plans
