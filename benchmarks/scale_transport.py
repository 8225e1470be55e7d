"""The way to replay devices in processes of their own, without Ray: a load for `benchmarks.scale_fleet`.

Each process runs one `AgentHost` with many devices, as `agents.device.ray_actors` has it, behind a pipe. So
the agents' work is not the coordinator's, but what it costs to send requests and to receive messages is.
"""

from __future__ import annotations

import multiprocessing
import pickle
import queue
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from agents.device.agent_host import AgentHost
from agents.device.messages import AgentRequest, BeginAgent, Message, Stop
from agents.device.worker_factory import ReplayWorkerFactory
from agents.records import DeviceId, DeviceSpec, Protocol
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
