"""How well scores rank the candidates of one device, workload by workload.

Every measure is taken inside a workload, over the candidates with an ok latency there, and kept by workload,
so that two models can be compared on the same workloads by a paired bootstrap. Called by `transfer.evaluate`
and the registry's champion-and-challenger test; knows nothing of models.

Two averages of top-k are in use in the literature and are not comparable: TenSet reports the mean of ratios,
TLP the ratio of weighted sums, in which slow workloads weigh most. Both are given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from transfer.errors import DatasetError
from transfer.labels import check_latency

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Metrics:
    """Ranking quality on one device over G workloads; every array is (G,), in the order of `groups`."""

    #: Index of each workload that has at least one measured candidate.
    groups: NDArray[np.int32]
    #: Candidates measured.
    counts: NDArray[np.int64]
    #: Weight of the workload.
    weight: Floats
    #: Least latency, in seconds.
    best_secs: Floats
    #: Least latency among the 1 and 5 best-scored candidates, in seconds.
    best_of_1_secs: Floats
    best_of_5_secs: Floats
    #: Expected share of the best speed when 1 or 5 candidates are drawn at random.
    random_top1_by_workload: Floats
    random_top5_by_workload: Floats
    #: Share of pairs of unlike latency in the right order; 0.5 without such a pair.
    pairwise_by_workload: Floats
    #: Kendall's tau-b between score and speed; 0 where either is constant.
    tau_by_workload: Floats

    @property
    def top1_by_workload(self) -> Floats:
        """Least latency over that of the best-scored candidate, in (0, 1]."""
        return self.best_secs / self.best_of_1_secs

    @property
    def top5_by_workload(self) -> Floats:
        """Least latency over the least among the 5 best-scored candidates, in (0, 1]."""
        return self.best_secs / self.best_of_5_secs

    @property
    def regret_by_workload(self) -> Floats:
        """Extra time of the best-scored candidate, as a share of the least latency; 0 is perfect."""
        return self.best_of_1_secs / self.best_secs - 1

    @property
    def top1(self) -> float:
        """Mean of the top-1 ratios (TenSet's average)."""
        return float(self.top1_by_workload.mean())

    @property
    def top5(self) -> float:
        """Mean of the top-5 ratios (TenSet's average)."""
        return float(self.top5_by_workload.mean())

    @property
    def weighted_top1(self) -> float:
        """Sum of weight * least latency over sum of weight * chosen latency (TLP's average)."""
        return float((self.weight * self.best_secs).sum() / (self.weight * self.best_of_1_secs).sum())

    @property
    def weighted_top5(self) -> float:
        """Sum of weight * least latency over sum of weight * best of 5 (TLP's average)."""
        return float((self.weight * self.best_secs).sum() / (self.weight * self.best_of_5_secs).sum())

    @property
    def random_top1(self) -> float:
        """Mean top-1 ratio expected of a random choice."""
        return float(self.random_top1_by_workload.mean())

    @property
    def random_top5(self) -> float:
        """Mean top-5 ratio expected of a random choice."""
        return float(self.random_top5_by_workload.mean())

    @property
    def pairwise(self) -> float:
        """Mean pairwise accuracy."""
        return float(self.pairwise_by_workload.mean())

    @property
    def tau(self) -> float:
        """Mean of Kendall's tau-b."""
        return float(self.tau_by_workload.mean())

    @property
    def regret(self) -> float:
        """Mean extra time of the best-scored candidate."""
        return float(self.regret_by_workload.mean())

    def summary(self) -> dict[str, float]:
        """The averages by name, for reports."""
        names = ("top1", "top5", "weighted_top1", "weighted_top5", "random_top1", "random_top5")
        return {name: float(getattr(self, name)) for name in (*names, "pairwise", "tau", "regret")}


def best_of_k(scores: Floats, latency_secs: Floats, k: int) -> float:
    """Least latency among the k best-scored candidates of one workload.

    Where candidates tie for the last places, the expectation over a random choice among them is taken: a
    model that scores everything alike must not profit from the order of rows.

    Args:
        scores: (n,) higher is better.
        latency_secs: (n,) seconds, all ok.
        k: How many candidates may be tried.
    """
    count = len(scores)
    k = min(k, count)
    threshold = np.partition(scores, count - k)[count - k]
    sure = latency_secs[scores > threshold]
    tied = np.sort(latency_secs[scores == threshold])
    floor = float(sure.min()) if len(sure) else np.inf
    chances = _best_of_draw(len(tied), k - len(sure))
    return float((np.minimum(tied, floor) * chances).sum())


def random_top_k(latency_secs: Floats, k: int) -> float:
    """Expected share of the best speed when k candidates of one workload are drawn without replacement."""
    ordered = np.sort(latency_secs)
    return float((ordered[0] / ordered * _best_of_draw(len(ordered), min(k, len(ordered)))).sum())


def _best_of_draw(count: int, k: int) -> Floats:
    """Chance that the i-th best of `count` is the best among k drawn without replacement, (count,)."""
    chances = np.zeros(count)
    not_yet = 1.0
    for place in range(count - k + 1):
        # Given that none better was drawn, k of the count - place that remain are drawn.
        chance = k / (count - place)
        chances[place] = not_yet * chance
        not_yet *= 1 - chance
    return chances


def pairwise_accuracy(scores: Floats, latency_secs: Floats) -> float:
    """Share of pairs with unlike latency that the scores put in the right order.

    A tie of scores counts half; without a pair of unlike latency the result is 0.5.
    """
    earlier, later = np.triu_indices(len(scores), 1)
    truth = np.sign(latency_secs[later] - latency_secs[earlier])
    guess = np.sign(scores[earlier] - scores[later])
    told = truth != 0
    if not told.any():
        return 0.5
    return float(np.where(guess == 0, 0.5, guess == truth)[told].mean())


def kendall_tau(scores: Floats, latency_secs: Floats) -> float:
    """Kendall's tau-b between score and speed; 0 where either is constant, or there is one candidate."""
    if len(scores) < 2 or np.ptp(scores) == 0 or np.ptp(latency_secs) == 0:
        return 0.0
    return float(kendalltau(scores, -latency_secs).statistic)


def evaluate_ranking(
    scores: Floats, latency_secs: Floats, group: NDArray[np.int32], weight: Floats | None = None
) -> Metrics:
    """Judge scores on one device.

    Args:
        scores: (N,) higher is better; may be NaN where the latency is.
        latency_secs: (N,) seconds, NaN where there is no ok measurement; such rows are passed over.
        group: (N,) index of the workload of each row.
        weight: (W,) weight of each workload by index; all 1 where None.

    Raises:
        DatasetError: Nothing is measured, shapes differ, a measured candidate has a NaN score, or a latency
            is zero, negative or infinite.
    """
    if not scores.shape == latency_secs.shape == group.shape or scores.ndim != 1:
        raise DatasetError(
            f"scores {scores.shape}, latencies {latency_secs.shape} and groups {group.shape} must be one "
            "vector of rows each"
        )
    check_latency(latency_secs)
    measured = np.flatnonzero(~np.isnan(latency_secs))
    if not len(measured):
        raise DatasetError("no candidate has an ok latency on this device; run `fleet collect` first")
    if np.isnan(scores[measured]).any():
        raise DatasetError(f"{int(np.isnan(scores[measured]).sum())} measured candidates have the score NaN")
    # One sort brings the rows of a workload together.
    order = measured[np.argsort(group[measured], kind="stable")]
    groups, starts, counts = np.unique(group[order], return_index=True, return_counts=True)
    members = [order[start : start + count] for start, count in zip(starts, counts, strict=True)]

    def each(measure: Callable[[Floats, Floats], float]) -> Floats:
        return np.array([measure(scores[rows], latency_secs[rows]) for rows in members])

    return Metrics(
        groups=groups.astype(np.int32),
        counts=counts,
        weight=np.ones(len(groups)) if weight is None else weight[groups].astype(np.float64),
        best_secs=each(lambda _, secs: float(secs.min())),
        best_of_1_secs=each(lambda score, secs: best_of_k(score, secs, 1)),
        best_of_5_secs=each(lambda score, secs: best_of_k(score, secs, 5)),
        random_top1_by_workload=each(lambda _, secs: random_top_k(secs, 1)),
        random_top5_by_workload=each(lambda _, secs: random_top_k(secs, 5)),
        pairwise_by_workload=each(pairwise_accuracy),
        tau_by_workload=each(kendall_tau),
    )


def top_k(scores: Floats, latency_secs: Floats, k: int) -> float:
    """Least latency over the least among the k best-scored candidates of one workload, in (0, 1].

    Args:
        scores: (n,) higher is better.
        latency_secs: (n,) seconds, NaN where there is no ok measurement; such rows are passed over.
        k: How many candidates may be tried.

    Raises:
        DatasetError: No candidate has an ok latency, or one of them is zero, negative or infinite.
    """
    check_latency(latency_secs)
    measured = ~np.isnan(latency_secs)
    if not measured.any():
        raise DatasetError("no candidate of the workload has an ok latency")
    latency = latency_secs[measured]
    return float(latency.min()) / best_of_k(scores[measured], latency, k)


def concatenate(parts: list[Metrics]) -> Metrics:
    """Metrics of disjoint workloads (folds of one split) as one.

    Raises:
        DatasetError: There is no part, or two parts share a workload.
    """
    if not parts:
        raise DatasetError("no metrics to put together")
    joined = Metrics(
        **{one.name: np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(Metrics)}
    )
    if len(np.unique(joined.groups)) != len(joined.groups):
        raise DatasetError("two parts hold the same workload: folds must hold each workload out once")
    return joined


def average(repeats: list[Metrics]) -> Metrics:
    """Metrics of the same workloads ranked several times (other seeds) as one: means of ratios by workload.

    The latency of the best choice becomes the harmonic mean, so that top-k is the mean of the repeats' top-k.

    Raises:
        DatasetError: There is no repeat, or they are of different workloads.
    """
    if not repeats:
        raise DatasetError("no metrics to average")
    first = repeats[0]
    if any(not np.array_equal(first.groups, other.groups) for other in repeats):
        raise DatasetError("metrics can be averaged only over the same workloads in the same order")

    def mean(name: str) -> Floats:
        return np.asarray(np.mean([getattr(one, name) for one in repeats], axis=0))

    return replace(
        first,
        best_of_1_secs=first.best_secs / mean("top1_by_workload"),
        best_of_5_secs=first.best_secs / mean("top5_by_workload"),
        pairwise_by_workload=mean("pairwise_by_workload"),
        tau_by_workload=mean("tau_by_workload"),
    )


def bootstrap_interval(
    values: Floats, seed: int, level: float = 0.9, resamples: int = 2000
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over workloads.

    Args:
        values: (G,) one value a workload.
        seed: Of the resampling.
        level: Share of resamples inside.
        resamples: How many.

    Raises:
        ValueError: There is no value, or `level` is not inside (0, 1).
    """
    if not len(values) or not 0 < level < 1:
        raise ValueError(f"bootstrap needs values and a level in (0, 1), got {len(values)} and {level}")
    picks = np.random.default_rng(seed).integers(len(values), size=(resamples, len(values)))
    low, high = np.quantile(values[picks].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def paired_bootstrap(
    a: Floats, b: Floats, seed: int, level: float = 0.9, resamples: int = 2000
) -> tuple[float, float, float]:
    """Mean of a - b over the same workloads, with its percentile bootstrap interval.

    Args:
        a: (G,) one value a workload of one model.
        b: (G,) values of the other model on the same workloads in the same order.
        seed: Of the resampling.
        level: Share of resamples inside the interval.
        resamples: How many.

    Returns:
        Mean difference, low and high end of its interval.

    Raises:
        ValueError: Lengths differ, there is no value, or `level` is not inside (0, 1).
    """
    if len(a) != len(b):
        raise ValueError(
            f"paired bootstrap needs the same workloads on both sides, got {len(a)} and {len(b)}"
        )
    low, high = bootstrap_interval(a - b, seed, level, resamples)
    return float((a - b).mean()), low, high
