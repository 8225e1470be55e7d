"""What the manifest of a model says, read and checked before anything is made of it.

Called by `transfer.model.checkpoint` and by the registry, which does not load torch. A model may come from
others: whatever program reads a key finds it of the type that is declared here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from transfer.checked_folder import MANIFEST_NAME, MOST_MANIFEST_BYTES, CheckpointError, read_file

#: Version of the folder's layout.
FORMAT_VERSION = 2

#: Unix seconds that a calendar has, up to the year 9999.
Moment = Annotated[float, Field(ge=0.0, lt=253_402_300_800.0)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Sum = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Declared(BaseModel):
    """Keys of a known type, and any others beside them."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=())


class JudgedFigures(Declared):
    """What a head reached on held-out workloads: a value with its interval."""

    top1: list[float | None] | None = None
    top5: list[float | None] | None = None
    tau: list[float | None] | None = None


class HeadVerdict(Declared):
    """Whether a head took the place of the one before it, and why."""

    reason: str = ""
    judged: JudgedFigures | None = None


class ModelManifest(Declared):
    """The keys of a manifest that any program reads; those of `OWN_KEYS` are in every one."""

    format_version: int
    model: dict[str, Any]
    spec_hash: str
    heads: list[str]
    parameters: Count
    tensors_sha256: Sum
    model_kind: str
    beside: dict[str, Sum] = {}
    version: str = ""
    created_at: Moment = 0.0
    table_version: int = 0
    trained_heads: list[str] = []
    trained_workloads: list[str] = []
    devices: list[str] = []
    onboarded: str = ""
    samples: Count = 0
    candidates: Count = 0
    workloads: Count = 0
    records: dict[str, Count] = {}
    data_until: dict[str, Moment | None] = {}
    environment_since: float = 0.0
    environments_since: dict[str, float] = {}
    verdicts: dict[str, HeadVerdict] = {}
    expected: dict[str, Any] = {}
    expected_elsewhere: dict[str, Any] | None = None
    notes: dict[str, Any] = {}


#: Keys that `transfer.model.checkpoint` writes, and that are in every manifest.
OWN_KEYS = frozenset(name for name, field in ModelManifest.model_fields.items() if field.is_required())


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read and check the manifest alone, without the tensors.

    Raises:
        CheckpointError: It is missing, too large, not JSON, of another layout, lacks a key, or has one of
            another type.
    """
    return parse_manifest(read_file(directory, MANIFEST_NAME, MOST_MANIFEST_BYTES), directory)


def parse_manifest(raw: bytes, directory: Path) -> dict[str, Any]:
    """The manifest of a folder, from its bytes.

    Raises:
        CheckpointError: As of `read_manifest`.
    """
    path = directory / MANIFEST_NAME
    try:
        manifest = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON ({error}); restore it") from error
    if not isinstance(manifest, dict):
        raise CheckpointError(f"{path}: expected an object, got {type(manifest).__name__}")
    version = manifest.get("format_version")
    if isinstance(version, int) and version != FORMAT_VERSION:
        raise CheckpointError(
            f"{directory} has layout {version}, this version reads {FORMAT_VERSION}; use the version that "
            "wrote it, or train it again"
        )
    if missing := sorted(OWN_KEYS - manifest.keys()):
        raise CheckpointError(f"{path}: no manifest of a model, {', '.join(missing)} missing; restore it")
    try:
        ModelManifest.model_validate(manifest)
    except ValidationError as error:
        raise CheckpointError(f"{path}: {first_fault(error)}; restore it") from None
    return manifest


def first_fault(error: ValidationError) -> str:
    """The first thing that is wrong with a declared value: where, and what."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])):.80}: {first['msg']:.120}"
