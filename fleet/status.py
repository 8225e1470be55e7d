"""What a store and a folder of models hold, in one JSON-ready value. Reads only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fleet.models import versions
from fleet.store import Store


def read_status(store: Path, models: Path) -> dict[str, Any]:
    """Count what is there.

    Returns:
        `{"store", "table_version", "devices": {id: {"records", "ok", "failed", "failed_by_outcome",
        "candidates", "first_at", "last_at"}}, "workloads", "models"}`; times in Unix seconds,
        None for a device without records.

    Raises:
        StoreError: There is no store.
    """
    reader = Store.read(store)
    counts = reader.counts()
    devices: dict[str, Any] = {}
    for device_id in sorted(set(reader.devices()) | set(counts)):
        known = counts.get(device_id)
        candidates = {candidate_id for candidate_id, _ in reader.measured(device_id)}
        devices[device_id] = {
            "records": known.records if known else 0,
            "ok": known.ok if known else 0,
            "failed": sum(known.failed.values()) if known else 0,
            "failed_by_outcome": {str(outcome): count for outcome, count in known.failed.items()}
            if known
            else {},
            "candidates": len(candidates),
            "first_at": known.first_at if known else None,
            "last_at": known.last_at if known else None,
        }
    return {
        "store": str(store),
        "table_version": reader.version,
        "devices": devices,
        "workloads": len(reader.workloads()),
        "models": versions(models),
    }
