"""A plain multi-layer perceptron on the summary of a candidate: what our features give without any sequence.

One shared trunk and a linear head for each device, trained by the losses and batches of our own model. A
fitted one can be the start of another (`start`): all layers go on learning, the usual fine-tuning.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.rivals.base import of_device
from transfer.arrays import Floats, Rows
from transfer.data.dataset import Dataset
from transfer.model.encoder import Standardise
from transfer.model.fleet_tlp import scoped_seed
from transfer.model.inputs import torch_threads
from transfer.train.losses import head_loss
from transfer.train.rows import PaddedBatch, TrainConfig, gather_rows, lay_out

#: Factor on the rate when another perceptron is the start.
_FINE_TUNING_SHARE = 0.3


@dataclass(frozen=True, kw_only=True)
class MlpConfig:
    """Sizes and training of the perceptron."""

    #: Width of both hidden layers.
    width: int = 256
    dropout: float = 0.1
    epochs: int = 40
    learning_rate: float = 1e-3


class SummaryMlp:
    """The perceptron behind the interface of a ranker.

    Args:
        config: Sizes and training.
        start: A fitted perceptron to go on from; it is not changed. A device that it lacks starts from the
            mean of its heads.
    """

    def __init__(self, config: MlpConfig | None = None, start: SummaryMlp | None = None) -> None:
        self.config = config or MlpConfig()
        self.start = start
        self._heads: tuple[str, ...] = ()
        self._trunk = nn.Sequential()
        self._output = nn.Linear(1, 1)

    @property
    def name(self) -> str:
        """`mlp` or `mlp-fine-tuned`."""
        return "mlp" if self.start is None else "mlp-fine-tuned"

    def fit(self, dataset: Dataset, rows: Rows, devices: Sequence[str], seed: int) -> None:
        """Train all heads at once. See `Ranker.fit`."""
        config, random = self.config, np.random.default_rng(seed)
        data = gather_rows(dataset, rows, tuple(devices))
        labels = torch.from_numpy(data.labels.copy())
        summary = dataset.features.take(data.rows).summary
        x = torch.from_numpy(np.ascontiguousarray(summary, dtype=np.float32))
        rate = config.learning_rate * (1.0 if self.start is None else _FINE_TUNING_SHARE)
        with scoped_seed(seed), torch_threads(1):
            self._build(x, tuple(devices))
            parameters = [*self._trunk.parameters(), *self._output.parameters()]
            optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=1e-2)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.epochs)
            self._trunk.train()
            for _ in range(config.epochs):
                for batch in map(lay_out, data.batches(TrainConfig(), random)):
                    loss = self._loss(x, labels, batch)
                    if loss is not None:
                        optimizer.zero_grad(set_to_none=True)
                        loss.backward()  # type: ignore[no-untyped-call]  # torch publishes no type for it
                        optimizer.step()
                schedule.step()
            self._trunk.eval()

    def score(self, dataset: Dataset, rows: Rows, device_id: str) -> Floats:
        """Relative speeds in (0, 1). See `Ranker.score`."""
        head = of_device(self, {name: place for place, name in enumerate(self._heads)}, device_id)
        x = torch.from_numpy(np.ascontiguousarray(dataset.features.take(rows).summary, dtype=np.float32))
        with torch.no_grad(), torch_threads(1):
            logits = self._output(self._trunk(x))[:, head]
        return torch.sigmoid(logits.double()).numpy()

    def _build(self, x: Tensor, devices: tuple[str, ...]) -> None:
        """A new network scaled by `x`, or a copy of the start with a head for each of `devices`."""
        width, before = self.config.width, self.start
        if before is None:
            scale = Standardise(x.shape[1])
            scale.fit(x.numpy())
            self._trunk = nn.Sequential(
                scale,
                nn.Linear(x.shape[1], width),
                nn.GELU(),
                nn.Dropout(self.config.dropout),
                nn.Linear(width, width),
                nn.GELU(),
                nn.Dropout(self.config.dropout),
            )
        else:
            self._trunk = copy.deepcopy(before._trunk)
            width = before.config.width
        self._output = nn.Linear(width, len(devices))
        if before is not None:
            with torch.no_grad():
                for place, device_id in enumerate(devices):
                    like = [before._heads.index(device_id)] if device_id in before._heads else slice(None)
                    self._output.weight[place] = before._output.weight[like].mean(dim=0)
                    self._output.bias[place] = before._output.bias[like].mean()
        self._heads = devices

    def _loss(self, x: Tensor, labels: Tensor, batch: PaddedBatch) -> Tensor | None:
        """Mean over the heads that have labels in the batch, or None where no head has any."""
        rows = torch.from_numpy(batch.rows)
        logits, targets = self._output(self._trunk(x[rows])), labels[rows]
        losses = []
        for head in range(len(self._heads)):
            target = targets[:, head][batch.place]
            loss = head_loss(logits[:, head][batch.place], target, target.isfinite() & batch.filled)
            if loss is not None:
                losses.append(loss)
        return torch.stack(losses).mean() if losses else None
