"""Keeps what belongs to a new device's head beside the model's tensors, and reads it back.

A version of a model holds a head for each device. What a strategy needs beyond that to score as it was judged
(`SourceCorrection`) is one more file of the version, so that both are put in place together and neither
without the other. Called by onboarding to keep, and by whoever asks a head for scores to load. Nothing is
unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from transfer.adapt.base import Adapted
from transfer.adapt.source_devices import SourceCorrection
from transfer.errors import TransferError
from transfer.features.extractor import FeatureSpec
from transfer.model import checkpoint
from transfer.model.tlp_model import TlpModel


def file_of(device_id: str) -> str:
    """Name of the file of a device's correction inside the folder of a version."""
    return f"correction-{quote(device_id, safe='')}.safetensors"


def files_of(adapted: Adapted) -> dict[str, bytes]:
    """What is kept beside the model's tensors, by file name; nothing where the head is all."""
    correction = adapted.correction
    if correction is None:
        return {}
    arrays = {name: np.ascontiguousarray(array) for name, array in correction.arrays().items()}
    about = {"settings": json.dumps(correction.settings(), allow_nan=False)}
    return {file_of(adapted.device_id): save_arrays(arrays, metadata=about)}


def load_adapted(folder: Path, device_id: str, spec: FeatureSpec | None = None) -> Adapted:
    """A device's head with what belongs to it, as it was kept.

    Args:
        folder: Of a version.
        device_id: A device with a head there.
        spec: Features that will be read; None leaves that check to the caller.

    Raises:
        CheckpointError: A file is missing, torn or changed, or the model reads other features.
        TransferError: There is no such head, or its correction cannot be read.
    """
    model, manifest = checkpoint.load(folder, spec)
    return head_of(model, folder, manifest, device_id)


def head_of(model: TlpModel, folder: Path, manifest: Mapping[str, Any], device_id: str) -> Adapted:
    """A head of a version that was read already, with what belongs to it: whoever judges asks what is served.

    Raises:
        CheckpointError: The file of the correction is missing, torn or changed.
        TransferError: There is no such head, or its correction cannot be read.
    """
    model.head(device_id)
    name = file_of(device_id)
    raw = checkpoint.read_beside(folder, manifest, name)
    if raw is None:
        return Adapted(device_id=device_id, model=model)
    try:
        settings = json.loads(_about(folder / name, raw)["settings"])
        arrays = load_arrays(raw)
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError, OSError) as error:
        raise TransferError(
            f"{folder / name}: cannot be read ({type(error).__name__}: {error}); adapt the device again"
        ) from error
    correction = SourceCorrection.restored(arrays, settings)
    return Adapted(device_id=device_id, model=model, correction=correction)


def _about(path: Path, raw: bytes) -> dict[str, str]:
    """The text fields of a safetensors file."""
    size = int.from_bytes(raw[:8], "little")
    metadata = json.loads(raw[8 : 8 + size])["__metadata__"]
    if not isinstance(metadata, dict):
        raise ValueError(f"{path}: no text fields")
    return metadata
