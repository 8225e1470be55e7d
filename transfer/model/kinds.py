"""The kinds of models by their names, for who must not load torch to tell them apart.

What a model itself does is behind one interface, `transfer.model.tlp_model.TlpModel`. How a kind is trained:
`transfer.train.trainers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

FLEET_TLP, MTL_TLP = "fleet_tlp", "mtl_tlp"
#: A way to train, not a kind: a FleetTLP whose trees go on from those of another one, which it is else.
BOOSTED = "boosted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKind:
    """What is to be known of a kind where none of its models is loaded."""

    name: str
    #: Its models read the published features of TLP, which are made only where somebody asks for them.
    reads_published: bool
    #: Its models take heads of new devices, and a later training goes on from them. Models of another kind
    #: are trained from nothing each time.
    is_extensible: bool


_MODEL_KINDS = {
    kind.name: kind
    for kind in (
        ModelKind(name=FLEET_TLP, reads_published=False, is_extensible=True),
        ModelKind(name=MTL_TLP, reads_published=True, is_extensible=False),
    )
}
#: Kinds that are trained, in the order in which they are judged, by value of the setting `training.model`.
KINDS: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in _MODEL_KINDS},
    "both": tuple(_MODEL_KINDS),
}
#: Key of a manifest with the kind.
KIND_KEY = "model_kind"


def model_kind(manifest: Mapping[str, Any]) -> str:
    """Kind of the model that a manifest is of."""
    return str(manifest[KIND_KEY])


def reads_published(names: Iterable[str]) -> bool:
    """Whether a model of one of some kinds reads published features; an unknown kind reads none."""
    return any(name in _MODEL_KINDS and _MODEL_KINDS[name].reads_published for name in names)


def is_extensible(name: str) -> bool:
    """Whether new heads and later trainings start from a model of a kind; not from one of an unknown kind."""
    return name in _MODEL_KINDS and _MODEL_KINDS[name].is_extensible
