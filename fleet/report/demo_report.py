"""Turn what the demo found into the values of a report. Measures and trains nothing."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from agents.records import CONFIRM, REMEASURE, DeviceId, DeviceSpec, Outcome, Record, WorkloadId, median
from fleet.collection.batch_plan import is_full
from fleet.report.demo import DemoRun
from fleet.report.values import (
    DeviceSummary,
    Facts,
    FailureGroup,
    HeadScore,
    ModelSummary,
    OnboardingSummary,
    PairedWorkload,
    Parts,
    Report,
    ReportedNumber,
    ScoredCandidate,
    Similarity,
    WallTime,
    WorkloadLatencies,
)
from fleet.store.noise import settled
from fleet.store.store import Store

if TYPE_CHECKING:
    from transfer.data.dataset import Dataset
    from transfer.evaluate.evaluation import Approach, CrossValidation

#: A pause between two records longer than this is an interruption, not measuring.
_LONGEST_PAUSE_SECS = 30.0
_ONBOARD = "onboard: "
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "torch", "ray", "deltalake", "numpy")


def build_report(run: DemoRun) -> Report:
    """Make the report of a finished demo; reads the records from its store."""
    devices = (*run.sources, run.target)
    reader = Store.read(run.store)
    chosen = {workload.workload_id for workload in run.workloads}
    records = {
        spec.device_id: [r for r in reader.records(device_id=spec.device_id) if r.workload_id in chosen]
        for spec in devices
    }
    names = {workload.workload_id: workload.name for workload in run.workloads}
    return Report(
        devices=tuple(summarise_device(spec, records[spec.device_id], names) for spec in devices),
        workloads=tuple(sorted(names.values())),
        held_out=tuple(sorted(names.values())),
        model=_model(run),
        onboarding=_onboarding(run, names),
        timing=WallTime(parts=_seconds(run, records), wall_secs=run.wall_secs),
        similarity=similarity(run.snapshot.dataset, [spec.device_id for spec in devices]),
        points=_points(run.held_out.target["warm"], run.target.device_id, run.snapshot.dataset, names),
        protocol=run.settings.protocol,
        host=_host(run),
        versions=_versions(),
        caveats=_caveats(run, records),
        command="fleet demo",
        created_at=time.time(),
    )


def summarise_device(
    spec: DeviceSpec, records: Sequence[Record], names: dict[WorkloadId, str]
) -> DeviceSummary:
    """Counts, failures, latencies and repeatability of one device.

    Args:
        spec: The device.
        records: All its records.
        names: Names of workloads for people.
    """
    failed: dict[Outcome, list[str]] = {}
    latencies: dict[WorkloadId, list[float]] = {}
    for record in settled(records):
        if record.outcome is not Outcome.OK:
            failed.setdefault(record.outcome, []).append(record.error)
        else:
            latencies.setdefault(record.workload_id, []).append(record.latency_secs)
    return DeviceSummary(
        device_id=spec.device_id,
        ok=sum(map(len, latencies.values())),
        failures=tuple(
            FailureGroup(outcome=outcome, count=len(errors), example=errors[0])
            for outcome, errors in sorted(failed.items())
        ),
        records_per_s=records_per_second(records),
        remeasure_median_change=remeasure_change(records),
        latencies=tuple(
            WorkloadLatencies(workload=names[workload_id], latency_secs=tuple(secs))
            for workload_id, secs in sorted(latencies.items(), key=lambda item: names[item[0]])
        ),
        note=spec.note,
    )


def records_per_second(records: Sequence[Record]) -> float | None:
    """Finished records a second while the device was at work; pauses between runs do not count."""
    moments = sorted(record.measured_at for record in records)
    active = sum(min(later - sooner, _LONGEST_PAUSE_SECS) for sooner, later in pairwise(moments))
    return (len(moments) - 1) / active if active > 0 else None


def remeasure_change(records: Sequence[Record]) -> float | None:
    """Median of |second / first - 1| over the candidates with two full measurements in one environment.

    Both must be steady, where there are such pairs: a candidate whose first measurement was suspect is
    measured again because that may be wrong.
    """
    full = [record for record in records if is_full(record)]
    for used in ([record for record in full if not record.is_suspect], full):
        first = {(r.candidate_id, r.environment_id): r for r in used if r.origin not in (REMEASURE, CONFIRM)}
        changes = [
            abs(again.latency_secs / first[key].latency_secs - 1)
            for again in used
            if again.origin == REMEASURE and (key := (again.candidate_id, again.environment_id)) in first
        ]
        if changes:
            return median(changes)
    return None


def similarity(dataset: Dataset, device_ids: Sequence[DeviceId]) -> Similarity:
    """How alike devices order their shared candidates: Kendall's tau inside a workload, averaged."""
    from transfer.data.metrics import kendall_tau

    latency = np.stack(
        [dataset.latency_secs[:, dataset.column(device_id)] for device_id in device_ids], axis=1
    )
    shared = np.isfinite(latency).all(axis=1)
    groups = [np.flatnonzero(shared & (dataset.group == group)) for group in range(len(dataset.workload_ids))]

    def mean_tau(one: int, other: int) -> float | None:
        if one == other:
            return 1.0
        taus = [
            # A lower latency is a higher score.
            kendall_tau(-latency[rows, one], latency[rows, other])
            for rows in groups
            if len(rows) > 1
        ]
        finite = [tau for tau in taus if np.isfinite(tau)]
        return float(np.mean(finite)) if finite else None

    size = range(len(device_ids))
    return Similarity(
        device_ids=tuple(device_ids),
        tau=tuple(tuple(mean_tau(one, other) for other in size) for one in size),
        shared_candidates=int(shared.sum()),
    )


def _estimate(value: float, interval: tuple[float, float]) -> ReportedNumber:
    return ReportedNumber(value=value, low=interval[0], high=interval[1])


def head_score(device_id: str, approach: Approach) -> HeadScore:
    """What held-out workloads say of one head."""
    metrics = approach.metrics
    return HeadScore(
        device_id=device_id,
        top1=_estimate(metrics.top1, approach.top1_interval),
        top5=_estimate(metrics.top5, approach.top5_interval),
        random_top1=metrics.random_top1,
        random_top5=metrics.random_top5,
        kendall_tau=metrics.tau,
    )


def _model(run: DemoRun) -> ModelSummary:
    held_out = run.held_out
    scores = [head_score(device_id, approach) for device_id, approach in held_out.sources.items()]
    scores.append(head_score(run.target.device_id, held_out.target["warm"]))
    return ModelSummary(
        version=run.model_version,
        heads=tuple(run.model.device_ids),
        scores=tuple(scores),
        parameters=sum(parameter.numel() for parameter in run.model.parameters()),
        train_secs=run.parts["train"],
    )


def _onboarding(run: DemoRun, names: dict[WorkloadId, str]) -> OnboardingSummary:
    held_out: CrossValidation = run.held_out
    warm, scratch, nearest, full = (held_out.target[part] for part in ("warm", "scratch", "nearest", "full"))
    difference, low, high = held_out.warm_minus_scratch
    dataset = run.snapshot.dataset
    return OnboardingSummary(
        device=run.target.device_id,
        samples=held_out.samples,
        strategy=run.strategy,
        seconds_by_part=tuple(
            (name.removeprefix(_ONBOARD), secs)
            for name, secs in run.parts.items()
            if name.startswith(_ONBOARD)
        ),
        top1=_estimate(warm.metrics.top1, warm.top1_interval),
        top5=_estimate(warm.metrics.top5, warm.top5_interval),
        scratch_top1=_estimate(scratch.metrics.top1, scratch.top1_interval),
        scratch_top5=_estimate(scratch.metrics.top5, scratch.top5_interval),
        nearest_top1=_estimate(nearest.metrics.top1, nearest.top1_interval),
        nearest_top5=_estimate(nearest.metrics.top5, nearest.top5_interval),
        full_top1=_estimate(full.metrics.top1, full.top1_interval),
        full_top5=_estimate(full.metrics.top5, full.top5_interval),
        full_samples=held_out.full_samples,
        random_top1=warm.metrics.random_top1,
        random_top5=warm.metrics.random_top5,
        pairs=tuple(
            PairedWorkload(workload=names[dataset.workload_ids[group]], warm_top1=one, scratch_top1=other)
            for group, one, other in zip(
                warm.metrics.groups.tolist(),
                warm.metrics.top1_by_workload.tolist(),
                scratch.metrics.top1_by_workload.tolist(),
                strict=True,
            )
        ),
        difference=ReportedNumber(value=difference, low=low, high=high),
    )


def _points(
    approach: Approach, device_id: DeviceId, dataset: Dataset, names: dict[WorkloadId, str]
) -> tuple[ScoredCandidate, ...]:
    scored = approach.scored
    return tuple(
        ScoredCandidate(
            device_id=device_id,
            workload=names[dataset.workload_ids[dataset.group[row]]],
            score=float(score),
            relative_speed=float(label),
        )
        for row, score, label in zip(scored.rows, scored.scores, scored.labels, strict=True)
        if np.isfinite(label)
    )


def _seconds(run: DemoRun, records: dict[DeviceId, list[Record]]) -> Parts:
    """Wall seconds of the run's steps; then what agents spent inside of measuring, side by side."""
    steps = [(name.removeprefix(_ONBOARD), secs) for name, secs in run.parts.items()]
    merged: dict[str, float] = {}
    for name, secs in steps:
        merged[name] = merged.get(name, 0.0) + secs
    everything = [record for group in records.values() for record in group]
    inside = {
        "agents: build": sum(record.build_secs for record in everything),
        "agents: wait for the timing lock": sum(record.wait_secs for record in everything),
        "agents: time": sum(record.timing_secs for record in everything),
    }
    return (*merged.items(), *inside.items())


def _host(run: DemoRun) -> Facts:
    spec, descriptor = run.snapshot.devices[run.target.device_id]
    gib = 1 << 30
    return (
        ("host", descriptor.host),
        ("cpu", descriptor.cpu_model),
        ("cores", f"{descriptor.physical_cores} physical, {len(descriptor.usable_cores)} usable"),
        ("timing cores", ", ".join(str(core) for core in spec.cores)),
        ("memory", f"{descriptor.memory_bytes / gib:.0f} GiB"),
        ("governor", descriptor.governor or "hidden by the host"),
        ("kernel", descriptor.kernel),
    )


def _versions() -> Facts:
    from agents.host.probe import installed_version

    return (("python", platform.python_version()), *((name, installed_version(name)) for name in _PACKAGES))


def _caveats(run: DemoRun, records: dict[DeviceId, list[Record]]) -> tuple[str, ...]:
    caveats = [
        "The devices are instruction-set profiles of one CPU. Each is built for and timed for real, but they "
        "share caches, memory and clock, so they are more alike than boards from different makers.",
        f"Scores are means over {len(run.workloads)} workloads of at most {run.settings.samples} random "
        "candidates each; every workload was held out, and the head that ranked it knew nothing of it. All "
        f"of it was done {run.settings.repeats} times with other samples and initial weights.",
    ]
    if run.resumed:
        caveats.append(
            "This run went on with records of an earlier one. The time to measure the new device's samples "
            "is therefore the sum of building and timing them one after the other."
        )
    for device_id, group in records.items():
        ok = [record for record in settled(group) if record.outcome is Outcome.OK]
        drifted = sum(record.is_suspect for record in ok)
        if drifted:
            caveats.append(
                f"{drifted} of {len(ok)} latencies of {device_id} were measured while its canary programs "
                "ran at another speed than usual, and no steady measurement took their place. They are used "
                "all the same; a quieter host gives numbers to rely on (`fleet doctor`)."
            )
    if len(run.sources) < 3:
        caveats.append(f"This host could be only {len(run.sources)} known devices; three or more are meant.")
    return tuple(caveats)
