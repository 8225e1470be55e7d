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
from dataclasses import dataclass, fields

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
    #: Least latency, in seconds.
    best_secs: Floats
    #: Expected least latency among the 1 and 5 best-scored candidates, in seconds.
    best_of_1_secs: Floats
    best_of_5_secs: Floats
    #: Expected least latency when 1 or 5 candidates are drawn at random, in seconds.
    random_of_1_secs: Floats
    random_of_5_secs: Floats
    #: Expected share of the best speed that the 1 and 5 best-scored candidates reach, in (0, 1].
    top1_by_workload: Floats
    top5_by_workload: Floats
    #: Expected share of the best speed when 1 or 5 candidates are drawn at random.
    random_top1_by_workload: Floats
    random_top5_by_workload: Floats
    #: Share of pairs of unlike latency in the right order; 0.5 without such a pair.
    pairwise_by_workload: Floats
    #: Kendall's tau-b between score and speed; 0 where either is constant.
    tau_by_workload: Floats
    #: Share of the 5 fastest candidates among the 5 best-scored ones; TenSet's top-k recall.
    recall5_by_workload: Floats
    #: Mean of top-1 to top-5; TenSet's peak score@5.
    peak5_by_workload: Floats
    #: Extra time of the best-scored candidate over the least latency, 0 where it is within the noise floor.
    noise_regret_by_workload: Floats
    #: Mean squared difference of score and relative speed, over all and over the fastest quarter (MetaTune).
    square_error_by_workload: Floats
    fast_square_error_by_workload: Floats

    @property
    def regret_by_workload(self) -> Floats:
        """Expected extra time of the best-scored candidate, as a share of the least latency; 0 is perfect."""
        return self.best_of_1_secs / self.best_secs - 1

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
        secs = {
            "weighted_top1": self.best_of_1_secs,
            "weighted_top5": self.best_of_5_secs,
            "random_weighted_top1": self.random_of_1_secs,
            "random_weighted_top5": self.random_of_5_secs,
        }
        if measure in secs:
            return self.weight * self.best_secs, self.weight * secs[measure]
        if measure == "rmse":
            counts = self.counts.astype(np.float64)
            return counts * self.square_error_by_workload, counts
        name = "fast_square_error" if measure == "fast_mse" else measure
        values: Floats = getattr(self, f"{name}_by_workload")
        return values, np.ones_like(values)

    def take(self, places: NDArray[np.integer]) -> Metrics:
        """Metrics of some of the workloads, by their places in `groups`."""
        return Metrics(**{metric.name: getattr(self, metric.name)[places] for metric in fields(Metrics)})


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


def evaluate_ranking(
    scores: Floats,
    latency_secs: Floats,
    group: Groups,
    weight: Floats | None = None,
    *,
    noise_floor: float = 0.0,
    least: int = 1,
) -> Metrics:
    """Judge scores on one device by every measure; arguments and errors as of `measure_workloads`.

    `weight` is (W,), of each workload by index; all 1 where None.
    """
    names = [metric.name for metric in fields(Metrics) if metric.name not in {"groups", "counts", "weight"}]
    groups, counts, values = measure_workloads(
        names, scores, latency_secs, group, noise_floor=noise_floor, least=least
    )
    weights = np.ones(len(groups)) if weight is None else weight[groups].astype(np.float64)
    return Metrics(groups=groups, counts=counts, weight=weights, **values)


def measure_workloads(
    names: Collection[str],
    scores: Floats,
    latency_secs: Floats,
    group: Groups,
    *,
    noise_floor: float = 0.0,
    least: int = 1,
) -> tuple[Groups, Ints, dict[str, Floats]]:
    """Some measures of scores on one device, workload by workload.

    Args:
        names: Which, by their names in `Metrics`; others are not computed.
        scores: (N,) higher is better; may be NaN where the latency is.
        latency_secs: (N,) seconds, NaN where there is no ok measurement; such rows are passed over.
        group: (N,) index of the workload of each row.
        noise_floor: Relative difference up to which two latencies count as equal in `noise_regret`.
        least: Workloads with fewer measured candidates are passed over: of a single one any ranker is right.

    Returns:
        (G,) the workloads in ascending order, (G,) their measured candidates, and (G,) values by name.

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
        if not set(gives).isdisjoint(names):
            figures = np.array([formula(scores[rows], latency_secs[rows], noise_floor) for rows in members])
            values |= dict(zip(gives, figures.reshape(len(members), -1).T, strict=True))
    return groups.astype(np.int32), counts, {name: np.ascontiguousarray(values[name]) for name in names}


#: What a formula gives (names in `Metrics`), and the formula of scores, seconds and noise floor.
_FORMULAS: Mapping[tuple[str, ...], Callable[[Floats, Floats, float], object]] = {
    ("best_secs",): lambda _, secs, __: secs.min(),
    ("best_of_1_secs",): lambda score, secs, _: best_of_k(score, secs, 1),
    ("best_of_5_secs",): lambda score, secs, _: best_of_k(score, secs, 5),
    ("random_of_1_secs",): lambda _, secs, __: random_best_of_k(secs, 1),
    ("random_of_5_secs",): lambda _, secs, __: random_best_of_k(secs, 5),
    ("top1_by_workload",): lambda score, secs, _: top_k(score, secs, 1),
    ("top5_by_workload",): lambda score, secs, _: top_k(score, secs, 5),
    ("random_top1_by_workload",): lambda _, secs, __: random_top_k(secs, 1),
    ("random_top5_by_workload",): lambda _, secs, __: random_top_k(secs, 5),
    ("pairwise_by_workload", "tau_by_workload"): lambda score, secs, _: order_agreement(score, secs),
    ("recall5_by_workload",): lambda score, secs, _: top_k_recall(score, secs, 5),
    ("peak5_by_workload",): lambda score, secs, _: peak_score(score, secs, 5),
    ("noise_regret_by_workload",): regret,
    ("square_error_by_workload",): lambda score, secs, _: square_error(score, secs),
    ("fast_square_error_by_workload",): lambda score, secs, _: square_error(score, secs, _FAST),
}


def merge(parts: list[Metrics]) -> Metrics:
    """Metrics of parts that may share workloads, sorted by workload; one in several parts gives its mean.

    A layer of two networks is judged in both splits when networks are held out in turn.
    """
    values = {
        metric.name: np.concatenate([getattr(part, metric.name) for part in parts])
        for metric in fields(Metrics)
    }
    groups, first, place = np.unique(values.pop("groups"), return_index=True, return_inverse=True)
    counts, weight = values.pop("counts")[first], values.pop("weight")[first]
    times = np.bincount(place)
    means = {name: np.bincount(place, weights=column) / times for name, column in values.items()}
    return Metrics(groups=groups, counts=counts, weight=weight, **means)
