"""What `benchmarks.onboarding` reads and writes: sets of devices from stores, and the figures of its points.

A set is the devices of one store and one family; each is left out in turn. A point of a curve holds values by
workload; a figure of several devices, splits and seeds is the mean over all their values, and its interval
resamples workloads, the same ones for all contenders, so that differences are paired.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from agents.records import DeviceId, DeviceKind, Family, Workload, WorkloadId
from benchmarks.onboarding_curve import RANDOM, Point
from benchmarks.tables import interval
from benchmarks.training import LOGS, import_devices
from fleet.json_types import Json
from fleet.models.evaluation import ceilings_as_json, measured_twice
from fleet.models.versions import load_snapshot
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from transfer.adapt.base import Regime
from transfer.data.dataset import Dataset
from transfer.data.intervals import Estimate, resample_ratio
from transfer.data.splits import few_of_each

MEASURES = ("top1", "top5", "tau")
SCRATCH = "scratch"

#: Device, split, seed and workload of one value.
_Place = tuple[str, str, int, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class CurveTable:
    """All points of the devices of one store.

    Attributes:
        points: What `Experiment.points` gave.
        strategies: Names of the contenders that are strategies of this project.
        default: The one that users get.
    """

    points: Sequence[Point]
    strategies: tuple[str, ...]
    default: str

    @property
    def regimes(self) -> tuple[Regime, ...]:
        """Regimes with points."""
        return tuple(one for one in Regime if any(point.regime is one for point in self.points))

    @property
    def targets(self) -> tuple[str, ...]:
        """Devices that were left out in turn."""
        return tuple(sorted({point.target for point in self.points}))

    def contenders(self, regime: Regime) -> tuple[str, ...]:
        """Names in the order of their first point."""
        return tuple(dict.fromkeys(point.contender for point in self.points if point.regime is regime))

    def samples(self, regime: Regime) -> tuple[int | None, ...]:
        """Numbers of samples with points; None (all) last."""
        found = {point.k for point in self.points if point.regime is regime and point.contender != RANDOM}
        return (*sorted(k for k in found if k is not None), *([None] if None in found else []))

    def estimate(
        self,
        regime: Regime,
        contender: str,
        k: int | None,
        measure: str = "top1",
        *,
        less: str | None = None,
        targets: Collection[str] = (),
    ) -> Estimate | None:
        """Mean of a measure with its 90 % interval; None if there is no point.

        Args:
            regime: Which regime.
            contender: Its name.
            k: Samples.
            measure: One of `MEASURES`.
            less: Another contender with as many samples: the mean difference on the same workloads, paired.
            targets: Only of these devices; of all where empty.
        """
        mine = self._values(regime, contender, k, measure, targets)
        theirs = dict.fromkeys(mine, 0.0) if less is None else self._values(regime, less, k, measure, targets)
        above: dict[int, float] = defaultdict(float)
        below: Counter[int] = Counter()
        for place in sorted(mine.keys() & theirs.keys()):
            above[place[3]] += mine[place] - theirs[place]
            below[place[3]] += 1
        if not below:
            return None
        order = sorted(below)
        sums, counts = np.array([above[one] for one in order]), np.array([below[one] for one in order])
        return resample_ratio(sums, counts.astype(np.float64), seed=0).estimate()

    def best_baseline(self, regime: Regime, k: int | None) -> str | None:
        """The baseline with the highest mean top-1 at k, a random choice included."""
        found = {
            name: estimate.value
            for name in self.contenders(regime)
            if name not in self.strategies and (estimate := self.estimate(regime, name, k)) is not None
        }
        return max(found, key=lambda name: found[name]) if found else None

    def gain(self, regime: Regime, k: int | None) -> Estimate | None:
        """The default's top-1 less that of the best baseline at k."""
        best = self.best_baseline(regime, k)
        return None if best is None else self.estimate(regime, self.default, k, less=best)

    def share_of_full(self, regime: Regime, k: int) -> float | None:
        """The default's top-1 at k over that with all of the device's data, by itself or from scratch.

        The better of the two stands below: a method that makes little of much data gets no credit for it.
        """
        mine = self.estimate(regime, self.default, k)
        full = [
            one.value
            for name in (self.default, SCRATCH)
            if (one := self.estimate(regime, name, None)) is not None
        ]
        return None if mine is None or not full else mine.value / max(full)

    def worst_less_scratch(self) -> tuple[float, str] | None:
        """Least mean difference of the default to scratch over regimes, devices and k, and where it was."""
        found = [
            (one.value, f"{regime}, {target}, k = {'all' if k is None else k}")
            for regime in self.regimes
            for target in self.targets
            for k in self.samples(regime)
            if (one := self.estimate(regime, self.default, k, less=SCRATCH, targets=(target,))) is not None
        ]
        return min(found) if found else None

    def seconds(self, contender: str, k: int | None, regime: Regime | None = None) -> float | None:
        """Mean wall seconds of adapting."""
        found = [
            point.seconds
            for point in self.points
            if point.contender == contender and point.k == k and (regime is None or point.regime is regime)
        ]
        return float(np.mean(found)) if found else None

    def samples_for(self, regime: Regime, contender: str, top1: float) -> float | None:
        """Samples at which a contender first reaches a top-1, between points by the logarithm of k.

        None where it never does.
        """
        before: tuple[float, float] | None = None
        for k in self.samples(regime):
            one = self.estimate(regime, contender, k)
            if k is None or one is None:
                continue
            if one.value >= top1:
                if before is None or one.value == before[1]:
                    return float(k)
                low, high = np.log2(1 + before[0]), np.log2(1 + k)
                share = (top1 - before[1]) / (one.value - before[1])
                return float(2 ** (low + share * (high - low)) - 1)
            before = float(k), one.value
        return None

    def _values(
        self, regime: Regime, contender: str, k: int | None, measure: str, targets: Collection[str]
    ) -> dict[_Place, float]:
        found: dict[_Place, float] = {}
        for point in self.points:
            same_k = contender == RANDOM or point.k == k
            if point.regime is not regime or point.contender != contender or not same_k:
                continue
            if targets and point.target not in targets:
                continue
            values = getattr(point, measure)
            for group, value in zip(point.groups, values, strict=True):
                found[point.target, point.split, point.seed, group] = value
        return found


#: Folders of the AutoTVM logs whose devices are told apart (`x86_hokusai` is the i7-3770 again).
LOGGED = ("arm_cortex-a72", "x86_AMD3700X", "x86_inteli7-3770")
#: Where `make run` keeps its store.
DEMO_STORE = Path("runs/demo/store")


@dataclass(frozen=True, kw_only=True, eq=False)
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
