"""TLP and MTL-TLP trained as published, with real masks where the published code has labels of -100.

The network and the loss are in `transfer.baselines.tlp_network`. The training is the published one too:
random rows of all workloads in a batch, a random tenth of the rows (not of the workloads) to choose the
epoch by, a constant learning rate. Two faults of the data are mended unless asked otherwise: failed
candidates are left out, and each head uses the rows that have its label.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from transfer.baselines.base import Rows, Scores, training_labels, unknown_device
from transfer.baselines.tlp_network import Mixer, TlpNetwork, mean_square, mixed_lambda_rank
from transfer.data.dataset import Dataset
from transfer.errors import TransferError
from transfer.model.fleet_tlp import scoped_seed
from transfer.train.training import torch_threads

#: Rows of one forward pass when nothing is learnt, as in the published evaluation.
_SCORE_ROWS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class TlpConfig:
    """How TLP is trained; the defaults are the published ones for one GPU."""

    epochs: int = 50
    #: Rows of a batch. A store with few rows gives few steps of 1024 in 50 epochs: report a smaller batch
    #: too.
    batch: int = 1024
    learning_rate: float = 7e-4
    #: L2 inside Adam, on every parameter.
    weight_decay: float = 1e-6
    #: Largest norm of the gradient.
    gradient_clip: float = 0.5
    #: Share of the rows, at random, that the epoch is chosen by.
    validation_share: float = 0.1
    loss: Literal["rank", "mse"] = "rank"
    sequence: Mixer = "attention"
    #: Keep failed candidates with a label near 0, as published.
    keep_failures: bool = False
    #: Threads of torch on a CPU.
    threads: int = 1
    #: Where torch computes: `cpu`, `cuda`, `cuda:1`...
    torch_device: str = "cpu"


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
            network = self._train(rows[labelled], labels[labelled][:, columns], seed)
            self._networks |= {device_id: (network, place) for place, device_id in enumerate(members)}

    def score(self, dataset: Dataset, rows: Rows, device_id: str) -> Scores:
        """Sums of the decoder over the steps. See `Ranker.score`."""
        self._check(dataset)
        if device_id not in self._networks:
            raise unknown_device(self, device_id, tuple(self._networks))
        network, head = self._networks[device_id]
        network.eval()
        with torch.no_grad(), torch_threads(self.config.threads):
            parts = [network(steps)[:, head].cpu() for steps in self._batches(rows, _SCORE_ROWS)]
        return torch.cat(parts).double().numpy() if parts else np.zeros(0)

    def _check(self, dataset: Dataset) -> None:
        if len(self.published) != len(dataset):
            raise TransferError(
                f"{self.name} was given published features of {len(self.published)} rows, the dataset has "
                f"{len(dataset)}; make them for this dataset with `published_rows`"
            )

    def _batches(self, rows: Rows, size: int) -> Iterator[Tensor]:
        for start in range(0, len(rows), size):
            steps = torch.from_numpy(np.asarray(self.published[rows[start : start + size]], dtype=np.float32))
            yield steps.to(self.config.torch_device)

    def _train(self, rows: Rows, labels: NDArray[np.float32], seed: int) -> TlpNetwork:
        """One network with a head for each column of `labels`, at its epoch of least validation loss."""
        config, random = self.config, np.random.default_rng(seed)
        order = random.permutation(len(rows))
        held, kept = np.split(order, [math.floor(config.validation_share * len(rows))])
        on_gpu = config.torch_device != "cpu"
        with scoped_seed(seed), nullcontext() if on_gpu else torch_threads(config.threads):
            network = TlpNetwork(self.published.shape[2], labels.shape[1], config.sequence)
            network.to(config.torch_device)
            optimizer = torch.optim.Adam(
                network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
            )
            best, history = None, []
            for _ in range(config.epochs):
                network.train()
                shuffled = random.permutation(kept)
                for start, steps in zip(
                    range(0, len(kept), config.batch),
                    self._batches(rows[shuffled], config.batch),
                    strict=True,
                ):
                    loss = self._loss(network(steps), labels[shuffled[start : start + config.batch]])
                    if loss is not None:
                        optimizer.zero_grad(set_to_none=True)
                        loss.backward()  # type: ignore[no-untyped-call]  # torch publishes no type for it
                        nn.utils.clip_grad_norm_(network.parameters(), config.gradient_clip)
                        optimizer.step()
                if len(held):
                    history.append(self._validate(network, rows[held], labels[held]))
                    if not math.isfinite(history[-1]):
                        raise TransferError(
                            f"{self.name} diverged: validation loss {history[-1]}; lower the rate"
                        )
                    if best is None or history[-1] < best[0]:
                        best = history[-1], {k: v.clone() for k, v in network.state_dict().items()}
        if best is not None:
            network.load_state_dict(best[1])
        self.validation_losses = tuple(history)
        return network

    def _loss(self, scores: Tensor, labels: NDArray[np.float32]) -> Tensor | None:
        """Plain sum over the heads that have labels here; None without any."""
        measure = mixed_lambda_rank if self.config.loss == "rank" else mean_square
        targets = torch.from_numpy(labels).to(scores.device)
        losses = []
        for head in range(labels.shape[1]):
            if np.isfinite(labels[:, head]).any():
                present = targets[:, head].isfinite()
                losses.append(measure(scores[present, head], targets[present, head]))
        return torch.stack(losses).sum() if losses else None

    def _validate(self, network: TlpNetwork, rows: Rows, labels: NDArray[np.float32]) -> float:
        network.eval()
        total, size = 0.0, self.config.batch
        with torch.no_grad():
            for number, steps in enumerate(self._batches(rows, size)):
                loss = self._loss(network(steps), labels[number * size : (number + 1) * size])
                total += 0.0 if loss is None else float(loss)
        return total
