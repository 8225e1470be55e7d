"""Pairs of measured candidates of a workload: how many a head puts right, and how sure that is. Pure.

Called by `fleet.models.promotion`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Candidates that are compared pair by pair; of more, evenly many over the order of latency.
_MOST_PAIRED = 512
#: Measured candidates below which nothing is said of how sure a share is.
_LEAST = 4
#: Standard errors on either side of a figure that hold nine tenths of it.
_NORMAL_90 = 1.645


def decided_pairs(scores: Floats, latency_secs: Floats, floor: float) -> tuple[int, float]:
    """Pairs of candidates that noise does not blur, and how many scores put right; ties count half."""
    slower, right = _pairs(scores, latency_secs, floor)
    return int(slower.sum()), float(right.sum())


def pair_width(scores: Floats, latency_secs: Floats, floor: float) -> float:
    """How wide the 90 % interval of the share of pairs in the right order is, had others been measured.

    Jackknife over candidates, because pairs that share one are no independent tries: Arvesen, Jackknifing
    U-statistics, Annals of Mathematical Statistics 40 (1969).

    Returns:
        0 to 1; 1 where too few pairs are decided to tell.
    """
    slower, right = _pairs(scores, latency_secs, floor)
    decided, good = float(slower.sum()), float(right.sum())
    remaining = decided - slower.sum(axis=0) - slower.sum(axis=1)
    if len(remaining) < _LEAST or remaining.min() <= 0:
        return 1.0
    shares = (good - right.sum(axis=0) - right.sum(axis=1)) / remaining
    count = len(shares)
    error = np.sqrt((count - 1) / count * ((shares - shares.mean()) ** 2).sum())
    return float(min(1.0, 2 * _NORMAL_90 * error))


def _pairs(scores: Floats, latency_secs: Floats, floor: float) -> tuple[NDArray[np.bool_], Floats]:
    """Which pairs (i, j) of candidates, fastest first, are decided, and which are right (ties: half)."""
    order = np.argsort(latency_secs, kind="stable")
    if len(order) > _MOST_PAIRED:
        order = order[np.linspace(0, len(order) - 1, _MOST_PAIRED).astype(np.int64)]
    scores, latency = scores[order], latency_secs[order]
    # Sorted, so that a pair (i, j) with i < j has its faster one first.
    slower = latency[None, :] > latency[:, None] * (1 + floor)
    right = scores[:, None] > scores[None, :]
    tied = scores[:, None] == scores[None, :]
    return slower, slower * (right + tied / 2)
