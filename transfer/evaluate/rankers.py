"""The model of this project as a ranker, so that it stands in one table with the baselines.

Called by `transfer.evaluate.compare`'s callers: `fleet eval` and the scripts of the results. A ranker learns
from some rows and scores others; see `transfer.baselines.base.Ranker` for what it promises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from transfer.adapt.base import Adapted
from transfer.data.dataset import Dataset
from transfer.errors import TransferError
from transfer.model.mtl_tlp import TlpModel
from transfer.train.config import TrainConfig
from transfer.train.training import train


@dataclass(slots=True)
class ModelRanker:
    """One joint model with a head for each device, trained afresh by every `fit`."""

    config: TrainConfig = field(default_factory=TrainConfig)
    name: str = "model"
    #: The model that `fit` made.
    model: TlpModel | None = None

    def fit(self, dataset: Dataset, rows: NDArray[np.int64], devices: Sequence[str], seed: int) -> None:
        """Train on some rows for some devices.

        Raises:
            TransferError: Nothing to learn from.
        """
        self.model = train(dataset, rows, config=self.config, seed=seed, devices=devices).model

    def score(self, dataset: Dataset, rows: NDArray[np.int64], device_id: str) -> NDArray[np.float64]:
        """Scores (n,) of the device's head, higher is faster.

        Raises:
            TransferError: Not fitted, or the device has no head.
        """
        if self.model is None:
            raise TransferError(f"ranker {self.name!r} is not fitted; call fit first")
        scores: NDArray[np.float64] = self.model.score(dataset.features.take(rows), device_id)
        return scores


@dataclass(slots=True, kw_only=True)
class KeptRanker:
    """A model that was trained before: `fit` changes nothing."""

    name: str
    model: TlpModel
    #: Heads that something belongs to beside the model: their scores are those that a search is served.
    heads: Mapping[str, Adapted] = field(default_factory=dict)

    def fit(self, dataset: Dataset, rows: NDArray[np.int64], devices: Sequence[str], seed: int) -> None:
        """Check that the kept model reads the dataset's features and has the heads asked for.

        Raises:
            TransferError: It does not, or it has not.
        """
        self.model.check_block(dataset.features)
        for device_id in devices:
            self.model.head(device_id)

    def score(self, dataset: Dataset, rows: NDArray[np.int64], device_id: str) -> NDArray[np.float64]:
        """Scores (n,) of the device's head as it is served, higher is faster.

        Raises:
            TransferError: The device has no head.
        """
        head = self.heads.get(device_id) or Adapted(device_id=device_id, model=self.model)
        return head.score_unseen(dataset.features.take(rows))
