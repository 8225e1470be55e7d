"""Train on less: which measured candidates to keep, by latency and by FLOPs.

Most of a tuning log is slow candidates that resemble each other, on workloads that cost a network little.
Verma et al. train on a part chosen "jointly by FLOPs and execution time" and report 43 to 53 % less data at
equal pairwise accuracy, but give no rule. This is ours. Called before training and by the scripts of the
results, which draw accuracy over the share kept; knows nothing of models.

A workload's share of the budget grows with its FLOPs (`flops_power`). Inside a workload candidates lie on a
line, fastest first, whose lengths are differences of log latency, squeezed the more the slower a candidate is
(`fast_scale`): a difference of one percent next to the best is as long as one of ten percent at ten times
that distance. Candidates are kept at equal distances on the line: near-duplicates fall together, the fast
end stays dense, and the slowest remain as a few examples of what not to do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transfer.data.dataset import Dataset
from transfer.errors import DatasetError

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """How training rows are thinned out."""

    #: Share of the rows to keep, in (0, 1].
    share: float = 0.6
    #: A workload of a hundred times the FLOPs gets 100 ** flops_power times the share of the budget.
    flops_power: float = 0.1
    #: Distance from the best (in log latency) up to which differences count in full.
    fast_scale: float = 0.1
    #: Rows that a workload keeps at least, where it has as many.
    least: int = 8

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"pruning: share must be above 0 and at most 1, got {self.share}")
        if self.fast_scale <= 0 or self.flops_power < 0 or self.least < 2:
            raise ValueError(
                "pruning: fast_scale must be above 0, flops_power at least 0 and `least` at least 2, got "
                f"{self.fast_scale}, {self.flops_power} and {self.least}"
            )


def prune(dataset: Dataset, rows: Rows, pruning: Pruning) -> Rows:
    """Choose the rows to train on.

    The fastest candidate of each workload on each device is always kept: labels are relative to it, so those
    of the rows that stay do not change. A workload's rows without a latency (failed, for the validity output)
    are thinned out evenly, to the same share as its others.

    Args:
        dataset: Candidates of all devices; only latencies of `rows` are looked at.
        rows: Row numbers to choose from. Take out latencies that must not be seen beforehand.
        pruning: How many, and which.

    Returns:
        Rows kept, rising: about `share` of them, more where `least` or the fastest ones ask for it.
    """
    rows = np.sort(np.asarray(rows, dtype=np.int64))
    group = dataset.group[rows]
    order = np.argsort(group, kind="stable")
    members = np.split(rows[order], np.flatnonzero(np.diff(group[order])) + 1) if len(rows) else []
    sizes = np.array([len(one) for one in members])
    flops = np.array([dataset.flops[dataset.group[one[0]]] for one in members])
    budgets = _budgets(sizes, flops, pruning)
    kept = [_thin(dataset, one, int(budget), pruning) for one, budget in zip(members, budgets, strict=True)]
    return np.sort(np.concatenate(kept)) if kept else rows


def random_share(dataset: Dataset, rows: Rows, share: float, seed: int) -> Rows:
    """Keep a random share of each workload's rows, at least 2: what pruning has to beat.

    Raises:
        DatasetError: `share` is not above 0 and at most 1.
    """
    if not 0 < share <= 1:
        raise DatasetError(f"share must be above 0 and at most 1, got {share}")
    random = np.random.default_rng(seed)
    rows = np.sort(np.asarray(rows, dtype=np.int64))
    order = np.lexsort((random.random(len(rows)), dataset.group[rows]))
    group = dataset.group[rows][order]
    _, start, size = np.unique(group, return_index=True, return_counts=True)
    place = np.arange(len(rows)) - np.repeat(start, size)
    return np.sort(rows[order[place < np.repeat(np.maximum(2, np.round(share * size)), size)]])


def _known(flops: NDArray[np.float64]) -> NDArray[np.float64]:
    """FLOPs, with the median of the known ones in place of 0."""
    known = flops[flops > 0]
    return np.where(flops > 0, flops, np.median(known) if len(known) else 1.0)


def _budgets(sizes: NDArray[np.int64], flops: NDArray[np.float64], pruning: Pruning) -> NDArray[np.int64]:
    """Rows for each workload: `share` of all, by FLOPs, none beyond what a workload has."""
    least = np.minimum(sizes, pruning.least)
    if not len(sizes) or pruning.share == 1:
        return sizes
    wish = sizes * _known(flops) ** pruning.flops_power
    goal = pruning.share * sizes.sum()
    low, high = 0.0, float((sizes / wish).max())
    # What one workload cannot use goes to the others: find the factor that spends the budget.
    for _ in range(60):
        factor = (low + high) / 2
        spent = np.clip(factor * wish, least, sizes).sum()
        low, high = (factor, high) if spent < goal else (low, factor)
    result: NDArray[np.int64] = np.round(np.clip(high * wish, least, sizes)).astype(np.int64)
    return result


def _thin(dataset: Dataset, rows: Rows, budget: int, pruning: Pruning) -> Rows:
    """Rows of one workload to keep: from each set of devices that rows were measured on, its share."""
    if budget >= len(rows):
        return rows
    latency = dataset.latency_secs[rows]
    measured = np.isfinite(latency)
    best = np.nanargmin(latency[:, measured.any(axis=0)], axis=0)
    patterns, pattern_of, sizes = np.unique(measured, axis=0, return_inverse=True, return_counts=True)
    ends = np.round(np.cumsum(sizes) * budget / len(rows)).astype(np.int64)
    kept = [best]
    for pattern, columns in enumerate(patterns):
        places = np.flatnonzero(pattern_of.ravel() == pattern)
        count = int(ends[pattern] - (ends[pattern - 1] if pattern else 0))
        if not columns.any():  # failed everywhere: no order to go by
            kept.append(places[np.linspace(0, len(places) - 1, count).astype(np.int64)])
        elif count:
            kept.append(places[_spread(latency[np.ix_(places, columns)], count, pruning.fast_scale)])
    chosen: Rows = rows[np.unique(np.concatenate(kept))]
    return chosen


def _spread(latency: NDArray[np.float64], budget: int, fast_scale: float) -> Rows:
    """Places of candidates at equal distances on the squeezed line of latencies.

    Args:
        latency: (n, D) seconds, all known.
        budget: How many, at least 1.
        fast_scale: See `Pruning`.
    """
    squeezed = np.log1p(np.log(latency / latency.min(axis=0)) / fast_scale)
    # Candidates measured on several devices lie in the order of their mean, and are unlike if they are so on
    # any of the devices.
    order = np.argsort(squeezed.mean(axis=1), kind="stable")
    steps = np.abs(np.diff(squeezed[order], axis=0)).max(axis=1)
    along = np.concatenate([[0.0], np.cumsum(steps)])
    places = np.unique(np.searchsorted(along, np.linspace(0.0, along[-1], budget)))
    if len(places) < budget:
        # A wide gap swallowed several: those passed over that are least like any kept one take their place.
        rest = np.setdiff1d(np.arange(len(order)), places)
        after = np.searchsorted(places, rest)
        distance = np.minimum(
            np.abs(along[rest] - along[places[np.maximum(after - 1, 0)]]),
            np.abs(along[rest] - along[places[np.minimum(after, len(places) - 1)]]),
        )
        places = np.concatenate([places, rest[np.argsort(-distance, kind="stable")[: budget - len(places)]]])
    result: Rows = order[places]
    return result
