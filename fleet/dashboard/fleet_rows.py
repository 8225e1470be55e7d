"""The rows of the fleet's table, from the coordinator's view, the store's records and the champions. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from agents.records import DeviceId
from fleet.dashboard.attention import AttentionLevel, attention, by_attention
from fleet.dashboard.device_digest import spark
from fleet.dashboard.pages import Key, Row
from fleet.dashboard.table_follower import TableState
from fleet.models.registry_file import Champion

#: Fields that a filter looks into.
TEXTS = ("device_id", "kind", "family", "state", "reason", "closed", "champion", "model_kind")

#: Orders of the table by name; the first is the usual one.
KEYS: Mapping[str, Key] = {
    "attention": by_attention,
    "device": lambda row: row["device_id"],
    "state": lambda row: (row["state"], row["device_id"]),
    "records": lambda row: row["records"],
    "rate": lambda row: row["records_per_s"],
    "noise": lambda row: row["noise"]["median_change"] if row["noise"] else None,
    "suspect": lambda row: row["suspect_share"],
    "last": lambda row: row["last_record_at"],
    "top1": lambda row: row["score"]["value"] if row["score"] else None,
    "champion": lambda row: row["champion"] or None,
}

#: Of the view, what a row shows as it is.
_SHOWN = (
    *("state", "reason", "closed", "family", "kind", "records", "failed", "late", "records_per_s"),
    *("last_record_at", "queued", "leases", "budget", "environment_id", "drift", "crashes"),
)


def fleet_rows(
    view: Mapping[str, Any], table: TableState, champions: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """A row for each device.

    Args:
        view: Of the coordinator (`fleet.engine.fleet_view`).
        table: What is read of the store.
        champions: Who serves each device (`champion_rows`).

    Returns:
        JSON-ready rows in the order of attention. `digest` says whether the store's part is there: `loading`,
        `ready`, or `empty` where the store has no record of the device.
    """
    found = [
        _row(device_id, shown, view["now"], table, champions.get(device_id, {}))
        for device_id, shown in view["devices"].items()
    ]
    return sorted(found, key=by_attention)


def fleet_counts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many devices there are, by state, and how many need somebody."""
    levels = Counter(row["attention"]["level"] for row in rows)
    return {
        "devices": len(rows),
        "states": dict(sorted(Counter(row["state"] for row in rows).items())),
        "broken": levels[AttentionLevel.BROKEN],
        "doubtful": levels[AttentionLevel.DOUBTFUL],
        "records_per_s": round(sum(row["records_per_s"] for row in rows), 3),
        "served": sum(bool(row["champion"]) for row in rows),
    }


def champion_rows(champions: Mapping[DeviceId, Champion], notes: Row) -> dict[str, dict[str, Any]]:
    """What a row says of a device's champion."""
    return {
        str(device_id): {**notes.get(device_id, {}), "score": score_of(one.judged)}
        for device_id, one in champions.items()
    }


def score_of(judged: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The figure of a verdict that is shown first: top-1, or what an earlier version judged by.

    Returns:
        `name`, `value`, `low`, `high`; None where nothing was judged.
    """
    for name in ("top1", "top5", "pairs"):
        if judged and name in judged:
            value, low, high = judged[name]
            return {"name": name, "value": value, "low": low, "high": high}
    return None


def _row(
    device_id: str, shown: Mapping[str, Any], now: float, table: TableState, champion: Mapping[str, Any]
) -> dict[str, Any]:
    told = table.devices.get(device_id)
    digest = "ready" if told is not None else table.state
    if told is None and table.state == "ready":
        # Its records are durable and on their way to the table.
        digest = "loading" if shown["records"] else "empty"
    told = told or {}
    row: dict[str, Any] = {
        "device_id": device_id,
        **{name: shown.get(name) for name in _SHOWN},
        "digest": digest,
        "noise": told.get("noise"),
        "failed_share": told.get("failed_share"),
        "suspect_share": told.get("suspect_share"),
        "last_error": told.get("last_error"),
        "spark": spark(told.get("periods", {}), now) if digest == "ready" else None,
        # The registry knows of a rollback by hand before the coordinator does.
        "champion": champion.get("version") or shown.get("champion", ""),
        "model_kind": champion.get("model_kind", ""),
        "pinned": champion.get("pinned", False),
        "retained": champion.get("retained", ""),
        "score": champion.get("score"),
    }
    level, reason = attention(row, now)
    row["attention"] = {"level": int(level), "name": level.name.lower(), "reason": reason}
    return row
