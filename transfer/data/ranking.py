"""How well scores order the candidates of one workload on one device: the formulas, one function each.

`transfer.data.metrics` calls them workload by workload. Where scores tie, every function gives the mean over
all orders that the scores allow: who scores all candidates alike must not profit from the order of rows.
Nothing here knows of datasets or models.

Legend: n candidates of one workload, all with an ok latency.
"""

from __future__ import annotations

import math

import numpy as np

from transfer.arrays import Floats, Groups


def best_of_k(scores: Floats, values: Floats, k: int) -> float:
    """Expected least value among the k best-scored candidates.

    Args:
        scores: (n,) higher is better.
        values: (n,) lower is better: latencies in seconds for TLP's ratio of sums, or any other cost.
        k: How many candidates may be tried; all of them where there are fewer.
    """
    count = len(scores)
    k = min(k, count)
    threshold = np.partition(scores, count - k)[count - k]
    sure = values[scores > threshold]
    tied = np.sort(values[scores == threshold])
    floor = float(sure.min()) if len(sure) else np.inf
    chances = _best_of_draw(len(tied), k - len(sure))
    return float((np.minimum(tied, floor) * chances).sum())


def top_k(scores: Floats, latency_secs: Floats, k: int) -> float:
    """Expected share of the best speed that the fastest of the k best-scored reaches, in (0, 1]."""
    return -best_of_k(scores, -speeds(latency_secs), k)


def speeds(latency_secs: Floats) -> Floats:
    """Relative speed of each candidate: least latency over its own, in (0, 1]."""
    result: Floats = latency_secs.min() / latency_secs
    return result


def random_best_of_k(values: Floats, k: int) -> float:
    """Expected least value when k candidates are drawn without replacement (exact, by combinatorics)."""
    ordered = np.sort(values)
    return float((ordered * _best_of_draw(len(ordered), min(k, len(ordered)))).sum())


def random_top_k(latency_secs: Floats, k: int) -> float:
    """Expected share of the best speed when k candidates are drawn without replacement."""
    return -random_best_of_k(-speeds(latency_secs), k)


def _best_of_draw(count: int, k: int) -> Floats:
    """Chance that the i-th best of `count` is the best among k drawn without replacement, (count,)."""
    chances = np.zeros(count)
    not_yet = 1.0
    for place in range(count - k + 1):
        # Given that none better was drawn, k of the count - place that remain are drawn.
        chance = k / (count - place)
        chances[place] = not_yet * chance
        not_yet *= 1 - chance
        if not_yet == 0:  # with a large k the chances run out of digits long before the places
            break
    return chances


def order_agreement(scores: Floats, latency_secs: Floats) -> tuple[float, float]:
    """Pairwise accuracy and Kendall's tau-b between score and speed, in O(n log n).

    Both follow from the concordant less the discordant pairs S: of the P pairs of unlike latency
    (1 + S / P) / 2 are in the right order, a tie of scores counting half. (TenSet counts a tie as right
    or wrong by the order of the two rows.)

    Returns:
        The accuracy, 0.5 without a pair of unlike latency; tau, 0 where scores or latencies are constant.
    """
    count = len(scores)
    pairs = count * (count - 1) / 2
    unlike = pairs - _tied_pairs(latency_secs)
    unlike_scores = pairs - _tied_pairs(scores)
    if not unlike or not unlike_scores:
        return 0.5, 0.0
    # The asymptotic method spends no time on an exact p-value, which nobody looks at; it divides by n - 2.
    method = "asymptotic" if count > 2 else "auto"
    from scipy.stats import kendalltau  # half a second, which who only reads labels need not wait

    tau = float(kendalltau(scores, -latency_secs, method=method).statistic)
    balance = round(tau * math.sqrt(unlike * unlike_scores))
    return (1 + balance / unlike) / 2, tau


def _tied_pairs(values: Floats) -> float:
    counts = np.unique(values, return_counts=True)[1]
    return float((counts * (counts - 1) // 2).sum())


def kendall_tau(scores: Floats, latency_secs: Floats) -> float:
    """Kendall's tau-b between score and speed; 0 where either is constant, or there is one candidate."""
    return order_agreement(scores, latency_secs)[1]


def top_k_recall(scores: Floats, latency_secs: Floats, k: int) -> float:
    """Share of the k fastest candidates that are among the k best-scored ones (TenSet's top-k recall)."""
    k = min(k, len(scores))
    return float((_chance_of_place(scores, k) * _chance_of_place(-latency_secs, k)).sum() / k)


def _chance_of_place(values: Floats, k: int) -> Floats:
    """Chance of each candidate to be among the k highest values, ties broken at random, (n,)."""
    threshold = np.partition(values, len(values) - k)[len(values) - k]
    above, tied = values > threshold, values == threshold
    chances: Floats = above.astype(np.float64)
    chances[tied] = (k - above.sum()) / tied.sum()
    return chances


def peak_score(scores: Floats, latency_secs: Floats, k: int) -> float:
    """Mean of top-1 to top-k: how soon a search that measures in the order of the scores gets near the best.

    TenSet's peak score@k: its running maximum averaged over the k positions, not the best of k.
    """
    costs = -speeds(latency_secs)
    return -sum(best_of_k(scores, costs, place) for place in range(1, k + 1)) / k


def regret(scores: Floats, latency_secs: Floats, floor: float = 0.0) -> float:
    """Expected extra time of the best-scored candidate, as a share of the least latency; 0 is perfect.

    Args:
        scores: (n,) higher is better.
        latency_secs: (n,) seconds.
        floor: Relative difference of two measurements of one program on this device (its noise floor). A
            choice that is slower by no more than this is no worse as far as anybody can tell: no regret.
    """
    extra = latency_secs / latency_secs.min() - 1
    # Expected over the candidates that tie for the first place.
    return best_of_k(scores, np.where(extra <= floor, 0.0, extra), 1)


def square_error(scores: Floats, latency_secs: Floats, share: float = 1.0) -> float:
    """Mean squared difference of score and relative speed, over the fastest `share` of the candidates.

    Says something only of a ranker whose scores are relative speeds. MetaTune looks at the fastest quarter.
    """
    truth = speeds(latency_secs)
    fastest = np.argsort(latency_secs, kind="stable")[: math.ceil(share * len(truth))]
    return float(((scores - truth)[fastest] ** 2).mean())


def rank_agreement(scores: Floats, truth: Floats, group: Groups) -> float:
    """Mean over workloads of Kendall's tau-b between score and truth; rows with a NaN truth are passed over.

    Args:
        scores: (n,) higher is faster.
        truth: (n,) higher is faster.
        group: (n,) workload of each row.

    Returns:
        In [-1, 1]; a workload with fewer than two values, or constant ones, counts 0.
    """
    agreements = []
    usable = np.flatnonzero(np.isfinite(truth))
    order = usable[np.argsort(group[usable], kind="stable")]
    for rows in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        agreements.append(kendall_tau(scores[rows], -truth[rows]))
    return float(np.mean(agreements)) if len(usable) else 0.0


def places_in(scores: Floats, group: Groups) -> Floats:
    """(n,) place of each score inside its workload, from above 0 to 1 for the best; NaN stays NaN."""
    from scipy.stats import rankdata  # half a second, as for Kendall's tau

    places = np.full(len(scores), np.nan)
    scored = np.flatnonzero(np.isfinite(scores))
    order = scored[np.argsort(group[scored], kind="stable")]
    for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        if len(members):
            places[members] = rankdata(scores[members]) / len(members)
    return places
