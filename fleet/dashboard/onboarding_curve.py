"""The onboarding of a device: how far it is, what its head is expected to reach, and what more samples buy.

Called by `fleet.dashboard.dashboard`. Reads the small files of onboardings and of leave-one-device-out scores
beside the models; imports no torch.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fleet.models.onboarding_curves import CURVES, history
from fleet.models.registry_file import DEVICE_SCORES

#: Samples whose worth is asked.
MORE_SAMPLES = 32
_SCRATCH, _KIND = "scratch", "onboarding"


def onboarding_curve(
    device_id: str, requests: Iterable[Mapping[str, Any]], beside_models: Path
) -> dict[str, Any] | None:
    """What is known of the onboardings of one device; None where there was none.

    Args:
        device_id: The device.
        requests: All requests, as the coordinator's desk shows them.
        beside_models: Folder of curves and leave-one-device-out scores.

    Returns:
        `request` (the newest one; None where only earlier ones are known), `points` (samples, top-1 with its
        interval, and the strategy, of each onboarding), `scratch` (samples and mean top-1 from scratch), and
        `known_devices`, `more` (what `MORE_SAMPLES` would add; None where unknown).
    """
    mine = [
        request
        for request in requests
        if request["kind"] == _KIND and request["arguments"].get("device") == device_id
    ]
    request = max(mine, key=lambda candidate: candidate["submitted_at"] or 0.0, default=None)
    points = history(beside_models / CURVES, device_id)
    if request is None and not points:
        return None
    scores = _device_scores(beside_models / DEVICE_SCORES)
    result = request["result"] if request is not None else {}
    strategy = str(result.get("taken") or (points[-1].get("taken") if points else ""))
    samples = int(result.get("samples") or (points[-1]["samples"] if points else 0))
    return {
        "request": request,
        "points": points,
        "scratch": _line(scores, _SCRATCH),
        "known_devices": len(scores.get("devices", ())),
        "more": _more(scores, strategy, samples, points),
    }


def _device_scores(folder: Path) -> dict[str, Any]:
    """The leave-one-device-out scores from most measurements; empty where there are none."""
    scores: list[dict[str, Any]] = []
    for path in sorted(folder.glob("standings-*.json")):
        try:
            value = json.loads(path.read_text())
            if isinstance(value["samples"], list) and isinstance(value["top1"], dict):
                scores.append(value)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # it is made again
    return max(scores, key=lambda entry: entry.get("measured") or 0, default={})


def _line(scores: Mapping[str, Any], strategy: str) -> list[list[float]]:
    """Samples and mean top-1 of a strategy over the known devices."""
    values = scores.get("top1", {}).get(strategy) or []
    pairs = zip(scores.get("samples", ()), values, strict=False)
    return [[samples, top1] for samples, top1 in pairs if top1 is not None]


def _more(
    scores: Mapping[str, Any], strategy: str, samples: int, points: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """What `MORE_SAMPLES` would add to top-1, by what they added on the known devices; None where unknown."""
    line = _line(scores, strategy)
    now = points[-1].get("top1") if points else None
    if not line or not samples or now is None:
        return None
    top1_now, top1_later = _between(line, samples), _between(line, samples + MORE_SAMPLES)
    if top1_now is None or top1_later is None:
        return None
    return {
        "samples": samples + MORE_SAMPLES,
        "gain": round(top1_later - top1_now, 4),
        "top1": round(min(1.0, max(0.0, now + top1_later - top1_now)), 4),
    }


def _between(line: Sequence[Sequence[float]], samples: float) -> float | None:
    """Top-1 at a number of samples, between those tried by its logarithm; None outside of them."""
    for (low, first), (high, second) in itertools.pairwise(line):
        if low <= samples <= high:
            share = math.log((1 + samples) / (1 + low)) / math.log((1 + high) / (1 + low))
            return first + share * (second - first)
    return None
