"""Teach the trees of a model: one set for all devices, told apart by hardware.

Called by `transfer.train.training` when the network is ready, and by strategies that learn from the sources'
records again. The label is the logarithm of the relative speed less its mean over the candidates of the
workload on the device: trees see no workload, so its level is nothing that they could know.

Trees and network err differently: on records of four ISA profiles (half of the workloads held out) pairs in
the right order were .754 for the network, .758 for the trees and .768 for both, top-1 .789, .794 and .821.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from transfer.arrays import Floats, Rows, Singles
from transfer.data.dataset import Dataset
from transfer.data.splits import few_places
from transfer.features.flat import location_columns
from transfer.features.hardware import fitted_hardware
from transfer.model.fleet_tlp import FleetTLP
from transfer.model.trees import Trees, pack, tree_inputs
from transfer.train.losses import MIN_LABEL
from transfer.train.rows import TrainConfig

#: Most candidates of a workload on a device, and most rows in all: bounds time and memory.
_MOST_OF_WORKLOAD, _MOST_ROWS = 256, 100_000
#: How many times likelier a tree is offered a number of the summary, of locations, or of the hardware, than
#: one of the others, which are twice as many and say less each.
_LIKELIER = 4.0
#: A candidate counts as its relative speed, this at least: which of the slow ones is slower matters little.
_LEAST_WEIGHT = 0.1
#: Learning rate at most: more trees take smaller steps, and as many altogether (decision 49).
_ETA, _STEPS = 0.04, 20.0
#: A leaf holds this share of the weight of all rows, within bounds: leaves of few rows learn noise by heart.
_LEAF_SHARE, _LEAST_LEAF, _MOST_LEAF = 1 / 2500, 1.0, 8.0
#: Trees that go on are one for so many examples, and so many at most; fewer examples than these teach luck.
_EXAMPLES_PER_TREE, _MOST_MORE_TREES, _LEAST_EXAMPLES = 16, 200, 128
_MORE_SETTINGS = {"eta": 0.04, "min_child_weight": 1.0}
_SETTINGS = {
    "objective": "reg:squarederror",
    "tree_method": "hist",
    "max_depth": 8,
    "subsample": 0.8,
    "colsample_bytree": 0.25,
    "base_score": 0.0,
    "verbosity": 0,
}


def fit_trees(
    model: FleetTLP,
    dataset: Dataset,
    rows: Rows,
    device_ids: Sequence[str],
    *,
    config: TrainConfig,
    seed: int,
    alone: str | None = None,
) -> None:
    """Give a model trees, in place, and tell it the hardware of its devices.

    Args:
        model: On the CPU; what it had of trees is replaced, its network is not changed.
        dataset: Candidates of all devices.
        rows: Row numbers to learn from; labels are relative to the best latency among them.
        device_ids: Devices with a head whose labels are used.
        config: How many trees (none takes away those that there are), on how many threads.
        seed: Of everything random.
        alone: A device whose labels as many trees learn once more by themselves; both opinions count alike
            then, and each as much as the network.
    """
    model.trees = None
    if not config.trees:
        return
    examples = _examples(model, dataset, rows, device_ids, seed)
    if examples is None:
        return
    sets: list[Any] = [slice(None)]
    if alone is not None and (own := examples.column_of == dataset.column(alone)).any():
        sets.append(own)
    raw = b""
    for part in sets:
        # Each learns its share of the label, so that what they say together is the mean of both.
        raw = grow(
            examples.x[part],
            examples.target[part] / len(sets),
            examples.weight[part],
            examples.columns,
            count=config.trees,
            seed=seed,
            threads=config.threads,
            beside=raw,
        )
    model.trees = Trees(pack(raw), float(examples.log_speed.mean()), weight=len(sets))


def can_continue(dataset: Dataset, rows: Rows, device_ids: Sequence[str]) -> bool:
    """Whether some devices measured enough among some rows for trees to go on with."""
    columns = [dataset.column(device_id) for device_id in device_ids]
    return int(np.isfinite(dataset.latency_secs[rows][:, columns]).sum()) >= _LEAST_EXAMPLES


def continue_trees(
    model: FleetTLP,
    dataset: Dataset,
    rows: Rows,
    device_ids: Sequence[str],
    *,
    threads: int,
    seed: int,
) -> int:
    """Have trees that a model has go on with what some devices measured, in place.

    What the trees say already is where boosting starts, so a few records move them little, and what they
    learnt of a thousand workloads stays. Decision 79 has what that is worth beside other ways.

    Args:
        model: On the CPU; has trees, and heads for the devices.
        dataset: Candidates of all devices.
        rows: Row numbers to learn from; labels are relative to the best latency among them.
        device_ids: Devices whose labels are used.
        threads: Of XGBoost.
        seed: Of everything random.

    Returns:
        How many trees were added: none where there is too little to learn from.
    """
    trees = model.trees
    examples = None if trees is None else _examples(model, dataset, rows, device_ids, seed)
    if trees is None or examples is None or len(examples.target) < _LEAST_EXAMPLES:
        return 0
    count = min(_MOST_MORE_TREES, len(examples.target) // _EXAMPLES_PER_TREE)
    # The level of a workload is nothing that trees could know: what they say of it is no error.
    said = trees.margins(examples.x)
    target = examples.target + said - _centred(said, examples.place)
    model.trees = extended(
        trees, examples.x, target, examples.weight, examples.columns, count=count, seed=seed, threads=threads
    )
    return count


def extended(
    trees: Trees,
    x: Singles,
    target: Floats,
    weight: Floats,
    columns: Floats | None = None,
    *,
    count: int,
    seed: int,
    threads: int = 1,
) -> Trees:
    """Trees with `count` more, fitted to what they leave of the target. Arguments are those of `grow`."""
    settings = {**_MORE_SETTINGS, "seed": seed, "nthread": threads}
    raw = _boosted(trees.booster(), x, target, weight, columns, count, settings, from_zero=False)
    return Trees(pack(raw), float(trees.offset), float(trees.weight))


@dataclass(frozen=True, slots=True, eq=False)
class _Examples:
    """What trees learn from: n candidates, each once for each device that measured it."""

    #: (n, P + H) what the trees read.
    x: Singles
    #: (n,) column of the device in the dataset, and number of workload and device together.
    column_of: Rows
    place: Rows
    #: (n,) logarithm of the relative speed; the same less its mean over the workload on the device.
    log_speed: Floats
    target: Floats
    weight: Floats
    #: (P + H,) how likely each number is offered to a tree beside the others.
    columns: Floats


def _examples(
    model: FleetTLP, dataset: Dataset, rows: Rows, device_ids: Sequence[str], seed: int
) -> _Examples | None:
    """Gather what some devices measured, and tell the model their hardware; None where nobody measured."""
    random = np.random.default_rng(seed)
    labels = dataset.labels(rows)
    parts: list[tuple[NDArray[Any], ...]] = []
    for device_id in device_ids:
        column = dataset.column(device_id)
        model.set_hardware(device_id, torch.from_numpy(dataset.hardware[column].astype(np.float32)))
        able = np.flatnonzero(np.isfinite(labels[:, column]))
        chosen = able[few_places(dataset.group[rows[able]], _MOST_OF_WORKLOAD, random)]
        if not len(chosen):
            continue
        log_speed = np.log(np.maximum(labels[chosen, column], MIN_LABEL))
        weight = np.maximum(np.exp(log_speed), _LEAST_WEIGHT)
        target = _centred(log_speed, dataset.group[rows[chosen]])
        parts.append((rows[chosen], np.full(len(chosen), column), log_speed, target, weight))
    if not parts:
        return None
    # Thinned before flat features are made: those of a million records would take gigabytes.
    whole = [np.concatenate(several) for several in zip(*parts, strict=True)]
    if len(whole[0]) > _MOST_ROWS:
        sampled = np.sort(random.permutation(len(whole[0]))[:_MOST_ROWS])
        whole = [values[sampled] for values in whole]
    row, column_of, log_speed, target, weight = whole
    # A candidate stands there once for each device that measured it.
    alike, place = np.unique(row, return_inverse=True)
    flat = model.flat(dataset.features, alike)
    hardware = dataset.hardware
    if model.trees is not None:
        hardware = fitted_hardware(hardware, model.trees.input_count() - flat.shape[1])
    x = tree_inputs(flat[place], hardware[column_of])
    columns = np.ones(x.shape[1])
    behind = flat.shape[1] - location_columns(model.config.number_size)
    columns[: dataset.features.summary.shape[1]] = columns[behind:] = _LIKELIER
    return _Examples(
        x=x,
        column_of=column_of,
        place=dataset.group[row] * np.int64(len(dataset.device_ids)) + column_of,
        log_speed=log_speed,
        target=target,
        weight=weight,
        columns=columns,
    )


def grow(
    x: Singles,
    target: Floats,
    weight: Floats,
    columns: Floats | None = None,
    *,
    count: int,
    seed: int,
    threads: int = 1,
    beside: bytes = b"",
) -> bytes:
    """Fit trees; gives what `pack` makes smaller for `Trees`.

    Inputs `x` are (n, P), `target` values and `weight` (n,). `columns` (P,) tell how likely each column is
    offered to a tree beside the others, by default alike. `beside` are trees that the new ones are put
    beside; these learn as if there were none.
    """
    leaf = min(_MOST_LEAF, max(_LEAST_LEAF, float(weight.sum()) * _LEAF_SHARE))
    settings = {"eta": min(_ETA, _STEPS / count), "min_child_weight": leaf, "seed": seed, "nthread": threads}
    return _boosted(beside, x, target, weight, columns, count, settings, from_zero=True)


def _boosted(
    earlier: bytes,
    x: Singles,
    target: Floats,
    weight: Floats,
    columns: Floats | None,
    count: int,
    settings: dict[str, Any],
    *,
    from_zero: bool,
) -> bytes:
    """Earlier trees, if any, and new ones, which learn as if those said nothing (`from_zero`) or go on."""
    import xgboost

    table = xgboost.QuantileDMatrix(
        x, label=target, weight=weight, feature_weights=columns, nthread=settings["nthread"]
    )
    booster = xgboost.Booster(model_file=bytearray(earlier)) if earlier else None
    if booster is not None and from_zero:
        table.set_base_margin(-booster.inplace_predict(x, predict_type="margin"))
    trained = xgboost.train({**_SETTINGS, **settings}, table, num_boost_round=count, xgb_model=booster)
    return bytes(trained.save_raw("ubj"))


def _centred(values: Floats, group: NDArray[np.integer]) -> Floats:
    """Values less the mean of their workload."""
    count = np.bincount(group)
    return np.asarray(values - (np.bincount(group, values) / np.maximum(1, count))[group])
