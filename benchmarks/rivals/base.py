"""The parts that the rivals share. What each of them promises: `transfer.evaluate.rankers.Ranker`.

Legend: n rows of a call, P columns of the flat features.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.data.dataset import Dataset
from transfer.errors import TransferError
from transfer.evaluate.rankers import Ranker, Rows
from transfer.features.flat import flat_inputs


def flat_features(dataset: Dataset, rows: Rows) -> NDArray[np.float32]:
    """Our features without their sequence, for models that read one vector a candidate.

    Args:
        dataset: Candidates.
        rows: Row numbers.

    Returns:
        (n, P), see `transfer.features.flat.flat_inputs`.
    """
    has_place = dataset.features.place_rows is not None
    return flat_inputs(dataset.features, dataset.spec.category_sizes, rows, place=has_place)


def hold_out_workloads(dataset: Dataset, rows: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    """Part rows by workload, for choices made inside the training rows.

    Returns:
        Rows to learn from and rows of other workloads; of one workload alone everything is on both sides.
    """
    groups = np.unique(dataset.group[rows])
    if len(groups) < 2:
        return rows, rows
    count = min(len(groups) - 1, max(1, round(share * len(groups))))
    held = np.isin(dataset.group[rows], np.random.default_rng(seed).permutation(groups)[:count])
    return rows[~held], rows[held]


def need(module: str) -> Any:
    """Import an optional package.

    Raises:
        TransferError: It is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise TransferError(
            f"this baseline needs the package {module}: install the extra, "
            "`pip install 'tensor-fleet[baselines]'`"
        ) from error


def unknown_device(ranker: Ranker, device_id: str, known: Sequence[str]) -> TransferError:
    """The error for a device that a ranker was not fitted for."""
    return TransferError(
        f"{ranker.name} has not learnt device {device_id!r}; it knows: {', '.join(known) or 'none'}. "
        "Call `fit` with it first"
    )
