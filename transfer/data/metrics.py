"""How well scores rank the candidates of one device, workload by workload.

Every measure is taken inside a workload, over the candidates with an ok latency there, and kept by workload,
so that two rankers can be compared on the same workloads (`transfer.data.intervals`). The formulas are those
of `transfer.data.ranking`. Called by `transfer.evaluate.rankers`; knows nothing of models.

Two averages of top-k are in use in the literature and are not comparable: TenSet reports the mean of ratios,
TLP the ratio of weighted sums, in which slow workloads weigh most. Both are given. What TLP's evaluation gets
wrong is not repeated: its top-10 and top-20 lists hold the totals of top-1 and top-5, failures count as very
slow candidates instead of none, and workloads that are missing vanish without being counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transfer.arrays import Floats, Groups, Ints
from transfer.data.labels import check_latency
from transfer.data.ranking import (
    best_of_k,
    order_agreement,
    peak_score,
    random_best_of_k,
    random_top_k,
    regret,
    square_error,
    top_k,
    top_k_recall,
)
from transfer.errors import DatasetError

#: Share of the candidates that MetaTune's error looks at.
_FAST = 0.25


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Metrics:
    """Ranking quality on one device over G workloads; every array is (G,), in the order of `groups`."""

    #: Index of each workload that has enough measured candidates.
    groups: Groups
    #: Candidates measured.
    counts: Ints
    #: Weight of the workload.
    weight: Floats
    #: Figures of each workload, by the names in `_FORMULAS`.
    values: Mapping[str, Floats]

    def by_workload(self, measure: str) -> Floats:
        """(G,) one of the figures, or `regret`: expected extra time of the best-scored candidate, as a share.

        The share is of the least latency; 0 is perfect.
        """
        if measure == "regret":
            return self.values["best_of_1_secs"] / self.values["best_secs"] - 1
        return self.values[measure]

    def value(self, measure: str) -> float:
        """The average of one of `MEASURES`."""
        above, below = self.parts(measure)
        ratio = float(above.sum() / below.sum())
        return math.sqrt(ratio) if measure == "rmse" else ratio

    def summary(self) -> dict[str, float]:
        """The averages by name, for reports."""
        return {name: self.value(name) for name in MEASURES}

    def parts(self, measure: str) -> tuple[Floats, Floats]:
        """One of `MEASURES` as two columns (G,) whose sums it is the ratio of; of `rmse` the square."""
        if measure in _SECS:
            return self.weight * self.values["best_secs"], self.weight * self.values[_SECS[measure]]
        values = self.by_workload(measure)
        if measure == "rmse":
            counts = self.counts.astype(np.float64)
            return counts * values, counts
        return values, np.ones_like(values)

    def take(self, places: NDArray[np.integer]) -> Metrics:
        """Metrics of some of the workloads, by their places in `groups`."""
        return Metrics(
            groups=self.groups[places],
            counts=self.counts[places],
            weight=self.weight[places],
            values={name: column[places] for name, column in self.values.items()},
        )


#: Averages of `Metrics`, in the order in which reports give them: means over workloads (TenSet's average),
#: `weighted` ones ratios of sums (TLP's), `rmse` the root of a mean over all candidates (TenSet's weighting).
MEASURES = (
    "top1",
    "top5",
    "weighted_top1",
    "weighted_top5",
    "random_top1",
    "random_top5",
    "random_weighted_top1",
    "random_weighted_top5",
    "pairwise",
    "tau",
    "recall5",
    "peak5",
    "regret",
    "noise_regret",
    "rmse",
    "fast_mse",
)

#: Seconds by weighted measure, of which the best are a share.
_SECS = {
    "weighted_top1": "best_of_1_secs",
    "weighted_top5": "best_of_5_secs",
    "random_weighted_top1": "random_of_1_secs",
    "random_weighted_top5": "random_of_5_secs",
}


def evaluate_ranking(
    scores: Floats,
    latency_secs: Floats,
    group: Groups,
    weight: Floats | None = None,
    *,
    names: Collection[str] = (),
    noise_floor: float = 0.0,
    least: int = 1,
) -> Metrics:
    """Judge scores on one device, workload by workload.

    Args:
        scores: (N,) higher is better; may be NaN where the latency is.
        latency_secs: (N,) seconds, NaN where there is no ok measurement; such rows are passed over.
        group: (N,) index of the workload of each row.
        weight: (W,) of each workload by index; all 1 where None.
        names: Figures of `_FORMULAS` that are needed; all if empty.
        noise_floor: Relative difference up to which two latencies count as equal in `noise_regret`.
        least: Workloads with fewer measured candidates are passed over: of a single one any ranker is right.

    Returns:
        Of the workloads in ascending order.

    Raises:
        DatasetError: A measured candidate has a NaN score, or a latency is zero, negative or infinite.
    """
    check_latency(latency_secs)
    measured = np.flatnonzero(~np.isnan(latency_secs))
    if np.isnan(scores[measured]).any():
        raise DatasetError(f"{int(np.isnan(scores[measured]).sum())} measured candidates have the score NaN")
    # One sort brings the rows of a workload together.
    order = measured[np.argsort(group[measured], kind="stable")]
    groups, starts, counts = np.unique(group[order], return_index=True, return_counts=True)
    enough = counts >= least
    groups, starts, counts = groups[enough], starts[enough], counts[enough]
    members = [order[start : start + count] for start, count in zip(starts, counts, strict=True)]
    values: dict[str, Floats] = {}
    for gives, formula in _FORMULAS.items():
        if not names or not set(gives).isdisjoint(names):
            figures = np.array([formula(scores[rows], latency_secs[rows], noise_floor) for rows in members])
            values |= dict(zip(gives, figures.reshape(len(members), -1).T, strict=True))
    weights = np.ones(len(groups)) if weight is None else weight[groups].astype(np.float64)
    return Metrics(
        groups=groups.astype(np.int32),
        counts=counts,
        weight=weights,
        values={name: np.ascontiguousarray(column) for name, column in values.items()},
    )


#: Figures of a workload, and the formula of scores, seconds and noise floor that gives them.
_FORMULAS: Mapping[tuple[str, ...], Callable[[Floats, Floats, float], object]] = {
    # Least latency, in seconds; expected least latency among the best-scored candidates, or of a random draw.
    ("best_secs",): lambda _, secs, __: secs.min(),
    ("best_of_1_secs",): lambda score, secs, _: best_of_k(score, secs, 1),
    ("best_of_5_secs",): lambda score, secs, _: best_of_k(score, secs, 5),
    ("random_of_1_secs",): lambda _, secs, __: random_best_of_k(secs, 1),
    ("random_of_5_secs",): lambda _, secs, __: random_best_of_k(secs, 5),
    # Expected share of the best speed that the best-scored candidates, or randomly drawn ones, reach.
    ("top1",): lambda score, secs, _: top_k(score, secs, 1),
    ("top5",): lambda score, secs, _: top_k(score, secs, 5),
    ("random_top1",): lambda _, secs, __: random_top_k(secs, 1),
    ("random_top5",): lambda _, secs, __: random_top_k(secs, 5),
    ("pairwise", "tau"): lambda score, secs, _: order_agreement(score, secs),
    ("recall5",): lambda score, secs, _: top_k_recall(score, secs, 5),
    ("peak5",): lambda score, secs, _: peak_score(score, secs, 5),
    ("noise_regret",): regret,
    # The square of `rmse`, over all candidates and over the fastest quarter (MetaTune).
    ("rmse",): lambda score, secs, _: square_error(score, secs),
    ("fast_mse",): lambda score, secs, _: square_error(score, secs, _FAST),
}


def merge(parts: list[Metrics]) -> Metrics:
    """Metrics of parts that may share workloads, sorted by workload; one in several parts gives its mean.

    A layer of two networks is judged in both splits when networks are held out in turn.
    """
    groups, first, place = np.unique(
        np.concatenate([part.groups for part in parts]), return_index=True, return_inverse=True
    )
    times = np.bincount(place)
    values = {
        name: np.bincount(place, weights=np.concatenate([part.values[name] for part in parts])) / times
        for name in parts[0].values
    }
    return Metrics(
        groups=groups,
        counts=np.concatenate([part.counts for part in parts])[first],
        weight=np.concatenate([part.weight for part in parts])[first],
        values=values,
    )
