"""What a decision costs with many devices: the part `scheduling` of `benchmarks.scale`."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from agents.records import CandidateId, DeviceId, WorkloadId
from benchmarks.harness import ms_of
from fleet.core import events as ev
from fleet.core.scheduling import Cell, DeviceView, FleetView, plan
from fleet.core.state import FleetState

#: Workloads of a network or three: what a plan chooses among.
WORKLOADS = 40


def measure_scheduling(*, devices: int, decisions: int, workload_count: int = WORKLOADS) -> dict[str, Any]:
    """End job after job of a fleet that is busy everywhere, and time what follows from each."""
    state = FleetState()
    names = [DeviceId(f"dev-{number:05d}") for number in range(devices)]
    workloads = {
        WorkloadId(f"{number:016x}"): (1 + number % 5) * 10.0 ** (6 + number % 5)
        for number in range(workload_count)
    }
    rng = np.random.default_rng(0)
    cells = {
        name: {
            one: Cell(
                measured=int(rng.integers(0, 500)),
                unpaired=int(rng.integers(0, 50)),
                interval=float(rng.random()) if rng.random() < 0.5 else None,
            )
            for one in workloads
        }
        for name in names
    }
    views = {
        name: DeviceView(
            device_id=name,
            records=sum(cell.measured for cell in cells[name].values()),
            has_head=True,
            host=f"host-{number % 500}",
            cells=cells[name],
        )
        for number, name in enumerate(names)
    }
    view = FleetView(devices=views, workloads=workloads)
    clock = 1.7e9
    numbers = iter(range(10**9))
    granted: list[ev.GrantLease] = []
    jobs_of: dict[str, ev.Job] = {}

    def job(name: DeviceId, workload_id: WorkloadId, count: int, origin: str) -> ev.JobSubmitted:
        number = next(numbers)
        made = ev.Job(
            job_id=ev.JobId(f"j{number}"),
            device_id=name,
            workload_ids=(workload_id,),
            candidate_ids=tuple(CandidateId(f"{number:016x}{place:016x}") for place in range(count)),
            origin=origin,
            expected_secs=0.5 * count,
        )
        jobs_of[made.job_id] = made
        return ev.JobSubmitted(at_secs=clock, job=made)

    planned_count = 0

    def follow(made: list[ev.Instruction]) -> None:
        """Carry out what the state says, as the coordinator does: leases are noted, wants are planned."""
        nonlocal planned_count
        for one in made:
            if isinstance(one, ev.GrantLease):
                granted.append(one)
            elif isinstance(one, ev.WantJobs):
                planned_count += 1
                for ask in plan(view, {one.device_id: one.room}, next(numbers)):
                    follow(state.apply(job(ask.device_id, ask.workload_id, ask.count, str(ask.origin))))

    state.apply(ev.CoordinatorStarted(at_secs=clock))
    for name in names:
        made = state.apply(ev.DeviceAdded(at_secs=clock, device_id=name, family="cpu"))
        (start,) = [one for one in made if isinstance(one, ev.StartAgent)]
        state.apply(ev.AgentStarted(at_secs=clock, device_id=name, incarnation=start.incarnation))
        follow(
            state.apply(
                ev.ProbePassed(
                    at_secs=clock, device_id=name, incarnation=start.incarnation, environment_id="e1"
                )
            )
        )
    took: list[float] = []
    planned: list[float] = []
    planned_cpu: list[float] = []
    ticks: list[float] = []
    cpu = time.process_time()
    for number in range(decisions):
        lease = granted.pop(0)
        clock += 0.01
        done = ev.JobFinished(
            at_secs=clock,
            device_id=lease.device_id,
            job_id=lease.job_id,
            fencing_token=lease.fencing_token,
            incarnation=lease.incarnation,
            outcomes={"ok": len(jobs_of[lease.job_id].candidate_ids)},
            device_secs=5.0,
        )
        plans = planned_count
        started, started_cpu = time.perf_counter(), time.thread_time()
        follow(state.apply(done))
        took.append(time.perf_counter() - started)
        if planned_count > plans:
            planned.append(took[-1])
            planned_cpu.append(time.thread_time() - started_cpu)
        del jobs_of[lease.job_id]
        if number % 50 == 49:
            started = time.perf_counter()
            follow(state.apply(ev.Tick(at_secs=clock)))
            ticks.append(time.perf_counter() - started)
    cpu = time.process_time() - cpu
    return {
        "devices": devices,
        "workloads": workload_count,
        "decisions": len(took),
        "jobs_left": {str(name): count for name, count in state.job_counts().items()},
        "decisions_with_a_plan": len(planned),
        # Of those with a plan; the others only hand out a lease that is queued already.
        **ms_of("decision_ms", planned),
        # Processor time of the same: a busy host takes nothing away from it.
        **ms_of("decision_cpu_ms", planned_cpu),
        "lease_ms_median": 1e3 * statistics.median(took),
        "any_ms_mean": 1e3 * statistics.fmean(took),
        "cpu_ms_mean": 1e3 * cpu / len(took),
        "tick_ms_median": 1e3 * statistics.median(ticks) if ticks else None,
    }
