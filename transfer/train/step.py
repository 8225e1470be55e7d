"""One step of training: forward, loss, backward, update; and the loss of rows held out.

Called by `transfer.train.training`. It sees one batch of parts of workloads at a time and knows of epochs
nothing but the factor on the learning rate.

Legend: B rows of a batch, G parts of workloads in it, n most candidates of one, A heads with a pair to rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from transfer.arrays import Ints, Mask
from transfer.errors import TransferError
from transfer.model.fleet_tlp import FleetTLP
from transfer.model.inputs import block_tensors
from transfer.train.losses import group_losses
from transfer.train.rows import Positions, TrainConfig, TrainingRows, lay_out


class Stepper:
    """A model with its optimiser.

    Args:
        model: Changed by every step.
        config: How.
        device: Where the model lies.
    """

    def __init__(self, model: FleetTLP, config: TrainConfig, device: torch.device) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(
            _parameter_groups(model, config.weight_decay), lr=config.learning_rate, fused=True
        )
        self._config = config
        self._device = device
        self._parameters = list(model.parameters())

    def step(self, data: TrainingRows, parts: Sequence[Positions], factor: float) -> float | None:
        """Lower the mean over heads of the mean over parts of the loss.

        Args:
            data: Rows to learn from.
            parts: Those of the batch.
            factor: On the learning rate.

        Returns:
            The loss of the batch, or None where no part has a pair to rank: nothing is changed then.

        Raises:
            TransferError: Loss or gradient are not finite.
        """
        usable = data.comparable(parts)
        heads = np.flatnonzero(usable.any(axis=0))
        if not len(heads):
            return None
        # A head without a pair in the batch gets no gradient at all: weight decay must not touch it.
        shares = usable[:, heads] / usable[:, heads].sum(axis=0) / len(heads)
        self.optimizer.zero_grad()
        loss = (self._losses(data, parts, heads, shares > 0) * self._move(shares.T)).sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch publishes no type for it
        norm = nn.utils.clip_grad_norm_(self._parameters, self._config.gradient_clip)
        total, length = torch.stack([loss.detach(), norm]).tolist()
        if not math.isfinite(total) or not math.isfinite(length):
            raise TransferError(
                f"training diverged: loss {total}, gradient norm {length} with learning rate "
                f"{self._config.learning_rate}; lower it"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = self._config.learning_rate * factor
        self.optimizer.step()
        return float(total)

    def held_loss(self, data: TrainingRows, parts: Sequence[Positions]) -> float:
        """Mean over parts of the mean over heads of the loss, without a change of the model."""
        usable = data.comparable(parts)
        count = 4 * self._config.workloads_per_batch
        part_losses = np.zeros(len(parts))
        self.model.eval()
        with torch.no_grad():
            for start in range(0, len(parts), count):
                batch_usable = usable[start : start + count]
                heads = np.flatnonzero(batch_usable.any(axis=0))
                if not len(heads):
                    continue
                # Of one part: the mean over the heads that have a pair in it.
                share = batch_usable[:, heads] / np.maximum(1, batch_usable.sum(axis=1, keepdims=True))
                losses = self._losses(data, parts[start : start + count], heads, batch_usable[:, heads])
                part_losses[start : start + count] = (losses * self._move(share.T)).sum(dim=0).cpu().numpy()
        return float(part_losses.sum() / max(1, int(usable.any(axis=1).sum())))

    def _losses(
        self,
        data: TrainingRows,
        parts: Sequence[Positions],
        heads: Ints,
        used: Mask,
    ) -> Tensor:
        """(A, G) losses of some parts for some heads, 0 where `used` (G, A) is false."""
        batch = lay_out(parts)
        rows = data.rows[batch.rows]
        inputs = [tensor.to(self._device) for tensor in block_tensors(data.dataset.features, rows)]
        representation = self.model.backbone(*inputs)
        logits = [self.model.logits(representation, data.device_ids[head]) for head in heads]
        # All heads at once: a call of torch costs more than its arithmetic on so few numbers.
        place, filled = batch.place.to(self._device), batch.filled.to(self._device)
        scores = torch.stack(logits)[:, place].flatten(0, 1)
        labels = self._move(data.labels[batch.rows][:, heads].T)[:, place].flatten(0, 1)
        mask = labels.isfinite() & filled.repeat(len(heads), 1)
        chosen = used.T.reshape(-1)
        if chosen.all():
            losses = group_losses(scores, labels, mask)
        else:
            keep = torch.from_numpy(np.flatnonzero(chosen)).to(self._device)
            part = group_losses(scores[keep], labels[keep], mask[keep])
            losses = part.new_zeros(len(chosen)).index_put((keep,), part)
        return losses.view(len(heads), len(parts))

    def _move(self, values: NDArray[np.floating]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(self._device)


def learning_rate_curve(steps: int, warmup_fraction: float) -> Callable[[int], float]:
    """Factor on the learning rate: a straight rise, then half a cosine down to 0."""
    rise = max(1, round(steps * warmup_fraction))

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - rise) / max(1, steps - rise))))

    return factor


def _parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Weight decay for matrices only: norms, biases and embeddings of rare values must not shrink."""
    decayed = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
    decayed_ids = {id(p) for p in decayed}
    other = [p for p in model.parameters() if id(p) not in decayed_ids]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": other, "weight_decay": 0.0}]
