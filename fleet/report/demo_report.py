"""Turn what the demo found into a report (`fleet.report.page`). Measures and trains nothing."""

from __future__ import annotations

import math
import platform
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from agents.host.probe import installed_version
from agents.records import CONFIRM, REMEASURE, DeviceId, DeviceSpec, Outcome, Record, WorkloadId
from fleet.json_types import JsonDict
from fleet.planner.batch_plan import is_full
from fleet.report.demo import DemoRun
from fleet.report.page import complete
from fleet.report.words import SHIPPED, WARM
from fleet.store.noise import settled
from fleet.store.store import Store

if TYPE_CHECKING:
    from transfer.data.dataset import Dataset
    from transfer.evaluate.cross_validation import Approach

#: A pause between two records longer than this is an interruption, not measuring.
_LONGEST_PAUSE_SECS = 30.0
_ONBOARD = "onboard_"
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "torch", "ray", "deltalake", "numpy")
#: Shares of the candidates whose slowdown the report gives.
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
#: Scores with an interval; keys of a model's figures, and their names in `transfer.data.metrics`.
_TOP = ("top1", "top5")
_FIGURES = {name: name for name in (*_TOP, "random_top1", "random_top5")} | {"kendall_tau": "tau"}
#: Most points of a plot: more add megabytes, not insight.
_MAX_POINTS = 400


def build_report(run: DemoRun) -> JsonDict:
    """Make the report of a finished demo; reads the records from its store."""
    devices = (*run.sources, run.target)
    reader = Store.read(run.store)
    chosen = {workload.workload_id for workload in run.measured.workloads}
    records = {
        spec.device_id: [r for r in reader.records(device_id=spec.device_id) if r.workload_id in chosen]
        for spec in devices
    }
    names = {workload.workload_id: workload.name for workload in run.measured.workloads}
    return complete(
        {
            "devices": {
                spec.device_id: summarise_device(spec, records[spec.device_id], names) for spec in devices
            },
            "workloads": sorted(names.values()),
            "held_out": sorted(names.values()),
            "model": _model(run),
            "onboarding": _onboarding(run, names),
            "timing": {"wall_seconds": run.wall_secs, "seconds_by_part": _seconds(run, records)},
            "similarity": similarity(run.snapshot.dataset, [spec.device_id for spec in devices]),
            "predicted": {
                run.target.device_id: _predicted(run.held_out.target["warm"], run.snapshot.dataset)
            },
            "protocol": msgspec.structs.asdict(run.protocol),
            "host": _host(run),
            "versions": {
                "python": platform.python_version(),
                **{name: installed_version(name) for name in _PACKAGES},
            },
            "caveats": _caveats(run, records),
            "command": "fleet demo",
            "created_at": time.time(),
        }
    )


def summarise_device(
    spec: DeviceSpec, records: Sequence[Record], names: Mapping[WorkloadId, str]
) -> JsonDict:
    """Counts, failures, latencies and repeatability of one device; `names` are those of workloads."""
    failed: dict[Outcome, list[str]] = {}
    latencies: dict[WorkloadId, list[float]] = {}
    for record in settled(records):
        if record.outcome is not Outcome.OK:
            failed.setdefault(record.outcome, []).append(record.error)
        else:
            latencies.setdefault(record.workload_id, []).append(record.latency_secs)
    ok, lost = (sum(map(len, group.values())) for group in (latencies, failed))
    spreads = [max(secs) / min(secs) for secs in latencies.values()]
    slowdowns = [latency / min(secs) for secs in latencies.values() for latency in secs]
    changes = remeasured(records)
    return {
        "records": ok + lost,
        "ok": ok,
        "failed": lost,
        "records_per_s": records_per_second(records),
        "remeasure_median_change": median_change(changes),
        "remeasured_pairs": len(changes),
        "remeasured_disturbed": sum(not is_steady for _, is_steady in changes),
        "failures": {
            outcome.value: {"count": len(errors), "example": errors[0]}
            for outcome, errors in sorted(failed.items())
        },
        "workloads": [
            {
                "workload": names[workload_id],
                "candidates": len(secs),
                "best_latency_seconds": min(secs),
                "slowest_over_fastest": max(secs) / min(secs),
            }
            for workload_id, secs in sorted(latencies.items(), key=lambda item: names[item[0]])
        ],
        "slowest_over_fastest_median": median(spreads) if spreads else None,
        "slowdown_quantiles": np.quantile(slowdowns, _QUANTILES).tolist() if slowdowns else None,
        "note": spec.note,
    }


def records_per_second(records: Sequence[Record]) -> float | None:
    """Finished records per second while the device was measuring; pauses between runs do not count."""
    moments = sorted(record.measured_at for record in records)
    active = sum(min(later - sooner, _LONGEST_PAUSE_SECS) for sooner, later in pairwise(moments))
    return (len(moments) - 1) / active if active > 0 else None


def median_change(changes: Sequence[tuple[float, bool]]) -> float | None:
    """Median of what `remeasured` gives; None without any.

    If there are pairs of steady measurements, only these count: a candidate whose first measurement was
    suspect is measured again because it may be wrong.
    """
    steady = [change for change, is_steady in changes if is_steady]
    return median(steady or [change for change, _ in changes]) if changes else None


def remeasured(records: Sequence[Record]) -> list[tuple[float, bool]]:
    """|second / first - 1| of each candidate with two full measurements in one environment.

    And whether the device was steady both times.
    """
    full = [record for record in records if is_full(record)]
    # A steady first measurement is preferred to a suspect one of the same candidate.
    sooner = sorted(full, key=lambda record: not record.is_suspect)
    first = {(r.candidate_id, r.environment_id): r for r in sooner if r.origin not in (REMEASURE, CONFIRM)}
    return [
        (
            abs(again.latency_secs / first[key].latency_secs - 1),
            not (again.is_suspect or first[key].is_suspect),
        )
        for again in full
        if again.origin == REMEASURE and (key := (again.candidate_id, again.environment_id)) in first
    ]


def similarity(dataset: Dataset, device_ids: Sequence[DeviceId]) -> JsonDict:
    """How alike devices order their shared candidates: Kendall's tau inside a workload, averaged."""
    from transfer.data.ranking import kendall_tau

    latency = {device_id: dataset.latency_secs[:, dataset.column(device_id)] for device_id in device_ids}
    shared = np.isfinite(np.stack(list(latency.values()))).all(axis=0)
    groups = [np.flatnonzero(shared & (dataset.group == group)) for group in range(len(dataset.workload_ids))]

    def mean_tau(device_id: DeviceId, other: DeviceId) -> float:
        if device_id == other:
            return 1.0
        # A lower latency is a higher score.
        taus = [
            kendall_tau(-latency[device_id][rows], latency[other][rows]) for rows in groups if len(rows) > 1
        ]
        finite = [tau for tau in taus if np.isfinite(tau)]
        return float(np.mean(finite)) if finite else math.nan

    return {
        "kendall_tau": {
            device_id: {other: mean_tau(device_id, other) for other in device_ids} for device_id in device_ids
        },
        "shared_candidates": int(shared.sum()),
    }


def _model(run: DemoRun) -> JsonDict:
    heads = {**run.held_out.sources, run.target.device_id: run.held_out.target["warm"]}
    return {
        "version": run.measured.version,
        "heads": list(run.measured.model.device_ids),
        **{
            key: {name: getattr(head.metrics, attribute) for name, head in heads.items()}
            for key, attribute in _FIGURES.items()
        },
        **{f"{key}_interval": {name: head.interval(key) for name, head in heads.items()} for key in _TOP},
        "parameters": sum(parameter.numel() for parameter in run.measured.model.parameters()),
        "train_seconds": run.parts["train"],
    }


def _onboarding(run: DemoRun, names: Mapping[WorkloadId, str]) -> JsonDict:
    held_out = run.held_out
    starts = {"warm_": "warm", "scratch_": "scratch", "nearest_": "nearest", "full_": "full"}
    ways = {prefix: held_out.target[part] for prefix, part in starts.items()}
    if run.shipped is not None:
        ways["shipped_"] = run.shipped
    # The head that serves in the end.
    served_by = "" if run.decision is None else WARM if run.decision.moves_on else SHIPPED
    ways[""] = ways["shipped_" if served_by == SHIPPED else "warm_"]
    scores: JsonDict = {}
    for prefix, approach in ways.items():
        for key in _TOP:
            scores[f"{prefix}{key}"] = getattr(approach.metrics, key)
            scores[f"{prefix}{key}_interval"] = approach.interval(key)
    warm, scratch = (held_out.target[part].metrics for part in ("warm", "scratch"))
    difference, closest = (
        held_out.target["warm"].minus(held_out.target[rival]) for rival in ("scratch", "nearest")
    )
    parts = {
        name.removeprefix(_ONBOARD): secs for name, secs in run.parts.items() if name.startswith(_ONBOARD)
    }
    ids = run.snapshot.dataset.workload_ids
    return {
        "device": run.target.device_id,
        "samples": held_out.samples,
        "strategy": run.measured.strategy,
        "seconds": sum(parts.values()),
        "served_by": served_by,
        "why_served": "" if run.decision is None else run.decision.reason,
        **scores,
        "full_samples": held_out.full_samples,
        "random_top1": warm.random_top1,
        "random_top5": warm.random_top5,
        "seconds_by_part": parts,
        "workloads": [
            {"workload": names[ids[group]], "warm_top1": warm_top1, "scratch_top1": other}
            for group, warm_top1, other in zip(
                warm.groups.tolist(),
                warm.top1_by_workload.tolist(),
                scratch.top1_by_workload.tolist(),
                strict=True,
            )
        ],
        "difference": difference.value,
        "difference_interval": [difference.low, difference.high],
        "nearest_difference": closest.value,
        "nearest_difference_interval": [closest.low, closest.high],
    }


def _predicted(approach: Approach, dataset: Dataset) -> list[list[float]]:
    """Place and speed of held-out candidates, each in [0, 1].

    The place is the share of its workload that the model puts ahead: scores of a ranking loss mean nothing
    across workloads. The speed is the best latency of the workload over the candidate's.
    """
    from scipy.stats import rankdata

    scored, points = approach.scored, []
    groups = dataset.group[scored.rows]
    for group in np.unique(groups):
        mine = np.flatnonzero((groups == group) & np.isfinite(scored.labels))
        ahead = (rankdata(-scored.scores[mine]) - 1) / max(1, len(mine) - 1)
        points += [
            [round(float(a), 4), round(float(b), 4)] for a, b in zip(ahead, scored.labels[mine], strict=True)
        ]
    return points[:: math.ceil(len(points) / _MAX_POINTS) or 1]


def _seconds(run: DemoRun, records: Mapping[DeviceId, Sequence[Record]]) -> dict[str, float]:
    """Wall seconds of the run's steps; then what agents spent inside of measuring, side by side."""
    merged = defaultdict[str, float](float)
    for name, secs in run.parts.items():
        merged[name.removeprefix(_ONBOARD)] += secs
    everything = [record for group in records.values() for record in group]
    return {
        **merged,
        "agents_build": sum(record.build_secs for record in everything),
        "agents_wait": sum(record.wait_secs for record in everything),
        "agents_time": sum(record.timing_secs for record in everything),
    }


def _host(run: DemoRun) -> dict[str, str]:
    spec, descriptor = run.snapshot.devices[run.target.device_id]
    return {
        "host": descriptor.host,
        "cpu": descriptor.cpu_model,
        "cores": f"{descriptor.physical_cores} physical, {len(descriptor.usable_cores)} usable",
        "timing_cores": ", ".join(f"core {core}" for core in spec.cores),
        "memory": f"{descriptor.memory_bytes / (1 << 30):.0f} GiB",
        "governor": descriptor.governor or "hidden by the host",
        "kernel": descriptor.kernel,
    }


def _caveats(run: DemoRun, records: Mapping[DeviceId, Sequence[Record]]) -> list[str]:
    times = f"{run.settings.repeats} times" if run.settings.repeats > 1 else "once"
    caveats = [
        "The devices are instruction-set profiles of one CPU. Each is built for and timed for real. They "
        "share caches, memory and clock, so they are more alike than boards from different makers.",
        f"Scores are means over {len(run.measured.workloads)} workloads of at most {run.settings.samples} "
        "random candidates each. Every workload was held out, and the head that ranked it knew nothing of "
        f"it. The judging was done {times}, each time with other samples and initial weights.",
    ]
    if run.measured.resumed:
        caveats.append(
            "This run continued with records of an earlier run. The time to measure the new device's samples "
            "is therefore the sum of building and timing them one after the other."
        )
    drifted = []
    for device_id, group in records.items():
        ok = [record for record in settled(group) if record.outcome is Outcome.OK]
        if suspect := sum(record.is_suspect for record in ok):
            drifted.append(f"{suspect} of {len(ok)} on {device_id}")
    if drifted:
        caveats.append(
            f"Some latencies are suspect: {', '.join(drifted)}. Other programs or neighbours disturbed their "
            "repeats, and no steady measurement took their place. "
            "They are used all the same. A quieter host gives better numbers (`fleet doctor`)."
        )
    if len(run.sources) < 3:
        caveats.append(f"This host could be only {len(run.sources)} known devices; three or more are meant.")
    return caveats
