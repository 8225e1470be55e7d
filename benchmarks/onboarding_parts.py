"""What `benchmarks.onboarding` reads and writes: sets of devices from stores, and the figures of its points.

A set is the devices of one store and one family; each is left out in turn. A point of a curve holds values by
workload; a figure of several devices, splits and seeds is the mean over all their values, and its interval
resamples workloads, the same ones for all contenders, so that differences are paired.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from agents.records import DeviceId, DeviceKind, DeviceSpec, Family, Workload, WorkloadId
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

SCRATCH = "scratch"


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
        ks = {point.k for point in self.points if point.regime is regime and point.contender != RANDOM}
        return tuple(sorted(ks, key=lambda k: np.inf if k is None else k))

    def estimate(
        self,
        regime: Regime,
        contender: str,
        k: int | None,
        measure: str = "top1",
        *,
        less: str | tuple[str, int | None] | None = None,
        targets: Collection[str] = (),
    ) -> Estimate | None:
        """Mean of a measure with its 90 % interval; None if there is no point.

        Args:
            regime: Which regime.
            contender: Its name.
            k: Samples.
            measure: One of the points.
            less: Another contender with as many samples, or with so many: the mean difference on the same
                workloads, paired.
            targets: Only of these devices; of all where empty.
        """
        mine = self._values(regime, contender, k, measure, targets)
        other = (less, k) if isinstance(less, str) else less
        theirs = self._values(regime, *other, measure, targets) if other else dict.fromkeys(mine, 0.0)
        places = sorted(mine.keys() & theirs.keys())
        if not places:
            return None
        _, group = np.unique([place[-1] for place in places], return_inverse=True)
        weights = (None, [mine[place] - theirs[place] for place in places])
        counts, sums = (np.bincount(group, one).astype(np.float64) for one in weights)
        return resample_ratio(sums, counts, seed=0).estimate()

    def best_baseline(self, regime: Regime, k: int | None) -> str | None:
        """The baseline with the highest mean top-1 at k, a random choice included."""
        means = {
            name: estimate.value
            for name in self.contenders(regime)
            if name not in self.strategies and (estimate := self.estimate(regime, name, k)) is not None
        }
        return max(means, key=means.__getitem__, default=None)

    def gain(self, regime: Regime, k: int | None) -> Estimate | None:
        """The default's top-1 less that of the best baseline at k."""
        best = self.best_baseline(regime, k)
        return None if best is None else self.estimate(regime, self.default, k, less=best)

    def share_of_full(self, regime: Regime, k: int) -> float | None:
        """The default's top-1 at k over that with all of the device's data, by itself or from scratch.

        The better of the two stands below: a method that makes little of much data gets no credit for it.
        """
        mine = self.estimate(regime, self.default, k)
        both = (self.estimate(regime, name, None) for name in (self.default, SCRATCH))
        full = max((one.value for one in both if one is not None), default=None)
        return None if mine is None or full is None else mine.value / full

    def worst_less_scratch(self) -> tuple[float, str] | None:
        """Least mean difference of the default to scratch over regimes, devices and k, and where it was."""
        differences = [
            (one.value, f"{regime}, {target}, k = {'all' if k is None else k}")
            for regime in self.regimes
            for target in self.targets
            for k in self.samples(regime)
            if (one := self.estimate(regime, self.default, k, less=SCRATCH, targets=(target,))) is not None
        ]
        return min(differences, default=None)

    def mean(self, name: str, k: int | None, regimes: Collection[Regime], contender: str) -> float | None:
        """Mean of a number of a contender's points with k samples."""
        points = (one for one in self.points if one.contender == contender and one.k == k)
        numbers = [getattr(point, name) for point in points if point.regime in regimes]
        return float(np.mean(numbers)) if numbers else None

    def samples_for(self, regime: Regime, contender: str, top1: float) -> float | None:
        """Samples at which a contender first reaches a top-1, between points by the logarithm of k.

        None where it never does.
        """
        estimates = ((k, self.estimate(regime, contender, k)) for k in self.samples(regime) if k is not None)
        curve = [(np.log2(1 + k), one.value) for k, one in estimates if one is not None]
        for place, (logarithm, value) in enumerate(curve):
            if value >= top1:
                before, low = curve[max(0, place - 1)]
                share = (top1 - low) / (value - low) if value > low else 1.0
                return float(2 ** (before + share * (logarithm - before)) - 1)
        return None

    def as_json(self) -> dict[str, Any]:
        """All estimates as [value, low, high], by regime, samples and contender."""
        return {
            regime.value: {
                "all" if k is None else str(k): self._rows(regime, k) for k in self.samples(regime)
            }
            for regime in self.regimes
        }

    def _rows(self, regime: Regime, k: int | None) -> dict[str, Any]:
        """All contenders with k samples."""
        best = self.best_baseline(regime, k)
        rows = {}
        for name in self.contenders(regime):
            of = partial(self.estimate, regime, name, k)
            if of() is not None:
                rows[name] = {
                    **{measure: interval(of(measure)) for measure in self.points[0].values},
                    "less_best_baseline": best and interval(of(less=best)),
                    "less_scratch": interval(of(less=SCRATCH)),
                    "adapt_seconds": self.mean("seconds", k, (regime,), name),
                    "by_device": {target: interval(of(targets=(target,))) for target in self.targets},
                }
        measured = self.mean("measured", k, (regime,), self.default)
        return {"best_baseline": best, "measured": measured, "contenders": rows}

    def _values(
        self, regime: Regime, contender: str, k: int | None, measure: str, targets: Collection[str]
    ) -> dict[tuple[str, str, int, int], float]:
        """Values by device, split, seed and workload."""
        return {
            (point.target, point.split, point.seed, group): value
            for point in self.points
            if point.regime is regime and point.contender == contender
            if contender == RANDOM or point.k == k
            if not targets or point.target in targets
            for group, value in zip(point.groups, point.values[measure], strict=True)
        }


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


def device_sets(stores: Sequence[Path], folder: Path, most: int) -> list[DeviceSet]:
    """Sets of devices to run on.

    Args:
        stores: Stores to read; where empty, that of `make run` and the logs beside the checkout, as far as
            they are there.
        folder: For a store of imported logs.
        most: Candidates of each workload to keep at most.
    """
    paths = list(stores)
    if not paths:
        paths += [DEMO_STORE] if DEMO_STORE.is_dir() else []
        if LOGS.is_dir():
            import_devices(folder / "store", LOGGED)
            paths.append(folder / "store")
    sets = [one for path in paths for one in _sets_of(Store.read(path), most)]
    names = Counter(one.name for one in sets)
    return [
        replace(one, name=f"{one.name} ({place})") if names[one.name] > 1 else one
        for place, one in enumerate(sets, start=1)
    ]


def _sets_of(reader: StoreReader, most: int) -> Iterator[DeviceSet]:
    """One set for each family with at least two devices."""
    by_family: dict[Family, list[DeviceSpec]] = defaultdict(list)
    for entry in reader.devices().values():
        if entry.descriptor is not None:
            by_family[entry.spec.family].append(entry.spec)
    for family, members in sorted(by_family.items()):
        # A board that answers from a file beside devices that measured is one of them again; in a store of
        # imported logs all are of that kind.
        measuring = [one for one in members if one.kind is not DeviceKind.REPLAY]
        chosen = [one.device_id for one in (measuring if len(measuring) > 1 else members)]
        snapshot = load_snapshot(reader, device_ids=chosen) if len(chosen) > 1 else None
        if snapshot is None or len(snapshot.dataset.device_ids) < 2:
            continue
        whole = snapshot.dataset
        measured = np.flatnonzero(np.isfinite(whole.latency_secs).any(axis=1) | whole.failed.any(axis=1))
        is_own = _dialect(reader, chosen[0]) == "meta_schedule"
        name = "ISA profiles of one host" if is_own else "Devices of imported logs"
        yield DeviceSet(
            name=name if len(by_family) == 1 else f"{name}, {family}",
            is_own=is_own,
            dataset=whole.take(few_of_each(whole, measured, most, 0)),
            workloads={one: snapshot.workloads[one] for one in whole.workload_ids},
            ceilings=ceilings_as_json(measured_twice(reader, snapshot)[1]),
        )


def _dialect(reader: StoreReader, device_id: DeviceId) -> str:
    """The dialect of a device's first record; empty where it has none."""
    for _, batch in reader.columns(("dialect",), device_ids=[device_id], version=reader.version):
        if batch.num_rows:
            return str(batch.column("dialect")[0])
    return ""


def as_json(one: DeviceSet, table: CurveTable) -> dict[str, Any]:
    """All estimates of a set, JSON-ready."""
    return {
        "set": one.name,
        "is_own": one.is_own,
        "devices": list(table.targets),
        "candidates": len(one.dataset),
        "workloads": len(np.unique(one.dataset.group)),
        "ceilings": one.ceilings,
        "regimes": table.as_json(),
    }
