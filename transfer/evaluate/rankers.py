"""The one evaluator, rankers (what puts the candidates of a workload in order), and models as rankers.

A ranker learns from some rows and scores others. Whatever scores is fitted elsewhere: rankers by
`transfer.evaluate.compare`, an onboarding by `transfer.evaluate.cross_validation`, strategies by benchmarks.
All of them judge and resample here, so that their figures mean the same.

Legend: G workloads, n rows of a call or held out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from transfer.adapt.base import Adapted
from transfer.arrays import Floats, Rows
from transfer.data.dataset import Dataset
from transfer.data.intervals import Estimate, Resampled, resample_ratio
from transfer.data.metrics import Metrics, evaluate_ranking
from transfer.model.kinds import FLEET_TLP
from transfer.model.tlp_model import TlpModel
from transfer.train.rows import TrainConfig
from transfer.train.trainers import TrainingTask, train_model


def judge(
    dataset: Dataset, device_id: str, rows: Rows, scores: Floats, *, noise_floor: float = 0.0, least: int = 2
) -> Metrics | None:
    """Every measure of scores of some rows on one device.

    Args:
        dataset: Holds what was measured.
        device_id: One of its devices.
        rows: (n,) held out.
        scores: (n,) higher is faster.
        noise_floor: Relative difference of two measurements of one program there.
        least: A workload with fewer measured rows is passed over: of one row any scores find the best.

    Returns:
        None where no workload has enough measured rows.
    """
    latency, group = dataset.latency_secs[rows, dataset.column(device_id)], dataset.group[rows]
    if np.bincount(group[np.isfinite(latency)]).max(initial=0) < least:
        return None
    return evaluate_ranking(scores, latency, group, dataset.weight, noise_floor=noise_floor, least=least)


def _resampled(runs: Sequence[Metrics], measure: str) -> Resampled:
    """One of `MEASURES` over runs with other seeds, resampled over workloads and, if there are more, seeds.

    Each run is judged on the same workloads in the same order. Draws of all measures are paired.
    """
    above, below = (np.stack(side) for side in zip(*(run.parts(measure) for run in runs), strict=True))
    ratio = resample_ratio(above, below, seed=0)
    return ratio.root() if measure == "rmse" else ratio


def estimate(runs: Sequence[Metrics], measure: str) -> Estimate:
    """One of `MEASURES` over runs with other seeds, with its interval over workloads and seeds."""
    return _resampled(runs, measure).estimate()


def difference(mine: Sequence[Metrics], theirs: Sequence[Metrics], measure: str) -> Estimate:
    """`mine` less `theirs` in one measure: a paired bootstrap over workloads and the seeds both ran with."""
    runs = min(len(mine), len(theirs))
    first, second = (_resampled(each[:runs], measure) for each in (mine, theirs))
    return first.minus(second).estimate()


class Ranker(Protocol):
    """One way to put the candidates of a workload in order.

    Promises: `fit` reads latencies of `rows` only and may be called again, which starts from nothing; equal
    arguments give equal scores; `score` reads no latency of the device it is asked about.
    """

    @property
    def name(self) -> str:
        """Short name in reports."""
        ...

    def fit(self, dataset: Dataset, rows: Rows, devices: Sequence[str], seed: int) -> None:
        """Learn from some rows.

        Args:
            dataset: Candidates of all devices.
            rows: Row numbers to learn from; labels are relative to the best latency among them.
            devices: Devices to learn.
            seed: Of everything random.

        Raises:
            TransferError: There is nothing to learn from, or an input is missing.
        """
        ...

    def score(self, dataset: Dataset, rows: Rows, device_id: str) -> Floats:
        """Score some rows for one device.

        Args:
            dataset: The dataset that `fit` was given; `rows` need not be among those learnt from.
            rows: Row numbers.
            device_id: One of the devices learnt.

        Returns:
            (n,) scores, higher is faster; comparable inside a workload only.

        Raises:
            TransferError: The device was not learnt.
        """
        ...


@dataclass(slots=True)
class ModelRanker:
    """One joint model with a head for each device, trained afresh by every `fit`."""

    config: TrainConfig = field(default_factory=TrainConfig)
    name: str = "model"
    #: What is trained: a kind of `transfer.model.kinds`.
    kind: str = FLEET_TLP
    #: The model that `fit` made.
    model: TlpModel | None = None

    def fit(self, dataset: Dataset, rows: Rows, devices: Sequence[str], seed: int) -> None:
        """Train on some rows for some devices. See `Ranker.fit`."""
        task = TrainingTask(dataset=dataset, rows=rows, devices=devices, config=self.config, seed=seed)
        self.model = train_model(self.kind, task).model

    def score(self, dataset: Dataset, rows: Rows, device_id: str) -> Floats:
        """Scores of the device's head. See `Ranker.score`."""
        assert self.model is not None  # it is fitted
        return self.model.score(dataset.features.take(rows), device_id)


@dataclass(slots=True, kw_only=True)
class KeptRanker:
    """A model that was trained before: `fit` changes nothing."""

    name: str
    model: TlpModel
    #: Heads that something belongs to beside the model: their scores are those that a search is served.
    heads: Mapping[str, Adapted] = field(default_factory=dict)

    def fit(self, dataset: Dataset, rows: Rows, devices: Sequence[str], seed: int) -> None:
        """Check that the kept model reads the dataset's features and has the heads asked for."""
        self.model.check_block(dataset.features)
        for device_id in devices:
            self.model.head(device_id)

    def score(self, dataset: Dataset, rows: Rows, device_id: str) -> Floats:
        """Scores of the device's head as it is served. See `Ranker.score`."""
        head = self.heads.get(device_id) or Adapted(device_id=device_id, model=self.model)
        return head.score_unseen(dataset.features.take(rows))
