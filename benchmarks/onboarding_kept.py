"""Keeps the points of finished cases, so that a curve goes on where it was stopped.

One JSON file for each contender in a case, under a hash of everything that its points follow from but the
code: a curve that gains a contender or a number of samples runs that alone. Called by
`benchmarks.onboarding_curve`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from agents.records import canonical_json, content_hash
from transfer.checked_folder import put_file
from transfer.data.dataset import Dataset
from transfer.evaluate.onboarding_cases import Case, Regime
from transfer.evaluate.onboarding_contenders import Point
from transfer.train.state import digest

_ARRAYS = ("groups", "top1", "top5", "tau")
#: Stands for all samples there are in a file.
_ALL = "all"


class KeptPoints:
    """Points of one case in a folder.

    Args:
        folder: Made when something is kept.
        dataset: What the case divides.
        case: Which case.
    """

    def __init__(self, folder: Path, dataset: Dataset, case: Case) -> None:
        self._folder = folder
        self._case = content_hash(
            canonical_json([case.regime.value, case.target, case.split, case.seed]),
            canonical_json(list(map(str, dataset.device_ids))),
            digest(case.pool, case.source_rows, case.test),
            digest(
                dataset.latency_secs,
                dataset.failed,
                dataset.group,
                dataset.features.described,
                dataset.hardware,
            ),
        )

    def get(self, about: Any) -> dict[int | None, Point | None]:
        """What a contender found, by samples asked for.

        Args:
            about: What its points follow from beside the case, as JSON values.

        Returns:
            None for a number of samples that it could say nothing with; nothing for one that it was not run
            with, or where the file is damaged: it runs again.
        """
        try:
            values = json.loads(self._path(about).read_text())
            return {
                None if name == _ALL else int(name): None if value is None else _point(value)
                for name, value in values.items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def put(self, about: Any, points: Mapping[int | None, Point | None]) -> None:
        """Add what a contender found to what is kept of it; the file appears whole or not at all."""
        path = self._path(about)
        values = {
            _ALL if k is None else str(k): None if point is None else _values(point)
            for k, point in (self.get(about) | dict(points)).items()
        }
        put_file(path, json.dumps(values, default=float).encode())

    def _path(self, about: Any) -> Path:
        return self._folder / f"points-{content_hash(self._case, canonical_json(about))}.json"


def _values(point: Point) -> dict[str, Any]:
    value = asdict(point)
    return {**value, **{name: value[name].tolist() for name in _ARRAYS}}


def _point(value: dict[str, Any]) -> Point:
    kinds = {"groups": np.int32}
    arrays = {name: np.array(value[name], dtype=kinds.get(name, np.float64)) for name in _ARRAYS}
    return Point(**{**value, **arrays, "regime": Regime(value["regime"])})
