"""Teach the trees of a model: one set for all devices, told apart by hardware.

Called by `transfer.train` when the network is ready, and by strategies that learn from the sources' records
again. The label is the logarithm of the relative speed less its mean over the candidates of the workload on
the device: trees see no workload, so its level is nothing that they could know.

Trees and network err differently: on records of four ISA profiles (half of the workloads held out) pairs in
the right order were .754 for the network, .758 for the trees and .768 for both, top-1 .789, .794 and .821.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from transfer.dataset import Dataset
from transfer.losses import MIN_LABEL
from transfer.model import MultiTaskTLP
from transfer.splits import few_places
from transfer.training_config import TrainConfig
from transfer.trees import Trees, tree_inputs

Rows = NDArray[np.int64]

#: Most candidates of a workload on a device, and most rows in all: bounds time and memory.
_MOST_OF_WORKLOAD, _MOST_ROWS = 256, 100_000
#: A candidate counts as its relative speed, this at least: which of the slow ones is slower matters little.
_LEAST_WEIGHT = 0.1
_SETTINGS = {
    "objective": "reg:squarederror",
    "tree_method": "hist",
    "max_depth": 8,
    "eta": 0.04,
    "subsample": 0.8,
    "colsample_bytree": 0.5,
    "base_score": 0.0,
    "verbosity": 0,
}


def teach_trees(
    model: MultiTaskTLP,
    dataset: Dataset,
    rows: Rows,
    device_ids: Sequence[str],
    row_weights: NDArray[np.floating] | None = None,
    *,
    config: TrainConfig,
    seed: int,
) -> None:
    """Give a model trees, in place, and tell it the hardware of its devices.

    Args:
        model: On the CPU; what it had of trees is replaced, its network is not changed.
        dataset: Candidates of all devices.
        rows: Row numbers to learn from; labels are relative to the best latency among them.
        device_ids: Devices with a head whose labels are used.
        row_weights: (n,) weight of each row, default 1.
        config: How many trees (none takes away those that there are), on how many threads.
        seed: Of everything random.
    """
    model.trees = None
    if not config.trees:
        return
    random = np.random.default_rng(seed)
    labels = dataset.labels(rows)
    given = np.ones(len(rows)) if row_weights is None else row_weights.astype(np.float64)
    parts: list[tuple[NDArray[Any], ...]] = []
    for device_id in device_ids:
        column = dataset.column(device_id)
        model.set_hardware(device_id, torch.from_numpy(dataset.hardware[column].astype(np.float32)))
        able = np.flatnonzero(np.isfinite(labels[:, column]) & (given > 0))
        chosen = able[few_places(dataset.group[rows[able]], _MOST_OF_WORKLOAD, random)]
        if not len(chosen):
            continue
        speed = np.maximum(labels[chosen, column], MIN_LABEL)
        x = tree_inputs(dataset.features.summary[rows[chosen]], dataset.hardware[column])
        weight = given[chosen] * np.maximum(speed, _LEAST_WEIGHT)
        parts.append((x, np.log(speed), _centred(np.log(speed), dataset.group[rows[chosen]]), weight))
    if not parts:
        return
    whole = [np.concatenate(several) for several in zip(*parts, strict=True)]
    if len(whole[0]) > _MOST_ROWS:
        kept = np.sort(random.permutation(len(whole[0]))[:_MOST_ROWS])
        whole = [values[kept] for values in whole]
    x, log_speed, wanted, weight = whole
    raw = grow(x, wanted, weight, count=config.trees, seed=seed, threads=config.threads)
    model.trees = Trees(raw, float(log_speed.mean()))


def grow(
    x: NDArray[np.float32],
    wanted: NDArray[np.float64],
    weight: NDArray[np.float64],
    *,
    count: int,
    seed: int,
    threads: int = 1,
) -> bytes:
    """Fit trees to (n, P) inputs, (n,) wanted values and weights; gives what `Trees` keeps."""
    import xgboost

    table = xgboost.QuantileDMatrix(x, label=wanted, weight=weight, nthread=threads)
    settings = {**_SETTINGS, "seed": seed, "nthread": threads}
    return bytes(xgboost.train(settings, table, num_boost_round=count).save_raw("ubj"))


def _centred(values: NDArray[np.float64], group: NDArray[np.int32]) -> NDArray[np.float64]:
    """Values less the mean of their workload."""
    count = np.bincount(group)
    return np.asarray(values - (np.bincount(group, values) / np.maximum(1, count))[group])


__all__ = ["grow", "teach_trees"]
