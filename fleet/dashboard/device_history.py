"""How a device's champions came about, which challengers lost to them, and its onboardings. Reads files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from fleet.json_types import Json, JsonDict
from fleet.models.onboarding_curves import CURVES, history
from fleet.models.registry_file import RegistryError
from fleet.models.registry_reader import RegistryReader, as_json
from fleet.models.views import score_of

#: Versions whose verdicts are looked at, and steps that are shown; the newest.
MOST_VERSIONS, MOST_STEPS = 40, 60


def champion_ladder(registry: RegistryReader, device_id: str) -> JsonDict:
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
    steps = [
        _step(change.at_secs, change.kind, change.version, change.reason, change.judged, change.previous)
        for change in changes
    ]
    published = {change.version for change in changes if change.kind == "published"}
    for at, version, name, verdict in _lost(registry):
        if name == device_id and version not in published:
            steps.append(_step(at, "kept", version, str(verdict.get("reason", "")), verdict.get("judged")))
    steps.sort(key=lambda step: -float(step["at"]))
    return {
        "champion": None if champion is None else as_json(champion),
        "steps": steps[:MOST_STEPS],
        "of": len(steps),
    }


def model_alerts(registry: RegistryReader) -> list[JsonDict]:
    """Rollbacks of all devices, and challengers that were worse than their champions; shown as alerts.

    Raises:
        RegistryError: The registry is damaged.
    """
    rollbacks = [
        {
            "at": change.at_secs,
            "kind": "rollback",
            "device_id": str(change.device_id),
            "text": f"goes back from {change.previous} to {change.version}: {change.reason}",
        }
        for change in registry.history()
        if change.kind == "rolled_back"
    ]
    regressions = [
        {
            "at": at,
            "kind": "regression",
            "device_id": device_id,
            "text": f"{version} does not serve: {verdict['reason']}",
        }
        for at, version, device_id, verdict in _lost(registry)
        if str(verdict.get("reason", "")).startswith("worse")
    ]
    return rollbacks + regressions


def _lost(registry: RegistryReader) -> Iterator[tuple[float, str, str, Json]]:
    """Challengers that do not serve a device, by the newest versions: moment, version, device, verdict."""
    for version in registry.versions()[-MOST_VERSIONS:]:
        # A version that cannot be read hides no other.
        with suppress(RegistryError):
            manifest = registry.manifest(version)
            for device_id, verdict in (manifest.get("verdicts") or {}).items():
                if isinstance(verdict, Mapping) and not verdict.get("serves"):
                    yield float(manifest.get("created_at") or 0.0), version, device_id, verdict


def _step(
    at: float, kind: str, version: str, reason: str, judged: Json | None, previous: str = ""
) -> JsonDict:
    """One step, with the figures that its verdict rests on: pairs in the right order."""
    judged = judged or {}
    return {
        "at": at,
        "kind": kind,
        "version": version,
        "previous": previous,
        "reason": reason,
        "score": score_of(judged),
        "challenger": judged.get("pairs"),
        "champion": (judged.get("champion") or {}).get("pairs"),
        "difference": (judged.get("difference") or {}).get("pairs"),
        "noise_floor": judged.get("noise_floor"),
    }


def onboardings(device_id: str, requests: Iterable[Json], beside_models: Path) -> JsonDict | None:
    """What is known of the onboardings of one device; None if there was none.

    Args:
        device_id: The device.
        requests: All requests, as the coordinator's desk shows them.
        beside_models: Folder of the curves.

    Returns:
        `request` (the newest one; None if only earlier ones are known), and `points` (samples, top-1 with
        its interval, and the strategy, of each onboarding).
    """
    mine = [
        request
        for request in requests
        if request["kind"] == "onboarding" and request["arguments"].get("device") == device_id
    ]
    request = max(mine, key=lambda candidate: candidate["submitted_at"] or 0.0, default=None)
    points = history(beside_models / CURVES, device_id)
    return {"request": request, "points": points} if mine or points else None
