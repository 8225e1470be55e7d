from __future__ import annotations

from itertools import combinations, pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from transfer.errors import DatasetError
from transfer.metrics import (
    average,
    best_of_k,
    bootstrap_interval,
    concatenate,
    evaluate_ranking,
    kendall_tau,
    paired_bootstrap,
    pairwise_accuracy,
    random_top_k,
    top_k,
)

# Few distinct values, so that ties are common.
ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=6)


def split_rows(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.array([score for score, _ in rows], dtype=np.float64),
        np.array([latency for _, latency in rows], dtype=np.float64),
    )


@given(ROWS, st.integers(1, 7))
def test_best_of_k_is_the_mean_over_all_orders_that_the_scores_allow(
    rows: list[tuple[int, int]], k: int
) -> None:
    scores, latency = split_rows(rows)
    found = [
        min(latency[list(order[:k])])
        for order in permutations(range(len(rows)))
        if all(scores[a] >= scores[b] for a, b in pairwise(order))
    ]
    assert best_of_k(scores, latency, k) == pytest.approx(np.mean(found))


@given(ROWS, st.integers(1, 7))
def test_random_top_k_is_the_mean_over_all_draws(rows: list[tuple[int, int]], k: int) -> None:
    latency = split_rows(rows)[1]
    draws = [latency.min() / min(draw) for draw in combinations(latency, min(k, len(latency)))]
    assert random_top_k(latency, k) == pytest.approx(np.mean(draws))


@given(ROWS)
def test_pairwise_accuracy_agrees_with_a_slow_reference(rows: list[tuple[int, int]]) -> None:
    scores, latency = split_rows(rows)
    points = []
    for a, b in combinations(range(len(rows)), 2):
        if latency[a] != latency[b]:
            better, worse = (a, b) if latency[a] < latency[b] else (b, a)
            points.append(
                1.0 if scores[better] > scores[worse] else 0.5 if scores[better] == scores[worse] else 0.0
            )
    assert pairwise_accuracy(scores, latency) == pytest.approx(np.mean(points) if points else 0.5)


def test_top_k_of_a_known_ranking() -> None:
    scores = np.array([0.9, 0.1, 0.5, 0.7, np.nan])
    latency = np.array([4.0, 1.0, 2.0, 8.0, np.nan])
    assert top_k(scores, latency, 1) == 0.25
    assert top_k(scores, latency, 2) == 0.25
    assert top_k(scores, latency, 3) == 0.5
    assert top_k(scores, latency, 4) == top_k(scores, latency, 99) == 1.0
    with pytest.raises(DatasetError, match="no candidate"):
        top_k(scores[4:], latency[4:], 1)


def test_a_constant_score_is_worth_a_random_choice() -> None:
    latency = np.array([1.0, 2.0, 4.0])
    assert best_of_k(np.zeros(3), latency, 1) == pytest.approx(7 / 3)
    assert kendall_tau(np.zeros(3), latency) == 0
    assert pairwise_accuracy(np.zeros(3), latency) == 0.5


def test_kendall_is_that_of_scipy() -> None:
    random = np.random.default_rng(0)
    scores, latency = random.integers(0, 5, 30).astype(float), random.random(30)
    assert kendall_tau(scores, latency) == pytest.approx(kendalltau(scores, -latency).statistic)
    assert kendall_tau(-latency, latency) == pytest.approx(1)


def example() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Workload 0: the best is found; workload 2: it is not; workload 3: one candidate; workload 1: none."""
    scores = np.array([3.0, 2.0, 1.0, 1.0, 2.0, np.nan, 0.0, 5.0])
    latency = np.array([1.0, 2.0, 4.0, 10.0, 40.0, np.nan, 7.0, np.nan])
    group = np.array([0, 0, 0, 2, 2, 2, 3, 1], dtype=np.int32)
    return scores, latency, group


def test_metrics_by_workload_and_both_averages() -> None:
    found = evaluate_ranking(*example(), weight=np.array([1.0, 9.0, 2.0, 3.0]))
    assert found.groups.tolist() == [0, 2, 3]
    assert found.counts.tolist() == [3, 2, 1]
    assert found.weight.tolist() == [1, 2, 3]
    assert found.top1_by_workload.tolist() == [1, 0.25, 1]
    assert found.top5_by_workload.tolist() == [1, 1, 1]
    assert found.top1 == pytest.approx(0.75)
    assert found.weighted_top1 == pytest.approx((1 + 20 + 21) / (1 + 80 + 21))
    assert found.weighted_top5 == found.top5 == 1
    assert found.random_top1_by_workload.tolist() == pytest.approx([(1 + 0.5 + 0.25) / 3, 0.625, 1])
    assert found.random_top5 == 1
    assert found.pairwise_by_workload.tolist() == [1, 0, 0.5]
    assert found.tau_by_workload.tolist() == pytest.approx([1, -1, 0])
    assert found.regret_by_workload.tolist() == [0, 3, 0]
    assert found.regret == 1
    assert found.summary()["top1"] == found.top1


def test_the_order_of_rows_makes_no_difference() -> None:
    random = np.random.default_rng(1)
    group = random.integers(0, 5, 80).astype(np.int32)
    scores, latency = random.integers(0, 9, 80).astype(float), random.random(80) + 0.1
    order = random.permutation(80)
    first = evaluate_ranking(scores, latency, group)
    second = evaluate_ranking(scores[order], latency[order], group[order])
    for name, value in first.summary().items():
        assert second.summary()[name] == pytest.approx(value)


def test_scores_only_count_inside_a_workload() -> None:
    scores, latency, group = example()
    shifted = scores + 100 * group
    assert evaluate_ranking(shifted, latency, group).summary() == evaluate_ranking(*example()).summary()


def test_what_cannot_be_judged_is_refused() -> None:
    scores, latency, group = example()
    with pytest.raises(DatasetError, match="run `fleet collect` first"):
        evaluate_ranking(scores, np.full(8, np.nan), group)
    with pytest.raises(DatasetError, match="1 measured candidates have the score NaN"):
        evaluate_ranking(np.where(scores == 3, np.nan, scores), latency, group)
    with pytest.raises(DatasetError, match="one vector"):
        evaluate_ranking(scores[:3], latency, group)
    with pytest.raises(DatasetError, match="not finite and above 0"):
        evaluate_ranking(scores, np.where(latency == 1, 0.0, latency), group)


def test_folds_are_put_together_and_must_not_overlap() -> None:
    scores, latency, group = example()
    whole = evaluate_ranking(scores, latency, group)
    parts = [
        evaluate_ranking(scores[rows], latency[rows], group[rows])
        for rows in (group == 0, (group == 2) | (group == 3))
    ]
    assert concatenate(parts).summary() == whole.summary()
    with pytest.raises(DatasetError, match="same workload"):
        concatenate([whole, parts[0]])
    with pytest.raises(DatasetError, match="no metrics"):
        concatenate([])


def test_bootstrap_interval_holds_the_mean_and_follows_seed_and_level() -> None:
    values = np.random.default_rng(2).normal(5, 1, 40)
    low, high = bootstrap_interval(values, seed=0)
    assert low < values.mean() < high
    # Ninety per cent of a normal mean lie within 1.64 standard errors.
    assert high - low == pytest.approx(2 * 1.645 * values.std() / 40**0.5, rel=0.15)
    assert bootstrap_interval(values, seed=0) == (low, high)
    wide = bootstrap_interval(values, seed=0, level=0.99)
    assert wide[0] < low < high < wide[1]
    for bad in ((np.array([]), 0.9), (values, 1.0), (values, 0.0)):
        with pytest.raises(ValueError, match="bootstrap needs"):
            bootstrap_interval(bad[0], seed=0, level=bad[1])


def test_a_paired_bootstrap_sees_a_small_steady_difference() -> None:
    base = np.random.default_rng(3).random(30)
    better = base + 0.01
    mean, low, high = paired_bootstrap(better, base, seed=0)
    assert mean == pytest.approx(0.01)
    assert low == pytest.approx(0.01)
    assert high == pytest.approx(0.01)
    unpaired = bootstrap_interval(better, seed=0)
    assert unpaired[1] - unpaired[0] > 0.05
    with pytest.raises(ValueError, match="same workloads"):
        paired_bootstrap(better, base[:-1], seed=0)


def test_the_average_of_repeats_has_the_mean_of_their_top_k() -> None:
    random = np.random.default_rng(5)
    latency = random.uniform(1, 9, size=40)
    group = np.repeat(np.arange(4, dtype=np.int32), 10)
    repeats = [evaluate_ranking(random.normal(size=40), latency, group) for _ in range(3)]
    joined = average(repeats)
    for name in ("top1", "top5", "tau", "pairwise"):
        assert getattr(joined, name) == pytest.approx(np.mean([getattr(one, name) for one in repeats]))
    assert joined.random_top1 == repeats[0].random_top1


def test_only_the_same_workloads_are_averaged() -> None:
    latency = np.array([1.0, 2.0])
    one = evaluate_ranking(latency, latency, np.array([0, 0], dtype=np.int32))
    other = evaluate_ranking(latency, latency, np.array([1, 1], dtype=np.int32))
    with pytest.raises(DatasetError, match="same workloads"):
        average([one, other])
    with pytest.raises(DatasetError, match="no metrics"):
        average([])
