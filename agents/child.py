"""A worker process beside a device: builds and times candidates, makes design spaces.

Forked by `zygote.py` for `pool.py`, spoken to in messages (`wire.py`). It holds everything that a candidate
may harm: TVM's C++, the compiler, the running program. It may be killed at any moment and keeps nothing
that must outlive it.

It builds on its builder's cores, then moves to the device's timing cores and times, so compiled code never
crosses a process and needs no file, tar or link step. Whoever times holds the host's lock. While nobody does,
one builder may use the timing cores (`core_slot.py`); no timing ever shares a core with a builder.
"""

from __future__ import annotations

import math
import os
import socket
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.core_slot import CoreSlot
from agents.link import Link, LinkLostError, LocalLink, Session
from agents.probe import environment
from agents.record_json import workload_from_json
from agents.records import CandidateId, Family, Outcome, Protocol, Workload, as_json_dict
from agents.wire import Channel

if TYPE_CHECKING:
    from agents.build import Built
    from agents.measure import Timing
    from agents.programs import Programs


#: An RPC server ends a session after this time, whatever it does: more than one candidate takes.
_SESSION_SEC = 600.0


class Stage(StrEnum):
    """What a worker process is doing; the parent's time-outs hang on it."""

    STARTING = "starting"
    IDLE = "idle"
    REFERENCE = "running the unscheduled program"
    WAITING = "waiting"
    BUILDING = "building"
    TIMING = "timing"
    CHECKING = "checking"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSettings:
    """What a worker process must know before its first job."""

    #: TVM target of the device, as a dictionary.
    target: dict[str, Any]
    #: TVM device name (`cpu`, `cuda`) and index.
    device: str
    index: int
    timing_cores: tuple[int, ...]
    build_cores: tuple[int, ...]
    #: The timing lock of the device; empty where it is exclusive by other means.
    lock_path: str
    #: Through which the timing cores are lent to builders; empty where they are not.
    slot_path: str = ""
    threads: int = 1
    #: RPC tracker and key; empty for a device of this host.
    tracker: str = ""
    key: str = ""
    #: What the environment of a record says otherwise than this host does.
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def builds_where_it_times(self) -> bool:
        """Whether this process may build only while it holds the timing lock."""
        return bool(self.lock_path and set(self.build_cores) & set(self.timing_cores))

    @property
    def gpu_index(self) -> int | None:
        """Ordinal of the CUDA device of this host, if it is one."""
        return self.index if self.device == "cuda" and not self.tracker else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """One candidate to build and time, as it came over the wire."""

    number: int
    workload: Workload
    candidate_id: CandidateId
    trace: str
    protocol: Protocol
    #: Compare the output with that of the unscheduled program.
    check: bool
    #: Keep the compiled program.
    keep: bool
    #: Best latency known of the workload on this device; 0 if none is.
    best_secs: float


class Worker:
    """Answers the messages of one pool.

    Args:
        channel: To the pool.
        settings: The device and its cores.
    """

    def __init__(self, channel: Channel, settings: ChildSettings) -> None:
        import tvm

        from agents.programs import Programs

        self._channel = channel
        self._settings = settings
        self._target = tvm.target.Target(settings.target)
        self._link = _link(settings)
        self._device = tvm.device(settings.device, settings.index)
        self._programs: Programs = Programs()
        self._slot = _slot(settings)
        self._workloads: dict[str, Workload] = {}
        self._versions = {"llvm": str(tvm.target.codegen.llvm_version_major())}
        #: What TVM's thread pool really has; behind a wire the link has made sure of it.
        self._thread_count = tvm.get_global_func("runtime.NumThreads")

    def serve(self) -> None:
        """Answer messages until the other end closes.

        Raises:
            ValueError: A message names an unknown operation.
        """
        while (message := self._channel.receive()) is not None:
            operation = message["op"]
            if operation == "workload":
                workload = workload_from_json(message["workload"])
                self._workloads[workload.workload_id] = workload
            elif operation == "measure":
                self._measure(self._job(message))
            elif operation in ("propose", "evolve"):
                self._channel.send(_propose(message, self._workloads[message["workload_id"]]))
            elif operation == "networks":
                self._channel.send(_network_workloads(message["networks"]))
            elif operation == "canaries":
                self._channel.send(_canaries(Family(message["family"])))
            else:
                raise ValueError(f"unknown operation {operation!r}")

    def _job(self, message: dict[str, Any]) -> _Job:
        return _Job(
            number=message["job"],
            workload=self._workloads[message["workload_id"]],
            candidate_id=CandidateId(message["candidate_id"]),
            trace=message["trace"],
            protocol=Protocol(**message["protocol"]),
            check=message["check"],
            keep=message["keep"],
            best_secs=message["best_secs"],
        )

    def _lock(self) -> AbstractContextManager[float]:
        from agents.measure import timing_lock

        return timing_lock(Path(self._settings.lock_path)) if self._settings.lock_path else nullcontext(0.0)

    def _enter(self, job: _Job, stage: Stage, **facts: Any) -> None:
        """Tell the parent, which holds the clock."""
        self._channel.send({"event": "stage", "job": job.number, "stage": stage, **facts})

    def _done(self, job: _Job, outcome: Outcome, error: str, **facts: Any) -> None:
        self._channel.send({"event": "done", "job": job.number, "outcome": outcome, "error": error, **facts})

    def _measure(self, job: _Job) -> None:
        from agents.build import CandidateRefused
        from agents.measure import pin_process

        with ExitStack() as held:
            wait_secs = 0.0
            if self._settings.builds_where_it_times:
                wait_secs = held.enter_context(self._lock())
            try:
                with self._slot.building() if self._slot else nullcontext():
                    if job.check:
                        self._enter(job, Stage.REFERENCE)
                        self._programs.prepare_reference(job.workload)
                    self._enter(job, Stage.BUILDING)
                    started = time.perf_counter()
                    built = self._build(job)
                    if self._settings.device == "cpu" and not self._settings.tracker:
                        # Filling them takes longer than many a timing, and must not happen under the lock.
                        self._programs.arguments(job.workload, self._device)
            except CandidateRefused as refusal:
                secs = time.perf_counter() - started
                self._done(job, Outcome.BUILD_FAILED, str(refusal), build_secs=secs, wait_secs=wait_secs)
                return
            self._enter(job, Stage.WAITING, build_secs=built.build_secs, wait_secs=wait_secs)
            began = time.perf_counter()
            if not self._settings.builds_where_it_times:
                held.enter_context(self._lock())
            try:
                session = held.enter_context(self._link.connect())
            except LinkLostError as error:
                self._done(job, Outcome.LOST, str(error), device_lost=True)
                return
            wait_secs += time.perf_counter() - began
            if self._slot:
                held.enter_context(self._slot.cleared())
            held.callback(pin_process, self._settings.build_cores)  # before anything is given back
            self._run(job, built, session, wait_secs)

    def _build(self, job: _Job) -> Built:
        from agents.build import build

        built = self._programs.kept(job.candidate_id)
        if built is None:
            built = build(self._programs.module(job.workload), job.trace, self._target)
            if job.keep:
                self._programs.keep(job.candidate_id, built)
        return built

    def _run(self, job: _Job, built: Built, session: Session, wait_secs: float) -> None:
        """Time a compiled candidate, and compare its output where that is asked."""
        from agents.measure import pin_process, time_module

        self._enter(job, Stage.TIMING, build_secs=built.build_secs, wait_secs=wait_secs)
        if not self._settings.tracker:
            pin_process(self._settings.timing_cores)
        began = time.perf_counter()
        wrong = ""
        try:
            module = session.load(built.module)
            arguments = self._programs.arguments(job.workload, session.device)
            timing = time_module(module, arguments, session.device, job.protocol, job.best_secs)
            if job.check:
                self._enter(job, Stage.CHECKING)
                function = module.get_function("main", query_imports=True)
                wrong = self._programs.wrong_output(job.workload, function, arguments, session.device)
        except Exception as raised:
            self._done(
                job,
                Outcome.RUN_FAILED,
                f"the program raised while it ran: {raised}",
                timing_secs=time.perf_counter() - began,
                environment=self._seen(),
                broken=not session.alive(),
            )
            return
        self._done(
            job,
            Outcome.WRONG_OUTPUT if wrong else Outcome.OK,
            wrong,
            timing_secs=time.perf_counter() - began,
            environment=self._seen(),
            **_facts(timing, job),
        )

    def _threads(self) -> int:
        return self._settings.threads if self._settings.tracker else int(self._thread_count())

    def _seen(self) -> dict[str, Any]:
        """The moment's environment; taken where the program was timed, still pinned there."""
        seen = environment(self._settings.timing_cores, gpu_index=self._settings.gpu_index)
        if self._settings.tracker:  # load, clocks and the like are of the host that builds
            seen = {"versions": seen["versions"], "python": seen["python"]}
        seen["versions"] |= self._versions
        return {**seen, "threads": self._threads(), **self._settings.environment}


def _facts(timing: Timing, job: _Job) -> dict[str, Any]:
    from agents.quality import relative_interval

    quality: dict[str, Any] = {}
    interval = relative_interval(timing.run_secs)
    if math.isfinite(interval):
        quality["interval"] = round(interval, 6)
    if timing.stopped_early:
        quality["stopped_early"] = True
    if job.check:
        quality["checked"] = True
    return {
        "run_secs": timing.run_secs,
        "warmup_secs": timing.warmup_secs,
        "number": timing.number,
        "quality": quality,
    }


def _link(settings: ChildSettings) -> Link:
    if not settings.tracker:
        return LocalLink(settings.device, settings.index)
    from agents.rpc import RpcLink

    return RpcLink(
        settings.tracker,
        settings.key,
        device=settings.device,
        index=settings.index,
        threads=settings.threads,
        cores=settings.timing_cores,
        session_sec=_SESSION_SEC,
    )


def _slot(settings: ChildSettings) -> CoreSlot | None:
    if not settings.slot_path:
        return None
    return CoreSlot(
        Path(settings.slot_path), Path(settings.lock_path), settings.timing_cores, settings.build_cores
    )


def _propose(message: dict[str, Any], workload: Workload) -> dict[str, Any]:
    from agents.space import DesignSpace

    space = DesignSpace(workload, Family(message["family"]))
    how: dict[str, Any] = {"seed": message["seed"], "exclude": frozenset(message["exclude"])}
    if message["op"] == "evolve":
        proposal = space.evolve(message["parents"], message["count"], **how)
    else:
        proposal = space.sample(message["count"], **how)
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


def _canaries(family: Family) -> dict[str, Any]:
    from agents.canaries import make_canaries

    found = [
        {"name": canary.name, "workload": as_json_dict(canary.workload), "trace": canary.candidate.trace}
        for canary in make_canaries(family)
    ]
    return {"event": "canaries", "canaries": found}


def run(descriptor: int) -> None:
    """Be a worker process: settings come first over the socket of `descriptor`, then jobs."""
    from agents.measure import pin_process

    # Left open until the process ends: its end is what tells the parent, which then reads the last words.
    channel = Channel(socket.socket(fileno=descriptor))
    first = channel.receive()
    if first is None:
        return
    cores = {key: tuple(first[key]) for key in ("timing_cores", "build_cores")}
    settings = ChildSettings(**{**first, **cores})
    pin_process(settings.build_cores)
    worker = Worker(channel, settings)
    channel.send({"event": "ready", "pid": os.getpid()})
    worker.serve()
