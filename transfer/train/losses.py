"""Ranking and regression losses over candidates of the same workload.

Called by `transfer.train.training`. Every loss takes a padded layout of G workload groups with n places each
and gives one value a group, so the caller decides how groups and heads are averaged. Nothing here
knows of devices, features or the model.

Legend: G groups (workloads), n places in a group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

#: Floor of the ideal DCG, so that a group of zero labels gives a loss of 0 and not NaN.
_MIN_DCG = 1e-10
#: Of the softmax of the labels in the listwise loss: a small value looks at the best candidates only.
_TEMPERATURE = 0.1
#: Labels below this are equally bad: 2 % of the best speed, e.g. a latency 50 times the best.
MIN_LABEL = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LossWeights:
    """How much each term counts; a weight of 0 leaves the term out.

    The defaults were chosen on one split of a small dataset (44 workloads with 32 candidates). There
    LambdaRank alone was clearly behind (Kendall's tau .50 against .52 of hinge or log ratio alone), and
    adding it did not help.
    """

    #: LambdaRank inside a workload.
    rank: float = 0.0
    #: Mean squared error of the score (after the sigmoid) against the label.
    regression: float = 1.0
    #: Mean squared error of centred logits against centred log labels.
    log_ratio: float = 1.0
    #: Pairwise hinge.
    hinge: float = 1.0
    #: Listwise softmax (ListNet's top-one).
    listwise: float = 0.0

    def __post_init__(self) -> None:
        values = (self.rank, self.regression, self.log_ratio, self.hinge, self.listwise)
        if min(values) < 0 or max(values) <= 0:
            raise ValueError(f"loss weights must be at least 0 and one of them above 0, got {self}")


def _pairs(labels: Tensor, mask: Tensor) -> Tensor:
    """1 for each ordered pair (i better than j), (G, n, n); 0 where a label is missing."""
    better = labels.unsqueeze(2) > labels.unsqueeze(1)
    usable = mask.unsqueeze(2) & mask.unsqueeze(1)
    return (better & usable).to(labels.dtype)


def _filled(labels: Tensor, mask: Tensor) -> Tensor:
    """Labels with the missing ones set to 0, because NaN times 0 is NaN."""
    return torch.where(mask, labels, torch.zeros_like(labels))


def lambda_rank(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Sum over pairs of the logistic loss, weighted by the change in NDCG if the pair were swapped.

    Args:
        scores: (G, n) logits, higher = better.
        labels: (G, n) relative speed in [0, 1]; ignored where `mask` is false (NaN allowed there).
        mask: (G, n) bool, true where a label is present.

    Returns:
        (G,) loss in bits; 0 for a group without two different labels.

    Source: Burges, "From RankNet to LambdaRank to LambdaMART" (2010); TLP (ASPLOS'23) section 5.3
    used it with a whole mixed batch as one list, here a list is one workload.
    """
    labels = _filled(labels, mask).clamp(min=0)
    pairs = _pairs(labels, mask)
    with torch.no_grad():
        places = torch.arange(1, scores.shape[1] + 1, dtype=labels.dtype, device=labels.device)
        discount = 1 / torch.log2(1 + places)
        ordered = torch.where(mask, scores, torch.full_like(scores, -math.inf))
        rank = ordered.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        gain = torch.where(mask, torch.exp2(labels) - 1, torch.zeros_like(labels))
        ideal = (gain.sort(dim=1, descending=True).values * discount).sum(dim=1).clamp(min=_MIN_DCG)
        gain = gain / ideal.unsqueeze(1)
        seen = discount[rank]
        swap = (seen.unsqueeze(2) - seen.unsqueeze(1)).abs() * (gain.unsqueeze(2) - gain.unsqueeze(1)).abs()
    difference = scores.unsqueeze(2) - scores.unsqueeze(1)
    return (pairs * swap * F.softplus(-difference)).sum(dim=(1, 2)) / math.log(2)


def pairwise_hinge(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Mean hinge over pairs, with the difference of the labels as margin.

    Args:
        scores: (G, n) logits, higher = better.
        labels: (G, n) relative speed in [0, 1].
        mask: (G, n) bool, true where a label is present.

    Returns:
        (G,) mean over the pairs; 0 for a group without pairs.
    """
    labels = _filled(labels, mask)
    pairs = _pairs(labels, mask)
    wanted = labels.unsqueeze(2) - labels.unsqueeze(1)
    loss = F.relu(wanted - (scores.unsqueeze(2) - scores.unsqueeze(1))) * pairs
    return loss.sum(dim=(1, 2)) / pairs.sum(dim=(1, 2)).clamp(min=_MIN_DCG)


def listwise_softmax(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Cross entropy between the softmax of the labels and of the scores (ListNet's top-one form).

    Args:
        scores: (G, n) logits, higher = better.
        labels: (G, n) relative speed in [0, 1].
        mask: (G, n) bool, true where a label is present.

    Returns:
        (G,) nats; 0 for a group without labels.

    Source: Cao et al., "Learning to rank: from pairwise approach to listwise approach" (ICML 2007).
    """
    labels = _filled(labels, mask)
    # A finite floor: a group without any label would give NaN from a softmax over nothing.
    floor = torch.finfo(scores.dtype).min / 4
    target = (labels / _TEMPERATURE).masked_fill(~mask, floor).softmax(dim=1) * mask
    log_share = scores.masked_fill(~mask, floor).log_softmax(dim=1).masked_fill(~mask, 0)
    return -(target * log_share).sum(dim=1)


def regression(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Mean squared error between the bounded score, sigmoid of the logit, and the label.

    It gives scores a meaning beyond their order: a search that draws parents in proportion to the
    score needs a zero point.

    Args:
        scores: (G, n) logits.
        labels: (G, n) relative speed in [0, 1].
        mask: (G, n) bool, true where a label is present.

    Returns:
        (G,) mean over the labelled candidates; 0 for a group without labels.
    """
    present = mask.to(labels.dtype)
    error = torch.sigmoid(scores) - _filled(labels, mask)
    return (error.square() * present).sum(dim=1) / present.sum(dim=1).clamp(min=_MIN_DCG)


def log_ratio(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Mean squared error between centred logits and centred log labels of a group.

    A label is relative to the best candidate that was seen, so in a group of a few samples all labels
    are too high by an unknown factor. The ratio of two latencies has no such fault: this term
    compares ratios only, and is therefore the same however small the group is.

    Args:
        scores: (G, n) logits.
        labels: (G, n) relative speed in [0, 1]; below `MIN_LABEL` they count as `MIN_LABEL`.
        mask: (G, n) bool, true where a label is present.

    Returns:
        (G,) mean over the labelled candidates in squared nats; 0 for a group without labels.
    """
    present = mask.to(labels.dtype)
    total = present.sum(dim=1, keepdim=True).clamp(min=_MIN_DCG)
    error = scores - _filled(labels, mask).clamp(min=MIN_LABEL).log()
    centred = error - (error * present).sum(dim=1, keepdim=True) / total
    return (centred.square() * present).sum(dim=1) / total.squeeze(1)


def head_loss(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor,
    *,
    terms: LossWeights,
) -> Tensor | None:
    """Weighted sum of the terms, averaged over the groups with at least two labels.

    Args:
        scores: (G, n) logits of one head.
        labels: (G, n) relative speed in [0, 1].
        mask: (G, n) bool, true where a label is present.
        terms: Weight of each term.

    Returns:
        A scalar, or None where no group has two labels (such a head must get no gradient at all).
    """
    usable = mask.sum(dim=1) >= 2
    if not bool(usable.any()):
        return None
    return group_losses(scores[usable], labels[usable], mask[usable], terms=terms).mean()


def group_losses(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor,
    *,
    terms: LossWeights,
) -> Tensor:
    """Weighted sum of the terms for each group.

    Args:
        scores: (G, n) logits; groups may belong to different heads.
        labels: (G, n) relative speed in [0, 1].
        mask: (G, n) bool, true where a label is present.
        terms: Weight of each term.

    Returns:
        (G,) losses; that of a group with fewer than two labels means nothing and must be left out.
    """
    total = scores.new_zeros(scores.shape[0])
    for weight, loss in (
        (terms.rank, lambda_rank),
        (terms.regression, regression),
        (terms.log_ratio, log_ratio),
        (terms.hinge, pairwise_hinge),
        (terms.listwise, listwise_softmax),
    ):
        if weight > 0:
            total = total + weight * loss(scores, labels, mask)
    return total
