"""A model that a registry keeps and a fleet asks: the one interface of all kinds.

Kinds are `transfer.model.fleet_tlp` and `transfer.model.mtl_tlp`. `transfer.model.checkpoint` keeps models
and reads them back, heads are asked through `transfer.adapt.base.Adapted`; neither knows what kind it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from torch import nn

from transfer.arrays import Floats
from transfer.features.blocks import FeatureBlock, PublishedLayout
from transfer.features.extractor import FeatureSpec
from transfer.model.trees import Trees


class TlpModel(nn.Module, ABC):
    """One network with a head for each device.

    Not safe for use by several threads at once: `score` changes the mode of the module and torch's threads.
    """

    #: What a manifest calls a model of this class.
    kind: ClassVar[str]
    #: Layout of the published features that it reads; None where it reads none.
    layout: PublishedLayout | None
    #: Of its ensemble with the network; None where it has none.
    trees: Trees | None

    @property
    @abstractmethod
    def device_ids(self) -> tuple[str, ...]:
        """Devices with a head, in the order in which the heads were added."""

    @abstractmethod
    def head(self, device_id: str) -> nn.Module:
        """The head of one device.

        Raises:
            TransferError: There is no such head.
        """

    @abstractmethod
    def score(self, block: FeatureBlock, device_id: str) -> Floats:
        """Score candidates of any workloads for one device.

        Returns:
            (N,) float64 in (0, 1], higher is faster. Scores of different workloads are not comparable. A
            candidate's score does not depend on what is scored beside it.

        Raises:
            TransferError: No head for the device, or the block lacks what the model reads.
        """

    @abstractmethod
    def check_block(self, block: FeatureBlock) -> None:
        """Refuse features of another shape.

        Raises:
            TransferError: Naming what differs.
        """

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Everything needed to build the model without its weights, as a manifest keeps it.

        `spec_hash` in it is the hash of the features that the model was trained with.
        """

    @classmethod
    @abstractmethod
    def untrained(cls, settings: Mapping[str, Any], device_ids: Sequence[str], tensors: int) -> Self:
        """A model of some settings and heads, for so many tensors to be put in.

        Raises:
            KeyError, TypeError, ValueError: They are the settings of no model of this kind.
        """

    @classmethod
    @abstractmethod
    def features_hash(cls, settings: Mapping[str, Any], spec: FeatureSpec | None) -> str | None:
        """Hash of the features that this program makes for a model of some settings.

        `spec` is what an extractor makes; None leaves that check to the caller, and so may the answer.
        """
