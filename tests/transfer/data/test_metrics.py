from __future__ import annotations

import numpy as np
import pytest

from transfer.data.metrics import MEASURES, evaluate_ranking


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
    assert found.values["top1"].tolist() == [1, 0.25, 1]
    assert found.value("top1") == pytest.approx(0.75)
    assert found.value("weighted_top1") == pytest.approx((1 + 20 + 21) / (1 + 80 + 21))
    assert found.value("weighted_top5") == found.value("top5") == 1
    assert found.values["random_top1"].tolist() == pytest.approx([(1 + 0.5 + 0.25) / 3, 0.625, 1])
    expected = (1 + 20 + 21) / (1 * 7 / 3 + 2 * 25 + 3 * 7)
    assert found.value("random_weighted_top1") == pytest.approx(expected)
    assert found.by_workload("regret").tolist() == [0, 3, 0]
    assert found.value("regret") == 1
    assert found.summary()["top1"] == found.value("top1")
    assert tuple(found.summary()) == MEASURES


def test_neither_the_order_of_rows_nor_the_level_of_a_workloads_scores_matters() -> None:
    random = np.random.default_rng(1)
    group = random.integers(0, 5, 80).astype(np.int32)
    scores, latency = random.integers(0, 9, 80).astype(float), random.random(80) + 0.1
    order = random.permutation(80)
    first = evaluate_ranking(scores, latency, group).summary()
    second = evaluate_ranking(scores[order], latency[order], group[order]).summary()
    shifted = evaluate_ranking(scores + 100 * group, latency, group).summary()
    for name, value in first.items():
        assert second[name] == pytest.approx(value)
        # These two take scores for relative speeds.
        if name not in {"rmse", "fast_mse"}:
            assert shifted[name] == pytest.approx(value)
