"""MTL-TLP as published: a shared backbone and a whole decoder for each device, ready to serve.

Trained by `transfer.train.published_procedure`, stored by `transfer.model.checkpoint`, asked like a
`FleetTLP`. The network is `transfer.model.tlp_network` (TLP, ASPLOS'23, section 5), to which only the last
step is added: its scores are sums of any size, those that serve lie between 0 and 1, in the same order. It
reads `FeatureBlock.published` alone. It takes no further heads, and knows nothing of failures.

Legend: N candidates, L steps, E width of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from transfer.errors import TransferError
from transfer.features.blocks import FeatureBlock
from transfer.features.published_features import PublishedLayout
from transfer.model.fleet_tlp import FleetTLP
from transfer.model.inputs import SCORE_BATCH, scoring
from transfer.model.kinds import MTL_TLP
from transfer.model.tlp_network import TlpNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class MtlTlpConfig:
    """Everything needed to build an `MtlTLP` without its weights."""

    #: Family of devices whose layout it reads: a key of `transfer.features.published_features.LAYOUTS`.
    family: str
    #: Hash of that layout.
    spec_hash: str


class MtlTLP(nn.Module):
    """One network with a decoder for each device.

    Not safe for use by several threads at once: `score` changes the mode of the module and torch's threads.

    Args:
        layout: Of the features that it reads.
        device_ids: Devices, in the order of the decoders.
    """

    #: What a manifest calls a model of this class.
    kind: ClassVar[str] = MTL_TLP
    #: It reads no place in a design space.
    reads_place: ClassVar[bool] = False

    def __init__(self, layout: PublishedLayout, device_ids: Sequence[str]) -> None:
        super().__init__()
        self.layout = layout
        self.config = MtlTlpConfig(family=layout.family, spec_hash=layout.hash)
        self.device_ids = tuple(device_ids)
        self.network = TlpNetwork(layout.width, len(self.device_ids))

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

    def score(self, block: FeatureBlock, device_id: str) -> NDArray[np.float64]:
        """Score candidates for one device.

        Args:
            block: N candidates, of any workloads.
            device_id: Device with a head.

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


def published_of(block: FeatureBlock, layout: PublishedLayout) -> NDArray[np.float32]:
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


#: A model that a registry keeps and a fleet asks.
TlpModel = FleetTLP | MtlTLP
