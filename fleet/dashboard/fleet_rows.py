"""The rows of the fleet's table, which of them a person should look at first, and why; requests, tunings.

Made from the coordinator's view, the store's records and the champions. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import IntEnum
from pathlib import Path

from fleet.dashboard.device_timeline import spark
from fleet.dashboard.store_view import Listing, StoreSummary
from fleet.json_types import Json, JsonDict
from fleet.models.views import NO_CHAMPION
from fleet.tuning.report import SIDE_NAMES, short_name

#: Share of a device's last records that failed, and that drifted, from which that is worth a look.
FAILING_SHARE, DRIFTING_SHARE = 0.5, 0.5
#: A device with a lease that has stored no record for so long is slow or stuck.
SILENT_SECS = 900.0


class AttentionLevel(IntEnum):
    """How urgent a device is; the lowest comes first."""

    #: Nothing is measured until a person acts.
    BROKEN = 0
    #: It measures, but its numbers cannot be trusted.
    DOUBTFUL = 1
    #: Nothing is measured now; the fleet tries again by itself.
    WAITING = 2
    #: It works and lacks a model.
    UNSERVED = 3
    HEALTHY = 4
    #: It left the fleet, or takes no part in this run.
    GONE = 5


#: What a person may do next, by level; `DEVICE` stands for the name.
_STEPS = {
    AttentionLevel.BROKEN: "read the last error on its page, then `fleet probe --device DEVICE`",
    AttentionLevel.DOUBTFUL: "`fleet doctor` names the cause; stop it, then `fleet collect --remeasure 50`",
    AttentionLevel.WAITING: "wait: the fleet tries again by itself",
    AttentionLevel.UNSERVED: "`fleet onboard DEVICE --samples 0`",
}


def attention(device: Json, now: float) -> tuple[AttentionLevel, str]:
    """How urgent a device is, by its row, and why in one line; without a reason it needs no attention."""
    state, reason = str(device["state"]), str(device["reason"])
    if state in ("retired", "absent"):  # old records do not matter now
        return AttentionLevel.GONE, reason or f"it is {state}"
    if state == "quarantined":
        return AttentionLevel.BROKEN, reason or "it is quarantined"
    if share := _share(device, "failed_share", FAILING_SHARE):
        return AttentionLevel.BROKEN, f"{share:.0%} of its last records failed"
    if device["drift"]:
        return AttentionLevel.DOUBTFUL, str(device["drift"])
    if share := _share(device, "suspect_share", DRIFTING_SHARE):
        return AttentionLevel.DOUBTFUL, f"{share:.0%} of its last records are suspect"
    if state == "lost":
        return AttentionLevel.WAITING, reason or "it is lost"
    last = device["last_record_at"]
    if state == "leased" and last is not None and now - last > SILENT_SECS:
        return AttentionLevel.WAITING, f"no record for {(now - last) / 60:.0f} minutes"
    if device["closed"]:
        return AttentionLevel.WAITING, str(device["closed"])
    if not device["champion"]:
        return AttentionLevel.UNSERVED, "no model serves it yet"
    return AttentionLevel.HEALTHY, ""


def by_attention(device: Json) -> tuple[int, float, str]:
    """Sorting key of rows: the level, then the larger share of bad records, then the name."""
    worst = max(device["failed_share"] or 0.0, device["suspect_share"] or 0.0)
    # By tenths, or devices would change places with every record.
    return device["attention"]["level"], -round(worst, 1), str(device["device_id"])


def _share(device: Json, key: str, least: float) -> float:
    share = device[key]
    return float(share) if share is not None and share >= least else 0.0


#: Orders of the table by name; the first is the usual one.
DEVICES = Listing(
    keys={
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
    },
    texts=("device_id", "kind", "family", "state", "reason", "closed", "champion", "model_kind"),
)

#: Of the view, what a row shows as it is.
_VIEW_FIELDS = (
    *("state", "reason", "closed", "family", "kind", "records", "failed", "records_per_s"),
    *("last_record_at", "leases", "drift"),
)


def fleet_rows(view: Json, summary: StoreSummary, champions: Mapping[str, Json]) -> list[JsonDict]:
    """A row for each device of the coordinator's view, JSON-ready, in the order of attention.

    `digest` is the state of the store's part: `loading`, `ready`, or `empty` if the store has no record of
    the device.
    """
    rows = [
        _row(device_id, device, view["now"], summary, champions.get(device_id, {}))
        for device_id, device in view["devices"].items()
    ]
    return sorted(rows, key=by_attention)


def fleet_counts(rows: list[JsonDict]) -> JsonDict:
    """How many devices there are, by state, and how many need attention."""
    levels = Counter(row["attention"]["level"] for row in rows)
    return {
        "devices": len(rows),
        "broken": levels[AttentionLevel.BROKEN],
        "doubtful": levels[AttentionLevel.DOUBTFUL],
        "records_per_s": round(sum(row["records_per_s"] for row in rows), 3),
        "served": sum(bool(row["champion"]) for row in rows if row["state"] != "absent"),
    }


def _row(device_id: str, device: Json, now: float, summary: StoreSummary, champion: Json) -> JsonDict:
    device_summary = summary.devices.get(device_id, {})
    digest = "ready" if device_summary else summary.state
    if digest == "ready" and not device_summary:
        digest = "loading" if device["records"] else "empty"
    row: JsonDict = {
        "device_id": device_id,
        **{name: device.get(name) for name in _VIEW_FIELDS},
        "digest": digest,
        **{
            name: device_summary.get(name)
            for name in ("noise", "failed_share", "suspect_share", "last_error")
        },
        "spark": spark(device_summary.get("periods", {}), now) if digest == "ready" else None,
        # The registry knows of a rollback by hand before the coordinator does.
        "champion": champion.get("version") or device.get("champion", ""),
        **{name: champion.get(name, default) for name, default in NO_CHAMPION.items()},
    }
    level, reason = attention(row, now)
    row["attention"] = {
        "level": int(level),
        "name": level.name.lower(),
        "reason": reason,
        "step": _STEPS.get(level, "").replace("DEVICE", device_id),
    }
    return row


#: Orders of requests; first those that have not ended, the newest of these first.
REQUESTS = Listing(
    keys={
        "open": lambda row: (row["ended_at"] is not None, -(row["submitted_at"] or 0.0)),
        "id": lambda row: row["id"],
        "state": lambda row: (row["state"], row["id"]),
        "submitted": lambda row: row["submitted_at"],
    },
    texts=("id", "kind", "state", "finding", "reason", "text"),
)


def request_rows(requests: Iterable[Json]) -> list[JsonDict]:
    """Requests without their results, which may be long; `text` is what a filter finds of their arguments."""
    return [
        {name: value for name, value in request.items() if name not in ("result", "arguments")}
        | {"text": str(request["arguments"])}
        for request in requests
    ]


#: Tunings that are shown, the newest.
MOST_TUNINGS = 20


def tuning_rows(requests: Iterable[Json]) -> list[JsonDict]:
    """The tunings, the newest first.

    Args:
        requests: All requests, as the coordinator's desk shows them.

    Returns:
        Each with `request` (without its result), `title`, `device`, `has_report`, and `networks`: `name`,
        `best_secs` (all its programs, each timed alone), `curve` ([seconds of the search, seconds of the
        programs]), `why_not` (no library), and `sides`, the fastest first: `name`, `secs` of one run,
        `is_kept`.
    """
    tunings = [request for request in requests if request["kind"] == "tuning"]
    tunings.sort(key=lambda request: -float(request["submitted_at"] or 0.0))
    return [_tuning_row(request) for request in tunings[:MOST_TUNINGS]]


def _tuning_row(request: Json) -> JsonDict:
    result, names = request["result"] or {}, request["arguments"].get("networks") or ()
    return {
        "request": {name: value for name, value in request.items() if name not in ("result", "arguments")},
        "title": ", ".join(Path(short_name(name)).name for name in names) or "networks",
        "device": request["arguments"].get("device", ""),
        "has_report": bool(result.get("report")),
        "networks": [
            {
                "name": name,
                "best_secs": found.get("best_secs"),
                "curve": found.get("curve", []),
                "why_not": result["whole_networks"].get(name, {}).get("why_not") or "",
                "sides": _tuning_sides(result["whole_networks"].get(name, {})),
            }
            for name, found in result.get("networks", {}).items()
        ],
    }


def _tuning_sides(delivery: Json) -> list[JsonDict]:
    secs = delivery.get("secs") or {}
    return [
        {"name": SIDE_NAMES.get(side, side), "secs": secs[side], "is_kept": side == delivery.get("kept")}
        for side in sorted(secs, key=lambda side: float(secs[side]))
    ]
