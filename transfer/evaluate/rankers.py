"""Something that puts the candidates of a workload in order: what it promises, and models as rankers.

Called by `transfer.evaluate.compare`'s callers. A ranker learns from some rows and scores others.

Legend: n rows of a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from transfer.adapt.base import Adapted
from transfer.arrays import Floats, Rows
from transfer.data.dataset import Dataset
from transfer.errors import TransferError
from transfer.model.kinds import FLEET_TLP
from transfer.model.tlp_model import TlpModel
from transfer.train.config import TrainConfig
from transfer.train.trainers import TrainingTask, train_model


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
        """Floats of the device's head. See `Ranker.score`."""
        if self.model is None:
            raise TransferError(f"ranker {self.name!r} is not fitted; call fit first")
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
        """Floats of the device's head as it is served. See `Ranker.score`."""
        head = self.heads.get(device_id) or Adapted(device_id=device_id, model=self.model)
        return head.score_unseen(dataset.features.take(rows))
