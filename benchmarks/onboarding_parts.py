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
from benchmarks.onboarding_ceilings import ceilings
from benchmarks.training import LOGS
from fleet.interchange.import_logs import ImportRequest, import_logs
from fleet.models.learning import load_snapshot
from fleet.store.store import Store, StoreReader
from transfer.dataset import Dataset
from transfer.intervals import Estimate
from transfer.onboarding_cases import Regime, few_of_each
from transfer.onboarding_table import MEASURES, RANDOM, CurveTable

#: Folders of the AutoTVM logs whose devices are told apart (`x86_hokusai` is the i7-3770 again).
LOGGED = ("arm_cortex-a72", "x86-amd3700x", "x86_inteli7-3770")
#: Where `make run` keeps its store.
DEMO_STORE = Path("runs/demo/store")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceSet:
    """Devices that are each other's siblings."""

    #: What it is, for tables; no path.
    name: str
    #: Whether this project measured them, on uniform random candidates or its own search.
    is_own: bool
    dataset: Dataset
    workloads: Mapping[WorkloadId, Workload]
    #: What one record of a candidate gives when it ranks another one, by device.
    ceilings: Mapping[str, Mapping[str, float]]


def device_sets(
    stores: Sequence[Path], device_ids: Sequence[str], folder: Path, most: int, seed: int
) -> list[DeviceSet]:
    """Sets of devices to run on.

    Args:
        stores: Stores to read; where empty, that of `make run` and the logs beside the checkout, as far as
            they are there.
        device_ids: Only these devices; all where empty.
        folder: For a store of imported logs.
        most: Candidates of each workload to keep at most.
        seed: Draws them.
    """
    found: list[DeviceSet] = []
    if stores:
        for path in stores:
            found += _sets_of(Store.read(path), path.parent.name, device_ids, most, seed)
        return found
    if DEMO_STORE.is_dir():
        found += _sets_of(Store.read(DEMO_STORE), "the demo's ISA profiles", device_ids, most, seed)
    if LOGS.is_dir():
        with Store.open(folder / "store") as store:
            for name in LOGGED:
                device_id = name.lower().replace("_", "-")
                import_logs(store, ImportRequest(paths=(LOGS / name,), device_id=device_id))
        found += _sets_of(Store.read(folder / "store"), "AutoTVM logs", device_ids, most, seed)
    return found


def _sets_of(
    reader: StoreReader, name: str, device_ids: Sequence[str], most: int, seed: int
) -> list[DeviceSet]:
    """One set for each family with at least two devices."""
    by_family: dict[Family, list[DeviceId]] = defaultdict(list)
    for device_id, entry in reader.devices().items():
        wanted = not device_ids or device_id in device_ids
        if wanted and entry.descriptor is not None and entry.spec.kind is not DeviceKind.REPLAY:
            by_family[entry.spec.family].append(device_id)
    found = []
    for family, members in sorted(by_family.items()):
        if len(members) < 2:
            continue
        snapshot = load_snapshot(reader, device_ids=members)
        whole = snapshot.dataset
        if len(whole.device_ids) < 2:
            continue
        measured = np.flatnonzero(np.isfinite(whole.latency_secs).any(axis=1) | whole.failed.any(axis=1))
        dataset = whole.take(few_of_each(whole, measured, most, seed))
        is_own = any(row.dialect == "meta_schedule" for row in _few_rows(reader, members[0]))
        label = name if len(by_family) == 1 else f"{name}, {family}"
        found.append(
            DeviceSet(
                name=label,
                is_own=is_own,
                dataset=dataset,
                workloads={one: snapshot.workloads[one] for one in whole.workload_ids},
                ceilings=ceilings(reader, whole),
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class _Row:
    dialect: str


def _few_rows(reader: StoreReader, device_id: DeviceId) -> list[_Row]:
    for _, batch in reader.columns(("dialect",), device_ids=[device_id], version=reader.version):
        if batch.num_rows:
            return [_Row(str(batch.column("dialect")[0]))]
    return []


def as_json(one: DeviceSet, table: CurveTable) -> dict[str, Any]:
    """All estimates of a set as [value, low, high], JSON-ready."""
    regimes = {}
    for regime in table.regimes:
        ks = {}
        for k in table.samples(regime):
            rows = {}
            for name in table.contenders(regime):
                values = {measure: listed(table.estimate(regime, name, k, measure)) for measure in MEASURES}
                if values["top1"] is None:
                    continue
                best = table.best_baseline(regime, k)
                rows[name] = {
                    **values,
                    "less_best_baseline": None
                    if best is None
                    else listed(table.difference(regime, name, best, k)),
                    "less_scratch": listed(table.difference(regime, name, "scratch", k)),
                    "adapt_seconds": table.seconds(name, k, regime),
                    "by_device": {
                        target: listed(table.estimate(regime, name, k, "top1", (target,)))
                        for target in table.targets
                    },
                }
            ks["all" if k is None else str(k)] = {
                "best_baseline": table.best_baseline(regime, k),
                "measured": _measured(table, regime, k),
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


def _measured(table: CurveTable, regime: Regime, k: int | None) -> float:
    """Mean number of samples that k came to."""
    found = [
        point.measured
        for point in table.points
        if point.regime is regime and point.k == k and point.contender != RANDOM
    ]
    return float(np.mean(found)) if found else 0.0


def listed(estimate: Estimate | None) -> list[float] | None:
    """An estimate as [value, low, high], rounded."""
    return (
        None if estimate is None else [round(one, 4) for one in (estimate.value, estimate.low, estimate.high)]
    )


def markdown(sets: Sequence[tuple[DeviceSet, CurveTable]], figures: Mapping[str, Any], command: str) -> str:
    """The curve as a page."""
    lines = ["# Onboarding: results", "", f"`{command}`", ""]
    lines += [
        "Made by that command; do not edit. top-1 is the speed of the candidate put first over the best "
        "there is among those judged, mean over workloads, seeds and devices, each device left out in turn. "
        "In brackets: 90 % intervals, bootstrap over workloads. **Bold**: above the best baseline of the "
        "column by paired bootstrap over workloads. A random choice stands beside every figure, and a "
        "ceiling where candidates were measured twice: one record of a candidate ranking another.",
        "",
        "| figure | value |",
        "|---|---|",
        *(f"| `{name}` | {_text(value)} |" for name, value in figures.items()),
        "",
    ]
    for one, table in sets:
        lines += [
            f"## {one.name}",
            "",
            f"Devices {', '.join(table.targets)}; {len(one.dataset)} candidates of "
            f"{len(np.unique(one.dataset.group))} workloads.",
            "",
        ]
        for device_id, ceiling in one.ceilings.items():
            lines.append(
                f"- ceiling on {device_id}: top-1 {ceiling['top1']:.3f}, top-5 {ceiling['top5']:.3f}, tau "
                f"{ceiling['tau']:.3f} ({ceiling['candidates']:.0f} candidates of {ceiling['workloads']:.0f} "
                f"workloads, measured twice); on as many as are judged, top-1 "
                f"{ceiling.get('judged_top1', float('nan')):.3f}, tau "
                f"{ceiling.get('judged_tau', float('nan')):.3f}"
            )
        lines.append("")
        for regime in table.regimes:
            lines += _regime_lines(table, regime)
    return "\n".join(lines)


def _regime_lines(table: CurveTable, regime: Regime) -> list[str]:
    ks = table.samples(regime)
    seeds = len({point.seed for point in table.points if point.regime is regime})
    titles = [f"all ({_measured(table, regime, k):.0f})" if k is None else str(k) for k in ks]
    lines = [f"### {regime.value}, {seeds} seeds", ""]
    for measure in MEASURES:
        random = table.estimate(regime, RANDOM, 0, measure)
        beside = "" if random is None or measure == "tau" else f" (random {random.value:.3f})"
        lines += [
            f"| {measure}{beside} | " + " | ".join(titles) + " |",
            "|---" * (len(ks) + 1) + "|",
        ]
        for name in table.contenders(regime):
            if name == RANDOM:
                continue
            cells = [_cell(table, regime, name, k, measure) for k in ks]
            if any(cells):
                lines.append(f"| {name} | {' | '.join(cells)} |")
        lines.append("")
    gains = []
    for k, title in zip(ks, titles, strict=True):
        gain = table.gain(regime, k)
        if gain is not None:
            gains.append(f"k = {title}: {spanned(gain)} over {table.best_baseline(regime, k)}")
    if gains:
        lines += [f"{table.default} less the best baseline, top-1: {'; '.join(gains)}.", ""]
    for target in table.targets:
        cells = [
            f"{title}: {mine.value:.3f} (best baseline {best.value:.3f})"
            for k, title in zip(ks, titles, strict=True)
            if (mine := table.estimate(regime, table.default, k, "top1", (target,))) is not None
            and (named := table.best_baseline(regime, k, (target,))) is not None
            and (best := table.estimate(regime, named, k, "top1", (target,))) is not None
        ]
        if cells:
            lines.append(f"- {table.default} on {target}: {'; '.join(cells)}")
    return [*lines, ""]


def _cell(table: CurveTable, regime: Regime, name: str, k: int | None, measure: str) -> str:
    found = table.estimate(regime, name, k, measure)
    if found is None:
        return ""
    if measure != "top1":
        return f"{found.value:.3f}"
    text = f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"
    best = table.best_baseline(regime, k)
    if name not in table.strategies or best is None:
        return text
    gain = table.difference(regime, name, best, k)
    return f"**{text}**" if gain is not None and gain.is_above_zero else text


def spanned(estimate: Estimate) -> str:
    """A difference with its interval."""
    return f"{estimate.value:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list):
        return ", ".join(_text(one) for one in value)
    return str(value)


def narrowed(one: DeviceSet, device_ids: Sequence[str]) -> DeviceSet:
    """A set of some of its devices only."""
    columns = [one.dataset.column(device_id) for device_id in device_ids]
    dataset = one.dataset
    return replace(
        one,
        dataset=replace(
            dataset,
            device_ids=tuple(dataset.device_ids[column] for column in columns),
            latency_secs=dataset.latency_secs[:, columns],
            failed=dataset.failed[:, columns],
            hardware=dataset.hardware[columns],
        ),
    )


__all__ = [
    "DEMO_STORE",
    "LOGGED",
    "DeviceSet",
    "as_json",
    "device_sets",
    "listed",
    "markdown",
    "narrowed",
    "spanned",
]
