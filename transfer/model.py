"""MTL-TLP: a shared backbone over schedule sequences and one small head for each device.

Trained by `transfer.train`, stored by `transfer.checkpoint`, asked by `transfer.evaluate` and the cost
model of a search. It must not know where features or labels come from: it sees a `FeatureBlock`.

What differs from the published model (TLP, ASPLOS'23, section 4): padding is masked in attention and
in pooling, steps have positions, categories are embedded, numbers are standardised, the workload is an
input, and the score is bounded.

Legend: N candidates, L steps, C category slots, F number slots, V workload slots, S summary slots,
E step width, T trunk width.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transfer.encoder import ModelConfig, ModelSizes, Residual, Standardise, StepEncoder
from transfer.errors import TransferError
from transfer.features import FeatureBlock, FeatureSpec

#: Candidates and steps of every forward pass of `score`, filled up where there are fewer. Libraries of linear
#: algebra sum in another order for other sizes, so with passes of one size a candidate's score is the same
#: to the last bit in any company; sequences are rounded up to a multiple of the steps.
_SCORE_BATCH, _SCORE_STEPS = 128, 8


class MultiTaskTLP(nn.Module):
    """Shared backbone and a head for each device.

    Not safe for use by several threads at once: `score` changes the mode of the module and torch's threads.

    Args:
        config: Sizes of the features and of the network.
        device_ids: Devices to give a freshly initialised head; more may follow by `add_head`.
    """

    def __init__(self, config: ModelConfig, device_ids: Sequence[str] = ()) -> None:
        super().__init__()
        sizes = config.sizes
        self.config = config
        self.encoder = StepEncoder(config)
        self.workload = Standardise(config.workload_size)
        self.summary = Standardise(config.summary_size)
        joined = 2 * sizes.step_width + config.summary_size + config.workload_size * sizes.use_workload
        self.join = nn.Linear(joined, sizes.trunk_width)
        self.trunk = Residual(sizes.trunk_width, sizes.dropout)
        self.dropout = nn.Dropout(sizes.dropout)
        self.norm = nn.LayerNorm(sizes.trunk_width)
        self.heads = nn.ModuleDict()
        for device_id in device_ids:
            self.add_head(device_id)

    @property
    def device_ids(self) -> tuple[str, ...]:
        """Devices with a head, in the order in which the heads were added."""
        return tuple(_device_id(key) for key in self.heads)

    def head(self, device_id: str) -> nn.Module:
        """The head of one device.

        Raises:
            TransferError: There is no such head.
        """
        key = _head_key(device_id)
        if key not in self.heads:
            known = ", ".join(self.device_ids) or "none"
            raise TransferError(
                f"model has no head for device {device_id!r}; it has: {known}. Adapt it first."
            )
        return self.heads[key]

    def add_head(self, device_id: str, like: str | Sequence[str] | None = None) -> None:
        """Add a head, fresh or as the mean of other heads.

        Args:
            device_id: New device.
            like: Device, or devices, whose heads are averaged into the new one. Default: random.

        Raises:
            TransferError: The device already has a head, or one in `like` has none.
        """
        key = _head_key(device_id)
        if key in self.heads:
            raise TransferError(f"model already has a head for device {device_id!r}")
        sizes = self.config.sizes
        head = nn.Sequential(
            nn.Linear(sizes.trunk_width, sizes.head_width), nn.GELU(), nn.Linear(sizes.head_width, 1)
        )
        names = (like,) if isinstance(like, str) else tuple(like or ())
        if names:
            states = [self.head(name).state_dict() for name in names]
            head.load_state_dict({k: torch.stack([s[k] for s in states]).mean(dim=0) for k in states[0]})
        self.heads[key] = head.to(self.join.weight.device)

    def drop_head(self, device_id: str) -> None:
        """Take a head away: one that is not trained any more while the backbone changes would only mislead.

        Raises:
            TransferError: There is no such head.
        """
        self.head(device_id)
        del self.heads[_head_key(device_id)]

    def copy(self) -> MultiTaskTLP:
        """An equal model that shares no tensor with this one."""
        return copy.deepcopy(self)

    def fit_scaler(self, block: FeatureBlock) -> None:
        """Take the input scaling from the rows of `block`, which must be training rows only."""
        self.encoder.numbers.fit(block.step_numbers, block.step_counts())
        self.workload.fit(
            block.workload_vectors, np.bincount(block.workload_rows, minlength=len(block.workload_vectors))
        )
        self.summary.fit(block.summary)

    def backbone(
        self, categories: Tensor, numbers: Tensor, mask: Tensor, workload: Tensor, summary: Tensor
    ) -> Tensor:
        """Represent candidates without regard to a device.

        Args:
            categories: (N, L, C) integers.
            numbers: (N, L, F) float.
            mask: (N, L) bool, true at real steps.
            workload: (N, V) float.
            summary: (N, S) float.

        Returns:
            (N, T).
        """
        steps = self.encoder(categories, numbers, mask)
        parts = [steps, self.summary(summary)]
        if self.config.sizes.use_workload:
            parts.append(self.workload(workload))
        joined = torch.cat(parts, dim=1)
        x = self.trunk(F.gelu(self.join(self.dropout(joined))))
        return cast(Tensor, self.dropout(self.norm(x)))

    def logits(self, representation: Tensor, device_id: str) -> Tensor:
        """Score (N, T) representations for one device as (N,) logits."""
        return cast(Tensor, self.head(device_id)(representation)).squeeze(-1)

    def score(self, block: FeatureBlock, device_id: str) -> np.ndarray:
        """Score candidates for one device.

        Args:
            block: N candidates, of any workloads.
            device_id: Device with a head.

        Returns:
            (N,) float64 in (0, 1], an estimate of best latency / latency within the workload: higher
            is better. Scores of different workloads are not comparable as speeds. A candidate's score
            does not depend on what is scored beside it.

        Raises:
            TransferError: No head for the device, or the block has other sizes than the model.
        """
        self.head(device_id)
        self.check_block(block)
        was_training, threads = self.training, torch.get_num_threads()
        self.eval()
        # For passes of this size one thread is the fastest, and where other processes hold the cores, threads
        # that wait for each other took forty times as long.
        torch.set_num_threads(1)
        scores = np.zeros(len(block))
        steps = np.minimum(-(-used_lengths(block) // _SCORE_STEPS) * _SCORE_STEPS, self.config.max_steps)
        try:
            with torch.no_grad():
                for length in np.unique(steps).tolist():
                    of_length = np.flatnonzero(steps == length)
                    for start in range(0, len(of_length), _SCORE_BATCH):
                        rows = of_length[start : start + _SCORE_BATCH]
                        x = self.backbone(*block_tensors(block, np.resize(rows, _SCORE_BATCH), length))
                        # In float64: in float32 all logits above 17 would tie at 1.
                        found = torch.sigmoid(self.logits(x, device_id).double())
                        scores[rows] = found[: len(rows)].numpy()
        finally:
            self.train(was_training)
            torch.set_num_threads(threads)
        return scores

    def check_block(self, block: FeatureBlock) -> None:
        """Refuse features of another shape.

        Raises:
            TransferError: Naming each size that differs.
        """
        config = self.config
        got = {
            "category slots": block.step_categories.shape[1],
            "number slots": block.step_numbers.shape[1],
            "workload slots": block.workload_vectors.shape[1],
            "summary slots": block.summary.shape[1],
        }
        expected = {
            "category slots": len(config.category_sizes),
            "number slots": config.number_size,
            "workload slots": config.workload_size,
            "summary slots": config.summary_size,
        }
        wrong = [
            f"{name}: got {got[name]}, expected {expected[name]}"
            for name in got
            if got[name] != expected[name]
        ]
        longest = int(used_lengths(block).max(initial=0))
        if longest > config.max_steps:
            wrong.append(f"steps: got {longest}, at most {config.max_steps}")
        if wrong:
            raise TransferError(
                f"features do not fit the model ({'; '.join(wrong)}); extract them with its spec"
            )


def model_config(spec: FeatureSpec, sizes: ModelSizes | None = None) -> ModelConfig:
    """Configuration of a model that reads features of `spec`, by default with the sizes of `ModelSizes`."""
    return ModelConfig(
        category_sizes=spec.category_sizes,
        number_size=len(spec.number_names),
        workload_size=len(spec.workload_names),
        summary_size=len(spec.summary_names),
        max_steps=spec.max_steps,
        spec_hash=spec.hash,
        sizes=sizes or ModelSizes(),
    )


@contextmanager
def scoped_seed(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator inside the block and put its state back afterwards.

    Layers and dropout draw from the global generator; this keeps that out of everybody else's way.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def used_lengths(block: FeatureBlock) -> np.ndarray:
    """(N,) steps of each candidate up to its last real one, at least 1."""
    real = block.steps > 0
    last = real.shape[1] - np.argmax(real[:, ::-1], axis=1)
    return np.where(real.any(axis=1), last, 1)


def block_tensors(
    block: FeatureBlock, rows: np.ndarray, steps: int | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Arguments of `MultiTaskTLP.backbone` for some rows: the only place where dense arrays are made.

    Args:
        block: Candidates.
        rows: Row numbers.
        steps: Steps L of the result; those up to the last real one of these rows where None.
    """
    ids = block.steps[rows]
    if steps is None:
        columns = np.flatnonzero((ids > 0).any(axis=0))
        steps = int(columns[-1]) + 1 if len(columns) else 1
    ids = np.pad(ids[:, :steps], ((0, 0), (0, max(0, steps - ids.shape[1]))))
    return (
        torch.from_numpy(block.step_categories[ids].astype(np.int64)),
        torch.from_numpy(np.asarray(block.step_numbers[ids], dtype=np.float32)),
        torch.from_numpy(ids > 0),
        torch.from_numpy(np.asarray(block.workload_vectors[block.workload_rows[rows]], dtype=np.float32)),
        torch.from_numpy(np.asarray(block.summary[rows], dtype=np.float32)),
    )


def _head_key(device_id: str) -> str:
    """Name of a head inside ModuleDict, which refuses dots and names of its own methods."""
    return "head:" + device_id.replace("%", "%25").replace(".", "%2E")


def _device_id(head_key: str) -> str:
    """Inverse of `_head_key`."""
    return head_key.removeprefix("head:").replace("%2E", ".").replace("%25", "%")


__all__ = [
    "ModelConfig",
    "ModelSizes",
    "MultiTaskTLP",
    "block_tensors",
    "model_config",
    "scoped_seed",
    "used_lengths",
]
