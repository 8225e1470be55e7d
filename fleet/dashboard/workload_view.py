"""Workloads and the matrix of their candidates and devices. Pure, but for the rows that it is given.

The page of one workload reads the rows of the devices on that page, and no others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agents.codec import protocol_from_json
from agents.errors import AgentError
from agents.records import Candidate, DeviceId, Outcome, Protocol, WorkloadId
from fleet.comparison.device_rows import PATH, device_rows
from fleet.comparison.schedules import schedule_lines, side_by_side
from fleet.comparison.series import object_of
from fleet.coverage.lookup import MeasuredOn, reproducer
from fleet.dashboard.store_view import DashboardMissing, Listing, WorkloadCell
from fleet.errors import StoreError
from fleet.json_types import Json, JsonDict
from fleet.store.reader import StoreReader

# One candidate: its raw repeats by device, its schedule next to the best one, a script to build it again.
#
# Called by `fleet.dashboard.dashboard`. Reads the rows of the devices that have measured the workload.

#: Devices whose rows are looked at, and records that are shown; the page notes if there are more.
MOST_DEVICES, MOST_RECORDS = 4, 200
_NARROW = ("outcome", "latency_secs", "candidate_id", PATH)
_RECORD_FIELDS = (
    *("outcome", "latency_secs", "run_secs", "warmup_secs", "number", "origin", "attempt", "measured_at"),
    "error",
)
_WIDE = ("candidate_id", *_RECORD_FIELDS, "quality", "protocol", "dialect", "trace")


def candidate_view(
    reader: StoreReader, workload_id: str, candidate_id: str, devices: Sequence[str], best_on: str = ""
) -> JsonDict:
    """All that is known of one candidate.

    Args:
        reader: The store.
        workload_id: Its workload.
        candidate_id: The candidate.
        devices: Devices that have measured the workload; the first ones are looked at.
        best_on: Device whose best candidate it is compared with; the first that has measured it if empty.

    Returns:
        `records` (with `device_id` and raw repeats) and `records_of`, `devices_seen` and `devices_of`,
        `dialect`, `best` (`candidate_id`, `device_id`, `secs`, `mine_secs`), `schedules` (`side_by_side`),
        and `script` with `why_no_script`.

    Raises:
        DashboardMissing: None of the devices has measured it.
        StoreError: The store cannot be read.
    """
    looked = list(devices[:MOST_DEVICES])
    is_of_workload = pc.field("workload_id") == workload_id
    narrow = device_rows(reader, _NARROW, looked, where=is_of_workload)
    paths: dict[str, set[str]] = {}
    for name, batch in narrow.items():
        mine_rows = batch.filter(pc.equal(batch.column("candidate_id"), candidate_id))
        if mine_rows.num_rows:
            paths[name] = set(mine_rows.column(PATH).to_pylist())
    if not paths:
        raise DashboardMissing(
            f"no record of candidate {candidate_id!r:.80} of workload {workload_id!r:.80} on "
            f"{len(looked)} of the {len(devices)} devices that measured that workload"
        )
    best = {str(name): fastest for name, batch in narrow.items() if (fastest := _fastest(batch))}
    device_id = best_on if best_on in best else next(iter(paths))
    other = best.get(device_id)
    other_id = other["candidate_id"] if other else candidate_id
    # The wide columns are read of the files alone that hold one of the two.
    files = set[str]().union(*paths.values(), {other[PATH]} if other else ())
    wide = device_rows(reader, _WIDE, looked, where=is_of_workload, paths=files)
    records: list[JsonDict] = []
    traces: dict[str, Candidate] = {}
    for name, batch in sorted(wide.items()):
        is_one = pc.is_in(batch.column("candidate_id"), pa.array([candidate_id, other_id]))
        for row in batch.filter(is_one).to_pylist():
            trace, dialect, row_candidate = row.pop("trace"), row.pop("dialect"), row["candidate_id"]
            traces[row_candidate] = Candidate(
                workload_id=WorkloadId(workload_id), trace=trace, dialect=dialect
            )
            if row_candidate == candidate_id:
                records.append({"device_id": str(name), **row})
    mine = traces[candidate_id]
    other_lines = schedule_lines(traces[other_id].trace) if other else []
    script, why = _script(reader, mine, records)
    return {
        "workload_id": workload_id,
        "candidate_id": candidate_id,
        "records": [_record_row(record) for record in records[:MOST_RECORDS]],
        "records_of": len(records),
        "devices_seen": len(looked),
        "devices_of": len(devices),
        "dialect": mine.dialect,
        "best": other and _beside(records, device_id, other),
        "schedules": side_by_side(schedule_lines(mine.trace), other_lines),
        "script": script,
        "why_no_script": why,
    }


def _fastest(batch: pa.RecordBatch) -> JsonDict | None:
    """The row of the fastest record; None if none ran."""
    is_ok = pc.equal(batch.column("outcome"), Outcome.OK.value)
    ok = batch.filter(pc.and_(is_ok, pc.is_valid(batch.column("latency_secs"))))
    rows: list[JsonDict] = ok.take(pc.sort_indices(ok.column("latency_secs"))).slice(0, 1).to_pylist()
    return rows[0] if rows else None


def _beside(records: Sequence[Json], device_id: str, other: Json) -> JsonDict:
    mine = [record["latency_secs"] for record in records if record["device_id"] == device_id]
    return {
        "candidate_id": other["candidate_id"],
        "device_id": device_id,
        "secs": other["latency_secs"],
        "mine_secs": min((secs for secs in mine if secs), default=None),
    }


def _script(reader: StoreReader, mine: Candidate, records: Sequence[Json]) -> tuple[str, str]:
    """The reproducer, or why there is none."""
    measurements = (
        MeasuredOn(device_id=DeviceId(row["device_id"]), origin=str(row["origin"]), protocol=_protocol(row))
        for row in records
    )
    try:
        return reproducer(reader, mine, measurements), ""
    except StoreError as error:
        return "", str(error)


def _protocol(record: Json) -> Protocol:
    try:
        return protocol_from_json(json.loads(record["protocol"]))
    except (AgentError, ValueError, TypeError):
        return Protocol()


def _record_row(record: Json) -> JsonDict:
    quality = object_of(record["quality"])
    return {
        "device_id": record["device_id"],
        **{name: record[name] for name in _RECORD_FIELDS},
        "interval": quality.get("interval"),
        "marks": [name for name in ("suspect", "stopped_early", "quarantined") if quality.get(name)],
    }


#: Devices of one page of a workload, and candidates of one page of its matrix.
PAGE_DEVICES, PAGE_CANDIDATES = 8, 25
MATRIX_COLUMNS = ("candidate_id", "outcome", "latency_secs")
WORKLOADS = Listing(
    keys={
        "records": lambda row: row["records"],
        "name": lambda row: row["name"],
        "operator": lambda row: row["operator"] or None,
        "devices": lambda row: row["devices"],
        "flops": lambda row: row["flops"] or None,
        "best": lambda row: row["best_secs"],
        "failed": lambda row: row["failed_share"],
    },
    texts=("name", "operator", "workload_id", "networks"),
    is_descending=True,
)
#: Orders of a workload's devices.
DEVICES = Listing(
    keys={
        "device": lambda row: row["device_id"],
        "best": lambda row: row["best_secs"],
        "records": lambda row: row["records"],
    },
    texts=("device_id",),
)
_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


def workload_rows(
    cells: Mapping[str, Mapping[str, WorkloadCell]], facts: Mapping[str, Json]
) -> list[JsonDict]:
    """A row for each workload with records, by what each device has of it."""
    rows = []
    for workload_id, by_device in cells.items():
        records = sum(cell.records for cell in by_device.values())
        ok = sum(cell.ok for cell in by_device.values())
        latencies = {name: cell.best_secs for name, cell in by_device.items() if cell.best_secs is not None}
        best = min(latencies, key=latencies.__getitem__, default="")
        about = facts.get(workload_id, {})
        rows.append(
            {
                "workload_id": workload_id,
                "name": about.get("name", workload_id),
                "operator": about.get("operator", ""),
                "networks": about.get("networks", ""),
                "flops": about.get("flops", 0.0),
                "devices": len(by_device),
                "records": records,
                "failed_share": 1 - ok / records if records else None,
                "best_secs": latencies.get(best),
                "best_device": best,
            }
        )
    return rows


def workload_device_rows(by_device: Mapping[str, WorkloadCell]) -> list[JsonDict]:
    """A row for each device that has measured a workload."""
    return [{"device_id": device_id, **cell._asdict()} for device_id, cell in by_device.items()]


class CandidateMatrix:
    """The candidates of one workload on some devices.

    Args:
        device_ids: Their columns, in this order.
        batches: Rows of the workload with `MATRIX_COLUMNS`, by device.
    """

    def __init__(self, device_ids: Sequence[str], batches: Mapping[Any, pa.RecordBatch]) -> None:
        self._device_ids = list(device_ids)
        #: By candidate and device: seconds, or the outcome of one that failed.
        self._cells: dict[str, dict[str, float | str]] = {}
        for device_id, batch in batches.items():
            columns = (batch.column(name).to_pylist() for name in MATRIX_COLUMNS)
            for candidate_id, outcome, secs in zip(*columns, strict=True):
                cells = self._cells.setdefault(candidate_id, {})
                previous = cells.get(device_id)
                if outcome == Outcome.OK and secs is not None:
                    cells[device_id] = min(previous, secs) if isinstance(previous, float) else secs
                elif previous is None:
                    cells[device_id] = outcome

    def latencies(self, device_id: str) -> dict[str, float]:
        """Seconds of the candidates that ran on a device."""
        return {
            candidate_id: secs
            for candidate_id, cells in self._cells.items()
            if isinstance(secs := cells.get(device_id), float)
        }

    def spreads(self) -> dict[str, list[float] | None]:
        """Least, quartiles and most of each device's latencies; None without any."""
        secs = {device_id: list(self.latencies(device_id).values()) for device_id in self._device_ids}
        return {
            device_id: np.quantile(values, _QUANTILES).tolist() if values else None
            for device_id, values in secs.items()
        }

    def page(self, offset: int, size: int) -> JsonDict:
        """Some rows of the matrix, the fastest candidates first.

        Returns:
            `devices`, `rows` (`candidate_id`, `cells`: seconds, an outcome, or None if it was not
            measured; `speed`, the mean over devices of best over own latency), `total`, `offset`, `size`,
            `is_last`, `filled` and `of` (cells with a measurement, and cells).
        """
        best = {name: min(self.latencies(name).values(), default=0.0) for name in self._device_ids}
        speeds = {
            candidate_id: fmean(
                [best[name] / secs for name, secs in cells.items() if isinstance(secs, float)] or [0.0]
            )
            for candidate_id, cells in self._cells.items()
        }
        ordered = sorted(self._cells, key=lambda candidate_id: (-speeds[candidate_id], candidate_id))
        return {
            "devices": self._device_ids,
            "rows": [
                {
                    "candidate_id": candidate_id,
                    "cells": [self._cells[candidate_id].get(name) for name in self._device_ids],
                    "speed": speeds[candidate_id] or None,
                }
                for candidate_id in ordered[offset : offset + size]
            ],
            "total": len(ordered),
            "offset": offset,
            "size": size,
            "is_last": offset + size >= len(ordered),
            "filled": sum(map(len, self._cells.values())),
            "of": len(ordered) * len(self._device_ids),
        }
