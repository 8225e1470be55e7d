from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.learning_prune import Pruning, prune, random_share
from tests.model_fixtures import make_dataset
from transfer.data.dataset import Dataset
from transfer.errors import DatasetError

DATASET = make_dataset(workloads=6, candidates=40)
ROWS = np.arange(len(DATASET))


def with_latency(latency: np.ndarray, flops: np.ndarray | None = None) -> Dataset:
    """Candidates with these latencies on one device; each row of a matrix is a workload."""
    groups, each = np.atleast_2d(latency).shape
    made = make_dataset(workloads=groups, candidates=each)
    columns = np.full((groups * each, 3), np.nan)
    columns[:, 0] = np.ravel(latency)
    flops = np.full(groups, 1e6) if flops is None else flops
    return replace(made, latency_secs=columns, failed=np.zeros(columns.shape, bool), flops=flops)


@given(st.floats(0.05, 1), st.integers(0, 200), st.floats(0, 1))
def test_the_budget_is_kept_and_labels_do_not_change(share: float, seed: int, power: float) -> None:
    dataset = make_dataset(workloads=5, candidates=30, seed=seed)
    rows = np.random.default_rng(seed).permutation(150)[:120]
    kept = prune(dataset, rows, Pruning(share=share, flops_power=power, least=2))
    assert np.all(np.diff(kept) > 0)
    assert np.isin(kept, rows).all()
    # The fastest on each of three devices may come on top, and rounding.
    assert share * 120 - 5 <= len(kept) <= share * 120 + 5 * (3 + 2)
    np.testing.assert_array_equal(
        dataset.labels(kept), dataset.labels(np.sort(rows))[np.isin(np.sort(rows), kept)]
    )


def test_near_duplicates_go_first() -> None:
    latency = np.concatenate([np.full(30, 1.0), np.full(30, 1.5), [2.0, 3.0, 4.0, 5.0]])
    kept = prune(with_latency(latency), np.arange(64), Pruning(share=6 / 64, least=2))
    assert sorted(set(latency[kept])) == [1.0, 1.5, 2.0, 3.0, 4.0, 5.0]
    assert len(kept) <= 7


def test_the_fast_end_stays_denser_than_the_slow_end() -> None:
    latency = np.exp(np.linspace(0, 3, 400))
    kept = prune(with_latency(latency), np.arange(400), Pruning(share=0.2, least=2))
    slowness = np.log(latency[kept])
    assert (slowness < 1).sum() > 2 * (slowness > 2).sum()
    assert slowness.max() == pytest.approx(3)
    assert (slowness < 1).sum() > 400 * 0.2 / 3


def test_workloads_of_more_flops_keep_more() -> None:
    latency = np.tile(np.exp(np.linspace(0, 2, 50)), (3, 1))
    dataset = with_latency(latency, flops=np.array([1e6, 1e9, 0.0]))
    kept = prune(dataset, np.arange(150), Pruning(share=0.5, flops_power=0.2, least=2))
    small, large, unknown = np.bincount(dataset.group[kept])
    assert small < unknown < large
    even = prune(dataset, np.arange(150), Pruning(share=0.5, flops_power=0.0, least=2))
    assert np.ptp(np.bincount(dataset.group[even])) <= 1


def test_failed_candidates_are_thinned_out_like_the_others() -> None:
    latency = np.exp(np.linspace(0, 2, 100))
    latency[::4] = np.nan
    dataset = with_latency(latency)
    kept = prune(replace(dataset, failed=np.isnan(dataset.latency_secs)), np.arange(100), Pruning(share=0.4))
    assert np.isnan(latency[kept]).sum() == 10


def test_candidates_that_differ_on_one_device_only_are_no_duplicates() -> None:
    latency = np.full((40, 3), np.nan)
    latency[:, 0] = 1.0
    latency[:, 1] = np.linspace(1, 2, 40)
    dataset = replace(make_dataset(workloads=1, candidates=40), latency_secs=latency)
    kept = prune(dataset, np.arange(40), Pruning(share=0.25, least=2))
    assert 9 <= len(kept) <= 12
    assert np.ptp(latency[kept, 1]) == 1


def test_devices_without_a_candidate_in_common_are_pruned_too() -> None:
    latency = np.full((40, 3), np.nan)
    latency[:20, 0] = np.linspace(1, 2, 20)
    latency[20:, 1] = np.linspace(1, 2, 20)
    dataset = replace(make_dataset(workloads=1, candidates=40), latency_secs=latency)
    kept = prune(dataset, np.arange(40), Pruning(share=0.5, least=2))
    assert 18 <= len(kept) <= 24
    assert 8 <= (kept < 20).sum() <= 14


def test_pruning_does_not_depend_on_the_order_of_rows() -> None:
    pruning = Pruning(share=0.3)
    shuffled = np.random.default_rng(0).permutation(ROWS)
    np.testing.assert_array_equal(prune(DATASET, ROWS, pruning), prune(DATASET, shuffled, pruning))
    assert len(prune(DATASET, ROWS[:0], pruning)) == 0
    np.testing.assert_array_equal(prune(DATASET, ROWS, Pruning(share=1)), ROWS)


def test_a_random_share_is_taken_of_each_workload() -> None:
    kept = random_share(DATASET, ROWS, 0.25, seed=0)
    assert np.bincount(DATASET.group[kept]).tolist() == [10] * 6
    assert random_share(DATASET, ROWS, 0.01, seed=0).shape == (12,)
    assert not np.array_equal(kept, random_share(DATASET, ROWS, 0.25, seed=1))
    with pytest.raises(DatasetError, match="share must be above 0"):
        random_share(DATASET, ROWS, 0.0, seed=0)


@pytest.mark.parametrize(
    "changes", [{"share": 0}, {"share": 1.1}, {"fast_scale": 0}, {"flops_power": -1}, {"least": 1}]
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="pruning"):
        Pruning(**changes)
