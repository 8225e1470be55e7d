"""Ranking and regression losses over candidates of the same workload.

Called by `transfer.train.step` and by adaptation. Every loss takes a padded layout of G workload
groups with n places each and gives one value a group, so the caller decides how groups and heads are
averaged. Nothing here knows of devices, features or the model.

The arguments are the same everywhere: `scores` (G, n) logits, higher is better; `labels` (G, n) relative
speed in [0, 1]; `mask` (G, n) bool, true where a label is present.

Legend: G groups (workloads), n places in a group.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

#: Floor of a number of labels or pairs, so that a group without any gives a loss of 0 and not NaN.
_MIN_COUNT = 1e-10
#: Labels below this are equally bad: 2 % of the best speed, e.g. a latency 50 times the best.
MIN_LABEL = 0.02


def _pairs(labels: Tensor, mask: Tensor) -> Tensor:
    """1 for each ordered pair (i better than j), (G, n, n); 0 where a label is missing."""
    better = labels.unsqueeze(2) > labels.unsqueeze(1)
    usable = mask.unsqueeze(2) & mask.unsqueeze(1)
    return (better & usable).to(labels.dtype)


def _filled(labels: Tensor, mask: Tensor) -> Tensor:
    """Labels with the missing ones set to 0, because NaN times 0 is NaN."""
    return torch.where(mask, labels, torch.zeros_like(labels))


def pairwise_hinge(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """(G,) mean hinge over pairs, with the difference of the labels as margin; 0 without pairs."""
    labels = _filled(labels, mask)
    pairs = _pairs(labels, mask)
    margin = labels.unsqueeze(2) - labels.unsqueeze(1)
    loss = F.relu(margin - (scores.unsqueeze(2) - scores.unsqueeze(1))) * pairs
    return loss.sum(dim=(1, 2)) / pairs.sum(dim=(1, 2)).clamp(min=_MIN_COUNT)


def regression(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """(G,) mean squared error between the bounded score (sigmoid of the logit) and the label; 0 without any.

    It gives scores a meaning beyond their order: a search that draws parents in proportion to the
    score needs a zero point.
    """
    present = mask.to(labels.dtype)
    error = torch.sigmoid(scores) - _filled(labels, mask)
    return (error.square() * present).sum(dim=1) / present.sum(dim=1).clamp(min=_MIN_COUNT)


def log_ratio(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """(G,) mean squared error between centred logits and centred log labels; 0 without labels.

    A label is relative to the best candidate that was seen, so in a group of a few samples all labels
    are too high by an unknown factor. The ratio of two latencies has no such fault: this term
    compares ratios only, and is therefore the same however small the group is. In squared nats; labels below
    `MIN_LABEL` count as `MIN_LABEL`.
    """
    present = mask.to(labels.dtype)
    total = present.sum(dim=1, keepdim=True).clamp(min=_MIN_COUNT)
    error = scores - _filled(labels, mask).clamp(min=MIN_LABEL).log()
    centred = error - (error * present).sum(dim=1, keepdim=True) / total
    return (centred.square() * present).sum(dim=1) / total.squeeze(1)


def head_loss(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor | None:
    """The loss of one head, averaged over the groups with at least two labels.

    None where no group has two labels: such a head must get no gradient at all.
    """
    usable = mask.sum(dim=1) >= 2
    if not bool(usable.any()):
        return None
    return group_losses(scores[usable], labels[usable], mask[usable]).mean()


def group_losses(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """(G,) sum of the three terms; groups may belong to different heads.

    That of a group with fewer than two labels means nothing and must be left out. Decision 0022 says why
    LambdaRank is not among the terms.
    """
    return (
        regression(scores, labels, mask)
        + log_ratio(scores, labels, mask)
        + pairwise_hinge(scores, labels, mask)
    )
