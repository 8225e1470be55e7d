"""The nearest device's head, unchanged: the simplest form of transfer, and the least to beat.

Transfer-Tuning (Gibson and Cano, PACT'22) replays the schedules of a similar workload or device; here the
order that a similar device's head gives is taken as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from transfer.adapt.base import Adapted, FewShotTask
from transfer.adapt.heads import most_similar_heads
from transfer.arrays import Singles
from transfer.features.hardware import hardware_table, vector_distances
from transfer.model.fleet_tlp import FleetTLP


@dataclass(frozen=True, slots=True)
class Nearest:
    """Copy the head of the device that orders the few-shot set best; with k = 0, of the nearest hardware."""

    name: str = "nearest"
    least_samples: int = 0

    def adapt(self, task: FewShotTask) -> Adapted:
        """Choose and copy; nothing is trained. See `Strategy.adapt`."""
        model, target = task.need_source(self.name).copy(), task.target
        like = most_similar_heads(model, task.visible(need_few_shot=False), target)
        # Of several the first: heads have hidden units of their own, so their mean is none of them.
        if target not in model.device_ids:
            model.add_head(target, like=like[0])
        return Adapted(device_id=target, model=model, notes={"sources": [like[0]]})


def day_zero_head(
    source: FleetTLP,
    target_device: str,
    vector: Singles,
    hardware: Mapping[str, Singles],
    distances: Mapping[str, float] | None = None,
) -> Adapted:
    """Give a copy of a model a head for a device that has measured nothing but reference programs.

    No record of the devices with heads is at hand: only what came with the model. The most alike device's
    head is taken, and the trees are told the target's own hardware.

    Args:
        source: Has heads.
        target_device: The new device.
        vector: Its hardware vector.
        hardware: Those of the devices with heads.
        distances: Distance of the target to each of them by fingerprint; that of the hardware vectors counts
            where None, or where one is missing.

    Returns:
        The head; its notes name the most alike device (`sources`), and by what it is alike (`likeness`).

    """
    model = source.copy()
    sources = [device_id for device_id in model.device_ids if device_id in hardware]
    by, known = "fingerprint", distances or {}
    near = {device_id: known[device_id] for device_id in sources if device_id in known}
    if len(near) < len(sources):
        by = "hardware"
        table = hardware_table([vector, *(hardware[device_id] for device_id in sources)])
        near = dict(zip(sources, vector_distances(table, 0)[1:].tolist(), strict=True))
    like = min(near, key=lambda device_id: (near[device_id], device_id), default=model.device_ids[0])
    model.add_head(target_device, like=like)
    if model.trees is not None:
        # Measured numbers that nobody measured here are left out: they would be read as zeros.
        model.set_hardware(target_device, torch.from_numpy(hardware_table([vector])[0].copy()))
    notes = {
        "sources": [like],
        "likeness": by,
        "distance": {device_id: round(apart, 4) for device_id, apart in near.items()},
    }
    return Adapted(device_id=target_device, model=model.eval(), notes=notes)
