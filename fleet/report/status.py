"""What a store and a folder of models hold, in one JSON-ready value. Reads only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from agents.records import NOISE, DeviceId, Outcome
from fleet.dashboard.device_timeline import last_run
from fleet.json_types import JsonDict
from fleet.models.registry_file import versions
from fleet.models.registry_reader import RegistryReader
from fleet.models.views import champion_notes
from fleet.store.noise import READING_COLUMNS, Reading, flag_column, noise_floor, readings
from fleet.store.store import Store


def read_status(store: Path, models: Path) -> JsonDict:
    """Count the records, devices, workloads and models.

    Returns:
        `{"store", "table_version", "devices": {id: {"records", "ok", "failed", "failed_by_outcome",
        "rejected", "suspect", "suspect_share", "quarantined", "noise", "noise_suspect", "candidates",
        "first_at", "last_at"}}, "workloads", "models", "champions": {id: {...}}}`; times in Unix seconds,
        None for a device without records. `suspect` counts records of windows in which the device drifted,
        `suspect_share` is over all records (None without any). `noise` is the last A/A run as `{"pairs",
        "median_change", "p90_change", "false_win_share", "measured_at"}` (`fleet.store.noise.NoiseFloor`),
        or None; `noise_suspect` counts its records that cannot be used because the device drifted.
        `champions`: see `fleet.models.views.champion_notes`.

    Raises:
        StoreError: There is no store.
    """
    reader = Store.read(store)
    counts = reader.counts()
    devices: JsonDict = {}
    for device_id in sorted(set(reader.devices()) | set(counts)):
        device_counts = counts.get(device_id)
        failed = dict(device_counts.failed) if device_counts else {}
        devices[device_id] = {
            "records": device_counts.records if device_counts else 0,
            "ok": device_counts.ok if device_counts else 0,
            "failed": sum(failed.values()),
            "failed_by_outcome": {str(outcome): count for outcome, count in failed.items()},
            "rejected": failed.get(Outcome.REJECTED, 0),
            **trust(
                DeviceId(device_id),
                (batch for _, batch in reader.columns(READING_COLUMNS, device_ids=[device_id])),
            ),
            "first_at": device_counts.first_at if device_counts else None,
            "last_at": device_counts.last_at if device_counts else None,
        }
    return empty_status(store, models) | {
        "table_version": reader.version,
        "devices": devices,
        "workloads": len(reader.workloads()),
    }


def empty_status(store: Path, models: Path) -> JsonDict:
    """The same keys as `read_status` gives, if there is no store yet."""
    return {
        "store": str(store),
        "table_version": None,
        "devices": {},
        "workloads": 0,
        "models": versions(models),
        "champions": champion_notes(RegistryReader(models)),
    }


def trust(device_id: DeviceId, batches: Iterable[pa.RecordBatch]) -> JsonDict:
    """How far the numbers of one device can be trusted; reads its rows, with `READING_COLUMNS`, once.

    Returns:
        The keys `candidates`, `suspect`, `suspect_share`, `quarantined`, `noise` and `noise_suspect` of
        `read_status`.
    """
    total = suspect = 0
    candidates: list[pa.Array] = []
    quarantined: set[str] = set()
    noise: list[Reading] = []
    for batch in batches:
        total += batch.num_rows
        candidate, quality = batch.column("candidate_id"), batch.column("quality")
        candidates.append(candidate)
        suspect += int(flag_column(quality, "suspect").sum())
        quarantined.update(candidate.filter(pa.array(flag_column(quality, "quarantined"))).to_pylist())
        noise += readings(device_id, batch.filter(pc.equal(batch.column("origin"), NOISE)))
    last = last_run(noise)
    floor = noise_floor(last)
    return {
        "candidates": len(pc.unique(pa.chunked_array(candidates, pa.string()))),
        "suspect": suspect,
        "suspect_share": suspect / total if total else None,
        "quarantined": len(quarantined),
        "noise": asdict(floor) if floor else None,
        "noise_suspect": sum(reading.is_suspect for reading in last),
    }
