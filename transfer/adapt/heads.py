"""Heads of known devices as the start of a new one: which devices are alike, and mixtures of their heads.

Called by the strategies. Two sources of likeness: the hardware vectors, known before anything was measured,
and how well a head orders the pairs that were measured on the target. In a `part` of a dataset only the
target's visible latencies are present.

Legend: N candidates, T trunk width, S source devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from transfer.data.dataset import Dataset
from transfer.features.hardware import vector_distances
from transfer.model.fleet_tlp import FleetTLP, scoped_seed
from transfer.model.inputs import torch_threads

#: Steps and rate of Adam for a head on ready representations.
_HEAD_STEPS, _HEAD_RATE = 200, 3e-3


def with_target_head(source: FleetTLP, part: Dataset, target_device: str, *, seed: int) -> FleetTLP:
    """Copy a model and give the copy a head like the most similar source head; one that it has is kept.

    `seed` is of the head, used only where the source has no heads at all.
    """
    model = source.copy()
    if target_device not in model.device_ids:
        with scoped_seed(seed):
            model.add_head(target_device, like=most_similar_heads(source, part, target_device))
        tell_hardware(model, part, target_device)
    return model


def tell_hardware(model: FleetTLP, part: Dataset, device_id: str) -> None:
    """Have a model's trees, if it has any, judge for a device by its own hardware."""
    if model.trees is not None:
        vector = part.hardware[part.column(device_id)].astype(np.float32)
        model.set_hardware(device_id, torch.from_numpy(vector))


def most_similar_heads(source: FleetTLP, part: Dataset, target_device: str) -> tuple[str, ...]:
    """Source heads that order the target's measured pairs best; of those that tie, the nearest hardware.

    They are to be averaged into the new head; several only where hardware says nothing either.
    """
    right = ordered_pairs(source, part, target_device)
    best = max(right.values(), default=0)
    tied = [device_id for device_id, count in right.items() if count == best]
    distance = hardware_distances(part, target_device, tied)
    known = [device_id for device_id in tied if device_id in distance]
    if len(known) < len(tied):
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


def likeness(distances: Mapping[str, float], bandwidth: float) -> dict[str, float]:
    """Shares by device that fall with the square of the distance and add up to 1.

    At the distance `bandwidth` a device counts exp(-1/2) of one that is the same.
    """
    squares = np.array(list(distances.values())) ** 2 / (2 * bandwidth**2)
    weight = np.exp(squares.min(initial=np.inf) - squares)
    return dict(zip(distances, (weight / weight.sum()).tolist(), strict=True))


def logits_of(model: FleetTLP, representation: Tensor, devices: Sequence[str]) -> NDArray[np.float64]:
    """(N, S) logits of some heads."""
    with torch.no_grad(), torch_threads(1):
        columns = [model.logits(representation, device_id) for device_id in devices]
    return torch.stack(columns, dim=1).double().numpy()


def fit_head(
    model: FleetTLP,
    device_id: str,
    representation: Tensor,
    wanted: NDArray[np.float64],
    *,
    seed: int,
) -> None:
    """Teach one head, in place, to give wanted (N,) logits for (N, T) representations; nothing else moves.

    The mean of two heads' weights is not the mean of what they say, since each has hidden units of its own;
    a mixture of heads must be taught. `seed` is of torch's state only: every step takes all candidates.
    """
    head = model.head(device_id)
    target = torch.from_numpy(np.ascontiguousarray(wanted, dtype=np.float32))
    with scoped_seed(seed), torch_threads(1), torch.enable_grad():
        optimizer = torch.optim.Adam(head.parameters(), lr=_HEAD_RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _HEAD_STEPS)
        for _ in range(_HEAD_STEPS):
            optimizer.zero_grad(set_to_none=True)
            error = F.huber_loss(head(representation).squeeze(-1), target)
            error.backward()  # type: ignore[no-untyped-call]  # torch publishes no type
            optimizer.step()
            schedule.step()
        for parameter in head.parameters():
            parameter.grad = None
