"""Batches of whole workloads in a padded layout, so that losses can compare candidates of one workload.

Called by `transfer.train.step` and by adaptation.

Legend: B rows of a batch, G workloads of a batch, n most candidates of one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Rows of a few workloads and where each stands in the padded layout."""

    #: (B,) row numbers of the dataset.
    rows: np.ndarray
    #: (G, n) index into `rows`; 0 where there is nothing.
    place: Tensor
    #: (G, n) bool, false where there is nothing.
    filled: Tensor


def draw_batches(
    groups: Sequence[np.ndarray], *, workloads: int, most: int, random: np.random.Generator
) -> Iterator[PaddedBatch]:
    """Give every workload once, in a random order.

    Args:
        groups: Row numbers of each workload.
        workloads: Workloads of one batch.
        most: Candidates of one workload in a batch; of more, a random choice is taken.
        random: Where the order and the choice come from.
    """
    order = random.permutation(len(groups))
    for start in range(0, len(order), workloads):
        chosen = [groups[i] for i in order[start : start + workloads]]
        yield lay_out([g if len(g) <= most else random.choice(g, most, replace=False) for g in chosen])


def lay_out(groups: Sequence[np.ndarray]) -> PaddedBatch:
    """Lay the rows of some workloads out as (G, n)."""
    widest = max(len(group) for group in groups)
    place = torch.zeros(len(groups), widest, dtype=torch.int64)
    filled = torch.zeros(len(groups), widest, dtype=torch.bool)
    start = 0
    for i, group in enumerate(groups):
        place[i, : len(group)] = torch.arange(start, start + len(group))
        filled[i, : len(group)] = True
        start += len(group)
    return PaddedBatch(np.concatenate(groups), place, filled)
