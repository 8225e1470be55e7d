"""The names that settings and requests choose among. Apart from the settings: the command line loads them."""

from __future__ import annotations

from typing import Literal

#: Ways to adapt a model to a new device.
Strategy = Literal[
    "auto",
    "source_devices",
    "boosted",
    "multitask",
    "finetune_head",
    "maml",
    "momentum",
    "nearest",
    "scratch",
]
#: Ways to run a network that its library is timed beside: those of `agents.networks.latency`.
Rival = Literal["torch_eager", "onnxruntime", "openvino", "torch_compile"]
#: Kinds of models that a training makes: the keys of `transfer.model.kinds.KINDS`.
ModelKind = Literal["fleet_tlp", "mtl_tlp", "both"]
#: Ways to choose the candidates that a new device measures (`transfer.adapt.sample_selection`).
Selector = Literal["paired", "search"]
