"""The onboardings of a device: how far the newest one is, and what its head is expected to reach.

Called by `fleet.dashboard.dashboard`. Reads the small files of onboardings beside the models, without torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fleet.models.onboarding_curves import CURVES, history

_KIND = "onboarding"


def onboarding_curve(
    device_id: str, requests: Iterable[Mapping[str, Any]], beside_models: Path
) -> dict[str, Any] | None:
    """What is known of the onboardings of one device; None where there was none.

    Args:
        device_id: The device.
        requests: All requests, as the coordinator's desk shows them.
        beside_models: Folder of curves.

    Returns:
        `request` (the newest one; None where only earlier ones are known) and `points` (samples, top-1 with
        its interval, and the strategy, of each onboarding).
    """
    mine = [
        request
        for request in requests
        if request["kind"] == _KIND and request["arguments"].get("device") == device_id
    ]
    request = max(mine, key=lambda candidate: candidate["submitted_at"] or 0.0, default=None)
    points = history(beside_models / CURVES, device_id)
    return {"request": request, "points": points} if request is not None or points else None
