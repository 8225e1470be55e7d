"""What `fleet models` shows of a registry, as plain values: the versions, one of them, how two differ.

Called by `fleet.cli.models`. Reads files only; loads no model, but the tensors' bytes to tell how far
weights went.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet.json_types import Json, JsonDict
from fleet.models.registry_file import RegistryError
from fleet.models.registry_reader import RegistryReader, as_json
from fleet.models.shipped_model import SHIPPED_KEY
from transfer.checked_folder import TENSORS_NAME, read_checked
from transfer.model.kinds import is_extensible, model_kind

#: Keys of a manifest that two versions are compared by.
_COMPARED = (
    "model_kind",
    "table_version",
    "candidates",
    "workloads",
    "parameters",
    "spec_hash",
    "seed",
    "train",
    "train_secs",
    "epochs_done",
    "warm_start",
    "holdout",
)

#: What a device without a champion has in the place of `champion_notes`, as far as lists of devices show it.
NO_CHAMPION = {"model_kind": "", "shipped": "", "pinned": False, "retained": "", "score": None}


def list_versions(registry: RegistryReader) -> list[JsonDict]:
    """Every version, oldest first: when and from what it was made, and the devices that it serves.

    `champions` says of each such device why and since when, whether it is pinned (`pinned_at`), and why the
    last challenger did not take its place (`retained`). `damaged` says why nothing is known of a version;
    None where its manifest can be read.
    """
    champions = registry.champions().values()
    entries = []
    for version in registry.versions():
        manifest, damaged = _manifest_of(registry, version)
        served = [champion for champion in champions if champion.version == version]
        entries.append(
            {
                "version": version,
                "model_kind": registry.kind(version) or None,
                "damaged": damaged,
                "heads": manifest.get("heads", []),
                "serves": [str(champion.device_id) for champion in served],
                "champions": list(map(as_json, served)),
                "reasons": manifest.get("reasons", []),
                **{
                    key: manifest.get(key)
                    for key in ("created_at", "table_version", "candidates", "warm_start")
                },
            }
        )
    return entries


def score_of(judged: Json | None) -> JsonDict | None:
    """The figure of a verdict that is shown first, with its interval; None if nothing was judged.

    `random` is what a random choice would reach, None if it is not known. `rivals` has what the heads reached
    that it was compared with, by name.
    """
    if not judged or "top1" not in judged:
        return None
    value, low, high = judged["top1"]
    return {
        "name": "top1",
        "value": value,
        "low": low,
        "high": high,
        "random": judged.get("random_top1"),
        "rivals": judged.get("rivals", {}),
    }


def champion_notes(registry: RegistryReader) -> dict[str, JsonDict]:
    """What a status says of each champion: version, kind of its model, why it serves, what challengers lack.

    Nothing where the registry is damaged, for that must not hide the devices; `fleet models` says how to
    mend it.

    `shipped` names the shipped model that it is a head of, `reason` says why it serves. `retained` names the
    last challenger, and says what it lacks to take the place; they are empty where there was none. `score` is
    as of `score_of`.
    """
    try:
        champions = registry.champions()
    except RegistryError:
        return {}
    manifests = {
        version: _manifest_of(registry, version)
        for version in {champion.version for champion in champions.values()}
    }
    return {
        str(device_id): {
            "version": champion.version,
            "model_kind": registry.kind(champion.version),
            "shipped": str(manifests[champion.version][0].get(SHIPPED_KEY, "")),
            "pinned": champion.pinned_at is not None,
            "reason": champion.reason,
            "retained": champion.retained,
            "score": score_of(champion.judged),
        }
        for device_id, champion in champions.items()
    }


def _manifest_of(registry: RegistryReader, version: str) -> tuple[Json, str | None]:
    """A version's manifest, or an empty one and what is wrong with it."""
    try:
        return registry.manifest(version), None
    except RegistryError as error:
        return {}, str(error)


def show_version(registry: RegistryReader, version: str) -> JsonDict:
    """All that is known of one version: its manifest, whom it serves and why, and every change that names it.

    Raises:
        RegistryError: There is no such version.
    """
    manifest = registry.manifest(version)
    champions = {
        str(device_id): as_json(champion)
        for device_id, champion in registry.champions().items()
        if champion.version == version
    }
    changes = [
        {
            "at": change.at_secs,
            "kind": change.kind,
            "device": change.device_id,
            "from": change.previous,
            "to": change.version,
            "reason": change.reason,
        }
        for change in registry.history()
        if version in (change.version, change.previous)
    ]
    return {
        "version": version,
        "model_kind": model_kind(manifest),
        "sha256": registry.sha256(version),
        "serves": champions,
        "changes": changes,
        "manifest": manifest,
    }


def diff_versions(registry: RegistryReader, first_version: str, second_version: str) -> JsonDict:
    """What differs between two versions.

    Returns:
        `manifest`: [first, second] of each value that differs; `heads`; `weights`: relative distance of the
        backbone and of each head that both have; `judged`: what was found of the heads of each version when
        it was judged, by device. Figures of two days are not comparable: each stands beside its own
        champion's.

    Raises:
        RegistryError: One of them is not there.
    """
    first, second = registry.manifest(first_version), registry.manifest(second_version)
    heads = [set(manifest["heads"]) for manifest in (first, second)]
    return {
        "versions": [first_version, second_version],
        "manifest": {
            key: [first.get(key), second.get(key)] for key in _COMPARED if first.get(key) != second.get(key)
        },
        "heads": {
            "added": sorted(heads[1] - heads[0]),
            "removed": sorted(heads[0] - heads[1]),
            "records": {
                name: [first.get("records", {}).get(name), second.get("records", {}).get(name)]
                for name in sorted(heads[0] | heads[1])
            },
        },
        "workloads": _workloads(first, second),
        "weights": _distances(registry, first_version, second_version),
        "judged": {
            version: manifest.get("verdicts", {})
            for version, manifest in ((first_version, first), (second_version, second))
        },
    }


def _workloads(first: Json, second: Json) -> dict[str, int] | None:
    """Workloads that only one of two versions has learnt from; None where one does not say."""
    if "trained_workloads" not in first or "trained_workloads" not in second:
        return None
    before, after = set(first["trained_workloads"]), set(second["trained_workloads"])
    return {"both": len(before & after), "added": len(after - before), "removed": len(before - after)}


def _distances(registry: RegistryReader, first_version: str, second_version: str) -> dict[str, float | None]:
    """Norm of the difference over the norm of the first, by part of the model; None where sizes differ.

    Nothing where one was trained from nothing, as all of its kind are: a distance would say nothing.
    """
    if not all(is_extensible(registry.kind(version)) for version in (first_version, second_version)):
        return {}
    first, second = (_tensors(registry, version) for version in (first_version, second_version))
    parts: dict[str, list[str]] = {}
    for name in sorted(first.keys() & second.keys()):
        whole = name.split(".", 1)[0]
        if whole in ("trees", "hardware"):
            continue  # no weights: a distance between two sets of trees would say nothing
        part = _head_name(name) if whole == "heads" else "backbone"
        parts.setdefault(part, []).append(name)
    distances: dict[str, float | None] = {}
    for part, names in parts.items():
        if any(first[name].shape != second[name].shape for name in names):
            distances[part] = None
            continue
        moved = sum(float(((second[name] - first[name]).astype(np.float64) ** 2).sum()) for name in names)
        size = sum(float((first[name].astype(np.float64) ** 2).sum()) for name in names)
        distances[part] = float(np.sqrt(moved / size)) if size else 0.0
    return distances


def _tensors(registry: RegistryReader, version: str) -> dict[str, NDArray[Any]]:
    """Tensors of a version.

    Raises:
        CheckpointError: They are missing, torn or changed.
    """
    from safetensors.numpy import load

    expected = registry.manifest(version)["tensors_sha256"]
    return load(read_checked(registry.path(version), TENSORS_NAME, expected))


def _head_name(tensor: str) -> str:
    """Device of a head's tensor, as `transfer.model.fleet_tlp` names it."""
    key = tensor.removeprefix("heads.head:").split(".", 1)[0]
    return key.replace("%2E", ".").replace("%25", "%")
