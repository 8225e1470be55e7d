"""How far one coordinator reaches: `python -m benchmarks.scale --json`.

Six parts, each in a process of its own; `--part NAME` runs one of them here.

- `taking`: records of 1,000 devices become durable, turn by turn, and go on to the table, a million of them:
  what a coordinator does with its store (`Store.take`, a turn of the state file, `Store.move_on`).
- `scheduling`: events of 1,000 devices with jobs in their queues; a decision is what follows from the end of
  one job: `FleetState.apply`, the plan for its device, and the jobs that are handed in for it.
- `open`: a store of 10 million records is opened, for reading and for writing.
- `start`: a coordinator starts on that store, also after a kill (`benchmarks.scale_start`).
- `fleet`: a real `Coordinator` with 1,000 replay devices in other processes (`benchmarks.scale_fleet`),
  from their probe to records in the table.
- `connections`: `fleet up` while strangers hold connections to its API (`benchmarks.scale_connections`).

Rows and records of `taking` and `open` are made up: ids and latencies are random, because only their number
and their size matter. `fleet` answers from such records too, through `agents.device.replay`.
"""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from agents.records import CandidateId, DeviceId, Record, WorkloadId
from benchmarks.harness import Figures, Option, benchmark, child_json, in_child, ms_of, working_folder
from benchmarks.made_up import RecordMaker, device_name, made_up_rows, own_mb
from benchmarks.scale_connections import measure_connections
from benchmarks.scale_fleet import measure_fleet
from benchmarks.scale_start import measure_start
from fleet.core import events as ev
from fleet.core.scheduling import Cell, DeviceView, FleetView, plan
from fleet.core.state import FleetState
from fleet.daemon.garbage_collection import seldom_collected
from fleet.state.schema import STATE
from fleet.store.delta.schema import RECORD_COLUMNS, batch_to_records
from fleet.store.store import Store

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
    planned: list[float] = []
    planned_cpu: list[float] = []
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
        if planned_count > plans:
            planned.append(time.perf_counter() - started)
            planned_cpu.append(time.thread_time() - started_cpu)
        del jobs_of[lease.job_id]
        if number % 50 == 49:
            follow(state.apply(ev.Tick(at_secs=clock)))
    return {
        "devices": devices,
        "workloads": workload_count,
        "decisions": decisions,
        "decisions_with_a_plan": len(planned),
        # Of those with a plan; the others only hand out a lease that is queued already.
        **ms_of("decision_ms", planned),
        # Processor time of the same: a busy host takes nothing away from it.
        **ms_of("decision_cpu_ms", planned_cpu),
    }


PARTS = ("taking", "scheduling", "open", "start", "fleet", "connections")
#: Devices that deliver in one turn of the part `taking`, and records of each: with a turn every 0.2 s, each
#: of 1,000 devices delivers 32 records every 3.2 s.
DEVICES_PER_TURN, RECORDS_PER_BATCH = 62, 32

#: Records before memory counts.
WARM_UP_RECORDS = 300_000


def measure_taking(folder: Path, *, devices: int, records: int) -> dict[str, Any]:
    """Take in records, turn by turn, until there are enough."""
    maker = RecordMaker()
    names = itertools.cycle([device_name(number) for number in range(devices)])
    each = DEVICES_PER_TURN * RECORDS_PER_BATCH
    turns = max(2, records // each)
    count = turns * each
    ours: list[float] = []
    durable: list[float] = []
    #: Own memory, once every device has its folder and what waits for the table has grown to its bound.
    memory: list[float] = []
    lag = 0.0
    with Store.open(folder / "ours") as store:
        for turn in range(turns):
            batch: list[Record] = []
            for name in itertools.islice(names, DEVICES_PER_TURN):
                batch += maker.batch(name, RECORDS_PER_BATCH)
            began = time.perf_counter()
            store.take(batch)
            store.settle()
            durable.append(time.perf_counter() - began)
            store.move_on()
            ours.append(time.perf_counter() - began)
            lag = max(lag, store.waiting_secs)
            if turn % max(1, turns // 65) == 0 and (turn + 1) * each >= min(WARM_UP_RECORDS, count / 2):
                memory.append(own_mb())
        began = time.perf_counter()
        store.flush()
        flushed = time.perf_counter() - began
        memory.append(own_mb())
        kept = sum(file.rows for file in store.snapshot.files)
        files = len(store.data_files())
    # Between the first and the last fifth: one sample alone may see rows that go on to the table.
    few = max(1, len(memory) // 5)
    return {
        "devices": devices,
        "records": count,
        "in_the_table": kept,
        "records_per_turn": each,
        "records_per_s": count / (sum(ours) + flushed),
        **ms_of("ms_per_turn", ours),
        # The part of a turn after which its records may be acknowledged.
        **ms_of("durable_ms", durable),
        "flush_secs": flushed,
        "longest_wait_for_the_table_secs": lag,
        "data_files": files,
        "memory_growth_mb": round(statistics.median(memory[-few:]) - statistics.median(memory[:few]), 1),
        "memory_peak_mb": max(memory),
    }


#: What is done with the large store, in processes of their own: the first argument is the store.
_OPENING = {
    "for_reading": """
reader = Store.read(sys.argv[1])
found = {"version": reader.version, "files": len(reader.data_files())}
""",
    "for_writing": """
store = Store.open(sys.argv[1])
found = {"version": store.version, "rows": store.rows}
""",
}


def fill(folder: Path, *, records: int, devices: int, seed: int = 1) -> float:
    """Make a store of so many records; return the seconds that it took."""
    rng = np.random.default_rng(seed)
    each = records // devices
    together = max(1, 100_000 // each)
    started = time.perf_counter()
    with Store.open(folder) as store:
        for first in range(0, devices, together):
            chosen = range(first, min(devices, first + together))
            store.append_tables({device_name(number): made_up_rows(rng, each) for number in chosen})
    return time.perf_counter() - started


def _filled(folder: Path, *, records: int, devices: int) -> float | None:
    """Make the large store unless it is there."""
    return None if (folder / "records").exists() else fill(folder, records=records, devices=devices)


def measure_open(folder: Path, *, records: int, devices: int, repeats: int) -> dict[str, Any]:
    """Open a large store; `folder` may hold one already."""
    filled = _filled(folder, records=records, devices=devices)
    result: dict[str, Any] = {
        "records": sum(file.rows for file in Store.read(folder).snapshot.files),
        "fill_secs": filled and round(filled, 1),
        "data_bytes": sum(path.stat().st_size for path in Store.read(folder).data_files()),
        "state_bytes": (folder / STATE).stat().st_size,
    }
    for name, work in _OPENING.items():
        runs = [in_child(work, str(folder)) for _ in range(repeats)]
        result[name] = {**runs[0], "secs": statistics.median(run["secs"] for run in runs), "runs": repeats}
    result["twice"] = _twice(folder)
    return result


def _twice(folder: Path) -> dict[str, Any]:
    """Deliver records again that the large store has, among new ones: each must be known, or not."""
    rng = np.random.default_rng(2)
    with Store.open(folder) as store:
        device_id = min(store.counts())

        def new(count: int) -> list[Record]:
            [batch] = made_up_rows(rng, count).combine_chunks().to_batches()
            return list(batch_to_records(device_id, batch.select(list(RECORD_COLUMNS))))

        known = list(itertools.islice(store.records(device_id), 500))
        found = store.are_stored([*known, *new(500)])
        asked = new(10_000)
        started = time.perf_counter()
        store.are_stored(asked)
        secs = time.perf_counter() - started
    return {
        "known_found": sum(found[: len(known)]),
        "new_taken_for_known": sum(found[len(known) :]),
        "ms_for_10000_ids": 1e3 * secs,
    }


@dataclass(frozen=True, slots=True)
class Options:
    """How much of everything."""

    part: Annotated[str | None, Option("only this one, in this process", choices=PARTS)] = None
    devices: Annotated[int, Option(least=1)] = 1000
    records: Annotated[int, Option("records of the part taking", least=1)] = 1_300_000
    decisions: Annotated[int, Option(least=1)] = 5000
    open_records: Annotated[int, Option("records of the parts open and start", least=1)] = 10_000_000
    repeats: Annotated[int, Option("how often the large store is opened", least=1)] = 3
    fleet_secs: Annotated[float, Option("seconds of the part fleet")] = 60.0
    connections: Annotated[int, Option("strangers of the part connections", least=0)] = 2000
    connection_secs: Annotated[float, Option("seconds with and without them")] = 20.0
    store: Annotated[Path | None, Option("large store; made where it is not there already")] = None
    folder: Annotated[Path | None, Option("folder on the disk to measure")] = None


def _in_process(part: str, options: Options) -> Figures:
    values = {field.name: getattr(options, field.name) for field in fields(options) if field.name != "part"}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in values.items() if value is not None]
    result: Figures = child_json(["-m", "benchmarks.scale", "--json", f"--part={part}", *arguments])
    return result


def _run_part(options: Options, folder: Path) -> Figures:
    large, devices = options.store or folder / "large", options.devices
    match options.part:
        case "taking":
            return measure_taking(folder, devices=devices, records=options.records)
        case "scheduling":
            return measure_scheduling(devices=devices, decisions=options.decisions)
        case "open":
            return measure_open(large, records=options.open_records, devices=devices, repeats=options.repeats)
        case "start":
            _filled(large, records=options.open_records, devices=devices)
            return measure_start(large, devices=devices, repeats=options.repeats)
        case "fleet":
            return measure_fleet(folder, devices=devices, secs=options.fleet_secs)
        case _:
            return measure_connections(folder, connections=options.connections, secs=options.connection_secs)


def measure(options: Options) -> Figures:
    """Run one part here, or all of them one after the other in processes of their own."""
    with working_folder(beside=options.folder) as folder:
        if options.part:
            with seldom_collected():  # as `fleet up` does
                return _run_part(options, folder)
        # One large store for the parts that want one.
        shared = replace(options, store=options.store or folder / "large")
        found = {part: _in_process(part, shared) for part in PARTS}
    return {
        "benchmark": "scale",
        "devices": options.devices,
        "records_per_s": found["taking"]["records_per_s"],
        "fleet_records_per_s": found["fleet"]["records_per_s"],
        "scheduling_decision_ms": found["scheduling"]["decision_ms_median"],
        "scheduling_decision_ms_p99": found["scheduling"]["decision_ms_p99"],
        "memory_growth_mb": found["taking"]["memory_growth_mb"],
        "open_10m_secs": found["open"]["for_writing"]["secs"],
        "open_10m_records": found["open"]["records"],
        "records_per_s_beside_strangers": found["connections"]["records_per_s"],
        "start_10m_rows_secs": found["start"]["secs"],
        "start_10m_rows": found["start"]["records"],
        **found,
    }


main = benchmark("scale", __doc__, Options, measure)

if __name__ == "__main__":
    main()
