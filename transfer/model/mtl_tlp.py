"""MTL-TLP as published: a shared backbone and a whole decoder for each device, ready to serve.

Trained by `transfer.train.trainers`, stored by `transfer.model.checkpoint`, asked like any
`TlpModel`. To the network only the last step is added: its scores are sums of any size, those that serve lie
between 0 and 1, in the same order. It reads `FeatureBlock.published` alone. It takes no further heads, and
knows nothing of failures.

Source of network and ranking loss: Zhai et al., "TLP: A Deep Learning-based Cost Model for Tensor Program
Tuning" (ASPLOS'23, section 5) and its public code. Nothing is mended here: no positions, no masks, padding is
mixed in attention and added in the sum. Left out is one layer that the code makes and never uses (65,792
parameters).

Legend: N candidates, L steps, E width of a step, D heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transfer.arrays import Floats, Singles
from transfer.errors import TransferError
from transfer.features.blocks import LAYOUTS, FeatureBlock, PublishedLayout
from transfer.features.extractor import FeatureSpec
from transfer.model.inputs import SCORE_BATCH, scoring
from transfer.model.kinds import MTL_TLP
from transfer.model.tlp_model import TlpModel

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
    """Encoder, one layer of attention, two residual blocks, and a whole decoder for each head.

    Args:
        width: E, 22 for CPUs and 20 for GPUs.
        heads: D; 1 is TLP, more are MTL-TLP.
    """

    def __init__(self, width: int, heads: int = 1) -> None:
        super().__init__()
        self.encoder = _layers(width, 64, 128, _WIDTH, _WIDTH, last=True)
        self.attention = nn.MultiheadAttention(_WIDTH, _ATTENTION_HEADS, batch_first=True)
        self.residual = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(_RESIDUAL_BLOCKS))
        self.decoders = nn.ModuleList(_layers(_WIDTH, _WIDTH, 128, 64, 1, last=False) for _ in range(heads))

    def forward(self, steps: Tensor) -> Tensor:
        """Score raw integer steps (N, L, E), all-zero rows as padding: (N, D)."""
        x = self.mixed(self.encoder(steps))
        for linear in self.residual:
            x = x + F.relu(linear(x))
        # A sum over all L steps, padding included.
        return torch.cat([decoder(x).sum(dim=1) for decoder in self.decoders], dim=1)

    def mixed(self, x: Tensor) -> Tensor:
        """(N, L, W) encoded steps, each with what it takes of the others."""
        # Asking for no attention weights changes no score, and saves this baseline some time.
        return x + cast(Tensor, self.attention(x, x, x, need_weights=False)[0])


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


class MtlTLP(TlpModel):
    """One network with a decoder for each device.

    Args:
        layout: Of the features that it reads.
        device_ids: Devices, in the order of the decoders.
    """

    kind: ClassVar[str] = MTL_TLP
    layout: PublishedLayout

    def __init__(self, layout: PublishedLayout, device_ids: Sequence[str]) -> None:
        super().__init__()
        self.layout = layout
        self.trees = None
        self._device_ids = tuple(device_ids)
        self.network = TlpNetwork(layout.width, len(device_ids))

    @property
    def device_ids(self) -> tuple[str, ...]:
        """Devices, in the order of the decoders."""
        return self._device_ids

    def settings(self) -> dict[str, Any]:
        """Family (a key of `LAYOUTS`) and hash of the layout."""
        return {"family": self.layout.family, "spec_hash": self.layout.hash}

    @classmethod
    def features_hash(cls, settings: Mapping[str, Any], spec: FeatureSpec | None) -> str | None:
        """That of the layout of the family, whatever else an extractor makes."""
        layout = LAYOUTS.get(str(settings.get("family")))
        return "none" if layout is None else layout.hash

    @classmethod
    def untrained(cls, settings: Mapping[str, Any], device_ids: Sequence[str], tensors: int) -> Self:
        """As of any model; an unknown family is a `KeyError`."""
        return cls(LAYOUTS[settings["family"]], device_ids)

    def head(self, device_id: str) -> nn.Module:
        """The decoder of one device.

        Raises:
            TransferError: There is none.
        """
        if device_id not in self.device_ids:
            raise TransferError(
                f"MTL-TLP has no head for device {device_id!r}; it has: {', '.join(self.device_ids)}. "
                "Train it again with records of that device"
            )
        return self.network.decoders[self.device_ids.index(device_id)]

    def score(self, block: FeatureBlock, device_id: str) -> Floats:
        """Score candidates of any workloads for one device.

        Returns:
            (N,) float64 in (0, 1), higher is faster. Only their order says something: the ranking loss
            leaves sums free to lie anywhere. A candidate's score does not depend on what is scored beside it.

        Raises:
            TransferError: No head for the device, or the block has not the published features.
        """
        self.head(device_id)
        place = self.device_ids.index(device_id)
        steps = published_of(block, self.layout)
        sums = np.zeros(len(steps))
        with scoring(self):
            for start in range(0, len(sums), SCORE_BATCH):
                rows = np.arange(start, min(start + SCORE_BATCH, len(sums)))
                batch = torch.from_numpy(np.array(steps[np.resize(rows, SCORE_BATCH)], dtype=np.float32))
                sums[rows] = self.network(batch)[: len(rows), place].double().numpy()
        # A sigmoid would tie what lies above 37; this keeps the order of sums of any size.
        rest = 0.5 / (1 + np.abs(sums))
        return np.where(sums > 0, 1 - rest, rest)

    def check_block(self, block: FeatureBlock) -> None:
        """Refuse features of another shape.

        Raises:
            TransferError: The block has no published features, or those of another layout.
        """
        published_of(block, self.layout)


def published_of(block: FeatureBlock, layout: PublishedLayout) -> Singles:
    """(N, L, E) published features of a block.

    Raises:
        TransferError: It has none, or those of another layout.
    """
    if block.published is None:
        raise TransferError(
            "MTL-TLP reads the published features of TLP and these candidates have none; extract them with "
            f"the layout of the family {layout.family!r}"
        )
    if block.published.shape[1:] != (layout.steps, layout.width):
        got = " x ".join(map(str, block.published.shape[1:]))
        raise TransferError(
            f"MTL-TLP reads {layout.steps} x {layout.width} published features, got {got}: it was trained "
            f"for devices of the family {layout.family!r}"
        )
    return block.published
