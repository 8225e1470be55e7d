"""A worker process beside a device: builds and times candidates, makes design spaces.

Started by `pool.py` as `python -m agents.child FD`, spoken to in messages (`wire.py`) over that file
descriptor. It holds everything that a candidate may harm: TVM's C++, the compiler, the running program.
It may be killed at any moment and keeps nothing that must outlive it.

It builds on its builder's cores, then moves to the device's timing cores and times, so compiled code never
crosses a process and needs no file, tar or link step. Whoever uses timing cores, for a timing or for a
build, holds the host's lock: one process may build where nothing else times, and no timing ever shares a
core with a builder.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from collections import OrderedDict
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from agents.probe import environment
from agents.records import Family, Outcome, Protocol, Workload, WorkloadId, as_json_dict
from agents.wire import Channel

#: Workloads whose module and arguments stay loaded; a batch seldom holds more.
_KEPT_WORKLOADS = 4
_PR_SET_PDEATHSIG = 1


class Stage(StrEnum):
    """What a worker process is doing; the parent's time-outs hang on it."""

    STARTING = "starting"
    IDLE = "idle"
    WAITING = "waiting"
    BUILDING = "building"
    TIMING = "timing"


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """What a worker process must know before its first job."""

    #: TVM target of the device, as a dictionary.
    target: dict[str, Any]
    #: TVM device name (`cpu`, `cuda`) and index.
    device: str
    index: int
    timing_cores: tuple[int, ...]
    build_cores: tuple[int, ...]
    lock_path: str

    @property
    def builds_where_it_times(self) -> bool:
        """Whether this process may build only while it holds the timing lock."""
        return bool(set(self.build_cores) & set(self.timing_cores))


class _Programs:
    """Modules and arguments of the workloads in use, least recently used dropped."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._loaded: OrderedDict[str, tuple[Any, list[Any] | None]] = OrderedDict()

    def module(self, workload: Workload) -> Any:
        return self._entry(workload)[0]

    def arguments(self, workload: Workload) -> list[Any]:
        from agents.measure import make_arguments

        module, arguments = self._entry(workload)
        if arguments is None:
            seed = int(workload.workload_id, 16)
            arguments = make_arguments(workload.arg_shapes, workload.arg_dtypes, self._device, seed)
            self._loaded[workload.workload_id] = (module, arguments)
        return arguments

    def _entry(self, workload: Workload) -> tuple[Any, list[Any] | None]:
        import tvm

        key = workload.workload_id
        if key not in self._loaded:
            self._loaded[key] = (tvm.ir.load_json(workload.module_json), None)
            while len(self._loaded) > _KEPT_WORKLOADS:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(key)
        return self._loaded[key]


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to end this process when its parent does, so that no orphan keeps the timing lock."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the call
        os._exit(1)


def serve(channel: Channel, settings: ChildSettings) -> None:
    """Answer messages until the other end closes."""
    from agents.measure import pin_process, timing_lock

    pin_process(settings.build_cores)
    with ExitStack() as held:
        if settings.builds_where_it_times:  # importing TVM is seconds of work on timing cores
            held.enter_context(timing_lock(Path(settings.lock_path)))
        import tvm
    device = tvm.device(settings.device, settings.index)
    target = tvm.target.Target(settings.target)
    programs = _Programs(device)
    workloads: dict[str, Workload] = {}
    channel.send({"event": "ready", "tvm": tvm.__version__})
    while (message := channel.receive()) is not None:
        operation = message["op"]
        if operation == "workload":
            workload = workload_from_json(message["workload"])
            workloads[workload.workload_id] = workload
        elif operation == "measure":
            _measure(channel, message, workloads[message["workload_id"]], programs, device, target, settings)
        elif operation == "propose":
            channel.send(_propose(message, workloads[message["workload_id"]]))
        elif operation == "networks":
            channel.send(_network_workloads(message["networks"]))
        else:
            raise ValueError(f"unknown operation {operation!r}")


def workload_from_json(value: dict[str, Any]) -> Workload:
    """Rebuild a workload from `records.as_json_dict`."""
    return Workload(
        workload_id=WorkloadId(value["workload_id"]),
        name=value["name"],
        operator=value["operator"],
        arg_shapes=tuple(tuple(shape) for shape in value["arg_shapes"]),
        arg_dtypes=tuple(value["arg_dtypes"]),
        flops=value["flops"],
        networks=tuple((network, count) for network, count in value["networks"]),
        module_json=value["module_json"],
    )


def _measure(
    channel: Channel,
    message: dict[str, Any],
    workload: Workload,
    programs: _Programs,
    device: Any,
    target: Any,
    settings: ChildSettings,
) -> None:
    """Build and time one candidate, telling the parent each stage so that it can hold the clock."""
    from agents.build import CandidateRefused, build
    from agents.measure import pin_process, time_module, timing_lock

    job = message["job"]
    protocol = Protocol(**message["protocol"])

    def enter(stage: Stage, **facts: Any) -> None:
        channel.send({"event": "stage", "job": job, "stage": stage, **facts})

    with ExitStack() as held:
        lock = partial(timing_lock, Path(settings.lock_path))
        wait_secs = 0.0
        if settings.builds_where_it_times:
            wait_secs = held.enter_context(lock())
        enter(Stage.BUILDING)
        started = time.perf_counter()
        try:
            built = build(programs.module(workload), message["trace"], target)
        except CandidateRefused as refusal:
            failed = {"event": "done", "job": job, "outcome": Outcome.BUILD_FAILED, "error": str(refusal)}
            channel.send({**failed, "build_secs": time.perf_counter() - started, "wait_secs": wait_secs})
            return
        arguments = programs.arguments(workload)
        if not settings.builds_where_it_times:
            enter(Stage.WAITING, build_secs=built.build_secs)
            wait_secs = held.enter_context(lock())
        enter(Stage.TIMING, build_secs=built.build_secs, wait_secs=wait_secs)
        pin_process(settings.timing_cores)
        began = time.perf_counter()
        error, timing = "", None
        try:
            timing = time_module(built.module, arguments, device, protocol)
        except Exception as raised:
            error = f"the program raised while it ran: {raised}"
        timing_secs = time.perf_counter() - began
        seen = environment(settings.timing_cores)
    pin_process(settings.build_cores)
    done: dict[str, Any] = {"event": "done", "job": job, "timing_secs": timing_secs, "environment": seen}
    if timing is None:
        channel.send({**done, "outcome": Outcome.RUN_FAILED, "error": error})
        return
    channel.send(
        {
            **done,
            "outcome": Outcome.OK,
            "error": "",
            "run_secs": timing.run_secs,
            "warmup_secs": timing.warmup_secs,
            "number": timing.number,
        }
    )


def _propose(message: dict[str, Any], workload: Workload) -> dict[str, Any]:
    from agents.space import DesignSpace

    space = DesignSpace(workload, Family(message["family"]))
    proposal = space.sample(message["count"], seed=message["seed"], exclude=frozenset(message["exclude"]))
    return {
        "event": "proposed",
        "traces": [candidate.trace for candidate in proposal.candidates],
        "tries": proposal.tries,
        "refused": proposal.refused,
        "repeated": proposal.repeated,
    }


def _network_workloads(networks: list[str]) -> dict[str, Any]:
    from agents.errors import AgentError
    from agents.workloads import network_workloads

    try:
        found = network_workloads(networks)
    except AgentError as error:
        return {"event": "refused", "error": str(error)}
    return {"event": "workloads", "workloads": [as_json_dict(workload) for workload in found]}


def main(arguments: list[str]) -> None:
    """Take the socket's descriptor from the command line, the settings from its first message."""
    descriptor, parent_pid = int(arguments[0]), int(arguments[1])
    die_with_parent(parent_pid)
    # Left open until the process ends: its end is what tells the parent, which then reads the last words.
    channel = Channel(socket.socket(fileno=descriptor))
    first = channel.receive()
    if first is None:
        return
    cores = {key: tuple(first[key]) for key in ("timing_cores", "build_cores")}
    serve(channel, ChildSettings(**{**first, **cores}))


if __name__ == "__main__":
    main(sys.argv[1:])
