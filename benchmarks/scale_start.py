"""The start of a coordinator on a large store: the part `start` of `benchmarks.scale`.

Everything that `fleet up` does before it may grant its first lease, agents apart: open the store, replay the
events, know which candidates each device has, count the records, draw the first picture. Each start is a
process of its own. The devices are replay devices that nobody starts; their records are made up.
"""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path

import numpy as np

from agents.records import Protocol
from benchmarks.harness import in_child, stopwatch
from benchmarks.made_up import (
    WORKLOADS,
    device_name,
    made_up_rows,
    made_up_workloads,
    replay_specs,
)
from benchmarks.scale_fleet import made_up_coordinator, records_of
from fleet.config.sections import WorkloadsSection
from fleet.json_types import JsonDict
from fleet.planner.workload_discovery import KeptChoices, choice_key, group_of
from fleet.store.lanes import LaneSettings
from fleet.store.store import Store
from fleet.transport.local import LocalTransport

_NO_RECORDS = Path("nobody-reads-it.parquet")
_CHOICE = WorkloadsSection(networks=("resnet-50",), count=WORKLOADS, min_flops=0, max_flops=1e30)

#: Lines for a child: the store, its devices, and how it ends.
_WORK = """
from benchmarks.scale_start import begin
found = begin(pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
"""


def measure_start(folder: Path, *, devices: int, repeats: int) -> JsonDict:
    """Start a coordinator on a store that `benchmarks.scale.fill` has made.

    Args:
        folder: The store; records are added at the end.
        devices: How many devices it has.
        repeats: How often it is started.
    """
    root = _root(folder)
    shutil.rmtree(root, ignore_errors=True)
    _prepare(folder, root, devices)
    first = in_child(_WORK, str(folder), str(devices), "close")
    runs = [in_child(_WORK, str(folder), str(devices), "leave") for _ in range(repeats)]
    records = _leave_waiting(folder, devices)
    after_kill = in_child(_WORK, str(folder), str(devices), "leave")
    return {
        "records": records,
        "first": first,
        **runs[0],
        "secs": statistics.median(run["secs"] for run in runs),
        "runs": repeats,
        "rows_that_wait": after_kill["records_known"] - records,
        "after_kill": after_kill,
    }


def _leave_waiting(folder: Path, devices: int) -> int:
    """Leave as many rows as a killed coordinator does at most; return how many there were before."""
    rng = np.random.default_rng(5)
    bounds = LaneSettings()
    # Of all that is known here, nothing goes on by itself.
    settings = LaneSettings(rows_per_device=1 << 40, wait_secs=1e12, most_rows=1 << 40, most_bytes=1 << 50)
    store = Store.open(folder, settings=settings)
    records = store.rows
    each = max(1, bounds.most_rows // devices)
    store.append_tables({device_name(number): made_up_rows(rng, each) for number in range(devices)})
    store.abandon()
    return records


def begin(folder: Path, devices: int, ending: str) -> JsonDict:
    """Start one here; `close` ends it in order, and else it ends as a kill ends it."""
    store = Store.open(folder)
    transport = LocalTransport(protocol=Protocol(), spool_root=_root(folder) / "spool", heartbeat_secs=1.0)
    specs = replay_specs(map(device_name, range(devices)), _NO_RECORDS)
    coordinator = made_up_coordinator(_root(folder), store, transport, specs, _CHOICE)
    known: JsonDict = {"records_known": records_of(coordinator)}
    if ending == "close":
        elapsed = stopwatch()
        coordinator.close()
        store.close()
        known["close_secs"] = elapsed()
    return known


def _root(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-daemon")


def _prepare(folder: Path, root: Path, devices: int) -> None:
    """What a fleet that has measured for a while has: its workloads, its devices, its choice."""
    root.mkdir()
    workloads = made_up_workloads(WORKLOADS)
    specs = list(replay_specs(map(device_name, range(devices)), _NO_RECORDS).values())
    with Store.open(folder) as store:
        store.put_workloads(workloads)
        for spec in specs:
            store.put_device(spec)
        KeptChoices(store.state).put(group_of(specs[0]), choice_key(_CHOICE, specs), workloads)
        store.settle()
