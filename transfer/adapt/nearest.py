"""The nearest device's head, unchanged: the simplest form of transfer, and the least to beat.

Transfer-Tuning (Gibson and Cano, PACT'22) replays the schedules of a similar workload or device; here the
order that a similar device's head gives is taken as it is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from agents.records import CandidateId, DeviceId, Outcome, Record, Workload
from transfer.adapt.base import Adapted, FewShotTask
from transfer.adapt.heads import most_similar_heads
from transfer.arrays import Singles
from transfer.features.hardware import hardware_table, vector_distances
from transfer.model.fleet_tlp import FleetTLP

# A device described by its own latencies on fixed reference programs: its fingerprint.
#
# The programs are fixed, so every device of a family measures the same ones: some fixed layers of
# well-known networks, and of each the first candidates that fixed seeds draw in the family's design space.
# What a probe reads off a host (caches, vector width) leaves open how fast it really is at which kind of
# program; these latencies say it (HELP, NeurIPS'21). Called by onboarding, which measures them first of
# all; knows nothing of how they are measured.

#: Origin of the records of reference programs.
ORIGIN = "fingerprint"
#: Networks that the reference workloads are layers of, and the layers by name: a dense, a pointwise and a
#: depthwise convolution, large and small, and products of matrices. Each runs in a millisecond or less on a
#: core of an x86 of 3 GHz once it is scheduled well.
NETWORKS = ("mobilenet-v2", "bert-tiny", "resnet-50")
WORKLOADS = (
    "C2D_1x56x56x64x64x1x1x0",
    "C2D_1x14x14x1024x256x1x1x0",
    "C2D_1x56x56x96x24x1x1x0",
    "C2D_1x7x7x160x960x1x1x0",
    "DEP_1x56x56x144x3x1x1",
    "GMM_1x128x128x128",
)
#: Candidates of each workload, and the seed that draws them.
PER_WORKLOAD = 3
SEED = 20_240
#: Programs that two devices must share to be compared.
LEAST_SHARED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Latencies of one device on reference programs; those that failed there are missing."""

    device_id: DeviceId
    #: Seconds by program.
    latency_secs: Mapping[CandidateId, float]
    #: Programs that were tried, failed ones too.
    tried: int

    @property
    def is_usable(self) -> bool:
        """Whether enough programs ran to compare the device with another."""
        return len(self.latency_secs) >= LEAST_SHARED


def choose_workloads(workloads: Iterable[Workload]) -> list[Workload]:
    """The reference workloads among those of `NETWORKS`, in the order of `WORKLOADS`.

    A replay or an old host may lack some: the fingerprint is then made of fewer.
    """
    by_name = {workload.name: workload for workload in workloads}
    return [by_name[name] for name in WORKLOADS if name in by_name]


def from_records(
    device_id: DeviceId, records: Iterable[Record], programs: Collection[CandidateId] = ()
) -> Fingerprint:
    """The fingerprint that the records of one device hold; the fastest of several measurements counts.

    Args:
        device_id: The device.
        records: Its records.
        programs: Reference programs, whatever their records' origin (one may have been measured as an
            ordinary candidate before); where empty, all records of origin `fingerprint` count.
    """
    fastest_secs: dict[CandidateId, float] = {}
    tried: set[CandidateId] = set()
    for record in records:
        is_reference = record.candidate_id in programs or record.origin == ORIGIN
        if not is_reference or record.device_id != device_id:
            continue
        tried.add(record.candidate_id)
        if record.outcome is Outcome.OK and record.run_secs:
            fastest_secs[record.candidate_id] = min(
                record.latency_secs, fastest_secs.get(record.candidate_id, math.inf)
            )
    return Fingerprint(device_id=device_id, latency_secs=fastest_secs, tried=len(tried))


def distance(target: Fingerprint, other: Fingerprint) -> float | None:
    """Standard deviation of the logarithm of the ratio of two devices' latencies.

    0 where one is the other, only faster or slower throughout. About the relative error of taking one's
    latencies for the other's. None where fewer than `LEAST_SHARED` programs ran on both.
    """
    programs = sorted(target.latency_secs.keys() & other.latency_secs.keys())
    if len(programs) < LEAST_SHARED:
        return None
    ratios = [math.log(target.latency_secs[name]) - math.log(other.latency_secs[name]) for name in programs]
    return float(np.std(ratios, ddof=1))


def distances(target: Fingerprint, others: Iterable[Fingerprint]) -> dict[str, float]:
    """Distance of the target to each device that it can be compared with, nearest first."""
    distance_by_device = {
        str(other.device_id): apart
        for other in others
        if other.device_id != target.device_id and (apart := distance(target, other)) is not None
    }
    return dict(sorted(distance_by_device.items(), key=lambda pair: (pair[1], pair[0])))


def drifted(before: Fingerprint, now: Fingerprint, within: float) -> dict[CandidateId, float]:
    """Programs whose seconds changed by more than a share: the reference programs as canaries.

    `within` is the largest |now / before - 1| that is no change. Gives the change of each, as a share.
    """
    changes = {
        candidate_id: now.latency_secs[candidate_id] / before.latency_secs[candidate_id] - 1
        for candidate_id in before.latency_secs.keys() & now.latency_secs.keys()
    }
    return {candidate_id: change for candidate_id, change in sorted(changes.items()) if abs(change) > within}


class Nearest:
    """Copy the head of the device that orders the few-shot set best; with k = 0, of the nearest hardware."""

    name = "nearest"
    least_samples = 0

    def adapt(self, task: FewShotTask) -> Adapted:
        """Choose and copy; nothing is trained. See `Strategy.adapt`."""
        model, target = task.need_source(self.name).copy(), task.target
        like = most_similar_heads(model, task.visible(need_few_shot=False), target)
        # Of several the first: heads have hidden units of their own, so their mean is none of them.
        if target not in model.device_ids:
            model.add_head(target, like=like[:1])
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
    model.add_head(target_device, like=(like,))
    if model.trees is not None:
        # Measured numbers that nobody measured here are left out: they would be read as zeros.
        model.set_hardware(target_device, torch.from_numpy(hardware_table([vector])[0].copy()))
    notes = {
        "sources": [like],
        "likeness": by,
        "distance": {device_id: round(apart, 4) for device_id, apart in near.items()},
    }
    return Adapted(device_id=target_device, model=model.eval(), notes=notes)
