"""Keep a model in a folder: `model.safetensors` beside `manifest.json`.

Called by the registry and the command line. A folder appears whole or not at all, and a loaded model
is either the one that was saved or an error that says why not. Nothing is unpickled.

A checkpoint is of one kind of model, which its manifest names.

The manifest holds what the caller gives (table version, metrics, seed, git commit...) and, under its
own keys, what is needed to build the model and to check the tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn
from torch.overrides import TorchFunctionMode

from transfer.checked_folder import (
    MANIFEST_NAME,
    TENSORS_NAME,
    CheckpointError,
    put_folder,
    read_checked,
    sha256,
)
from transfer.features.extractor import FeatureSpec
from transfer.model.fleet_tlp import FleetTLP
from transfer.model.kinds import FLEET_TLP, KIND_KEY, model_kind
from transfer.model.manifest import FORMAT_VERSION, read_manifest
from transfer.model.mtl_tlp import MtlTLP
from transfer.model.tlp_model import TlpModel

#: Key of the manifest with the hashes of further files, by name; absent where there are none.
BESIDE_KEY = "beside"

#: The class of each kind of model.
_CLASSES: Mapping[str, type[TlpModel]] = {model.kind: model for model in (FleetTLP, MtlTLP)}


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
        CheckpointError: The folder exists, or `manifest` is not JSON.
    """
    if directory.exists():
        raise CheckpointError(
            f"{directory} exists already; a checkpoint is never overwritten, choose a new name"
        )
    tensors = save_tensors({name: value.contiguous() for name, value in model.state_dict().items()})
    settings = model.settings()
    own: dict[str, Any] = {
        KIND_KEY: model.kind,
        "format_version": FORMAT_VERSION,
        "model": settings,
        "spec_hash": settings["spec_hash"],
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
    if kind not in _CLASSES:
        raise CheckpointError(f"{directory}: unknown kind of model {kind!r}; update the program")
    features_hash = _CLASSES[kind].features_hash(manifest["model"], spec)
    if features_hash is not None and manifest["spec_hash"] != features_hash:
        raise CheckpointError(
            f"{directory}: model reads features {manifest['spec_hash']}, this program makes {features_hash} "
            f"(other vocabulary or slots); train it again or use the program that made it"
        )
    raw = read_checked(directory, TENSORS_NAME, manifest["tensors_sha256"])
    try:
        tensors = load_tensors(raw)
        # Shapes first: a manifest may name sizes that fill the memory.
        with torch.device("meta"), _NoContent():
            _check_shapes(_untrained(manifest, len(tensors)), tensors)
        with torch.random.fork_rng(devices=[]):
            model = _untrained(manifest, len(tensors))
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


class _NoContent(TorchFunctionMode):
    """Layers without random weights: on `meta` torch imports its compiler to draw them, in a second."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__module__", "") == nn.init.__name__:
            return (*args, *(kwargs or {}).values())[0]
        return func(*args, **(kwargs or {}))


def _untrained(manifest: Mapping[str, Any], tensors: int) -> TlpModel:
    """A model of the sizes and with the heads that a manifest says, for so many tensors to be put in.

    Raises:
        ValueError: A size is of no model, or there are more layers or heads than tensors.
    """
    if len(manifest["heads"]) > tensors:
        raise ValueError(f"{len(manifest['heads'])} heads, {tensors} tensors")
    return _CLASSES[model_kind(manifest)].untrained(manifest["model"], manifest["heads"], tensors)


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
