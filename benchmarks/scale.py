"""How far one coordinator reaches: `python -m benchmarks.scale --json`.

Five parts, each in a process of its own; `--part NAME` runs one of them here.

- `taking`: records of 1,000 devices become durable, turn by turn, and go on to the table, a million of them:
  what a coordinator does with its store (`Store.take`, a turn of the state file, `Store.move_on`).
- `scheduling`: events of 1,000 devices with jobs in their queues; a decision is what follows from the end of
  one job: `FleetState.apply`, the plan for its device, and the jobs that are handed in for it.
- `start`: a coordinator starts on 10 million records, also after a kill (`benchmarks.scale_start`).
- `fleet`: a real `Coordinator` with 1,000 replay devices in other processes (`benchmarks.scale_fleet`),
  from their probe to records in the table.
- `connections`: `fleet up` while strangers hold connections to its API (`benchmarks.scale_connections`).

Rows and records of `taking` and `start` are made up: ids and latencies are random, because only their number
and their size matter. `fleet` answers from such records too, through `agents.device.replay`.
"""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from agents.records import CandidateId, DeviceId, Record, WorkloadId
from benchmarks.harness import (
    Figures,
    benchmark,
    child_json,
    headlines,
    ms_of,
    option,
    stopwatch,
    working_folder,
)
from benchmarks.made_up import device_name, made_up_rows, make_records, own_mb
from benchmarks.scale_connections import measure_connections
from benchmarks.scale_fleet import measure_fleet
from benchmarks.scale_start import measure_start
from benchmarks.tables import words_of
from fleet.core import events as ev
from fleet.core.scheduling import Cell, DeviceView, FleetView, plan
from fleet.core.state import FleetState
from fleet.daemon.launch import seldom_collected
from fleet.store.store import Store

#: Workloads of a network or three: what a plan chooses among.
WORKLOADS = 40
_CLOCK = 1.7e9


class _BusyFleet:
    """A state of the fleet in which every device has jobs, and what is carried out of its instructions.

    Args:
        view: What the planner knows of each device.
    """

    def __init__(self, view: FleetView) -> None:
        self._view, self._state, self._numbers = view, FleetState(), itertools.count()
        self._leases: deque[ev.GrantLease] = deque()
        self._jobs: dict[ev.JobId, ev.Job] = {}
        #: How many times a device was planned for.
        self.plans = 0
        self._state.apply(ev.CoordinatorStarted(at_secs=_CLOCK))
        for name in view.devices:
            made = self._state.apply(ev.DeviceAdded(at_secs=_CLOCK, device_id=name, family="cpu"))
            (start,) = [one for one in made if isinstance(one, ev.StartAgent)]
            number = start.incarnation
            self._state.apply(ev.AgentStarted(at_secs=_CLOCK, device_id=name, incarnation=number))
            passed = ev.ProbePassed(at_secs=_CLOCK, device_id=name, incarnation=number, environment_id="e1")
            self.apply(passed)

    def end_of_job(self, at_secs: float) -> ev.JobFinished:
        """The end of the job whose lease is the oldest."""
        lease = self._leases.popleft()
        return ev.JobFinished(
            at_secs=at_secs,
            device_id=lease.device_id,
            job_id=lease.job_id,
            fencing_token=lease.fencing_token,
            incarnation=lease.incarnation,
            outcomes={"ok": len(self._jobs.pop(lease.job_id).candidate_ids)},
            device_secs=5.0,
        )

    def apply(self, event: ev.Event) -> None:
        """Carry out what the state says, as the coordinator does: leases are noted, wants are planned."""
        for made in self._state.apply(event):
            if isinstance(made, ev.GrantLease):
                self._leases.append(made)
            elif isinstance(made, ev.WantJobs):
                self.plans += 1
                for ask in plan(self._view, {made.device_id: made.room}, next(self._numbers)):
                    job = self._job(ask.device_id, ask.workload_id, ask.count, str(ask.origin))
                    self.apply(ev.JobSubmitted(at_secs=event.at_secs, job=job))

    def _job(self, device_id: DeviceId, workload_id: WorkloadId, count: int, origin: str) -> ev.Job:
        number = next(self._numbers)
        job = ev.Job(
            job_id=ev.JobId(f"j{number}"),
            device_id=device_id,
            workload_ids=(workload_id,),
            candidate_ids=tuple(CandidateId(f"{number:016x}{place:016x}") for place in range(count)),
            origin=origin,
            expected_secs=0.5 * count,
        )
        self._jobs[job.job_id] = job
        return job


def _view(devices: int) -> FleetView:
    """Devices that have measured something of every workload."""
    rng = np.random.default_rng(0)
    workloads = {
        WorkloadId(f"{number:016x}"): (1 + number % 5) * 10.0 ** (6 + number % 5)
        for number in range(WORKLOADS)
    }

    def device(number: int) -> DeviceView:
        cells = {
            workload_id: Cell(
                measured=int(rng.integers(0, 500)),
                unpaired=int(rng.integers(0, 50)),
                interval=float(rng.random()) if rng.random() < 0.5 else None,
            )
            for workload_id in workloads
        }
        return DeviceView(
            device_id=DeviceId(device_name(number)),
            records=sum(cell.measured for cell in cells.values()),
            has_head=True,
            host=f"host-{number % 500}",
            cells=cells,
        )

    views = (device(number) for number in range(devices))
    return FleetView(devices={one.device_id: one for one in views}, workloads=workloads)


def measure_scheduling(*, devices: int, decisions: int) -> Figures:
    """End job after job of a fleet that is busy everywhere, and time what follows from each."""
    fleet, planned = _BusyFleet(_view(devices)), []
    for number in range(decisions):
        now = _CLOCK + 0.01 * number
        done, plans = fleet.end_of_job(now), fleet.plans
        elapsed = stopwatch()
        fleet.apply(done)
        # The others only hand out a lease that is queued already.
        if fleet.plans > plans:
            planned.append(elapsed())
        if number % 50 == 49:
            fleet.apply(ev.Tick(at_secs=now))
    return {
        "devices": devices,
        "workloads": WORKLOADS,
        "decisions": decisions,
        **ms_of("decision_ms", planned),
    }


PARTS = ("taking", "scheduling", "start", "fleet", "connections")
#: Devices that deliver in one turn of the part `taking`, and records of each: with a turn every 0.2 s, each
#: of 1,000 devices delivers 32 records every 3.2 s.
DEVICES_PER_TURN, RECORDS_PER_BATCH = 62, 32
#: Records before memory counts.
WARM_UP_RECORDS = 300_000


def _delivery(turn: int, devices: int) -> list[Record]:
    """What arrives in a turn, the devices in turn, with traces as short as AutoTVM's."""
    records: list[Record] = []
    for number in range(turn * DEVICES_PER_TURN, (turn + 1) * DEVICES_PER_TURN):
        name = device_name(number % devices)
        records += make_records(number * RECORDS_PER_BATCH, RECORDS_PER_BATCH, name, instructions=0)
    return records


def measure_taking(folder: Path, *, devices: int, records: int) -> Figures:
    """Take in records, turn by turn, until there are enough."""
    each = DEVICES_PER_TURN * RECORDS_PER_BATCH
    turns = max(2, records // each)
    count = turns * each
    secs: list[float] = []
    durable: list[float] = []
    #: Own memory, once every device has its folder and what waits for the table has grown to its bound.
    memory: list[float] = []
    with Store.open(folder / "taking") as store:
        for turn in range(turns):
            batch = _delivery(turn, devices)
            elapsed = stopwatch()
            store.take(batch)
            store.settle()
            durable.append(elapsed())
            store.move_on()
            secs.append(elapsed())
            if turn % max(1, turns // 65) == 0 and (turn + 1) * each >= min(WARM_UP_RECORDS, count / 2):
                memory.append(own_mb())
        elapsed = stopwatch()
        store.flush()
        flush_secs = elapsed()
        memory.append(own_mb())
        kept = sum(file.rows for file in store.snapshot.files)
    # Between the first and the last fifth: one sample alone may see rows that go on to the table.
    few = max(1, len(memory) // 5)
    return {
        "devices": devices,
        "records": count,
        "in_the_table": kept,
        "records_per_s": count / (sum(secs) + flush_secs),
        **ms_of("ms_per_turn", secs),
        # The part of a turn after which its records may be acknowledged.
        **ms_of("durable_ms", durable),
        "memory_growth_mb": statistics.median(memory[-few:]) - statistics.median(memory[:few]),
        "memory_peak_mb": max(memory),
    }


def fill(folder: Path, *, records: int, devices: int) -> None:
    """Make a store of so many records, unless it is there."""
    if (folder / "records").exists():
        return
    rng = np.random.default_rng(1)
    each = records // devices
    together = max(1, 100_000 // each)
    with Store.open(folder) as store:
        for first in range(0, devices, together):
            chosen = range(first, min(devices, first + together))
            store.append_tables({device_name(number): made_up_rows(rng, each) for number in chosen})


@dataclass(frozen=True)
class Options:
    """How much of everything."""

    part: str | None = option(None, "only this one, in this process", choices=PARTS)
    devices: int = option(1000, least=1)
    records: int = option(1_300_000, "records of the part taking", least=1)
    decisions: int = option(5000, least=1)
    open_records: int = option(10_000_000, "records of the part start", least=1)
    repeats: int = option(3, "how often a coordinator starts", least=1)
    store: Path | None = option(None, "large store; made where it is not there already")


def _in_process(part: str, options: Options) -> Figures:
    """A part in a process of its own."""
    return child_json(["-m", "benchmarks.scale", "--json", *words_of(replace(options, part=part))])


def _run_part(part: str, options: Options, folder: Path) -> Figures:
    large, devices = options.store or folder / "large", options.devices
    if part == "start":
        fill(large, records=options.open_records, devices=devices)
    parts: dict[str, Callable[[], Figures]] = {
        "taking": lambda: measure_taking(folder, devices=devices, records=options.records),
        "scheduling": lambda: measure_scheduling(devices=devices, decisions=options.decisions),
        "start": lambda: measure_start(large, devices=devices, repeats=options.repeats),
        "fleet": lambda: measure_fleet(folder, devices=devices),
        "connections": lambda: measure_connections(folder),
    }
    return parts[part]()


def measure(options: Options) -> Figures:
    """Run one part here, or all of them one after the other in processes of their own."""
    with working_folder() as folder:
        if options.part:
            with seldom_collected():  # as `fleet up` does
                return _run_part(options.part, options, folder)
        # One large store for the parts that want one.
        shared = replace(options, store=options.store or folder / "large")
        found = {part: _in_process(part, shared) for part in PARTS}
    return {"devices": options.devices, **headlines(found, _HEADLINES), **found}


#: The figures that the project is judged by.
_HEADLINES = {
    "records_per_s": "taking.records_per_s",
    "fleet_records_per_s": "fleet.records_per_s",
    "scheduling_decision_ms": "scheduling.decision_ms_median",
    "scheduling_decision_ms_p99": "scheduling.decision_ms_p99",
    "memory_growth_mb": "taking.memory_growth_mb",
    "records_per_s_beside_strangers": "connections.records_per_s",
    "start_10m_rows_secs": "start.secs",
    "start_10m_rows": "start.records",
}


main = benchmark("scale", __doc__, Options, measure)

if __name__ == "__main__":
    main()
