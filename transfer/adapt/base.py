"""What every strategy of adaptation promises, and the one place that hides the target's unseen data.

A strategy gives a new device a head from a few measured candidates, or from none. Onboarding and
`transfer.evaluate.cross_validation` choose among strategies by name; a strategy knows of neither.

`Adapted.score` serves all regimes: it uses what the dataset that it is given shows of the source devices, and
does without where it shows nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from agents.records import WorkloadId
from transfer.arrays import Floats, Groups, Rows
from transfer.data.dataset import Dataset
from transfer.errors import TransferError
from transfer.features.blocks import FeatureBlock
from transfer.model.fleet_tlp import FleetTLP
from transfer.model.tlp_model import TlpModel
from transfer.train.rows import TrainConfig

if TYPE_CHECKING:
    from transfer.adapt.source_devices import SourceCorrection


class Regime(StrEnum):
    """What is new about the candidates that are to be ranked; regimes are never mixed."""

    #: Source devices have measured them.
    DEVICE_NEW = "device-new"
    #: Nobody has, but source devices have measured others of their workloads.
    CANDIDATE_NEW = "candidate-new"
    #: Nobody has measured their workloads.
    BOTH_NEW = "both-new"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Adapted:
    """A new device's head and what belongs to it."""

    device_id: str
    #: Has a head for the device: what is published, and what a search asks about unseen candidates.
    model: TlpModel
    #: Used by `score` beside the head; None where the head is all.
    correction: SourceCorrection | None = None
    #: What the strategy chose on the way (learning rate, sources ...), as JSON values, for reports.
    notes: Mapping[str, Any] = field(default_factory=dict)

    def score(self, dataset: Dataset, rows: Rows) -> Floats:
        """Score candidates for the device.

        Args:
            dataset: Holds the candidates. Source devices' latencies that it shows of the same workloads are
                used where the strategy can (regime *device new*); those of the device itself are not looked
                at. Give `unmeasured(dataset, rows)` for the regime *device and workload new*.
            rows: (n,) row numbers.

        Returns:
            (n,) scores, higher is faster; comparable inside a workload only.
        """
        if self.correction is None:
            return self.model.score(dataset.features.take(rows), self.device_id)
        return self.correction.score(self.model, without_device(dataset, self.device_id), rows)

    def score_unseen(self, block: FeatureBlock) -> Floats:
        """Score candidates that nobody has measured, as a search asks.

        Args:
            block: N candidates, of any workloads.

        Returns:
            (N,) what `score` gives for them where the dataset shows nothing.
        """
        if self.correction is None:
            return self.model.score(block, self.device_id)
        return self.correction.score_unseen(self.model, block)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FewShotTask:
    """What the head of a new device, the target, is to be made from."""

    #: Model of the source devices; None where there is none yet.
    source: FleetTLP | None
    #: Candidates of all devices; the target must be one of them, for its hardware vector.
    dataset: Dataset
    target: str
    #: Rows whose target latency may be seen; labels are relative to the best of them. May be empty for a
    #: strategy whose `least_samples` is 0.
    few_shot: Rows
    #: Rows whose latencies on the other devices may be seen.
    source_rows: Rows
    #: How the source model was, or would be, trained; a strategy may train for less long.
    config: TrainConfig
    #: Of everything random.
    seed: int

    @property
    def latency(self) -> Floats:
        """(N,) the target's seconds; only those of the few-shot set may be read."""
        latency_secs: Floats = self.dataset.latency_secs[:, self.dataset.column(self.target)]
        return latency_secs

    def samples(self) -> Dataset:
        """The few-shot rows, with the target's measurements alone; raises as `visible`."""
        return self._visible_part(self.few_shot[:0])

    def visible(self, *, need_few_shot: bool = True) -> Dataset:
        """All that may be seen: the rows of both sets, ascending, other target measurements taken out.

        Raises:
            TransferError: No few-shot row has a target latency, and one is needed.
        """
        return self._visible_part(self.source_rows, need_few_shot=need_few_shot)

    def _visible_part(self, source_rows: Rows, *, need_few_shot: bool = True) -> Dataset:
        """What a strategy may see; on few-shot rows that are no source rows the target's latency alone."""
        if need_few_shot and not np.isfinite(self.latency[self.few_shot]).any():
            raise TransferError(
                f"none of the {len(self.few_shot)} few-shot rows has an ok measurement on {self.target!r}; "
                "measure candidates there first"
            )
        rows = np.union1d(self.few_shot, source_rows)
        part = self.dataset.take(rows)
        is_visible = np.repeat(np.isin(rows, source_rows)[:, None], len(part.device_ids), axis=1)
        is_visible[:, part.column(self.target)] = np.isin(rows, self.few_shot)
        return part.where(is_visible)

    def need_source(self, strategy: str) -> FleetTLP:
        """The source model, refused where it is missing or has no head.

        Raises:
            TransferError: There is none.
        """
        if self.source is None or not self.source.device_ids:
            raise TransferError(
                f"strategy {strategy!r} starts from a model of other devices and was given none; train one "
                "first, or use 'scratch'"
            )
        return self.source


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Onboarding(FewShotTask):
    """A task that starts from a model, with what its head will be asked and what the model goes back to."""

    #: Model of the source devices, without a head for the target.
    source: FleetTLP
    #: What the head will be asked.
    regime: Regime
    #: Whether workloads are held out of all rows.
    holds_out: bool = False
    #: Workloads that the source model has learnt from, those of other rows too.
    inherited: frozenset[WorkloadId] = frozenset()
    #: Model that the source model's weights go back to (`fleet.models.opponents.origin_of`).
    origin: str = ""


class Strategy(Protocol):
    """One way to make a head for a new device.

    Promises: the source model is not changed; of the target device no latency outside the few-shot set
    rows has any influence; equal arguments give equal weights.
    """

    @property
    def name(self) -> str:
        """Short name in reports and on the command line."""
        ...

    @property
    def least_samples(self) -> int:
        """Measured candidates that it needs; 0 where it can do without."""
        ...

    def adapt(self, task: FewShotTask) -> Adapted:
        """Give a model with a head for the task's target.

        Raises:
            TransferError: The few-shot set cannot rank anything, or the strategy needs a source model.
        """
        ...


def is_enough(strategy: Strategy, group: Groups, latency_secs: Floats) -> bool:
    """Whether a strategy can work with samples: as many as it needs, and a pair to compare if it needs any.

    Args:
        strategy: The strategy.
        group: (n,) workloads of the samples.
        latency_secs: (n,) what the target measured, NaN where a sample failed.
    """
    if not strategy.least_samples:
        return True
    ran = np.isfinite(latency_secs)
    pairs = np.bincount(group[ran], minlength=1).max(initial=0)
    return int(ran.sum()) >= strategy.least_samples and pairs >= 2


def without_device(dataset: Dataset, device_id: str) -> Dataset:
    """The dataset with every measurement of one device taken out; itself where it has none."""
    if device_id not in dataset.device_ids:
        return dataset
    column = dataset.column(device_id)
    if not (np.isfinite(dataset.latency_secs[:, column]).any() or dataset.failed[:, column].any()):
        return dataset
    visible = np.ones_like(dataset.failed)
    visible[:, column] = False
    return dataset.where(visible)


def unmeasured(dataset: Dataset, rows: Rows) -> Dataset:
    """Some rows as if nobody had measured them, for `Adapted.score` in *device and workload new*."""
    part = dataset.take(rows)
    return part.where(np.zeros_like(part.failed))
