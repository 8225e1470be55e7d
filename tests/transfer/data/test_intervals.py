"""Intervals hold what they promise: on made-up distributions whose mean is known."""

from __future__ import annotations

import numpy as np
import pytest

from transfer.data.intervals import Estimate, resample_ratio


def coverage(draw, truth: float, trials: int = 300) -> float:
    """Share of trials whose interval holds the truth: a mean, which is a ratio with ones below."""
    random = np.random.default_rng(0)
    inside = 0
    for trial in range(trials):
        values = draw(random)
        found = resample_ratio(values, np.ones_like(values), trial, resamples=400).estimate()
        inside += found.low <= truth <= found.high
    return inside / trials


def test_nine_of_ten_intervals_hold_the_mean_of_new_workloads_and_seeds() -> None:
    """Each workload has a level of its own, each seed luck of its own, and they interact."""

    def draw(random: np.random.Generator) -> np.ndarray:
        level, luck = random.normal(0.7, 0.2, 30), random.normal(0, 0.03, (8, 1))
        return level[None, :] + luck + random.normal(0, 0.05, (8, 30))

    # A percentile bootstrap of 40 values is a little short: 88 to 90 of 100. Three standard errors wide.
    assert 0.83 <= coverage(lambda random: random.beta(4, 2, 40), 4 / 6) <= 0.95
    assert 0.84 <= coverage(draw, 0.7) <= 0.97
    # Intervals over workloads alone forget the luck of one seed, and are too narrow where it is large.
    shaky = coverage(lambda random: random.normal(0.7, 0.05, 30) + random.normal(0, 0.05), 0.7)
    assert shaky < 0.5


def test_the_same_seed_draws_alike_so_differences_are_paired() -> None:
    random = np.random.default_rng(5)
    level = random.random((3, 50))
    ones = np.ones_like(level)
    better = resample_ratio(level + 0.02, ones, seed=1)
    found = better.minus(resample_ratio(level, ones, seed=1)).estimate()
    assert (found.value, found.low, found.high) == pytest.approx((0.02, 0.02, 0.02))
    assert found.is_above_zero
    assert not Estimate(0.1, 0.0, 0.2).is_above_zero
    alone = better.estimate()
    assert alone.high - alone.low > 0.05


@pytest.mark.parametrize("shape", [(0,), (2, 0), (2, 2, 2)])
def test_what_cannot_be_resampled_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="bootstrap needs values"):
        resample_ratio(np.ones(shape), np.ones(shape), 0)
    with pytest.raises(ValueError, match="bootstrap needs values"):
        resample_ratio(np.ones(3), np.ones(4), 0)
