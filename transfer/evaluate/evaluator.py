"""The one evaluator: scores of rows held out become measures by workload, with intervals.

Whatever scores (a model, a ranker, a strategy with its samples) is fitted elsewhere: rankers by
`transfer.evaluate.compare`, an onboarding by `transfer.evaluate.cross_validation`, strategies by benchmarks.
All of them judge and resample here, so that their figures mean the same. Fits nothing.

Legend: G workloads, n rows held out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from transfer.arrays import Floats, Groups, Rows
from transfer.data.dataset import Dataset
from transfer.data.intervals import LEVEL, RESAMPLES, Estimate, Resampled, resample_ratio
from transfer.data.metrics import Metrics, evaluate_ranking, merge
from transfer.errors import TransferError


def judge(
    dataset: Dataset, device_id: str, rows: Rows, scores: Floats, *, noise_floor: float = 0.0, least: int = 2
) -> Metrics | None:
    """Every measure of scores of some rows on one device.

    Args:
        dataset: Holds what was measured.
        device_id: One of its devices.
        rows: (n,) held out.
        scores: (n,) higher is faster.
        noise_floor: Relative difference of two measurements of one program there.
        least: A workload with fewer measured rows is passed over: of one row any scores find the best.

    Returns:
        None where no workload has enough measured rows.
    """
    latency, group = _truth(dataset, device_id, rows)
    if np.bincount(group[np.isfinite(latency)]).max(initial=0) < least:
        return None
    return evaluate_ranking(scores, latency, group, dataset.weight, noise_floor=noise_floor, least=least)


def judge_folds(
    dataset: Dataset, device_id: str, folds: Iterable[tuple[Rows, Floats]], *, least: int = 2
) -> Metrics:
    """What `judge` says of several folds, put together; one without enough measured rows is passed over.

    Raises:
        TransferError: No fold has enough.
    """
    parts = [judge(dataset, device_id, rows, scores, least=least) for rows, scores in folds]
    judged_parts = [metrics for metrics in parts if metrics is not None]
    if not judged_parts:
        raise TransferError(
            f"no held-out candidate was measured on {device_id!r}; measure more workloads there"
        )
    return merge(judged_parts)


def _truth(dataset: Dataset, device_id: str, rows: Rows) -> tuple[Floats, Groups]:
    return dataset.latency_secs[rows, dataset.column(device_id)], dataset.group[rows]


def resampled(runs: Sequence[Metrics], measure: str, seed: int = 0, resamples: int = RESAMPLES) -> Resampled:
    """One of `MEASURES` over runs with other seeds, resampled over workloads and, if there are more, seeds.

    Each run is judged on the same workloads in the same order. The same `seed` gives paired draws.
    """
    above, below = (np.stack(side) for side in zip(*(run.parts(measure) for run in runs), strict=True))
    ratio = resample_ratio(above, below, seed, resamples)
    return ratio.root() if measure == "rmse" else ratio


def estimate(runs: Sequence[Metrics], measure: str, level: float = LEVEL, seed: int = 0) -> Estimate:
    """One measure with its interval; arguments as of `resampled`, and the share of draws inside."""
    return resampled(runs, measure, seed).estimate(level)


def difference(
    mine: Sequence[Metrics],
    theirs: Sequence[Metrics],
    measure: str,
    level: float = LEVEL,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Estimate:
    """`mine` less `theirs` in one measure: a paired bootstrap over workloads and the seeds both ran with."""
    runs = min(len(mine), len(theirs))
    first, second = (resampled(each[:runs], measure, seed, resamples) for each in (mine, theirs))
    return first.minus(second).estimate(level)
