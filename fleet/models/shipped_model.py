"""The model that comes with the program: a head at once, on a machine that has no model of its own yet.

One folder a family below `fleet/shipped`, as `transfer.model.checkpoint` keeps models, with `devices.json`
beside: the devices whose heads it has, and their latencies on the reference programs. Made by
`benchmarks.pretrained`. Its heads become versions by `fleet.models.shipped_heads`. Imports torch when called.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from agents.codec import device_from_json
from agents.errors import AgentError
from agents.records import (
    CandidateId,
    Descriptor,
    DeviceId,
    DeviceSpec,
    Family,
    WorkloadId,
    as_json_dict,
    canonical_json,
)
from fleet.errors import FleetError
from fleet.json_types import Json
from transfer.checked_folder import MANIFEST_NAME

if TYPE_CHECKING:
    from transfer.adapt.base import Adapted
    from transfer.adapt.fingerprint import Fingerprint
    from transfer.model.fleet_tlp import FleetTLP

#: File with the devices of the heads.
DEVICES_NAME = "devices.json"
#: Key of manifests with the name of the shipped model that a head is of.
SHIPPED_KEY = "shipped"


class ShippedModelError(FleetError):
    """The shipped model is damaged, or of another release."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShippedDevice:
    """A device that the shipped model has a head of."""

    spec: DeviceSpec
    descriptor: Descriptor
    #: Seconds of the reference programs (`transfer.adapt.fingerprint`).
    fingerprint: Mapping[CandidateId, float]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShippedModel:
    """The model for a family, and what came with it."""

    name: str
    manifest: Json
    model: FleetTLP
    devices: Mapping[DeviceId, ShippedDevice]

    @property
    def trained_workloads(self) -> frozenset[WorkloadId]:
        """Workloads that it has learnt from."""
        return frozenset(map(WorkloadId, self.manifest.get("trained_workloads", ())))

    def expected(self, descriptor: Descriptor) -> Json:
        """What a first head is worth on a machine: `samples` to figures with intervals.

        They are of the devices that it has heads of, each left out in turn: alone where one has the machine's
        processor, else with all others of its processor (`unseen` is `processor` then).
        """
        processors = {device.descriptor.cpu_model for device in self.devices.values()}
        elsewhere = self.manifest.get("expected_elsewhere")
        if elsewhere and descriptor.cpu_model not in processors:
            return dict(elsewhere)
        return dict(self.manifest.get("expected", {}))

    def unlike(self, descriptor: Descriptor) -> str:
        """What of a machine the model has never seen, one sentence; empty where it knows such machines."""
        architectures = sorted({device.descriptor.arch for device in self.devices.values()})
        if descriptor.arch in architectures:
            return ""
        return (
            f"the shipped model has seen {', '.join(architectures)} only, never {descriptor.arch}: expect "
            "less of its head, and measure samples"
        )

    def distances(self, fingerprint: Fingerprint) -> dict[str, float]:
        """Distance of a device to those of the heads, nearest first; none where too few programs ran."""
        from transfer.adapt.fingerprint import Fingerprint, distances

        others = [
            Fingerprint(device_id=device_id, latency_secs=device.fingerprint, tried=len(device.fingerprint))
            for device_id, device in self.devices.items()
        ]
        return {device_id: round(value, 4) for device_id, value in distances(fingerprint, others).items()}

    def head(
        self, spec: DeviceSpec, descriptor: Descriptor, fingerprint: Fingerprint | None = None
    ) -> Adapted:
        """A head for a device that no record is known of, by its fingerprint if it measured one."""
        from transfer.adapt.nearest import day_zero_head
        from transfer.features.hardware import hardware_vector

        hardware = {
            str(device_id): hardware_vector(device.spec, device.descriptor)
            for device_id, device in self.devices.items()
        }
        near = None if fingerprint is None else self.distances(fingerprint)
        return day_zero_head(self.model, spec.device_id, hardware_vector(spec, descriptor), hardware, near)


def shipped_folder(family: Family) -> Path:
    """Where the shipped model of a family is; nothing need be there."""
    return Path(str(resources.files("fleet").joinpath("shipped", family.value)))


def has_shipped(family: Family) -> bool:
    """Whether this release ships a model of a family. Reads nothing."""
    return (shipped_folder(family) / MANIFEST_NAME).is_file()


def read_shipped(family: Family, folder: Path | None = None) -> ShippedModel | None:
    """Read the shipped model of a family, from `folder` or that of this release; None where none is shipped.

    Raises:
        ShippedModelError: It is damaged, or reads other features than this release makes.
    """
    from transfer.errors import TransferError
    from transfer.features.extractor import DEFAULT_SPEC
    from transfer.model import checkpoint

    folder = folder or shipped_folder(family)
    if not (folder / MANIFEST_NAME).is_file():
        return None
    try:
        model, manifest = checkpoint.load_fleet_tlp(folder, DEFAULT_SPEC)
        raw = checkpoint.read_beside(folder, manifest, DEVICES_NAME)
        devices = {
            DeviceId(device_id): _device(entry) for device_id, entry in json.loads(raw or b"{}").items()
        }
    except (
        TransferError,
        AgentError,
        AttributeError,
        KeyError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise ShippedModelError(
            f"the model that comes with the program cannot be used ({error}); install the program again, or "
            "go without it: --set onboarding.shipped=false"
        ) from error
    name = str(manifest.get(SHIPPED_KEY, family.value))
    return ShippedModel(name=name, manifest=manifest, model=model, devices=devices)


def write_shipped(
    folder: Path, model: FleetTLP, manifest: Json, devices: Mapping[DeviceId, ShippedDevice]
) -> None:
    """Write a model with a head for each of some devices as it is shipped; the folder must not be there.

    The manifest is as of versions, with the model's name under `SHIPPED_KEY`, and `expected`; also
    `expected_elsewhere` where processors of several models measured (`ShippedModel.expected`).
    """
    from transfer.model import checkpoint

    entries = {
        str(name): {
            "spec": as_json_dict(device.spec),
            "descriptor": as_json_dict(device.descriptor),
            "fingerprint": {str(program): secs for program, secs in device.fingerprint.items()},
        }
        for name, device in devices.items()
    }
    checkpoint.save(folder, model, manifest, beside={DEVICES_NAME: canonical_json(entries).encode()})


def _device(entry: Json) -> ShippedDevice:
    spec, descriptor = device_from_json(entry["spec"], entry["descriptor"])
    if descriptor is None:
        raise ValueError("a device without a descriptor")
    programs = {CandidateId(candidate_id): float(secs) for candidate_id, secs in entry["fingerprint"].items()}
    return ShippedDevice(spec=spec, descriptor=descriptor, fingerprint=programs)
