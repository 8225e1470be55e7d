"""Keeps the points of finished cases, so that a curve that was stopped goes on where it was.

One JSON file a case, under a hash of everything that its points follow from but the code. Called by
`transfer.onboarding_curve`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.records import canonical_json, content_hash
from transfer.dataset import Dataset
from transfer.onboarding_cases import Case, Regime
from transfer.training_state import digest

_ARRAYS = ("groups", "top1", "top5", "tau")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Point:
    """How one contender did with k samples on the test rows of one case; arrays are (G,)."""

    contender: str
    regime: Regime
    target: str
    split: str
    seed: int
    #: Samples asked for; None for all there were.
    k: int | None
    #: Samples that were measured.
    measured: int
    groups: NDArray[np.int32]
    top1: NDArray[np.float64]
    top5: NDArray[np.float64]
    tau: NDArray[np.float64]
    #: Wall seconds of adapting, without the model of the sources and without scoring.
    seconds: float
    notes: dict[str, Any] = field(default_factory=dict)


class KeptPoints:
    """Points of finished cases in a folder.

    Args:
        folder: Made when something is kept.
        about: What was run, as JSON values: contenders, samples, settings.
    """

    def __init__(self, folder: Path, about: Any) -> None:
        self._folder = folder
        self._about = canonical_json(about)

    def get(self, dataset: Dataset, case: Case) -> list[Point] | None:
        """Points of a case; None where it did not run, or its file is damaged: it runs again."""
        try:
            values = json.loads(self._path(dataset, case).read_text())
            return [_point(value) for value in values]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, dataset: Dataset, case: Case, points: Sequence[Point]) -> None:
        """Keep the points of a case; they appear whole or not at all."""
        path = self._path(dataset, case)
        values = []
        for point in points:
            value = asdict(point)
            values.append({**value, **{name: value[name].tolist() for name in _ARRAYS}})
        beside = path.with_suffix(f".{os.getpid()}.part")
        self._folder.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(values, default=float))
        beside.replace(path)

    def _path(self, dataset: Dataset, case: Case) -> Path:
        key = content_hash(
            self._about,
            canonical_json([case.regime.value, case.target, case.split, case.seed]),
            canonical_json(list(map(str, dataset.device_ids))),
            digest(case.pool, case.source_rows, case.test),
            digest(dataset.latency_secs, dataset.failed, dataset.group, dataset.features.summary),
        )
        return self._folder / f"points-{key}.json"


def _point(value: dict[str, Any]) -> Point:
    kinds = {"groups": np.int32}
    arrays = {name: np.array(value[name], dtype=kinds.get(name, np.float64)) for name in _ARRAYS}
    return Point(**{**value, **arrays, "regime": Regime(value["regime"])})


__all__ = ["KeptPoints", "Point"]
