"""What `benchmarks.onboarding` reads and writes: sets of devices from stores, ceilings, tables.

A set is the devices of one store and one family; each is left out in turn. Nothing is measured here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from agents.records import DeviceId, DeviceKind, Family, Workload, WorkloadId
from benchmarks.onboarding_curve import RANDOM
from benchmarks.onboarding_table import MEASURES, CurveTable
from benchmarks.tables import interval
from benchmarks.training import LOGS, import_devices
from fleet.json_types import Json
from fleet.models.evaluation import ceilings_as_json, measured_twice
from fleet.models.versions import load_snapshot
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from transfer.adapt.base import Regime
from transfer.data.dataset import Dataset
from transfer.data.splits import few_of_each

#: Folders of the AutoTVM logs whose devices are told apart (`x86_hokusai` is the i7-3770 again).
LOGGED = ("arm_cortex-a72", "x86_AMD3700X", "x86_inteli7-3770")
#: Where `make run` keeps its store.
DEMO_STORE = Path("runs/demo/store")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceSet:
    """Devices that are each other's source devices."""

    #: What it is, for tables; no path.
    name: str
    #: Whether this project measured them, on uniform random candidates or its own search.
    is_own: bool
    dataset: Dataset
    workloads: Mapping[WorkloadId, Workload]
    #: What one record of a candidate gives when it ranks another one, by device.
    ceilings: Json


def device_sets(
    stores: Sequence[Path], device_ids: Sequence[str], folder: Path, most: int
) -> list[DeviceSet]:
    """Sets of devices to run on.

    Args:
        stores: Stores to read; where empty, that of `make run` and the logs beside the checkout, as far as
            they are there.
        device_ids: Only these devices; all of a store that holds none of them.
        folder: For a store of imported logs.
        most: Candidates of each workload to keep at most.
    """
    paths = list(stores)
    if not paths:
        paths += [DEMO_STORE] if DEMO_STORE.is_dir() else []
        if LOGS.is_dir():
            import_devices(folder / "store", LOGGED)
            paths.append(folder / "store")
    sets = [one for path in paths for one in _sets_of(Store.read(path), device_ids, most)]
    names = [one.name for one in sets]
    return [
        one if names.count(one.name) == 1 else replace(one, name=f"{one.name} ({place})")
        for place, one in enumerate(sets, start=1)
    ]


def _sets_of(reader: StoreReader, device_ids: Sequence[str], most: int) -> list[DeviceSet]:
    """One set for each family with at least two devices."""
    by_family: dict[Family, list[DeviceId]] = defaultdict(list)
    known = reader.devices()
    named = {one for one in device_ids if one in known}
    for device_id, entry in known.items():
        wanted = not named or device_id in named
        if wanted and entry.descriptor is not None:
            by_family[entry.spec.family].append(device_id)
    for family, members in by_family.items():
        # A board that answers from a file beside devices that measured is one of them again; in a store of
        # imported logs all are of that kind.
        measuring = [one for one in members if known[one].spec.kind is not DeviceKind.REPLAY]
        by_family[family] = measuring if len(measuring) > 1 else members
    found = []
    for family, members in sorted(by_family.items()):
        if len(members) < 2:
            continue
        snapshot = load_snapshot(reader, device_ids=members)
        whole = snapshot.dataset
        if len(whole.device_ids) < 2:
            continue
        measured = np.flatnonzero(np.isfinite(whole.latency_secs).any(axis=1) | whole.failed.any(axis=1))
        dataset = whole.take(few_of_each(whole, measured, most, 0))
        is_own = _dialect(reader, members[0]) == "meta_schedule"
        name = "ISA profiles of one host" if is_own else "Devices of imported logs"
        found.append(
            DeviceSet(
                name=name if len(by_family) == 1 else f"{name}, {family}",
                is_own=is_own,
                dataset=dataset,
                workloads={one: snapshot.workloads[one] for one in whole.workload_ids},
                ceilings=ceilings_as_json(measured_twice(reader, snapshot)[1]),
            )
        )
    return found


def _dialect(reader: StoreReader, device_id: DeviceId) -> str:
    """The dialect of a device's first record; empty where it has none."""
    for _, batch in reader.columns(("dialect",), device_ids=[device_id], version=reader.version):
        if batch.num_rows:
            return str(batch.column("dialect")[0])
    return ""


def as_json(one: DeviceSet, table: CurveTable) -> dict[str, Any]:
    """All estimates of a set as [value, low, high], JSON-ready."""
    regimes = {}
    for regime in table.regimes:
        ks = {}
        for k in table.samples(regime):
            rows = {}
            for name in table.contenders(regime):
                values = {measure: interval(table.estimate(regime, name, k, measure)) for measure in MEASURES}
                if values["top1"] is None:
                    continue
                best = table.best_baseline(regime, k)
                rows[name] = {
                    **values,
                    "less_best_baseline": best and interval(table.estimate(regime, name, k, less=best)),
                    "less_scratch": interval(table.estimate(regime, name, k, less="scratch")),
                    "adapt_seconds": table.seconds(name, k, regime),
                    "by_device": {
                        target: interval(table.estimate(regime, name, k, targets=(target,)))
                        for target in table.targets
                    },
                }
            ks["all" if k is None else str(k)] = {
                "best_baseline": table.best_baseline(regime, k),
                "measured": measured_mean(table, regime, k),
                "contenders": rows,
            }
        regimes[regime.value] = ks
    return {
        "set": one.name,
        "is_own": one.is_own,
        "devices": list(table.targets),
        "candidates": len(one.dataset),
        "workloads": len(np.unique(one.dataset.group)),
        "ceilings": one.ceilings,
        "regimes": regimes,
    }


def measured_mean(table: CurveTable, regime: Regime, k: int | None) -> float:
    """Mean number of samples that k came to."""
    found = [
        point.measured
        for point in table.points
        if point.regime is regime and point.k == k and point.contender != RANDOM
    ]
    return float(np.mean(found)) if found else 0.0
