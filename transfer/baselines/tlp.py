"""TLP and MTL-TLP as rankers among the baselines; trained by `transfer.train.published_procedure`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from agents.records import Candidate
from transfer.baselines.base import Rows, Scores, unknown_device
from transfer.data.dataset import Dataset
from transfer.errors import DatasetError, TransferError
from transfer.features.published_features import PublishedLayout, published_features
from transfer.language.primitives import Primitive
from transfer.model.inputs import torch_threads
from transfer.model.mtl_tlp import TlpNetwork
from transfer.train.published_procedure import TlpConfig, batches, train_network
from transfer.train.rows import training_labels

#: Rows of one forward pass when nothing is learnt, as in the published evaluation.
_SCORE_ROWS = 4000
#: Sequences turned into arrays at once.
_CHUNK = 4096


class PublishedTlp:
    """TLP: one network a device; with `multi_task`, MTL-TLP: one network with a decoder a device.

    Args:
        published: (N, L, E) published features of every row of the dataset (`published_rows`).
        config: How to train.
        multi_task: Train all devices at once.
    """

    def __init__(
        self, published: NDArray[np.float32], config: TlpConfig | None = None, *, multi_task: bool = False
    ) -> None:
        self.published = published
        self.config = config or TlpConfig()
        self.multi_task = multi_task
        self._networks: dict[str, tuple[TlpNetwork, int]] = {}
        #: Validation loss of each epoch of the last network trained.
        self.validation_losses: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """`tlp` or `mtl-tlp`, and the variant."""
        parts = ["mtl-tlp" if self.multi_task else "tlp"]
        parts += ["lstm"] * (self.config.sequence == "lstm") + ["mse"] * (self.config.loss == "mse")
        parts += ["failures"] * self.config.keep_failures
        if self.config.batch != TlpConfig().batch:
            parts.append(f"batch-{self.config.batch}")
        return "-".join(parts)

    def fit(self, dataset: Dataset, rows: Rows, devices: Sequence[str], seed: int) -> None:
        """Train from nothing. See `Ranker.fit`."""
        self._check(dataset)
        self._networks = {}
        labels = training_labels(dataset, rows, devices, keep_failures=self.config.keep_failures)
        heads = [tuple(devices)] if self.multi_task else [(device_id,) for device_id in devices]
        for members in heads:
            columns = [list(devices).index(device_id) for device_id in members]
            labelled = np.isfinite(labels[:, columns]).any(axis=1)
            network, self.validation_losses = train_network(
                self.published, rows[labelled], labels[labelled][:, columns], self.config, seed
            )
            self._networks |= {device_id: (network, place) for place, device_id in enumerate(members)}

    def score(self, dataset: Dataset, rows: Rows, device_id: str) -> Scores:
        """Sums of the decoder over the steps. See `Ranker.score`."""
        self._check(dataset)
        if device_id not in self._networks:
            raise unknown_device(self, device_id, tuple(self._networks))
        network, head = self._networks[device_id]
        network.eval()
        with torch.no_grad(), torch_threads(self.config.threads):
            passes = batches(self.published, rows, _SCORE_ROWS, self.config.torch_device)
            parts = [network(steps)[:, head].cpu() for steps in passes]
        return torch.cat(parts).double().numpy() if parts else np.zeros(0)

    def _check(self, dataset: Dataset) -> None:
        if len(self.published) != len(dataset):
            raise TransferError(
                f"{self.name} was given published features of {len(self.published)} rows, the dataset has "
                f"{len(dataset)}; make them for this dataset with `published_rows`"
            )


def published_rows(
    dataset: Dataset,
    candidates: Iterable[Candidate],
    read: Callable[[Candidate], Sequence[Primitive]],
    layout: PublishedLayout,
) -> NDArray[np.float32]:
    """Published features of every row of a dataset.

    Args:
        dataset: Gives the order.
        candidates: At least the candidates of the dataset, in any order.
        read: Turns a candidate into primitives, e.g. `Extractor.read`.
        layout: `CPU_LAYOUT` or `GPU_LAYOUT`.

    Returns:
        (N, L, E) array.

    Raises:
        DatasetError: A candidate of the dataset is not given.
    """
    row_of = {candidate_id: row for row, candidate_id in enumerate(dataset.candidate_ids)}
    out = np.empty((len(dataset), layout.steps, layout.width), dtype=np.float32)
    rows: list[int] = []
    sequences: list[Sequence[Primitive]] = []
    for candidate in candidates:
        row = row_of.pop(candidate.candidate_id, None)
        if row is None:
            continue
        rows.append(row)
        sequences.append(read(candidate))
        if len(rows) == _CHUNK:
            out[rows] = published_features(sequences, layout)
            rows, sequences = [], []
    if rows:
        out[rows] = published_features(sequences, layout)
    if row_of:
        raise DatasetError(
            f"{len(row_of)} candidates of the dataset are not among those given, first: {min(row_of)}; "
            "give the candidates of every record that the dataset was built from"
        )
    return out
