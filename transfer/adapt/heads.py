"""Heads of known devices as the start of a new one: which devices are alike.

Called by the strategies. Two sources of likeness: the hardware vectors, known before anything was measured,
and how well a head orders the pairs that were measured on the target. In a `part` of a dataset only the
target's visible latencies are present.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from transfer.arrays import Rows
from transfer.data.dataset import Dataset
from transfer.features.hardware import vector_distances
from transfer.model.fleet_tlp import FleetTLP, scoped_seed

#: Candidates of a new device that choose the head to start from.
_LIKENESS = 512


def with_target_head(source: FleetTLP, part: Dataset, target_device: str, *, seed: int) -> FleetTLP:
    """Copy a model and give the copy a head like the most similar source head; one that it has is kept.

    `seed` is of the head, used only where the source has no heads at all.
    """
    model = source.copy()
    if target_device not in model.device_ids:
        with scoped_seed(seed):
            model.add_head(target_device, like=most_similar_heads(source, part, target_device))
        if model.trees is not None:
            # They judge for a device by its own hardware.
            vector = part.hardware[part.column(target_device)].astype(np.float32)
            model.set_hardware(target_device, torch.from_numpy(vector))
    return model


def with_heads(
    source: FleetTLP, dataset: Dataset, rows: Rows, device_ids: Sequence[str], *, seed: int
) -> FleetTLP:
    """Copy a model, with a head for exactly these devices; a new one is like the most similar source head.

    Args:
        source: Has heads.
        dataset: Candidates of all devices.
        rows: Rows whose latencies may be seen; of a new device a random few are looked at.
        device_ids: Devices of the dataset.
        seed: Of the choice of rows.
    """
    model = source.copy()
    for device_id in device_ids:
        if device_id not in model.device_ids:
            measured = rows[np.isfinite(dataset.latency_secs[rows, dataset.column(device_id)])]
            some = np.sort(np.random.default_rng(seed).permutation(measured)[:_LIKENESS])
            model = with_target_head(model, dataset.take(some), device_id, seed=seed)
    for device_id in sorted(set(model.device_ids) - set(device_ids)):
        model.drop_head(device_id)
    return model


def most_similar_heads(source: FleetTLP, part: Dataset, target_device: str) -> tuple[str, ...]:
    """Source heads that order the target's measured pairs best; of those that tie, the nearest hardware.

    They are to be averaged into the new head; several only where hardware says nothing either.
    """
    right = ordered_pairs(source, part, target_device)
    best = max(right.values(), default=0)
    tied = [device_id for device_id, count in right.items() if count == best]
    distance = hardware_distances(part, target_device, tied)
    comparable = [device_id for device_id in tied if device_id in distance]
    if len(comparable) < len(tied):
        return tuple(tied)
    least = min(distance.values(), default=0.0)
    return tuple(device_id for device_id in tied if distance[device_id] <= least)


def ordered_pairs(source: FleetTLP, part: Dataset, target_device: str) -> dict[str, int]:
    """Pairs of the target's measured candidates that each source head puts in the right order."""
    rows = part.rows_of(target_device)
    latency = part.latency_secs[rows, part.column(target_device)]
    same = part.group[rows][:, None] == part.group[rows][None, :]
    faster = same & (latency[:, None] < latency[None, :])
    features = part.features.take(rows)
    right = {}
    for device_id in source.device_ids:
        if device_id != target_device:
            scores = source.score(features, device_id)
            right[device_id] = int((faster & (scores[:, None] > scores[None, :])).sum())
    return right


def hardware_distances(dataset: Dataset, target_device: str, devices: Sequence[str]) -> dict[str, float]:
    """Distance of the hardware vectors to the target's, each slot in units of its spread over all devices.

    Devices that the dataset lacks are left out.
    """
    apart = vector_distances(dataset.hardware, dataset.column(target_device))
    return {
        device_id: float(apart[dataset.column(device_id)])
        for device_id in devices
        if device_id in dataset.device_ids
    }
