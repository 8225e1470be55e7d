"""TLP and MTL-TLP as rankers among the rivals; trained by `transfer.train.published_procedure`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.rivals.base import unknown_device
from transfer.arrays import Floats, Rows
from transfer.data.dataset import Dataset
from transfer.errors import TransferError
from transfer.model.inputs import torch_threads
from transfer.model.mtl_tlp import TlpNetwork
from transfer.train.published_procedure import TlpConfig, batches, train_network
from transfer.train.rows import training_labels

#: Rows of one forward pass when nothing is learnt, as in the published evaluation.
_SCORE_ROWS = 4000


class PublishedTlp:
    """TLP: one network a device; with `multi_task`, MTL-TLP: one network with a decoder a device.

    It reads the published features of the dataset.

    Args:
        config: How to train.
        multi_task: Train all devices at once.
    """

    def __init__(self, config: TlpConfig | None = None, *, multi_task: bool = False) -> None:
        self.config = config or TlpConfig()
        self.multi_task = multi_task
        self._networks: dict[str, tuple[TlpNetwork, int]] = {}
        #: Validation loss of each epoch of the last network trained.
        self.validation_losses: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """`tlp` or `mtl-tlp`, and its batch if that is another than published."""
        batch = self.config.batch
        small = "" if batch == TlpConfig().batch else f"-batch-{batch}"
        return ("mtl-tlp" if self.multi_task else "tlp") + small

    def fit(self, dataset: Dataset, rows: Rows, devices: Sequence[str], seed: int) -> None:
        """Train from nothing. See `Ranker.fit`."""
        steps = self._steps(dataset)
        self._networks = {}
        labels = training_labels(dataset, rows, devices)
        heads = [tuple(devices)] if self.multi_task else [(device_id,) for device_id in devices]
        for members in heads:
            columns = [list(devices).index(device_id) for device_id in members]
            labelled = np.isfinite(labels[:, columns]).any(axis=1)
            network, self.validation_losses = train_network(
                steps,
                rows[labelled],
                labels[labelled][:, columns],
                self.config,
                seed,
            )
            self._networks |= {device_id: (network, place) for place, device_id in enumerate(members)}

    def score(self, dataset: Dataset, rows: Rows, device_id: str) -> Floats:
        """Sums of the decoder over the steps. See `Ranker.score`."""
        steps = self._steps(dataset)
        if device_id not in self._networks:
            raise unknown_device(self, device_id, tuple(self._networks))
        network, head = self._networks[device_id]
        network.eval()
        with torch.no_grad(), torch_threads(self.config.threads):
            passes = batches(steps, rows, _SCORE_ROWS, self.config.torch_device)
            parts = [network(batch)[:, head].cpu() for batch in passes]
        return torch.cat(parts).double().numpy() if parts else np.zeros(0)

    def _steps(self, dataset: Dataset) -> NDArray[np.float32]:
        if dataset.features.published is None:
            raise TransferError(
                f"{self.name} reads published features, and the dataset has none; read it with them"
            )
        return dataset.features.published
