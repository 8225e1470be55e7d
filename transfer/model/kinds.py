"""The two kinds of models by their names, for who must not load torch to tell them apart.

`fleet_tlp` is `transfer.model.fleet_tlp`, `mtl_tlp` the published `transfer.model.mtl_tlp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FLEET_TLP, MTL_TLP = "fleet_tlp", "mtl_tlp"
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
