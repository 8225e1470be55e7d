"""What is expected of a head comes true as often as its intervals say.

`onboardings/replayed.npz` holds replayed onboardings of recorded devices (four ISA profiles, three AutoTVM
devices; k = 32 to 256): scores of all judged candidates, samples scored by heads that did not see them, and
what the head's first choices really reached. None of them was used to choose how expectations are made.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from transfer.adapt.expectation import LEAST_SAMPLES, expect
from transfer.errors import TransferError

REPLAYED = Path(__file__).parents[2] / "onboardings" / "replayed.npz"


@cache
def replayed() -> list[tuple[float, float, int, tuple[np.ndarray, ...]]]:
    """True top-1, true top-5, the seed, and the arrays that are looked at, of each run."""
    with np.load(REPLAYED, allow_pickle=False) as kept:
        runs = dict(kept)
    found = []
    for place, truth in enumerate(zip(runs["top1"], runs["top5"], runs["seed"], strict=True)):
        mine, samples = runs["run"] == place, runs["sample_run"] == place
        scores, secs = (
            runs["sample_scores"][samples].astype(float),
            runs["sample_secs"][samples].astype(float),
        )
        groups = (runs["group"][mine].astype(np.int32), runs["sample_group"][samples].astype(np.int32))
        arrays = (runs["scores"][mine].astype(float), groups[0], scores, secs, groups[1])
        found.append((float(truth[0]), float(truth[1]), int(truth[2]), arrays))
    return found


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    held = []
    for top1, top5, seed, arrays in replayed():
        found = expect(*arrays, seed=seed)
        held.append((found.top1.low <= top1 <= found.top1.high, found.top5.low <= top5 <= found.top5.high))
    assert len(held) >= 90
    for share in np.mean(held, axis=0):
        assert 0.85 <= share <= 0.95


@pytest.fixture
def largest() -> tuple[np.ndarray, ...]:
    """What is looked at of the run with the most samples."""
    return max((arrays for *_, arrays in replayed()), key=lambda arrays: len(arrays[2]))


def test_scores_that_say_nothing_are_found_out(largest: tuple[np.ndarray, ...]) -> None:
    scores, group, sample_scores, secs, sample_group = largest
    shuffled = np.random.default_rng(1).permutation(sample_scores)
    found = expect(*largest, seed=0)
    assert expect(scores, group, shuffled, secs, sample_group, seed=0).top1.high < found.top1.value
    assert expect(*largest, seed=0) == found


def test_failed_samples_are_passed_over_and_too_few_refused(largest: tuple[np.ndarray, ...]) -> None:
    scores, group, sample_scores, secs, sample_group = largest
    secs = secs.copy()
    before = expect(*largest, seed=0).samples
    secs[np.flatnonzero(np.isfinite(secs))[:4]] = np.nan
    assert expect(scores, group, sample_scores, secs, sample_group, seed=0).samples == before - 4
    few = slice(0, LEAST_SAMPLES - 1)
    with pytest.raises(TransferError, match="measure more"):
        expect(scores, group, sample_scores[few], secs[few], sample_group[few], seed=0)
    secs[:] = np.nan
    with pytest.raises(TransferError, match="0 samples of 0 workloads"):
        expect(scores, group, sample_scores, secs, sample_group, seed=0)
