"""Every formula against a slow reference that tries all orders that tied scores allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer.data.ranking import (
    best_of_k,
    kendall_tau,
    order_agreement,
    peak_score,
    regret,
    square_error,
    top_k,
    top_k_recall,
)

Ranked = tuple[np.ndarray, np.ndarray]


def split_rows(rows: list[tuple[float, float]]) -> Ranked:
    scores, latency = np.array(rows).T
    return scores, latency


#: Scores and latencies of few distinct values, so that ties are common.
RANKED = st.lists(
    st.tuples(st.sampled_from((0.0, 1.0, 2.0, 3.0)), st.sampled_from((1.0, 2.0, 3.0, 4.0))),
    min_size=1,
    max_size=6,
).map(split_rows)


def over_orders(scores: np.ndarray, value: Callable[[Sequence[int]], float]) -> float:
    """Mean of a value over all orders that the scores allow, best first."""
    orders = [
        list(order)
        for order in permutations(range(len(scores)))
        if all(scores[a] >= scores[b] for a, b in pairwise(order))
    ]
    return float(np.mean([value(order) for order in orders]))


@given(RANKED, st.integers(1, 7))
def test_best_of_k_is_the_mean_over_all_orders_that_the_scores_allow(ranked: Ranked, k: int) -> None:
    scores, latency = ranked
    assert best_of_k(scores, latency, k) == pytest.approx(
        over_orders(scores, lambda order: min(latency[order[:k]]))
    )


@given(RANKED)
def test_order_agreement_agrees_with_a_slow_reference(ranked: Ranked) -> None:
    scores, latency = ranked
    points = []
    for a, b in combinations(range(len(scores)), 2):
        if latency[a] != latency[b]:
            better, worse = (a, b) if latency[a] < latency[b] else (b, a)
            points.append(
                1.0 if scores[better] > scores[worse] else 0.5 if scores[better] == scores[worse] else 0.0
            )
    assert order_agreement(scores, latency)[0] == pytest.approx(np.mean(points) if points else 0.5)


@given(RANKED, st.integers(1, 7))
def test_top_k_and_peak_score_are_means_of_shares(ranked: Ranked, k: int) -> None:
    scores, latency = ranked
    speed = latency.min() / latency

    def share(place: int) -> float:
        return over_orders(scores, lambda order: max(speed[order[:place]]))

    assert top_k(scores, latency, k) == pytest.approx(share(k))
    assert peak_score(scores, latency, k) == pytest.approx(np.mean([share(one) for one in range(1, k + 1)]))


@given(RANKED, st.integers(1, 7))
def test_recall_is_the_share_of_the_fastest_that_were_chosen(ranked: Ranked, k: int) -> None:
    scores, latency = ranked
    k_here = min(k, len(scores))

    def hits(chosen: Sequence[int]) -> float:
        return over_orders(-latency, lambda fastest: len({*chosen[:k]} & {*fastest[:k]}) / k_here)

    assert top_k_recall(scores, latency, k) == pytest.approx(over_orders(scores, hits))


@given(RANKED, st.sampled_from([0.0, 0.5, 1.0, 10.0]))
def test_regret_counts_what_exceeds_the_noise_floor(ranked: Ranked, floor: float) -> None:
    scores, latency = ranked

    def extra(order: Sequence[int]) -> float:
        value = latency[order[0]] / latency.min() - 1
        return value if value > floor else 0.0

    assert regret(scores, latency, floor) == pytest.approx(over_orders(scores, extra))


@given(RANKED)
def test_tau_is_the_same_by_counting_pairs(ranked: Ranked) -> None:
    scores, latency = ranked
    signs = [
        (np.sign(scores[a] - scores[b]), np.sign(latency[b] - latency[a]))
        for a, b in combinations(range(len(scores)), 2)
    ]
    told = sum(s != 0 for s, _ in signs) * sum(t != 0 for _, t in signs)
    expected = sum(s * t for s, t in signs) / told**0.5 if told else 0.0
    assert kendall_tau(scores, latency) == pytest.approx(expected)


def test_square_errors_look_at_all_or_at_the_fastest() -> None:
    latency = np.array([1.0, 2.0, 4.0, 8.0, 10.0])
    scores = np.array([0.5, 0.5, 0.25, 0.125, 1.1])
    assert square_error(scores, latency) == pytest.approx((0.25 + 1.0) / 5)
    # A quarter of five is two: rounded up, so that no workload is without any.
    assert square_error(scores, latency, 0.25) == pytest.approx(0.25 / 2)


def test_a_thousand_candidates_take_no_time_for_their_pairs() -> None:
    """O(n log n): a square of 20,000 would be 400 million pairs."""
    random = np.random.default_rng(7)
    latency = random.random(20_000) + 1
    accuracy, tau = order_agreement(-latency, latency)
    assert (accuracy, tau) == (1.0, pytest.approx(1.0))
    accuracy, tau = order_agreement(random.random(20_000), latency)
    assert accuracy == pytest.approx(0.5 + tau / 2)
