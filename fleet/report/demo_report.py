"""Turn what the demo found into a report (`fleet.report.page`). Measures and trains nothing."""

from __future__ import annotations

import platform
import time
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
from fleet.report.demo import ONBOARD, DemoRun
from fleet.report.page import complete
from fleet.report.words import SHIPPED, WARM
from fleet.store.noise import settled
from fleet.store.store import Store

if TYPE_CHECKING:
    from transfer.data.metrics import Metrics

#: A pause between two records longer than this is an interruption, not measuring.
_LONGEST_PAUSE_SECS = 30.0
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "torch", "ray", "deltalake", "numpy")
#: Figures of a head, by their names in `transfer.data.metrics`; those with an interval first.
_TOP = ("top1", "top5")
_FIGURES = (*_TOP, "random_top1", "random_top5", "tau")


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
            "model": _model(run),
            "onboarding": _onboarding(run, names),
            "timing": {"wall_seconds": run.wall_secs, "seconds_by_part": dict(run.parts)},
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
            {"workload": names[workload_id], "best_latency_seconds": min(secs)}
            for workload_id, secs in sorted(latencies.items(), key=lambda item: names[item[0]])
        ],
        "slowest_over_fastest_median": median(spreads) if spreads else None,
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


def _figures(runs: Sequence[Metrics]) -> JsonDict:
    """Figures of a head, and their intervals."""
    from transfer.evaluate.rankers import estimate

    figures: JsonDict = {}
    for name in _FIGURES:
        value, *interval = estimate(runs, name).listed()
        figures[name] = value
        if name in _TOP:
            figures[f"{name}_interval"] = interval
    return figures


def _model(run: DemoRun) -> JsonDict:
    heads = {
        device_id: _figures(runs)
        for (way, device_id), runs in run.held_out.metrics.items()
        if way in {"source", "warm"}
    }
    return {
        "version": run.measured.version,
        "heads": list(run.measured.model.device_ids),
        **{
            key: {device_id: figures[key] for device_id, figures in heads.items()}
            for key in next(iter(heads.values()))
        },
        "parameters": sum(parameter.numel() for parameter in run.measured.model.parameters()),
        "train_seconds": run.parts["train"],
    }


def _onboarding(run: DemoRun, names: Mapping[WorkloadId, str]) -> JsonDict:
    held_out, target = run.held_out, run.target.device_id
    ways = {way: held_out.metrics[way, target] for way in ("warm", "scratch", "nearest", "full")}
    if run.shipped is not None:
        ways["shipped"] = (run.shipped,)
    figures = {way: _figures(runs) for way, runs in ways.items()}
    # The head that serves in the end.
    served_by = "" if run.decision is None else WARM if run.decision.moves_on else SHIPPED
    serving = figures[served_by or WARM]
    by_workload = {
        way: np.mean([metrics.values["top1"] for metrics in ways[way]], axis=0).tolist()
        for way in ("warm", "scratch")
    }
    ids = run.snapshot.dataset.workload_ids
    differences: JsonDict = {}
    for rival, key in (("scratch", "difference"), ("nearest", "nearest_difference")):
        value, *interval = held_out.difference("warm", rival, target, "top1").listed()
        differences |= {key: value, f"{key}_interval": interval}
    return {
        "device": target,
        "samples": run.settings.support,
        "strategy": run.measured.strategy,
        "seconds": sum(secs for name, secs in run.parts.items() if name.startswith(ONBOARD)),
        "served_by": served_by,
        "why_served": "" if run.decision is None else run.decision.reason,
        **{key: serving[key] for key in _TOP},
        **{
            f"{way}_{key}{end}": figures[way][f"{key}{end}"]
            for way in ways
            for key in _TOP
            for end in ("", "_interval")
        },
        "full_samples": run.full_samples,
        "random_top1": figures["warm"]["random_top1"],
        "random_top5": figures["warm"]["random_top5"],
        "workloads": [
            {"workload": names[ids[group]], "warm_top1": warm, "scratch_top1": scratch}
            for group, warm, scratch in zip(
                ways["warm"][0].groups.tolist(), *by_workload.values(), strict=True
            )
        ],
        **differences,
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
