"""A store of recorded devices with real schedules and made-up latencies that follow from them."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from agents.records import Candidate, Outcome, Record, Workload
from fleet.store.store import Store
from tests.dataset_fixtures import cpu_device, gmm_trace, gmm_workload, record_of

#: Candidates of each workload: every combination of a few tiles.
TILES = list(itertools.product((1, 2, 4, 8), (1, 2, 4), (0, 1)))
WORKLOADS = [gmm_workload(f"gmm{number}", networks=("ab"[number % 2],)) for number in range(8)]
SOURCES = ("dev-a", "dev-b", "dev-c")
NEW = "dev-new"
BROKEN = "dev-broken"


def candidate(workload: Workload, inner: int, outer: int, unroll: int) -> Candidate:
    trace = gmm_trace(i=(16 // inner, 2, 1, 4 * inner), j=(4 // outer, outer, 2, 16), unroll=unroll)
    return Candidate(workload_id=workload.workload_id, trace=trace)


def seconds_of(device: str, place: int, inner: int, outer: int, unroll: int) -> float:
    """Devices agree on most, and differ in how much they like unrolling and long inner tiles."""
    taste = {"dev-a": 0.1, "dev-b": 0.3, "dev-c": 0.5, NEW: 0.4}.get(device, 0.2)
    random = np.random.default_rng([place, inner, outer, unroll])
    shared = 0.5 * np.log(inner) - 0.3 * np.log(outer) + 0.2 * random.normal()
    return float(1e-3 * (place + 1) * np.exp(shared + taste * (unroll - 0.3 * np.log(inner))))


def records_of(device: str) -> list[Record]:
    found = []
    for place, workload in enumerate(WORKLOADS):
        for tiles in TILES:
            one = candidate(workload, *tiles)
            if device == BROKEN:
                found.append(record_of(one, device, outcome=Outcome.BUILD_FAILED))
            else:
                found.append(record_of(one, device, seconds_of(device, place, *tiles)))
    return found


def fill(path: Path, *devices: str) -> Path:
    with Store.open(path) as store:
        store.put_workloads(WORKLOADS)
        for device in devices:
            store.put_device(*cpu_device(device))
            store.append(records_of(device))
    return path
