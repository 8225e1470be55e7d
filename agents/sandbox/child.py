"""A worker process beside a device: builds and times candidates, makes design spaces.

Forked and confined by `zygote.py` for `pool.py`, spoken to in messages (`wire.py`). It holds everything that
a candidate may harm: TVM's C++, the compiler, the running program. It may be killed at any moment and keeps
nothing that must outlive it.

It builds on its builder's cores, then moves to the device's timing cores and times, so compiled code never
crosses a process and needs no file, tar or link step. Whoever times holds the host's lock. While nobody does,
one builder may use the timing cores (`core_slot.py`); no timing ever shares a core with a builder.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from agents.codec import protocol_from_json, workload_from_json
from agents.errors import AgentError
from agents.host.cuda import GpuReader
from agents.host.device_kinds import compiled_target
from agents.host.host_lock import HostLockError, timing_lock
from agents.host.priority import Priority, counts_switches
from agents.host.probe import environment
from agents.programs.build import Built, CandidateRefused, build
from agents.programs.gate import RepeatGate, Repeats
from agents.programs.gpu_gate import GpuGate, compiled_gpu_probe
from agents.programs.link import Link, LinkLostError, LocalLink, Session
from agents.programs.loaded_workloads import Programs
from agents.programs.quality import clean_needed
from agents.programs.rpc_session import RpcLink
from agents.programs.timing import time_again, time_module
from agents.records import CandidateId, Family, Outcome, Protocol, Workload
from agents.sandbox import handlers
from agents.sandbox.core_slot import WORKER_NAME, CoresHeldError, CoreSlot, MoverClient
from agents.sandbox.retimed_programs import RetimedProgram, SpacedRetiming
from agents.sandbox.stages import ChildSettings, WorkerStage
from agents.sandbox.wire import Channel

#: An RPC server ends a session after this time, whatever it does: more than one candidate takes.
_SESSION_SECS = 600.0
#: Longest wait for a quiet moment, for each last timing of a program.
_WAIT_SECS = 0.002


class DeviceBrokenError(AgentError):
    """A program left this process no working device, as a wrong access does on a GPU; the process ends.

    The pool counts that as any other death of a process at work, and the next candidates get a new one.
    """


@dataclass(slots=True, kw_only=True)
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
    #: Seconds of the gate's probe on this device, undisturbed; 0 if that is not known.
    probe_secs: float
    #: Seconds that it has taken so far to be built, and to wait for the device.
    build_secs: float = 0.0
    wait_secs: float = 0.0


class ChildWorker:
    """Answers the messages of one pool, which come through `channel`."""

    def __init__(
        self, channel: Channel, settings: ChildSettings, mover: MoverClient, probe: Callable[[], float]
    ) -> None:
        import tvm

        self._channel = channel
        self._settings = settings
        self._target = tvm.target.Target(compiled_target(settings.target))
        self._device = tvm.device(settings.device, settings.index)
        self._link = _link(settings, self._device)
        self._programs = Programs()
        self._mover = mover
        self._slot: CoreSlot | None = None
        if settings.slot_path:
            self._slot = CoreSlot(Path(settings.slot_path), Path(settings.lock_path), mover)
        self._retiming = SpacedRetiming()
        self._counts_switches = counts_switches()
        #: That of a GPU is made when its first program is compiled.
        self._gate: RepeatGate | None = None
        if self._times_on_cores:
            self._gate = RepeatGate(probe, settings.threads, counts_switches=self._counts_switches)
        self._priority = Priority.USUAL
        self._workloads: dict[str, Workload] = {}
        self._versions = {"llvm": str(tvm.target.codegen.llvm_version_major())}
        #: Tells how many threads TVM's pool really has; behind a wire the link has made sure of their number.
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
                workload = self._workloads[message["workload_id"]]
                protocol = protocol_from_json(message["protocol"])
                job = _Job(workload=workload, protocol=protocol, **message["job"])
                self._retiming.note(job.workload.workload_id, job.best_secs)
                try:
                    self._measure(job)
                except (LinkLostError, CoresHeldError, HostLockError) as error:
                    self._done(job, Outcome.LOST, str(error), is_device_lost=True)
            elif operation == "retime":
                self._retime_all()
            elif operation == "forget":
                self._retiming.forget()
            else:
                self._channel.send(self._answer(message))

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answer a question that depends on no candidate, or give the reason for a refusal."""
        try:
            match message["op"]:
                case "propose":
                    return self._propose(message)
                case "networks":
                    return handlers.list_workloads(message["networks"])
                case "board":
                    return handlers.board(self._settings)
                case "canaries":
                    return handlers.canaries(Family(message["family"]))
                case operation:
                    raise ValueError(f"unknown operation {operation!r}")
        except AgentError as error:
            return {"event": "refused", "error": str(error)}

    def _propose(self, message: dict[str, Any]) -> dict[str, Any]:
        """Draw candidates, on the same cores as a builder: that may take as long as building."""
        with ExitStack() as held:
            if self._slot:
                with suppress(HostLockError):  # then it draws where it is
                    held.enter_context(self._slot.building())
            return handlers.propose(message, self._workloads[message["workload_id"]])

    def _lock(self) -> AbstractContextManager[float]:
        return timing_lock(Path(self._settings.lock_path)) if self._settings.lock_path else nullcontext(0.0)

    def _enter(self, job: _Job, stage: WorkerStage) -> None:
        """Tell the parent, which holds the clock."""
        self._send_event("stage", job, {"stage": stage})

    def _done(self, job: _Job, outcome: Outcome, error: str, **facts: Any) -> None:
        self._send_event("done", job, {"outcome": outcome, "error": error, **facts})

    def _send_event(self, event: str, job: _Job, facts: dict[str, Any]) -> None:
        times = {"build_secs": job.build_secs, "wait_secs": job.wait_secs}
        self._channel.send({"event": event, "job": job.number, **times, **facts})

    def _measure(self, job: _Job) -> None:
        """Build and time a candidate.

        Raises:
            LinkLostError: The device is out of reach.
            CoresHeldError: Its cores do not come free.
            HostLockError: A lock of the host cannot be used, or does not come free.
        """
        with ExitStack() as held:
            if self._settings.builds_where_it_times:
                job.wait_secs = held.enter_context(self._lock())
            try:
                with self._slot.building() if self._slot else nullcontext():
                    started = time.perf_counter()
                    if job.check:
                        self._enter(job, WorkerStage.REFERENCE)
                        self._programs.prepare_reference(job.workload)
                    self._enter(job, WorkerStage.BUILDING)
                    started = time.perf_counter()
                    built = self._build(job)
                    if self._gate is None and (index := self._settings.gpu_index) is not None:
                        # Compiling its probe takes a second, which must not happen under the lock.
                        probe = compiled_gpu_probe(self._target, self._device)
                        self._gate = GpuGate(probe, GpuReader(index, WORKER_NAME))
                    if self._times_on_cores:
                        # Filling them takes longer than many a timing, and must not happen under the lock.
                        self._programs.arguments(job.workload, self._device)
            except CandidateRefused as refusal:
                job.build_secs = time.perf_counter() - started
                self._done(job, Outcome.BUILD_FAILED, str(refusal))
                return
            job.build_secs = built.build_secs
            self._enter(job, WorkerStage.WAITING)
            began = time.perf_counter()
            if not self._settings.builds_where_it_times:
                held.enter_context(self._lock())
            session = held.enter_context(self._link.connect())
            job.wait_secs += time.perf_counter() - began
            self._clear_cores(held)
            self._retime(self._run(job, built, session))

    def _clear_cores(self, held: ExitStack) -> None:
        """Have the timing cores to itself, under the lock, until `held` ends; then be where it builds."""
        if self._slot:
            held.enter_context(self._slot.cleared())
        held.callback(self._mover.pin, timing=False)  # before anything is given back

    def _retime_all(self) -> None:
        """Time all programs that are kept a last time."""
        with ExitStack() as held:
            held.enter_context(self._lock())
            self._clear_cores(held)
            self._mover.pin(timing=True, first=True)
            self._channel.send({"event": "retiming"})
            due = self._retiming.last()
            self._retime(due, _WAIT_SECS * len(due))

    def _retime(self, due: list[RetimedProgram], wait_secs: float = 0.0) -> None:
        """Time programs of earlier jobs once more; the parent knows that they are coming.

        Quiet moments are waited for, for so long in all.
        """
        end = time.monotonic() + wait_secs
        for program in due:
            if not program.timings_left:
                continue  # it has enough, or an earlier timing of these failed
            if self._gate is not None and wait_secs:
                self._gate.is_quiet(max(0.0, end - time.monotonic()))
            began = time.perf_counter()
            repeats = self._retiming.time_again(program)
            timing = {
                "run_secs": repeats.run_secs,
                "disturbances": repeats.disturbances,
                "timing_secs": time.perf_counter() - began,
            }
            self._channel.send(
                {"event": "retimed", "job": program.job, "left": program.timings_left, **timing}
            )
        if due:
            self._channel.send({"event": "rested"})

    def _build(self, job: _Job) -> Built:
        built = self._programs.built(job.candidate_id)
        if built is None:
            built = build(self._programs.module(job.workload), job.trace, self._target)
            if job.keep:
                self._programs.keep(job.candidate_id, built)
        return built

    def _run(self, job: _Job, built: Built, session: Session) -> list[RetimedProgram]:
        """Time a compiled candidate, and compare its output where that is asked.

        Returns:
            Earlier programs that are to be timed again now.
        """
        if not self._settings.tracker:
            # Before the stage that the candidate answers for: cores may have been taken away meanwhile.
            self._priority = self._mover.pin(timing=True, first=True)
        self._enter(job, WorkerStage.TIMING)
        began = time.perf_counter()
        wrong = ""
        try:
            module = session.load(built.module)
            arguments = self._programs.arguments(job.workload, session.device)
            # A program on a GPU is not timed again later: kept there, it would hold its memory.
            protocol = job.protocol if self._times_on_cores else replace(job.protocol, visits=1)
            gate = self._gate
            if gate is not None:
                gate.learn(job.probe_secs)
            timing = time_module(module, arguments, session.device, protocol, job.best_secs, gate)
            if job.check:
                self._enter(job, WorkerStage.CHECKING)
                function = module.get_function("main", query_imports=True)
                wrong = self._programs.wrong_output(job.workload, function, arguments, session.device)
        except Exception as raised:
            is_alive = session.alive()
            if not is_alive and not self._settings.tracker:
                raise DeviceBrokenError(f"the program broke the device: {raised}") from raised
            self._done(
                job,
                Outcome.RUN_FAILED,
                f"the program raised while it ran: {raised}",
                timing_secs=time.perf_counter() - began,
                environment=self._environment(),
                is_broken=not is_alive,
            )
            return []
        timing_secs = time.perf_counter() - began
        due: list[RetimedProgram] = []
        is_kept = False
        if gate is not None and self._times_on_cores:
            due = self._retiming.due(is_quiet=gate.is_quiet())
        if gate is not None and not wrong and not timing.stopped_early:

            def again() -> Repeats:
                return time_again(module, arguments, session.device, protocol, timing.number, gate)

            is_kept = self._retiming.keep(
                *(job.number, again, timing.repeats, job.workload.workload_id),
                visits=protocol.visits,
                needs=clean_needed(protocol),
            )
        self._done(
            job,
            Outcome.WRONG_OUTPUT if wrong else Outcome.OK,
            wrong,
            timing_secs=timing_secs,
            environment=self._environment(session),
            is_kept=is_kept,
            is_retiming=bool(due),
            **self._probe_facts(),
            **timing.facts(is_checked=job.check),
        )
        return due

    @property
    def _times_on_cores(self) -> bool:
        """Whether programs run on cores of this host and can stay for later; behind a wire they end soon."""
        return self._settings.device == "cpu" and not self._settings.tracker

    def _probe_facts(self) -> dict[str, Any]:
        if self._gate is None or math.isinf(self._gate.best_secs):  # nothing was timed in full
            return {}
        return {"probe_secs": self._gate.best_secs, "has_new_level": self._gate.has_new_level}

    def _environment(self, session: Session | None = None) -> dict[str, Any]:
        """The moment's environment; taken where the program was timed, still pinned there.

        Of a board only what its server tells through a session that still serves.
        """
        cores, index = self._settings.timing_cores, self._settings.gpu_index
        snapshot = environment(cores, gpu_index=index)
        if self._settings.tracker:  # load, clocks and the like are of the host that builds
            snapshot = {"versions": snapshot["versions"], "python": snapshot["python"]}
            if session is not None:
                snapshot |= handlers.board_moment(session, cores, index)
        snapshot["versions"] |= self._versions
        if self._times_on_cores:
            snapshot["priority"] = self._priority
            if not self._counts_switches:
                snapshot["counts_switches"] = False
        threads = self._settings.threads if self._settings.tracker else int(self._thread_count())
        return {**snapshot, "threads": threads, **self._settings.environment}


def _link(settings: ChildSettings, device: Any) -> Link:
    if not settings.tracker:
        return LocalLink(device)
    return RpcLink(
        settings.tracker,
        settings.key,
        device=settings.device,
        index=settings.index,
        threads=settings.threads,
        cores=settings.timing_cores,
        session_secs=_SESSION_SECS,
    )


def run(
    channel: socket.socket, moves: socket.socket, settings: ChildSettings, *, probe: Callable[[], float]
) -> None:
    """Be a worker process.

    Args:
        channel: To the pool, which sends jobs; left open until the process ends: its end is what tells the
            pool, which then reads the last words.
        moves: To the zygote, which binds threads to cores.
        settings: Of the device.
        probe: Of the gate around its repeats (`agents.programs.gate.compiled_probe`).
    """
    jobs = Channel(channel)
    mover = MoverClient(moves, settings)
    mover.pin(timing=False)
    worker = ChildWorker(jobs, settings, mover, probe)
    jobs.send({"event": "ready", "pid": os.getpid()})
    worker.serve()
