"""Keep a model in a folder: `model.safetensors` beside `manifest.json`.

Called by the registry and the command line. A folder appears whole or not at all, and a loaded model
is either the one that was saved or an error that says why not. Nothing is unpickled.

A checkpoint is of one kind of model: `fleet_tlp`, also where the manifest does not say so, or `mtl_tlp`.

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
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from transfer.checked_folder import (
    MANIFEST_NAME,
    TENSORS_NAME,
    CheckpointError,
    put_folder,
    read_checked,
    read_file,
    sha256,
)
from transfer.features.extractor import FeatureSpec
from transfer.features.place import PLACE_HASH
from transfer.features.published_features import LAYOUTS
from transfer.model.encoder import ModelConfig, ModelSizes
from transfer.model.fleet_tlp import FleetTLP
from transfer.model.kinds import FLEET_TLP, KIND_KEY, MTL_TLP, model_kind
from transfer.model.mtl_tlp import MtlTLP, TlpModel

#: Version of the folder's layout. 1: first published layout.
FORMAT_VERSION = 1

#: Key of the manifest with the hashes of further files, by name; absent where there are none.
BESIDE_KEY = "beside"

#: Keys of the manifest that belong to this module, and are in every one.
_OWN_KEYS = frozenset({"format_version", "model", "spec_hash", "heads", "parameters", "tensors_sha256"})


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
    taken = sorted((_OWN_KEYS | {BESIDE_KEY, KIND_KEY}) & manifest.keys())
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


def load(directory: Path, spec: FeatureSpec | None = None) -> tuple[TlpModel, dict[str, Any]]:
    """Read a checkpoint back.

    Args:
        directory: Folder written by `save`.
        spec: Features that a FleetTLP is going to read; None leaves that check to the caller. The layout that
            an MTL-TLP reads is checked always.

    Returns:
        The model in evaluation mode, and the whole manifest.

    Raises:
        CheckpointError: A file is missing, torn or changed; the layout is newer than this program;
            or the model was made for other features than `spec`.
    """
    manifest = read_manifest(directory)
    kind = model_kind(manifest)
    if kind not in (FLEET_TLP, MTL_TLP):
        raise CheckpointError(f"{directory}: unknown kind of model {kind!r}; update the program")
    made = None if spec is None else spec.hash
    if kind == MTL_TLP:
        layout = LAYOUTS.get(str(dict(manifest["model"]).get("family")))
        made = "none" if layout is None else layout.hash
    if made is not None and manifest["spec_hash"] != made:
        raise CheckpointError(
            f"{directory}: model reads features {manifest['spec_hash']}, this program makes {made} "
            f"(other vocabulary or slots); train it again or use the program that made it"
        )
    drawn = dict(manifest["model"]).get("place_hash", "")
    if drawn not in ("", PLACE_HASH):
        raise CheckpointError(
            f"{directory}: model reads places {drawn}, this program makes {PLACE_HASH} (other samples of "
            "design spaces); train it again or use the program that made it"
        )
    raw = read_checked(directory, TENSORS_NAME, str(manifest["tensors_sha256"]))
    try:
        with torch.random.fork_rng(devices=[]):
            model = _untrained(kind, manifest)
        tensors = load_tensors(raw)
        is_older = "trees.raw" in tensors and "trees.weight" not in tensors
        if not is_older:
            model.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"{directory}: manifest and tensors do not fit together: {str(error).splitlines()[0]}; restore it"
        ) from error
    if is_older:
        raise CheckpointError(
            f"{directory}: its trees read other features than this program's; train it again or use the "
            "program that made it"
        )
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


def _untrained(kind: str, manifest: Mapping[str, Any]) -> TlpModel:
    """A model of the sizes and with the heads that a manifest says, for its tensors to be put in."""
    if kind == MTL_TLP:
        return MtlTLP(LAYOUTS[manifest["model"]["family"]], manifest["heads"])
    fields = dict(manifest["model"])
    fields["category_sizes"] = tuple(fields["category_sizes"])
    fields["sizes"] = ModelSizes(**fields["sizes"])
    return FleetTLP(ModelConfig(**fields), manifest["heads"])


def read_beside(directory: Path, manifest: Mapping[str, Any], name: str) -> bytes | None:
    """Content of a further file of a checkpoint; None where it was saved without one of that name.

    Raises:
        CheckpointError: It is missing, torn or changed.
    """
    expected = manifest.get(BESIDE_KEY, {}).get(name)
    return None if expected is None else read_checked(directory, name, str(expected))


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read and check the manifest alone, without the tensors.

    Raises:
        CheckpointError: It is missing, not JSON, incomplete, or of a newer layout.
    """
    raw = read_file(directory, MANIFEST_NAME)
    try:
        manifest = json.loads(raw)
    except ValueError as error:
        raise CheckpointError(f"{directory / MANIFEST_NAME}: not JSON ({error}); restore it") from error
    if not isinstance(manifest, dict):
        raise CheckpointError(
            f"{directory / MANIFEST_NAME}: expected an object, got {type(manifest).__name__}"
        )
    version = manifest.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise CheckpointError(
            f"{directory}: layout version {version} is newer than this program's {FORMAT_VERSION}; "
            "update the program"
        )
    missing = sorted(_OWN_KEYS - manifest.keys())
    if missing or version != FORMAT_VERSION:
        raise CheckpointError(
            f"{directory / MANIFEST_NAME}: not a manifest of layout {FORMAT_VERSION} "
            f"(version {version!r}, missing: {', '.join(missing) or 'nothing'})"
        )
    return manifest
