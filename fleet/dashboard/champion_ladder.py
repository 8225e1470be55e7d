"""How a device's champions came about, and which challengers lost to them, and why. Reads files only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from fleet.dashboard.fleet_rows import score_of
from fleet.models.registry_file import RegistryError
from fleet.models.registry_reader import RegistryReader, as_json

#: Versions whose verdicts are looked at, and steps that are shown; the newest.
MOST_VERSIONS, MOST_STEPS = 40, 60


def champion_ladder(registry: RegistryReader, device_id: str) -> dict[str, Any]:
    """The steps of one device, the newest first.

    Returns:
        `champion` (as plain values; None without), `steps` (`at`, `kind`: `published`, `rolled_back`,
        `pinned`, `unpinned`, or `kept` for a challenger that lost; `version`, `previous`, `reason`, `score`,
        `challenger`, `champion`), and `of`, how many steps there are.

    Raises:
        RegistryError: The registry is damaged.
    """
    champion = registry.champions().get(device_id)  # type: ignore[call-overload]
    changes = [change for change in registry.history() if change.device_id == device_id]
    published = {change.version for change in changes if change.kind == "published"}
    steps = [
        {
            "at": change.at_secs,
            "kind": change.kind,
            "version": change.version,
            "previous": change.previous,
            "reason": change.reason,
            **_figures(change.judged),
        }
        for change in changes
    ]
    steps += _lost(registry, device_id, published)
    steps.sort(key=lambda step: -float(step["at"]))
    return {
        "champion": None if champion is None else as_json(champion),
        "steps": steps[:MOST_STEPS],
        "of": len(steps),
    }


def model_alerts(registry: RegistryReader) -> list[dict[str, Any]]:
    """Rollbacks of all devices, and challengers that were worse than their champions, for the list of alerts.

    Raises:
        RegistryError: The registry is damaged.
    """
    alerts = []
    for change in registry.history():
        if change.kind == "rolled_back":
            text = f"goes back from {change.previous} to {change.version}: {change.reason}"
            alerts.append(
                {"at": change.at_secs, "kind": "rollback", "device_id": str(change.device_id), "text": text}
            )
    for version, manifest in _manifests(registry):
        for device_id, verdict in (manifest.get("verdicts") or {}).items():
            if not isinstance(verdict, Mapping) or verdict.get("serves"):
                continue
            if str(verdict.get("reason", "")).startswith("worse"):
                text = f"{version} does not serve: {verdict['reason']}"
                at = float(manifest.get("created_at") or 0.0)
                alerts.append({"at": at, "kind": "regression", "device_id": device_id, "text": text})
    return alerts


def _manifests(registry: RegistryReader) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The newest versions whose manifests can be read."""
    for version in registry.versions()[-MOST_VERSIONS:]:
        with suppress(RegistryError):
            yield version, registry.manifest(version)


def _lost(registry: RegistryReader, device_id: str, published: set[str]) -> list[dict[str, Any]]:
    """Challengers that did not take the place, as far as their versions are kept."""
    lost = []
    for version, manifest in _manifests(registry):
        if version in published:
            continue
        verdict = (manifest.get("verdicts") or {}).get(device_id)
        if isinstance(verdict, Mapping) and not verdict.get("serves"):
            lost.append(
                {
                    "at": float(manifest.get("created_at") or 0.0),
                    "kind": "kept",
                    "version": version,
                    "previous": "",
                    "reason": str(verdict.get("reason", "")),
                    **_figures(verdict.get("judged")),
                }
            )
    return lost


def _figures(judged: Mapping[str, Any] | None) -> dict[str, Any]:
    """The figure of challenger and champion that the verdict rests on: pairs in the right order."""
    judged = judged or {}
    return {
        "score": score_of(judged),
        "challenger": judged.get("pairs"),
        "champion": (judged.get("champion") or {}).get("pairs"),
        "difference": (judged.get("difference") or {}).get("pairs"),
        "noise_floor": judged.get("noise_floor"),
    }
