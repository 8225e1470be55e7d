"""Workloads and the matrix of their candidates and devices. Pure, but for the columns that it is given.

A list of workloads comes from what has been read of the whole store. The page of one workload reads the rows
of the devices on that page, and no others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agents.records import Outcome, Workload
from fleet.dashboard.device_digest import WorkloadCell
from fleet.dashboard.pages import Key

#: Devices of one page of a workload, and candidates of one page of its matrix.
PAGE_DEVICES, PAGE_CANDIDATES = 8, 25
#: Candidates that are scored at a time.
MOST_SCORED = 64
MATRIX_COLUMNS = ("candidate_id", "workload_id", "outcome", "latency_secs", "origin")
TEXTS = ("name", "operator", "workload_id", "networks")
KEYS: Mapping[str, Key] = {
    "records": lambda row: row["records"],
    "name": lambda row: row["name"],
    "operator": lambda row: row["operator"] or None,
    "devices": lambda row: row["devices"],
    "flops": lambda row: row["flops"] or None,
    "best": lambda row: row["best_secs"],
    "failed": lambda row: row["failed_share"],
}
#: Orders of a workload's devices.
DEVICE_KEYS: Mapping[str, Key] = {
    "device": lambda row: row["device_id"],
    "best": lambda row: row["best_secs"],
    "records": lambda row: row["records"],
}
_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)

Cells = Mapping[str, WorkloadCell]


def facts_of(workload: Workload) -> dict[str, Any]:
    """What a page says of a workload, JSON-ready; its module is left out."""
    return {
        "name": workload.name,
        "operator": workload.operator,
        "shapes": [list(shape) for shape in workload.arg_shapes],
        "dtypes": list(workload.arg_dtypes),
        "flops": workload.flops,
        "networks": ", ".join(f"{name} ({weight}x)" for name, weight in workload.networks),
    }


def workload_rows(cells: Mapping[str, Cells], facts: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each workload with records."""
    rows = []
    for workload_id, by_device in cells.items():
        records = sum(cell.records for cell in by_device.values())
        ok = sum(cell.ok for cell in by_device.values())
        best = min(by_device, key=lambda device_id: by_device[device_id].best_secs)
        secs = by_device[best].best_secs
        workload_facts = facts.get(workload_id, {})
        rows.append(
            {
                "workload_id": workload_id,
                "name": workload_facts.get("name", workload_id),
                "operator": workload_facts.get("operator", ""),
                "networks": workload_facts.get("networks", ""),
                "flops": workload_facts.get("flops", 0.0),
                "devices": len(by_device),
                "records": records,
                "failed_share": 1 - ok / records if records else None,
                "best_secs": secs if math.isfinite(secs) else None,
                "best_device": best if math.isfinite(secs) else "",
            }
        )
    return rows


def device_rows(by_device: Cells) -> list[dict[str, Any]]:
    """A row for each device that has measured a workload."""
    return [
        {
            "device_id": device_id,
            "records": cell.records,
            "ok": cell.ok,
            "best_secs": cell.best_secs if math.isfinite(cell.best_secs) else None,
        }
        for device_id, cell in by_device.items()
    ]


class CandidateMatrix:
    """The candidates of one workload on some devices, these in the order of their columns."""

    def __init__(self, workload_id: str, device_ids: Sequence[str]) -> None:
        self._workload_id, self._device_ids = workload_id, list(device_ids)
        #: By candidate and device: seconds, or the outcome of one that failed.
        self._cells: dict[str, dict[str, float | str]] = {}

    def add(self, device_id: str, batch: pa.RecordBatch) -> None:
        """Take in rows with `MATRIX_COLUMNS`."""
        rows = batch.filter(pc.equal(batch.column("workload_id"), self._workload_id))
        columns = (rows.column(name).to_pylist() for name in ("candidate_id", "outcome", "latency_secs"))
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
        """Least, quartiles and most of each device's latencies; None where there is none."""
        secs = {device_id: list(self.latencies(device_id).values()) for device_id in self._device_ids}
        return {
            device_id: [float(quantile) for quantile in np.quantile(device_secs, _QUANTILES)]
            if device_secs
            else None
            for device_id, device_secs in secs.items()
        }

    def page(self, offset: int, size: int) -> dict[str, Any]:
        """Some rows of the matrix, the fastest candidates first.

        Returns:
            `devices`, `rows` (`candidate_id`, `cells`: seconds, an outcome, or None where it was not
            measured; `speed`, the mean over devices of best over own latency), `total`, `offset`, `size`,
            `is_last`, `filled` and `of` (cells with a measurement, and cells).
        """
        best = {
            device_id: min(self.latencies(device_id).values(), default=math.inf)
            for device_id in self._device_ids
        }
        speeds = {
            candidate_id: _mean(
                [best[device_id] / secs for device_id, secs in cells.items() if isinstance(secs, float)]
            )
            for candidate_id, cells in self._cells.items()
        }
        ordered = sorted(self._cells, key=lambda candidate_id: (-speeds[candidate_id], candidate_id))
        return {
            "devices": self._device_ids,
            "rows": [
                {
                    "candidate_id": candidate_id,
                    "cells": [self._cells[candidate_id].get(device_id) for device_id in self._device_ids],
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


def sample(latencies: Mapping[str, float]) -> list[str]:
    """Candidates to score: evenly over the latencies in seconds, the fastest and the slowest among them."""
    ordered = sorted(latencies, key=lambda candidate: (latencies[candidate], candidate))
    places = np.linspace(0, len(ordered) - 1, min(MOST_SCORED, len(ordered))).round().astype(int)
    return [ordered[place] for place in sorted(set(places.tolist()))]


def predicted(
    candidates: Sequence[str], latencies: Mapping[str, float], scores: Sequence[float | None]
) -> dict[str, Any]:
    """Scores and speeds side by side.

    Args:
        candidates: Those that were scored.
        latencies: Seconds of all measured ones.
        scores: One each, higher is faster; None where a schedule cannot be read.

    Returns:
        `points` of [score, speed over the best one's, candidate], `of` (measured candidates), `kendall_tau`
        (None for fewer than two), `top1` (speed of the highest score among them, the mean where several tie),
        `refused`.
    """
    best = min(latencies.values())
    points: list[tuple[float, float, str]] = [
        (float(score), best / latencies[candidate], candidate)
        for candidate, score in zip(candidates, scores, strict=True)
        if score is not None
    ]
    tau = None
    if len(points) > 1:
        from scipy.stats import kendalltau  # half a second that the start of a daemon need not wait

        statistic = float(
            kendalltau([point[0] for point in points], [point[1] for point in points]).statistic
        )
        tau = None if np.isnan(statistic) else statistic
    highest = max((point[0] for point in points), default=None)
    return {
        "points": points,
        "of": len(latencies),
        "kendall_tau": tau,
        # Of several with the same score nobody knows which would be taken, as in `transfer.data.ranking`.
        "top1": _mean([point[1] for point in points if point[0] == highest]) or None,
        "refused": len(candidates) - len(points),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
