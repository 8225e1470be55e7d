"""Which devices a person should look at first, and why. Pure.

`fleet.dashboard.fleet_rows` asks it about each device. The order is the same for page, API and tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

#: Share of a device's last records that failed, and that drifted, from which that is worth a look.
FAILING_SHARE, DRIFTING_SHARE = 0.5, 0.5
#: A device with a lease that has stored no record for so long is slow or stuck.
SILENT_SECS = 900.0


class AttentionLevel(IntEnum):
    """How urgent a device is; the lowest comes first."""

    #: Nothing is measured before somebody acts.
    BROKEN = 0
    #: It measures, but its numbers cannot be trusted.
    DOUBTFUL = 1
    #: Nothing is measured now; the fleet tries again by itself.
    WAITING = 2
    #: It works and lacks a model.
    UNSERVED = 3
    HEALTHY = 4
    #: It left the fleet.
    GONE = 5


def attention(device: Mapping[str, Any], now: float) -> tuple[AttentionLevel, str]:
    """Say how urgent a device is, and why in one line; without a reason it needs nobody.

    Args:
        device: A row of `fleet.dashboard.fleet_rows` without its judgement.
        now: Unix seconds of the view.
    """
    state, reason = str(device["state"]), str(device["reason"])
    if state == "retired":
        return AttentionLevel.GONE, reason
    if state == "quarantined":
        return AttentionLevel.BROKEN, reason or "it is quarantined"
    if share := _share(device, "failed_share", FAILING_SHARE):
        return AttentionLevel.BROKEN, f"{share:.0%} of its last records failed"
    if device["drift"]:
        return AttentionLevel.DOUBTFUL, str(device["drift"])
    if share := _share(device, "suspect_share", DRIFTING_SHARE):
        return AttentionLevel.DOUBTFUL, f"{share:.0%} of its last records are suspect"
    if state in ("lost", "absent"):
        return AttentionLevel.WAITING, reason or f"it is {state}"
    last = device["last_record_at"]
    if state == "leased" and last is not None and now - last > SILENT_SECS:
        return AttentionLevel.WAITING, f"no record for {(now - last) / 60:.0f} minutes"
    if device["closed"]:
        return AttentionLevel.WAITING, str(device["closed"])
    if not device["champion"]:
        return AttentionLevel.UNSERVED, "no model serves it yet"
    return AttentionLevel.HEALTHY, ""


def by_attention(device: Mapping[str, Any]) -> tuple[int, float, str]:
    """Sorting key of rows: the level, then the larger share of bad records, then the name."""
    worst = max(device["failed_share"] or 0.0, device["suspect_share"] or 0.0)
    # By tenths, or devices would change places with every record.
    return device["attention"]["level"], -round(worst, 1), str(device["device_id"])


def _share(device: Mapping[str, Any], key: str, least: float) -> float:
    share = device[key]
    return float(share) if share is not None and share >= least else 0.0
