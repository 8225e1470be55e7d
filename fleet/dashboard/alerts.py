"""Alerts: alarms of the coordinator and changes of champions, each with its likely cause. Pure.

If a model gets worse just after its device drifted, changed or failed, the alert is attributed to the device,
not to the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from agents.records import content_hash
from fleet.dashboard.store_view import Listing
from fleet.json_types import Json, JsonDict
from fleet.terminal_text import in_utf8

#: A fault of the device so long before an alert about its model explains that one.
BEFORE_SECS = 6 * 3600.0
#: Alerts that are kept in the list, the newest.
MOST_ALERTS = 500
ALERTS = Listing(
    keys={
        "at": lambda row: row["at"],
        "kind": lambda row: (row["kind"], row["at"]),
        "fault": lambda row: (row["fault"], row["at"]),
        "device": lambda row: row["device_id"] or None,
    },
    texts=("kind", "fault", "device_id", "text"),
    is_descending=True,
)


class Fault(StrEnum):
    """The likely cause of an alert."""

    DEVICE = "device"
    MODEL = "model"
    HOST = "host"
    DATA = "data"


#: Of each kind of alert: its fault before anything else is known, and what a person may do next.
_KINDS = {
    "drift": (Fault.DEVICE, "`fleet doctor` names the cause; stop it, then `fleet collect --remeasure 50`"),
    "environment": (Fault.DEVICE, "nothing: the device is onboarded again by itself"),
    "quarantine": (Fault.DEVICE, "`fleet probe --device DEVICE` shows what is wrong"),
    "device_file": (Fault.DEVICE, "correct the file; the daemon reads it again"),
    "disk": (Fault.HOST, "free some space; the fleet continues by itself"),
    "storage": (Fault.HOST, "`fleet store verify`"),
    "refused": (Fault.DATA, "compare the versions of agent and coordinator"),
    "import": (Fault.DATA, "correct the file, and import it again"),
    "training": (Fault.MODEL, "nothing: the next training tries again"),
    "rollback": (Fault.MODEL, "nothing: the version before it serves"),
    "regression": (Fault.MODEL, "nothing: the active model stays"),
}
_UNKNOWN = (None, "")


def alert_list(alarms: Iterable[Json], changes: Iterable[Json]) -> list[JsonDict]:
    """All alerts, the newest first.

    Args:
        alarms: Of the coordinator's view: `at`, `device_id`, `text`, `kind`.
        changes: About models (`model_alerts`), with the same keys.

    Returns:
        JSON-ready: `id` (the same for the same alert), `at`, `kind`, `device_id`, `text`,
        `step`, `fault`, `because`.
    """
    alert_by_id = {}
    for source in (*alarms, *changes):
        kind, at = source.get("kind") or "note", source["at"]
        device_id, text = in_utf8(source["device_id"]), in_utf8(source["text"])
        name = content_hash(kind, device_id, text, f"{at:.0f}")[:16]
        step = _KINDS.get(kind, _UNKNOWN)[1].replace("DEVICE", device_id)
        alert_by_id[name] = {
            "id": name,
            "at": at,
            "kind": kind,
            "device_id": device_id,
            "text": text,
            "step": step,
        }
    ordered = sorted(alert_by_id.values(), key=lambda alert: (-float(alert["at"]), str(alert["id"])))
    return [alert | _blame(alert, ordered) for alert in ordered[:MOST_ALERTS]]


def _fault(alert: Json) -> Fault | None:
    return _KINDS.get(alert["kind"], _UNKNOWN)[0]


def _blame(alert: Json, alerts: Sequence[Json]) -> dict[str, str]:
    fault = _fault(alert)
    if fault is Fault.MODEL and alert["device_id"]:
        for other in alerts:
            is_before = 0.0 <= float(alert["at"]) - float(other["at"]) <= BEFORE_SECS
            is_same = other["device_id"] == alert["device_id"]
            if is_before and is_same and _fault(other) is Fault.DEVICE:
                return {"fault": Fault.DEVICE.value, "because": f"shortly before: {other['text']}"}
    return {"fault": "" if fault is None else fault.value, "because": ""}
