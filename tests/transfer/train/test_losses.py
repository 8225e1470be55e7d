from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from transfer.train import losses

ALL_TERMS = (losses.pairwise_hinge, losses.regression, losses.log_ratio)


def random_groups(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores, labels and mask of 4 groups with up to 7 places; the last group has one label only."""
    random = np.random.default_rng(seed)
    scores = torch.from_numpy(random.normal(size=(4, 7)))
    labels = torch.from_numpy(random.uniform(0.01, 1, size=(4, 7)))
    labels[0, 1] = labels[0, 2]
    mask = torch.from_numpy(random.random((4, 7)) < 0.7)
    mask[3] = False
    mask[3, 2] = True
    labels[~mask] = math.nan
    return scores, labels, mask


def slow_hinge(scores: list[float], labels: list[float]) -> float:
    total, pairs = 0.0, 0
    for i in range(len(scores)):
        for j in range(len(scores)):
            if labels[i] > labels[j]:
                total += max(0.0, labels[i] - labels[j] - (scores[i] - scores[j]))
                pairs += 1
    return total / pairs if pairs else 0.0


def slow_regression(scores: list[float], labels: list[float]) -> float:
    error = 1 / (1 + np.exp(-np.array(scores))) - np.array(labels)
    return float((error**2).mean())


def slow_log_ratio(scores: list[float], labels: list[float]) -> float:
    error = np.array(scores) - np.log(np.maximum(labels, losses.MIN_LABEL))
    return float(((error - error.mean()) ** 2).mean())


SLOW = dict(zip(ALL_TERMS, (slow_hinge, slow_regression, slow_log_ratio), strict=True))


@pytest.mark.parametrize("term", ALL_TERMS)
def test_equals_a_slow_version_group_by_group(term):
    for seed in range(5):
        scores, labels, mask = random_groups(seed)
        got = term(scores, labels, mask)
        for g in range(len(scores)):
            there = mask[g]
            expected = (
                SLOW[term](scores[g][there].tolist(), labels[g][there].tolist()) if there.any() else 0.0
            )
            assert got[g].item() == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("term", ALL_TERMS)
def test_missing_labels_and_candidates_do_not_matter_at_all(term):
    scores, labels, mask = random_groups()
    other = torch.where(mask, scores, scores + 100)
    assert torch.equal(term(scores, labels, mask), term(other, labels, mask))
    nobody = term(torch.randn(1, 3), torch.full((1, 3), math.nan), torch.zeros(1, 3, dtype=torch.bool))
    assert nobody.tolist() == [0.0]
    scores.requires_grad_()
    term(scores, labels, mask).sum().backward()
    assert scores.grad.isfinite().all()
    assert (scores.grad[~mask] == 0).all()
    assert (scores.grad[mask] != 0).any()
