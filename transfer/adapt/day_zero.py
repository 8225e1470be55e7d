"""A head from a model alone: no measurement of the target, and no record of its source devices at hand.

The other strategies read a dataset. Here there is only what came with a model: hardware vectors of its
devices, and their latencies on the reference programs. The most alike device's head is taken, and the trees
are told the target's own hardware. Called by `fleet.models.shipped_model`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from transfer.adapt.base import Adapted, need_source
from transfer.adapt.heads import vector_distances
from transfer.features.hardware import hardware_table
from transfer.model.fleet_tlp import FleetTLP

Vector = NDArray[np.float32]


def day_zero_head(
    source: FleetTLP,
    target_device: str,
    vector: Vector,
    hardware: Mapping[str, Vector],
    distances: Mapping[str, float] | None = None,
) -> Adapted:
    """Give a copy of a model a head for a device that has measured nothing but reference programs.

    Args:
        source: Has heads.
        target_device: The new device.
        vector: Its hardware vector.
        hardware: Those of the devices with heads.
        distances: Distance of the target to each of them by fingerprint; that of the hardware vectors counts
            where None, or where one is missing.

    Returns:
        The head; its notes name the most alike device (`sources`), and by what it is alike (`likeness`).

    Raises:
        TransferError: The model has no head.
    """
    model = need_source(source, "day_zero").copy()
    sources = [one for one in model.device_ids if one in hardware]
    by = "fingerprint"
    near = {one: distances[one] for one in sources if one in distances} if distances else {}
    if len(near) < len(sources):
        by = "hardware"
        table = hardware_table([vector, *(hardware[one] for one in sources)])
        near = dict(zip(sources, vector_distances(table, 0)[1:].tolist(), strict=True))
    like = min(near, key=lambda one: (near[one], one)) if near else model.device_ids[0]
    model.add_head(target_device, like=like)
    if model.trees is not None:
        # Measured numbers that nobody measured here are left out: they would be read as zeros.
        model.set_hardware(target_device, torch.from_numpy(hardware_table([vector])[0].copy()))
    notes = {"sources": [like], "likeness": by, "distance": {one: round(near[one], 4) for one in near}}
    return Adapted(device_id=target_device, model=model.eval(), notes=notes)
