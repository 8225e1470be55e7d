"""The network and the ranking loss of TLP and MTL-TLP, as published.

Source: Zhai et al., "TLP: A Deep Learning-based Cost Model for Tensor Program Tuning" (ASPLOS'23) and its
public code. Nothing is mended here: no positions, no masks, padding is mixed in attention and added in the
sum. Left out is one layer that the code makes and never uses (65,792 parameters). Called by
`transfer.model.mtl_tlp`, and by `transfer.train.published_procedure`, which trains it.

Legend: N candidates, L steps, E width of a step, D heads.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Mixer = Literal["attention", "lstm"]

_WIDTH = 256
_ATTENTION_HEADS = 8
_RESIDUAL_BLOCKS = 2
#: Floor of probabilities and of the ideal gain.
_FLOOR = 1e-10
#: Differences of scores are cut here.
_MOST_DIFFERENCE = 1e8


def _layers(*widths: int, last: bool) -> nn.Sequential:
    """Linear layers with ReLU between them, and after the last one if `last`."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*(layers if last else layers[:-1]))


class TlpNetwork(nn.Module):
    """Encoder, one attention or LSTM layer, two residual blocks, and a whole decoder for each head.

    Args:
        width: E, 22 for CPUs and 20 for GPUs.
        heads: D; 1 is TLP, more are MTL-TLP.
        sequence: What mixes the steps; `lstm` is the variant of the paper's table 3.
    """

    def __init__(self, width: int, heads: int = 1, sequence: Mixer = "attention") -> None:
        super().__init__()
        self.encoder = _layers(width, 64, 128, _WIDTH, _WIDTH, last=True)
        self.attention = None
        self.lstm = None
        if sequence == "attention":
            self.attention = nn.MultiheadAttention(_WIDTH, _ATTENTION_HEADS, batch_first=True)
        else:
            self.lstm = nn.LSTM(_WIDTH, _WIDTH, batch_first=True)
        self.residual = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(_RESIDUAL_BLOCKS))
        self.decoders = nn.ModuleList(_layers(_WIDTH, _WIDTH, 128, 64, 1, last=False) for _ in range(heads))

    def forward(self, steps: Tensor) -> Tensor:
        """Score raw integer steps (N, L, E), all-zero rows as padding: (N, D)."""
        x = self.encoder(steps)
        if self.attention is not None:
            # Asking for no attention weights changes no score, and saves this baseline some time.
            x = x + self.attention(x, x, x, need_weights=False)[0]
        else:
            x = cast(nn.LSTM, self.lstm)(x)[0][:, -1:]
        for linear in self.residual:
            x = x + F.relu(linear(x))
        # A sum over all L steps, padding included; of the LSTM only the last step is left.
        return torch.cat([decoder(x).sum(dim=1) for decoder in self.decoders], dim=1)


def mixed_lambda_rank(scores: Tensor, labels: Tensor) -> Tensor:
    """LambdaRank with a whole batch as one list, whatever workloads its rows are of: the published loss.

    Args:
        scores: (n,) of one head.
        labels: (n,) relative speed.

    Returns:
        Sum over pairs in bits; 0 for fewer than two rows.
    """
    with torch.no_grad():
        order = scores.argsort(descending=True)
        ranked = labels[order]
        better = ranked.unsqueeze(1) > ranked.unsqueeze(0)
        discount = torch.log2(1 + torch.arange(1, len(labels) + 1, dtype=scores.dtype, device=scores.device))
        ideal = ((torch.exp2(labels.sort(descending=True).values) - 1) / discount).sum().clamp(min=_FLOOR)
        gain = (torch.exp2(ranked.clamp(min=0)) - 1) / ideal
        weight = (1 / discount.unsqueeze(1) - 1 / discount).abs() * (gain.unsqueeze(1) - gain).abs() * better
    ranked_scores = scores[order]
    difference = (ranked_scores.unsqueeze(1) - ranked_scores).clamp(-_MOST_DIFFERENCE, _MOST_DIFFERENCE)
    # The published form takes log2 of max(max(sigmoid, floor) ** weight, floor); this is the same in
    # logarithms.
    log_share = F.logsigmoid(difference).clamp(min=math.log(_FLOOR))
    return -(log_share * weight).clamp(min=math.log(_FLOOR)).sum() / math.log(2)


def mean_square(scores: Tensor, labels: Tensor) -> Tensor:
    """Mean squared error against the label, without a bound on the score: the MSE variant of table 3."""
    return F.mse_loss(scores, labels)
