"""From kept features to what a backbone computes with: dense tensors of one batch.

Called by training, scoring and adaptation. Knows nothing of networks.

Legend: N candidates, L steps, C category slots, F number slots, V workload slots, S summary slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from transfer.errors import TransferError
from transfer.features.blocks import FeatureBlock
from transfer.model.encoder import ModelConfig

#: Candidates of every forward pass that scores, filled up where there are fewer. Libraries of linear algebra
#: sum in another order for other sizes, so with passes of one size a candidate's score is the same to the
#: last bit in any company.
SCORE_BATCH = 128


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def scoring(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients and one thread inside the block.

    Where other processes hold the cores, several threads that wait took forty times as long.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch_threads(1):
            yield
    finally:
        model.train(was_training)


def used_lengths(block: FeatureBlock) -> np.ndarray:
    """(N,) steps of each candidate up to its last real one, at least 1."""
    real = block.steps > 0
    last = real.shape[1] - np.argmax(real[:, ::-1], axis=1)
    return np.where(real.any(axis=1), last, 1)


def block_tensors(
    block: FeatureBlock, rows: np.ndarray, steps: int | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Arguments of `FleetTLP.backbone` for some rows: the only place where dense arrays are made.

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


def check_sizes(block: FeatureBlock, config: ModelConfig) -> None:
    """Refuse features of another shape than a model reads.

    Raises:
        TransferError: Naming each size that differs.
    """
    sizes = {
        "category slots": (block.step_categories.shape[1], len(config.category_sizes)),
        "number slots": (block.step_numbers.shape[1], config.number_size),
        "workload slots": (block.workload_vectors.shape[1], config.workload_size),
        "summary slots": (block.summary.shape[1], config.summary_size),
    }
    wrong = [
        f"{name}: got {got}, expected {expected}"
        for name, (got, expected) in sizes.items()
        if got != expected
    ]
    longest = int(used_lengths(block).max(initial=0))
    if longest > config.max_steps:
        wrong.append(f"steps: got {longest}, at most {config.max_steps}")
    if wrong:
        raise TransferError(f"features do not fit the model ({'; '.join(wrong)}); extract them with its spec")
