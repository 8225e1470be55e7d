"""Requests, storage and budgets of a fleet, from the coordinator's view. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fleet.dashboard.pages import Key

#: Devices with a budget that are shown.
MOST_BUDGETS = 500
REQUEST_TEXTS = ("id", "kind", "state", "finding", "reason", "text")
#: Orders of requests; first those that have not ended, the newest of these first.
REQUEST_KEYS: Mapping[str, Key] = {
    "open": lambda row: (row["ended_at"] is not None, -(row["submitted_at"] or 0.0)),
    "id": lambda row: row["id"],
    "state": lambda row: (row["state"], row["id"]),
    "submitted": lambda row: row["submitted_at"],
}


def request_rows(requests: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Requests without their results, which may be long; `text` is what a filter finds of their arguments."""
    return [
        {name: value for name, value in one.items() if name not in ("result", "arguments")}
        | {"text": str(one["arguments"])}
        for one in requests
    ]


def storage_view(view: Mapping[str, Any]) -> dict[str, Any]:
    """Where records are on their way, how much room is left, and what budgets are spent."""
    budgets = [
        {"device_id": one, "closed": shown["closed"], **shown["budget"]}
        for one, shown in view["devices"].items()
        if shown["closed"] or shown["budget"]["hour_limit_secs"] or shown["budget"]["day_limit_secs"]
    ]
    return {
        "now": view["now"],
        "store": dict(view["store"]),
        "health": dict(view["health"]),
        "clock": dict(view["clock"]),
        "training": dict(view["training"]),
        "budgets": budgets[:MOST_BUDGETS],
        "budgets_of": len(budgets),
        "devices": len(view["devices"]),
    }
