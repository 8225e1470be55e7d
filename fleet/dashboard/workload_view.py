"""Workloads and the matrix of their candidates and devices. Pure, but for the rows that it is given.

The page of one workload reads the rows of the devices on that page, and no others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa

from agents.records import Outcome
from fleet.dashboard.pages import Listing
from fleet.dashboard.store_view import WorkloadCell
from fleet.json_types import Json, JsonDict

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
