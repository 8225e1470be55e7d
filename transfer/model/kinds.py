"""The kinds of models by their names, for who must not load torch to tell them apart.

What a model itself does is behind one interface, `transfer.model.tlp_model.TlpModel`. How a kind is trained:
`transfer.train.trainers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

FLEET_TLP, MTL_TLP = "fleet_tlp", "mtl_tlp"
#: A way to train, not a kind: a FleetTLP whose trees go on from those of another one, which it is else.
BOOSTED = "boosted"

#: Kinds that are trained, in the order in which they are judged, by value of the setting `training.model`.
KINDS: Mapping[str, tuple[str, ...]] = {
    FLEET_TLP: (FLEET_TLP,),
    MTL_TLP: (MTL_TLP,),
    "both": (FLEET_TLP, MTL_TLP),
}
#: Key of a manifest with the kind.
KIND_KEY = "model_kind"


def model_kind(manifest: Mapping[str, Any]) -> str:
    """Kind of the model that a manifest is of."""
    return str(manifest[KIND_KEY])


def reads_published(names: Iterable[str]) -> bool:
    """Whether one of some kinds reads the published features of TLP, which are made only if one does."""
    return MTL_TLP in set(names)


def is_extensible(name: str) -> bool:
    """Whether new heads and later trainings start from a model of a kind; others are trained from nothing."""
    return name == FLEET_TLP
