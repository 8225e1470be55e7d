"""Keep a model in a folder: `model.safetensors` beside `manifest.json`.

Called by the registry and the command line. A folder appears whole or not at all, and a loaded model
is either the one that was saved or an error that says why not. Nothing is unpickled.

A checkpoint is of one kind of model: `fleet_tlp` or `mtl_tlp`.

The manifest holds what the caller gives (table version, metrics, seed, git commit...) and, under its
own keys, what is needed to build the model and to check the tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from transfer.checked_folder import (
    MANIFEST_NAME,
    TENSORS_NAME,
    CheckpointError,
    put_folder,
    read_checked,
    sha256,
)
from transfer.features.extractor import FeatureSpec
from transfer.features.place import PLACE_HASH
from transfer.features.published_features import LAYOUTS
from transfer.model.encoder import ModelConfig, ModelSizes
from transfer.model.fleet_tlp import FleetTLP
from transfer.model.kinds import FLEET_TLP, KIND_KEY, MTL_TLP, model_kind
from transfer.model.manifest import FORMAT_VERSION, OWN_KEYS, read_manifest
from transfer.model.mtl_tlp import MtlTLP, TlpModel

#: Key of the manifest with the hashes of further files, by name; absent where there are none.
BESIDE_KEY = "beside"

#: Numbers of a configuration are below this: none of a model that anybody trained is near it.
_MOST_SIZE = 1 << 20
_CONFIG = TypeAdapter(ModelConfig)


def save(
    directory: Path,
    model: TlpModel,
    manifest: Mapping[str, Any],
    *,
    beside: Mapping[str, bytes] | None = None,
) -> None:
    """Write a checkpoint that appears under its name only when it is whole and on disk.

    `manifest` is more to remember, as JSON: table version, metrics, seed, vocabulary hash... `beside` are
    further files of the folder by name, read back by `read_beside`.

    Raises:
        CheckpointError: The folder exists, or `manifest` is not JSON or uses a key of this module.
    """
    taken = sorted((OWN_KEYS | {BESIDE_KEY}) & manifest.keys())
    if taken:
        raise CheckpointError(f"manifest must not set the key(s) {', '.join(taken)}: save() fills them")
    if directory.exists():
        raise CheckpointError(
            f"{directory} exists already; a checkpoint is never overwritten, choose a new name"
        )
    tensors = save_tensors({name: value.contiguous() for name, value in model.state_dict().items()})
    own: dict[str, Any] = {
        KIND_KEY: model.kind,
        "format_version": FORMAT_VERSION,
        "model": asdict(model.config),
        "spec_hash": model.config.spec_hash,
        "heads": list(model.device_ids),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "tensors_sha256": sha256(tensors),
    }
    further = dict(beside or {})
    if further:
        own[BESIDE_KEY] = {name: sha256(raw) for name, raw in further.items()}
    try:
        text = json.dumps({**manifest, **own}, indent=2, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"manifest for {directory} is not plain JSON: {error}") from error
    put_folder(directory, {TENSORS_NAME: tensors, **further, MANIFEST_NAME: text.encode()})


#: What building a model of a manifest and tensors that do not fit raises.
_MISFITS = (KeyError, TypeError, ValueError, RuntimeError, ArithmeticError, AssertionError, SafetensorError)


def load(directory: Path, spec: FeatureSpec | None = None) -> tuple[TlpModel, dict[str, Any]]:
    """Read a checkpoint back.

    Args:
        directory: Folder written by `save`.
        spec: Features that a FleetTLP is going to read; None leaves that check to the caller. The layout that
            an MTL-TLP reads is checked always.

    Returns:
        The model in evaluation mode, and the whole manifest.

    Raises:
        CheckpointError: A file is missing, torn or changed; it is of another layout;
            or the model was made for other features than `spec`.
    """
    manifest = read_manifest(directory)
    kind = model_kind(manifest)
    if kind not in (FLEET_TLP, MTL_TLP):
        raise CheckpointError(f"{directory}: unknown kind of model {kind!r}; update the program")
    made = None if spec is None else spec.hash
    if kind == MTL_TLP:
        layout = LAYOUTS.get(str(manifest["model"].get("family")))
        made = "none" if layout is None else layout.hash
    if made is not None and manifest["spec_hash"] != made:
        raise CheckpointError(
            f"{directory}: model reads features {manifest['spec_hash']}, this program makes {made} "
            f"(other vocabulary or slots); train it again or use the program that made it"
        )
    drawn = manifest["model"].get("place_hash", "")
    if drawn not in ("", PLACE_HASH):
        raise CheckpointError(
            f"{directory}: model reads places {drawn}, this program makes {PLACE_HASH} (other samples of "
            "design spaces); train it again or use the program that made it"
        )
    raw = read_checked(directory, TENSORS_NAME, manifest["tensors_sha256"])
    try:
        tensors = load_tensors(raw)
        # Shapes first: a manifest may name sizes that fill the memory.
        with torch.device("meta"):
            _check_shapes(_untrained(kind, manifest, len(tensors)), tensors)
        with torch.random.fork_rng(devices=[]):
            model = _untrained(kind, manifest, len(tensors))
        model.load_state_dict(tensors)
    except _MISFITS as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{directory}: manifest and tensors do not fit together: {why:.300}; restore it"
        ) from error
    return model.eval(), manifest


def load_fleet_tlp(directory: Path, spec: FeatureSpec | None = None) -> tuple[FleetTLP, dict[str, Any]]:
    """Read back a checkpoint of a FleetTLP, for who trains it on or adapts it.

    Raises:
        CheckpointError: As of `load`; or it is of another kind, which can do neither.
    """
    model, manifest = load(directory, spec)
    if not isinstance(model, FleetTLP):
        raise CheckpointError(
            f"{directory} holds a {model.kind}, which takes no new head; give one of kind {FLEET_TLP}"
        )
    return model, manifest


def _untrained(kind: str, manifest: Mapping[str, Any], tensors: int) -> TlpModel:
    """A model of the sizes and with the heads that a manifest says, for so many tensors to be put in.

    Raises:
        ValueError: A size is of no model, or there are more layers or heads than tensors.
    """
    if len(manifest["heads"]) > tensors:
        raise ValueError(f"{len(manifest['heads'])} heads, {tensors} tensors")
    if kind == MTL_TLP:
        return MtlTLP(LAYOUTS[manifest["model"]["family"]], manifest["heads"])
    # Types by the declaration; keys that it lacks are refused below.
    _CONFIG.validate_json(json.dumps(manifest["model"]), strict=True)
    fields = dict(manifest["model"])
    fields["category_sizes"] = tuple(fields["category_sizes"])
    given_sizes = fields["sizes"]
    sizes = fields["sizes"] = ModelSizes(**given_sizes)
    config = ModelConfig(**fields)
    if asdict(config).keys() != manifest["model"].keys() or asdict(sizes).keys() != given_sizes.keys():
        raise ValueError("it lacks keys of a configuration")
    numbers = [*fields["category_sizes"], *asdict(sizes).values(), *fields.values()]
    widths = (sizes.category_width, sizes.step_width, sizes.trunk_width, sizes.head_width)
    is_possible = all(0 <= one < _MOST_SIZE for one in numbers if isinstance(one, int))
    if not is_possible or min(*widths, sizes.attention_heads, *config.category_sizes) < 1:
        raise ValueError("a size is out of range")
    if max(sizes.attention_layers, sizes.residual_blocks, len(config.category_sizes)) > tensors:
        raise ValueError(f"more layers than tensors, which are {tensors}")
    return FleetTLP(config, manifest["heads"])


def _check_shapes(model: TlpModel, tensors: Mapping[str, torch.Tensor]) -> None:
    """Compare tensors with those of a model without content; trees and what else comes with them is free.

    Raises:
        ValueError: One is missing, or of another shape.
    """
    for name, expected in model.state_dict().items():
        shape = tuple(tensors[name].shape) if name in tensors else "missing"
        if shape != tuple(expected.shape):
            raise ValueError(f"{name} is {shape}, the manifest says {tuple(expected.shape)}")


def read_beside(directory: Path, manifest: Mapping[str, Any], name: str) -> bytes | None:
    """Content of a further file of a checkpoint; None where it was saved without one of that name.

    Raises:
        CheckpointError: It is missing, torn or changed.
    """
    expected = manifest.get(BESIDE_KEY, {}).get(name)
    return None if expected is None else read_checked(directory, name, expected)
