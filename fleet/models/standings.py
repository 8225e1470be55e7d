"""How a head orders measured candidates, workload by workload: what heads are compared by. Pure.

Called by `fleet.models.promotion`, which decides by it, and by `fleet.models.freshness`.

Legend: n candidates, G workloads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from transfer.arrays import Floats, Groups, Ints
from transfer.data.intervals import Resampled, resample_ratio
from transfer.data.metrics import evaluate_ranking

#: Measured candidates of a workload that judge a head at least: fewer are an anecdote.
LEAST_RANKED = 4
_SEED = 0
#: Measures of a standing, by their names in `transfer.data.metrics`.
_MEASURES = ("tau", "top1", "top5", "random_top1")
#: Candidates that are compared pair by pair; of more, evenly many over the order of latency.
_MOST_PAIRED = 512
#: Measured candidates below which nothing is said of how sure a share is.
_LEAST = 4
#: Standard errors on either side of a figure that hold nine tenths of it.
_NORMAL_90 = 1.645


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Standing:
    """How a head orders the candidates of G workloads; arrays are (G,), in the order of `groups`."""

    groups: Groups
    #: Candidates measured.
    counts: Ints
    #: Pairs whose latencies differ by more than the noise floor, and how many of them are in the right order.
    decided: Floats
    right: Floats
    #: Kendall's tau-b.
    tau: Floats
    #: Speed of the first choice, and best one of the first five, over the best; 1 within the noise floor.
    top1: Floats
    top5: Floats
    #: Expected speed of a random choice over the best.
    random_top1: Floats
    #: Width of the 90 % interval of the share of pairs in the right order (`pair_figures`).
    width: Floats

    def shares(self) -> Floats:
        """(G,) share of the decided pairs of a workload in the right order."""
        return np.asarray(self.right / np.maximum(self.decided, 1))


def standing(scores: Floats, latency_secs: Floats, group: Groups, floor: float) -> Standing | None:
    """How scores order measured candidates, workload by workload.

    Args:
        scores: (n,) higher is faster.
        latency_secs: (n,) seconds, NaN where there is no ok measurement.
        group: (n,) number of each candidate's workload.
        floor: Relative difference of two measurements of one program on this device.

    Returns:
        Over the workloads with `LEAST_RANKED` measured candidates and a pair that noise does not blur; None
        where no workload has them.
    """
    measured = np.isfinite(latency_secs)
    scores, latency, group = scores[measured], latency_secs[measured], group[measured]
    if not len(group) or np.bincount(group).max() < LEAST_RANKED:
        return None
    metrics = evaluate_ranking(scores, latency, group, names=_MEASURES, least=LEAST_RANKED)
    figures = [
        pair_figures(scores[group == number], latency[group == number], floor)
        for number in metrics.groups.tolist()
    ]
    decided, right, width = np.array(figures).T
    is_decided = decided > 0
    if not is_decided.any():
        return None
    tau, top1, top5, random_top1 = (metrics.values[name][is_decided] for name in _MEASURES)
    return Standing(
        groups=metrics.groups[is_decided],
        counts=metrics.counts[is_decided],
        decided=decided[is_decided],
        right=right[is_decided],
        tau=tau,
        top1=np.where(top1 * (1 + floor) >= 1, 1.0, top1),
        top5=np.where(top5 * (1 + floor) >= 1, 1.0, top5),
        random_top1=random_top1,
        width=width[is_decided],
    )


def pair_figures(scores: Floats, latency_secs: Floats, floor: float) -> tuple[float, float, float]:
    """Pairs of candidates that noise does not blur, how many scores put right, and how sure that is.

    Ties count half. The last figure is the width of the 90 % interval of the share that is right, had others
    been measured: 0 to 1, and 1 where too few pairs are decided to tell. Jackknife over candidates, because
    pairs that share one are no independent tries: Arvesen, Jackknifing U-statistics, Annals of Mathematical
    Statistics 40 (1969).
    """
    order = np.argsort(latency_secs, kind="stable")
    if len(order) > _MOST_PAIRED:
        order = order[np.linspace(0, len(order) - 1, _MOST_PAIRED).astype(np.int64)]
    scores, latency = scores[order], latency_secs[order]
    # Sorted, so that a pair (i, j) with i < j has its faster one first.
    slower = latency[None, :] > latency[:, None] * (1 + floor)
    right = slower * ((scores[:, None] > scores[None, :]) + (scores[:, None] == scores[None, :]) / 2)
    decided, good = float(slower.sum()), float(right.sum())
    remaining = decided - slower.sum(axis=0) - slower.sum(axis=1)
    if len(remaining) < _LEAST or remaining.min() <= 0:
        return decided, good, 1.0
    shares = (good - right.sum(axis=0) - right.sum(axis=1)) / remaining
    count = len(shares)
    error = np.sqrt((count - 1) / count * ((shares - shares.mean()) ** 2).sum())
    return decided, good, float(min(1.0, 2 * _NORMAL_90 * error))


def mean_of(values: Floats) -> Resampled:
    """Mean over workloads, resampled as everything here is, so that differences are paired."""
    return resample_ratio(values, np.ones_like(values), _SEED)
