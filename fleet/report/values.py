"""What one run of the main job found, as frozen values.

The demo fills a `Report`; `fleet.report.report` writes it, `fleet.report.summary` prints it. Nothing here
measures, trains or estimates: every number arrives from outside, and a number that was not measured is `None`
(never 0, never NaN). These values know no file format and no page.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from agents.records import Outcome, Protocol

#: Probability that every interval in a report stands for.
INTERVAL_LEVEL = 0.90

#: Named seconds in the order in which people should read them.
Parts = tuple[tuple[str, float], ...]

#: Named facts in the order in which people should read them.
Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedNumber:
    """A number and its interval at `INTERVAL_LEVEL`; `None` where it was not measured."""

    value: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Low and high end; `None` unless value, low and high are all finite."""
        if self.value is None or self.low is None or self.high is None:
            return None
        finite = all(math.isfinite(number) for number in (self.value, self.low, self.high))
        return (self.low, self.high) if finite else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Candidates of one device that ended the same way, other than `ok`."""

    outcome: Outcome
    count: int
    #: Error text of the first of them.
    example: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadLatencies:
    """Latencies of the `ok` candidates of one workload on one device (first measurements only)."""

    workload: str
    #: Seconds of each candidate's fastest repeat, in any order.
    latency_secs: tuple[float, ...]

    @property
    def best_secs(self) -> float | None:
        """Latency of the fastest candidate."""
        return min(self.latency_secs, default=None)

    @property
    def slowdowns(self) -> tuple[float, ...]:
        """Latency of each candidate over the fastest one's: 1 and above."""
        best = self.best_secs
        return tuple(secs / best for secs in self.latency_secs) if best else ()

    @property
    def spread(self) -> float | None:
        """Slowest over fastest candidate."""
        return max(self.slowdowns, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSummary:
    """What was measured on one device."""

    device_id: str
    #: Records with outcome `ok`.
    ok: int
    failures: tuple[FailureGroup, ...] = ()
    #: Finished records (any outcome) a second of wall time.
    records_per_s: float | None = None
    #: Median of |second / first - 1| over candidates that were measured twice.
    remeasure_median_change: float | None = None
    latencies: tuple[WorkloadLatencies, ...] = ()
    #: What the device is, for people (target, profile, board).
    note: str = ""

    @property
    def failed(self) -> int:
        """Records with any other outcome than `ok`."""
        return sum(group.count for group in self.failures)

    @property
    def records(self) -> int:
        """All records."""
        return self.ok + self.failed

    @property
    def spreads(self) -> tuple[float, ...]:
        """Slowest over fastest candidate, one number a workload that has any."""
        return tuple(entry.spread for entry in self.latencies if entry.spread is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadScore:
    """How well one head ranks held-out workloads of its device.

    Top-k is TLP's score: best latency of a workload over the best latency among the k candidates that
    the model puts first; 1 is perfect.
    """

    device_id: str
    top1: ReportedNumber = ReportedNumber()
    top5: ReportedNumber = ReportedNumber()
    #: Expected score of k candidates picked at random from the same ones.
    random_top1: float | None = None
    random_top5: float | None = None
    #: Kendall's tau of score and speed inside a workload, averaged over held-out workloads.
    kendall_tau: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """The trained model with its heads."""

    version: str
    #: Devices with a head, in the model's order.
    heads: tuple[str, ...]
    scores: tuple[HeadScore, ...]
    #: Trainable numbers in backbone and heads.
    parameters: int | None = None
    train_secs: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedWorkload:
    """Top-1 of the same held-out workload for both ways to start."""

    workload: str
    warm_top1: float
    scratch_top1: float

    @property
    def difference(self) -> float:
        """Warm minus scratch."""
        return self.warm_top1 - self.scratch_top1


@dataclass(frozen=True, slots=True, kw_only=True)
class OnboardingSummary:
    """A new device: the adapted (warm) head against one trained from scratch on the same samples."""

    device: str
    #: Measured candidates that both ways to start may learn from.
    samples: int
    strategy: str
    #: Where the onboarding time went: probe, measure, adapt...
    seconds_by_part: Parts = ()
    top1: ReportedNumber = ReportedNumber()
    top5: ReportedNumber = ReportedNumber()
    scratch_top1: ReportedNumber = ReportedNumber()
    scratch_top5: ReportedNumber = ReportedNumber()
    #: The best fitting head of a known device, unchanged: what no adaptation at all gives.
    nearest_top1: ReportedNumber = ReportedNumber()
    nearest_top5: ReportedNumber = ReportedNumber()
    #: The head trained on every record of the device: the reference to reach.
    full_top1: ReportedNumber = ReportedNumber()
    full_top5: ReportedNumber = ReportedNumber()
    #: Records of the device that `full_top1` was trained on, mean over the folds.
    full_samples: int | None = None
    random_top1: float | None = None
    random_top5: float | None = None
    pairs: tuple[PairedWorkload, ...] = ()
    #: Mean of warm minus scratch top-1 over workloads, interval by paired bootstrap.
    difference: ReportedNumber = ReportedNumber()

    @property
    def seconds(self) -> float | None:
        """Wall seconds of all parts."""
        return sum(secs for _, secs in self.seconds_by_part) if self.seconds_by_part else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WallTime:
    """Where the wall time of the run went."""

    #: Seconds by part: propose, build, wait, time, store, train... Parts that run side by side may overlap.
    parts: Parts
    wall_secs: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredCandidate:
    """One held-out candidate: what the model said and what the device did."""

    device_id: str
    workload: str
    score: float
    #: Best latency of the workload over this candidate's: 1 for the fastest.
    relative_speed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Similarity:
    """How alike devices order the candidates that they share."""

    device_ids: tuple[str, ...]
    #: Kendall's tau inside a workload, averaged; one row and one column a device.
    tau: tuple[tuple[float | None, ...], ...]
    #: Candidates that every pair has in common, if it is one number.
    shared_candidates: int | None = None

    def __post_init__(self) -> None:
        size = len(self.device_ids)
        if len(self.tau) != size or any(len(row) != size for row in self.tau):
            shape = [len(row) for row in self.tau]
            raise ValueError(f"similarity: expected {size} rows of {size} numbers, got rows of {shape}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run of the main job."""

    devices: tuple[DeviceSummary, ...]
    #: Names of all workloads and of those that no head saw in training.
    workloads: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    model: ModelSummary | None = None
    onboarding: OnboardingSummary | None = None
    timing: WallTime | None = None
    similarity: Similarity | None = None
    points: tuple[ScoredCandidate, ...] = ()
    protocol: Protocol | None = None
    host: Facts = ()
    versions: Facts = ()
    #: What the reader must know before quoting a number, one sentence each.
    caveats: tuple[str, ...] = ()
    #: The exact command that makes this report again.
    command: str = "fleet demo"
    #: Unix seconds at the end of the run.
    created_at: float | None = None

    def __post_init__(self) -> None:
        ids = [device.device_id for device in self.devices]
        twice = sorted({name for name in ids if ids.count(name) > 1})
        if twice:
            raise ValueError(f"report: each device may appear once, got more of {', '.join(twice)}")
