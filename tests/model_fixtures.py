"""A small synthetic dataset with a known optimum, for the tests of models, training and adaptation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from agents.records import CandidateId, DeviceId, WorkloadId
from transfer.data.dataset import Dataset
from transfer.data.splits import Split
from transfer.features.blocks import CPU_LAYOUT, FeatureBlock
from transfer.features.extractor import FeatureSpec
from transfer.model.encoder import ModelSizes
from transfer.model.fleet_tlp import FleetTLP, model_config, scoped_seed
from transfer.train.rows import TrainConfig

SPEC = FeatureSpec(
    categories=(("kind", 6), ("role", 4)),
    number_names=("a", "b", "c"),
    max_steps=7,
    workload_names=("size", "depth"),
    hardware_names=("cores", "width"),
    summary_names=("s",),
)
SIZES = ModelSizes(
    category_width=4,
    step_width=16,
    attention_heads=2,
    trunk_width=24,
    head_width=8,
    dropout=0.1,
)
CONFIG = TrainConfig(epochs=15, workloads_per_batch=3, learning_rate=5e-3, sizes=SIZES)
DEVICES = ("cpu.a", "cpu.b", "cpu-new")
#: Dense arrays of a block.
DENSE = ("categories", "numbers", "mask", "workload", "summary")


def make_block(n: int, seed: int = 0, *, steps: int = SPEC.max_steps) -> FeatureBlock:
    """Random features of `n` candidates with sequences of 2 to `steps` steps."""
    random = np.random.default_rng(seed)
    mask = np.arange(steps)[None, :] < random.integers(2, steps + 1, size=n)[:, None]
    categories = np.stack([random.integers(1, size, (n, steps)) for size in SPEC.category_sizes], axis=2)
    numbers = random.normal(size=(n, steps, 3)) * np.array([1.0, 30.0, 0.1])
    return dense_block(
        categories=np.where(mask[..., None], categories, 0).astype(np.int16),
        numbers=np.where(mask[..., None], numbers, 0).astype(np.float32),
        mask=mask,
        workload=random.normal(size=(n, 2)).astype(np.float32),
        summary=random.normal(size=(n, 1)).astype(np.float32),
    )


def dense_block(
    *,
    categories: NDArray[Any],
    numbers: NDArray[Any],
    mask: NDArray[np.bool_],
    workload: NDArray[np.float32],
    summary: NDArray[np.float32],
) -> FeatureBlock:
    """A block of dense arrays, each step and each workload a row of its own; steps are where `mask` is."""
    steps = np.zeros(mask.shape, dtype=np.int32)
    steps[mask] = np.arange(1, int(mask.sum()) + 1)
    # Row 0 is padding.
    return FeatureBlock(
        steps=steps,
        step_categories=np.pad(categories[mask].astype(np.int16), ((1, 0), (0, 0))),
        step_numbers=np.pad(numbers[mask].astype(np.float32), ((1, 0), (0, 0))),
        workload_rows=np.arange(len(mask), dtype=np.int32),
        workload_vectors=workload,
        summary=summary,
    )


def changed_block(block: FeatureBlock, **dense: NDArray[Any]) -> FeatureBlock:
    """The same candidates with some of the dense arrays replaced; without places and published features."""
    return dense_block(**({name: getattr(block, name) for name in DENSE} | dense))


def trained(dataset: Dataset, rows: Any = None, epochs: int = CONFIG.epochs) -> FleetTLP:
    """A model of the first two devices, which learnt from some rows or from all."""
    from transfer.train.training import train

    rows = np.arange(len(dataset)) if rows is None else rows
    return train(dataset, rows, config=replace(CONFIG, epochs=epochs), seed=0, devices=DEVICES[:2]).model


def untrained(*devices: str) -> FleetTLP:
    """A model with random weights."""
    with scoped_seed(1):
        model = FleetTLP(model_config(SPEC, SIZES), devices)
    model.fit_scaler(make_block(50, 7))
    return model.eval()


def assert_same_features(first: FeatureBlock, second: FeatureBlock) -> None:
    """Equal to the last bit, whatever their tables are."""
    for name in DENSE:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)


def same_weights(first: nn.Module, second: nn.Module) -> bool:
    """Whether two models are equal to the last bit."""
    left, right = first.state_dict(), second.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def with_latency(dataset: Dataset, rows: Any, device_id: str | None, secs: Any) -> Dataset:
    """The dataset with other seconds in some rows, of one device or (None) of all."""
    latency = dataset.latency_secs.copy()
    latency[rows, slice(None) if device_id is None else dataset.column(device_id)] = secs
    return replace(dataset, latency_secs=latency)


def of_devices(dataset: Dataset, *device_ids: str) -> Dataset:
    """The same candidates with the measurements of some devices only."""
    columns = [dataset.column(device_id) for device_id in device_ids]
    return replace(
        dataset,
        device_ids=tuple(dataset.device_ids[column] for column in columns),
        latency_secs=dataset.latency_secs[:, columns],
        failed=dataset.failed[:, columns],
        hardware=dataset.hardware[columns],
    )


def published(dataset: Dataset) -> Dataset:
    """The dataset with stand-ins for published features: enough of the real ones to learn from."""
    block = dataset.features
    steps = np.zeros((len(dataset), CPU_LAYOUT.steps, CPU_LAYOUT.width), dtype=np.float32)
    dense = np.concatenate([block.categories, block.numbers], axis=2)
    steps[:, : dense.shape[1], : dense.shape[2]] = dense
    return replace(dataset, features=replace(block, published=steps))


def folds_of(dataset: Dataset) -> list[Split]:
    """Every workload held out once, in three folds."""
    held = [dataset.group % 3 == fold for fold in range(3)]
    return [
        Split(name=f"fold {fold} of 3", train=np.flatnonzero(~test), test=np.flatnonzero(test))
        for fold, test in enumerate(held, 1)
    ]


def make_dataset(workloads: int = 8, candidates: int = 10, seed: int = 0) -> Dataset:
    """A dataset whose latencies follow from the features, alike but not equal on all devices.

    Every tenth latency is missing, and the candidates of a workload share its vector.
    """
    random = np.random.default_rng(seed)
    n = workloads * candidates
    block = make_block(n, seed)
    group = np.repeat(np.arange(workloads), candidates).astype(np.int32)
    vectors = random.normal(size=(workloads, 2)).astype(np.float32)
    block = replace(block, workload_rows=group, workload_vectors=vectors)
    steps = block.mask.sum(axis=1)
    shared = block.summary[:, 0] + block.numbers[..., 0].sum(axis=1) / steps
    own = (block.categories[..., 0] == 2).sum(axis=1) / steps
    tilt = np.array([0.2, 0.4, 0.8])
    log_latency = 0.7 * shared[:, None] + tilt * own[:, None] + vectors[group, :1] * 2
    latency = np.exp(log_latency - 8 + random.normal(size=(n, 3)) * 0.02)
    latency[random.random((n, 3)) < 0.1] = np.nan
    return Dataset(
        features=block,
        spec=SPEC,
        candidate_ids=tuple(CandidateId(f"c{i:04d}") for i in range(n)),
        workload_ids=tuple(WorkloadId(f"w{i:02d}") for i in range(workloads)),
        group=group,
        device_ids=tuple(DeviceId(d) for d in DEVICES),
        latency_secs=latency,
        failed=np.isnan(latency) & (random.random((n, 3)) < 0.3),
        weight=np.ones(workloads),
        hardware=random.normal(size=(3, 2)).astype(np.float32),
    )
