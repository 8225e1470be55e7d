"""What is expected of a head comes true as often as its intervals say.

`onboardings/replayed.npz` holds replayed onboardings of recorded devices (four ISA profiles, three AutoTVM
devices; k = 32 to 256): scores of all judged candidates, samples scored by heads that did not see them, and
what the head's first choices really reached. None of them was used to choose how expectations are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from transfer.adapt.expectation import LEAST_SAMPLES, Expectation, expect
from transfer.errors import TransferError

REPLAYED = Path(__file__).parents[2] / "onboardings" / "replayed.npz"


def replayed() -> Iterator[tuple[float, float, Expectation]]:
    """True top-1, true top-5 and what was expected."""
    with np.load(REPLAYED, allow_pickle=False) as kept:
        runs = dict(kept)
    for place, (top1, top5) in enumerate(zip(runs["top1"], runs["top5"], strict=True)):
        mine, samples = runs["run"] == place, runs["sample_run"] == place
        yield (
            float(top1),
            float(top5),
            expect(
                runs["scores"][mine].astype(np.float64),
                runs["group"][mine].astype(np.int32),
                runs["sample_scores"][samples].astype(np.float64),
                runs["sample_secs"][samples].astype(np.float64),
                runs["sample_group"][samples].astype(np.int32),
                seed=int(runs["seed"][place]),
            ),
        )


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    held = np.array(
        [
            (told.top1.low <= top1 <= told.top1.high, told.top5.low <= top5 <= told.top5.high)
            for top1, top5, told in replayed()
        ]
    )
    assert len(held) >= 90
    top1, top5 = held.mean(axis=0)
    assert 0.85 <= top1 <= 0.95
    assert 0.85 <= top5 <= 0.95


def made(seed: int, *, samples: int, noise: float) -> tuple[tuple[np.ndarray, ...], float]:
    """Scores that are log-normally wrong, samples of them, and the true top-1."""
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(40), 20).astype(np.int32)
    said = random.normal(size=len(group)) * 0.4
    true = said + random.normal(size=len(group)) * noise
    rows = np.flatnonzero(group < samples // 8)
    rows = rows[np.argsort(group[rows] + random.random(len(rows)))]
    rows = np.concatenate([rows[group[rows] == one][:8] for one in range(samples // 8)])
    reached = []
    for one in range(40):
        mine = np.flatnonzero(group == one)
        reached.append(np.exp(true[mine[said[mine].argmax()]] - true[mine].max()))
    arrays = (np.exp(said - 3), group, np.exp(said[rows] - 3), np.exp(-true[rows] - 8), group[rows])
    return arrays, float(np.mean(reached))


def test_scores_that_say_nothing_are_found_out() -> None:
    arrays, _ = made(0, samples=128, noise=0.6)
    scores, group, sample_scores, secs, sample_group = arrays
    shuffled = np.random.default_rng(1).permutation(sample_scores)
    told = expect(*arrays, seed=0)
    assert expect(scores, group, shuffled, secs, sample_group, seed=0).top1.high < told.top1.value
    assert expect(*arrays, seed=0) == told


def test_failed_samples_are_passed_over_and_too_few_refused() -> None:
    scores, group, sample_scores, secs, sample_group = made(0, samples=32, noise=0.3)[0]
    secs = secs.copy()
    secs[::8] = np.nan
    assert expect(scores, group, sample_scores, secs, sample_group, seed=0).samples == 28
    few = slice(0, LEAST_SAMPLES - 1)
    with pytest.raises(TransferError, match="measure more"):
        expect(scores, group, sample_scores[few], secs[few], sample_group[few], seed=0)
    secs[:] = np.nan
    with pytest.raises(TransferError, match="0 samples of 0 workloads"):
        expect(scores, group, sample_scores, secs, sample_group, seed=0)
