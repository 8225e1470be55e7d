"""A real coordinator with many replay devices: the part `fleet` of `benchmarks.scale`.

The devices answer from records that are made up for load (`benchmarks.made_up`), through the same
`agents.device.replay` that answers from real ones, in processes of their own without Ray. Each runs one
`AgentHost` with many devices, as `agents.device.ray_actors` has it, behind a pipe: so the agents' work is not
the coordinator's, but what it costs to send requests and to receive messages is. On a host with few cores
they compete with the coordinator, so the coordinator's processor time is told apart.
"""

from __future__ import annotations

import multiprocessing
import pickle
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from agents.device.agent_host import AgentHost
from agents.device.messages import AgentRequest, BeginAgent, Message, Stop
from agents.device.worker_factory import ReplayWorkerFactory
from agents.records import DeviceId, DeviceKind, DeviceSpec, Family, Protocol, WorkloadId
from benchmarks.harness import ms_of
from benchmarks.made_up import (
    TARGET,
    made_up_rows,
    made_up_workloads,
    own_mb,
    replay_specs,
)
from fleet.engine.context import CoordinatorSettings, EngineContext
from fleet.engine.coordinator import Coordinator
from fleet.engine.notices import Notices
from fleet.interchange.export_store import export
from fleet.planner.workload_discovery import WorkloadChoice
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

    threads = [threading.Thread(target=one, daemon=True) for one in (read, host.serve)]
    for one in threads:
        one.start()
    taken = 0
    while True:
        may_send.acquire()
        messages: list[Message] = []
        while not messages and threads[0].is_alive():
            taken, messages = host.take(taken, 0.2)
        if not threads[0].is_alive():
            break
        pipe.send((messages, time.process_time()))
    threads[1].join()
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
        self._arrived: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self._readers = [
            threading.Thread(target=self._read, args=(number,), daemon=True) for number in range(processes)
        ]
        for reader in self._readers:
            reader.start()
        self._places: dict[DeviceId, int] = {}
        self._requests: list[list[AgentRequest]] = [[] for _ in range(processes)]
        self.agents_cpu_secs = [0.0] * processes
        self.waited_secs = 0.0

    def start(self, spec: DeviceSpec, incarnation: int) -> None:
        """See `AgentTransport`."""
        self._places.setdefault(spec.device_id, len(self._places) % len(self._pipes))
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
        for number, requests in enumerate(self._requests):
            if requests:
                self._pipes[number].send(requests)
                self._requests[number] = []
        began = time.perf_counter()
        found: list[Message] = []
        arrived = self._next(timeout_secs)
        self.waited_secs += time.perf_counter() - began
        while arrived is not None:
            number, data = arrived
            messages, self.agents_cpu_secs[number] = pickle.loads(data)
            found += messages
            self._pipes[number].send([])
            arrived = self._next(0.0)
        return found

    def _next(self, timeout_secs: float) -> tuple[int, bytes] | None:
        try:
            return self._arrived.get(timeout=timeout_secs)
        except queue.Empty:
            return None

    def close(self, timeout_secs: float = 5.0) -> None:
        """End every agent."""
        for pipe in self._pipes:
            pipe.send(None)
        for one in (*self._readers, *self._processes):
            one.join(timeout_secs)
        for pipe in self._pipes:
            pipe.close()

    def _read(self, number: int) -> None:
        """Take in what a process sends while the coordinator is at other work, as Ray does."""
        with suppress(EOFError):
            while True:
                self._arrived.put((number, self._pipes[number].recv_bytes()))

    def _ask(self, request: AgentRequest) -> None:
        self._requests[self._places[request.device_id]].append(request)


#: What the devices answer from.
RECORDED_WORKLOADS, RECORDED_CANDIDATES = 20, 256
RECORDED_CHOICE = WorkloadChoice(networks=("resnet-50",), count=RECORDED_WORKLOADS)

#: Processes of the devices.
_PROCESSES = 2
#: Parts of the time that are told apart.
WINDOWS = 12


def recorded_file(folder: Path, candidates: int = RECORDED_CANDIDATES) -> Path:
    """Records of one device, made up, as `fleet export` writes them: so many candidates of each workload."""
    rng = np.random.default_rng(3)
    with Store.open(folder / "recorded-store") as store:
        spec = DeviceSpec(
            device_id=DeviceId("recorded"), kind=DeviceKind.LOCAL, family=Family.CPU, target_json=TARGET
        )
        store.put_device(spec)
        # None of `made_up_rows`: their candidates have ids that no trace has.
        workloads = made_up_workloads(RECORDED_WORKLOADS, "f")
        store.put_workloads(workloads)
        for workload in workloads:
            rows = _with_candidate_ids(made_up_rows(rng, candidates), workload.workload_id)
            store.append_table("recorded", rows)
        path = folder / "recorded.parquet"
        export(store, path, "parquet")
    return path


def _with_candidate_ids(rows: pa.Table, workload_id: WorkloadId) -> pa.Table:
    """The same rows of one workload, with the ids that its candidates really have."""
    from agents.records import content_hash

    traces = rows.column("trace").to_pylist()
    columns = {
        "workload_id": [workload_id] * len(traces),
        "candidate_id": [content_hash(workload_id, "autotvm", trace) for trace in traces],
    }
    for name, values in columns.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(name), pa.array(values))
    return rows


def made_up_coordinator(
    root: Path,
    store: Store,
    transport: AgentTransport,
    specs: Mapping[DeviceId, DeviceSpec],
    choice: WorkloadChoice,
) -> Coordinator:
    """A coordinator of some devices, with the settings that users have."""
    return Coordinator(
        EngineContext(
            root=root,
            store=store,
            transport=transport,
            specs=specs,
            settings=CoordinatorSettings(protocol=Protocol(), choice=choice),
            notices=Notices(None),
        )
    )


def measure_fleet(folder: Path, *, devices: int, secs: float) -> dict[str, Any]:
    """Let a coordinator run for some seconds after its devices are up."""
    path = recorded_file(folder)
    specs = replay_specs(devices, path)
    transport = ProcessTransport(protocol=Protocol(), processes=_PROCESSES)
    turns: list[float] = []
    memory: list[float] = []
    plans: list[float] = []
    windows: list[dict[str, float]] = []
    with Store.open(folder / "store") as store:
        began, cpu = time.perf_counter(), time.process_time()
        coordinator = made_up_coordinator(folder / "root", store, transport, specs, RECORDED_CHOICE)
        while not _all_up(coordinator, devices) and time.perf_counter() - began < secs:
            coordinator.turn(0.05)
        up_secs, up_cpu = time.perf_counter() - began, time.process_time() - cpu
        before = store.rows
        transport.waited_secs, agents_cpu = 0.0, sum(transport.agents_cpu_secs)
        _time_plans(coordinator, plans)
        began, cpu = time.perf_counter(), time.process_time()
        window = _Window(began, cpu, before)
        while time.perf_counter() - began < secs:
            started, waited = time.perf_counter(), transport.waited_secs
            coordinator.turn(0.05)
            turns.append(time.perf_counter() - started - (transport.waited_secs - waited))
            if time.perf_counter() - window.began >= secs / WINDOWS:
                window, told = window.end(store.rows)
                memory.append(own_mb())
                windows.append(told | {"own": memory[-1]})
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        agents_cpu = sum(transport.agents_cpu_secs) - agents_cpu
        waited = transport.waited_secs
        records = store.rows - before
        view = coordinator.view()
        shutdown = time.perf_counter()
        coordinator.close()
        shutdown = time.perf_counter() - shutdown
        transport.close()
        kept = sum(one.records for one in store.counts().values())
    return {
        "devices": devices,
        "states": _states(view),
        "up_secs": up_secs,
        "secs": took,
        "records": records,
        "in_the_table": kept,
        "jobs": view["jobs"],
        "records_per_s": records / took,
        # Without the time in which it waited for agents: what it would take in if others gave it enough.
        "records_per_busy_s": records / max(took - waited, 1e-9),
        # Of this process alone; the devices' processes took `agents_cpu_secs`.
        "records_per_cpu_s": records / cpu,
        # The first ones have all devices begin at once.
        "windows": windows,
        "cpu_secs": cpu,
        "up_cpu_secs": up_cpu,
        "agents_cpu_secs": agents_cpu,
        "waited_secs": waited,
        "close_secs": shutdown,
        "turns": len(turns),
        **ms_of("ms_per_turn", turns),
        # From a device that asks to its jobs, requests to agents included.
        **ms_of("plan_ms", plans),
        "memory_mb": memory,
    }


@dataclass(frozen=True, slots=True)
class _Window:
    """A part of the time, to see what the beginning costs and what later."""

    began: float
    cpu: float
    records: int

    def end(self, records: int) -> tuple[_Window, dict[str, float]]:
        """The next one, and what became of this one."""
        now, cpu = time.perf_counter(), time.process_time()
        count = records - self.records
        told = {
            "secs": now - self.began,
            "records_per_s": count / (now - self.began),
            "records_per_cpu_s": count / (cpu - self.cpu),
        }
        return _Window(now, cpu, records), told


def _time_plans(coordinator: Coordinator, plans: list[float]) -> None:
    """Note how long each device's plan takes."""
    planner = coordinator._parts.planner
    want = planner.want

    def timed(room: Mapping[DeviceId, int]) -> None:
        started = time.perf_counter()
        want(room)
        plans.extend([(time.perf_counter() - started) / len(room)] * len(room))

    planner.want = timed  # type: ignore[method-assign]


def _states(view: dict[str, Any]) -> dict[str, int]:
    states: Sequence[str] = [one["state"] for one in view["devices"].values()]
    return {state: states.count(state) for state in sorted(set(states))}


def _all_up(coordinator: Coordinator, devices: int) -> bool:
    return sum(_states(coordinator.view()).get(state, 0) for state in ("idle", "leased")) >= devices
