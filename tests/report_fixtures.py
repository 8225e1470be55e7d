"""A complete small report whose every number can be followed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agents.records import Outcome, Protocol
from fleet.report.values import (
    DeviceSummary,
    FailureGroup,
    HeadScore,
    ModelSummary,
    OnboardingSummary,
    PairedWorkload,
    Report,
    ReportedNumber,
    ScoredCandidate,
    Similarity,
    WallTime,
    WorkloadLatencies,
)

WORKLOADS = tuple(f"GMM 1x{size}x{size}" for size in (32, 64, 128, 256, 512, 1024))


def device(name: str, **changes: Any) -> DeviceSummary:
    """Two workloads, seven good records and three bad ones."""
    summary = DeviceSummary(
        device_id=name,
        ok=7,
        failures=(
            FailureGroup(outcome=Outcome.BUILD_FAILED, count=2, example="InternalError: no such intrinsic"),
            FailureGroup(outcome=Outcome.RUN_TIMEOUT, count=1),
        ),
        records_per_s=2.5,
        remeasure_median_change=0.004,
        latencies=(
            WorkloadLatencies(workload=WORKLOADS[0], latency_secs=(4e-6, 2e-6, 20e-6)),
            WorkloadLatencies(workload=WORKLOADS[1], latency_secs=(1e-3, 5e-3, 2e-3, 8e-3)),
        ),
        note=f"profile {name}",
    )
    return replace(summary, **changes)


def onboarding(**changes: Any) -> OnboardingSummary:
    """Warm is ahead on five of six workloads."""
    summary = OnboardingSummary(
        device="new",
        samples=64,
        strategy="finetune",
        seconds_by_part=(("probe", 1.5), ("measure", 20.0), ("adapt", 3.5)),
        top1=ReportedNumber(value=0.9, low=0.85, high=0.95),
        top5=ReportedNumber(value=0.97, low=0.95, high=0.99),
        scratch_top1=ReportedNumber(value=0.7, low=0.6, high=0.8),
        scratch_top5=ReportedNumber(value=0.85, low=0.8, high=0.9),
        full_top1=ReportedNumber(value=0.93, low=0.9, high=0.96),
        full_top5=ReportedNumber(value=0.98),
        full_samples=700,
        random_top1=0.4,
        random_top5=0.7,
        pairs=tuple(
            PairedWorkload(workload=name, warm_top1=0.9, scratch_top1=scratch)
            for name, scratch in zip(WORKLOADS, (0.5, 0.6, 0.7, 0.7, 0.8, 0.95), strict=True)
        ),
        difference=ReportedNumber(value=0.19, low=0.08, high=0.3),
    )
    return replace(summary, **changes)


def head(name: str, **changes: Any) -> HeadScore:
    """A head that is clearly better than random choice."""
    score = HeadScore(
        device_id=name,
        top1=ReportedNumber(value=0.8, low=0.7, high=0.9),
        top5=ReportedNumber(value=0.95, low=0.9, high=0.98),
        random_top1=0.5,
        random_top5=0.75,
        kendall_tau=0.6,
    )
    return replace(score, **changes)


def full_report(names: tuple[str, ...] = ("first", "second", "new"), **changes: Any) -> Report:
    """Everything there is to report; the last device is the onboarded one."""
    known, new = names[:-1], names[-1]
    report = Report(
        devices=tuple(device(name) for name in names),
        workloads=WORKLOADS,
        held_out=WORKLOADS,
        model=ModelSummary(
            version="v1-abc",
            heads=known,
            scores=tuple(head(name) for name in known),
            parameters=1000,
            train_secs=75.0,
        ),
        onboarding=onboarding(device=new),
        timing=WallTime(parts=(("build", 60.0), ("time", 90.0), ("train", 75.0)), wall_secs=200.0),
        similarity=Similarity(
            device_ids=names,
            tau=tuple(tuple(1.0 if a == b else 0.7 for b in names) for a in names),
            shared_candidates=7,
        ),
        points=tuple(
            ScoredCandidate(device_id=name, workload=workload, score=float(-place), relative_speed=1 / place)
            for name in names
            for workload in WORKLOADS[:2]
            for place in range(1, 9)
        ),
        protocol=Protocol(),
        host=(("CPU", "Example CPU, 2 cores"), ("GPU", "none")),
        versions=(("tvm", "0.27"),),
        caveats=("The devices are profiles of one CPU.",),
        command="fleet demo --seed 7",
        created_at=1_700_000_000.0,
    )
    return replace(report, **changes)
