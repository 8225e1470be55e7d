"""How well the validity output tells candidates that fail from those that run, on held-out workloads.

Called by `benchmarks.learning --failures`. The figure is the area under the ROC curve: the chance that of two
candidates, one that ran and one that failed, the first has the higher probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from benchmarks.harness import cell, markdown_table
from transfer.data.dataset import Dataset
from transfer.data.splits import Split, few_of_each
from transfer.train.config import TrainConfig
from transfer.train.training import train

_COLUMNS = (
    "candidates",
    "failed",
    "area",
    "area within workloads",
    "area by score",
    "error",
    "error of a guess",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailuresTold:
    """What the validity output is worth on one device, over the test rows of all splits."""

    device_id: str
    candidates: int
    failed: int
    #: Area under the ROC curve of the validity output.
    area: float
    #: The same inside a workload, mean over those with both kinds.
    area_within: float
    #: The same of the score, which never saw a failure.
    area_by_score: float
    #: Mean squared error of the probability, and of the share that fails in all as the only guess.
    error: float
    guess_error: float


def judge_failures(
    dataset: Dataset, splits: Sequence[Split], config: TrainConfig, *, seed: int, each: int
) -> list[FailuresTold]:
    """Train on each split and judge the validity outputs on its test rows.

    Args:
        dataset: With its failed candidates.
        splits: What to hold out.
        config: How the model is trained.
        seed: Of everything random.
        each: Most candidates of a workload to learn from, of those that ran and of those that failed.
    """
    found: dict[str, list[NDArray[np.float64]]] = {}
    for split in splits:
        ran = split.train[np.isfinite(dataset.latency_secs[split.train]).any(axis=1)]
        failed = split.train[dataset.failed[split.train].any(axis=1)]
        rows = np.union1d(*(few_of_each(dataset, part, each, seed) for part in (ran, failed)))
        model = train(dataset, rows, config=config, seed=seed).model
        for device_id in model.device_ids:
            if not model.tells_validity(device_id):
                continue
            column = dataset.column(device_id)
            runs = np.isfinite(dataset.latency_secs[split.test, column])
            known = runs | dataset.failed[split.test, column]
            test = split.test[known]
            if not len(test):
                continue
            features = dataset.features.take(test)
            parts = (
                dataset.group[test],
                runs[known],
                model.validity(features, device_id),
                model.score(features, device_id),
            )
            found.setdefault(device_id, []).append(np.stack(parts).astype(np.float64))
    joined = {device_id: np.concatenate(parts, axis=1) for device_id, parts in found.items()}
    return [_told(device_id, *values) for device_id, values in joined.items() if 0 < values[1].mean() < 1]


def roc_area(values: NDArray[np.float64], good: NDArray[np.bool_]) -> float:
    """Chance that a good one has a higher value than a bad one; ties count half."""
    ranks = rankdata(values)
    goods, bads = int(good.sum()), int((~good).sum())
    return float((ranks[good].sum() - goods * (goods + 1) / 2) / (goods * bads))


def _told(
    device_id: str,
    group: NDArray[np.float64],
    ran: NDArray[np.float64],
    probability: NDArray[np.float64],
    score: NDArray[np.float64],
) -> FailuresTold:
    good = ran > 0
    within = [
        roc_area(probability[group == one], good[group == one])
        for one in np.unique(group)
        if 0 < good[group == one].mean() < 1
    ]
    return FailuresTold(
        device_id=device_id,
        candidates=len(good),
        failed=int((~good).sum()),
        area=roc_area(probability, good),
        area_within=float(np.mean(within)) if within else float("nan"),
        area_by_score=roc_area(score, good),
        error=float(np.mean((probability - ran) ** 2)),
        guess_error=float(good.mean() * (1 - good.mean())),
    )


def failures_table(found: Sequence[FailuresTold]) -> list[str]:
    """As Markdown."""
    rows = []
    for one in found:
        areas = map(cell, (one.area, one.area_within, one.area_by_score))
        errors = (f"{one.error:.4f}", f"{one.guess_error:.4f}")
        rows.append((one.device_id, one.candidates, one.failed, *areas, *errors))
    return markdown_table(("device", *_COLUMNS), rows)
