"""How fast networks are: what the tunings among the requests found. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fleet.json_types import Json, JsonDict
from fleet.tuning.report import SIDE_NAMES, short_name

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
    return [_row(request) for request in tunings[:MOST_TUNINGS]]


def _row(request: Json) -> JsonDict:
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
                "sides": _sides(result["whole_networks"].get(name, {})),
            }
            for name, found in result.get("networks", {}).items()
        ],
    }


def _sides(delivery: Json) -> list[JsonDict]:
    secs = delivery.get("secs") or {}
    return [
        {"name": SIDE_NAMES.get(side, side), "secs": secs[side], "is_kept": side == delivery.get("kept")}
        for side in sorted(secs, key=lambda side: float(secs[side]))
    ]
