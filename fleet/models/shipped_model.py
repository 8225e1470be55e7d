"""The model that comes with the program: a head at once, on a machine that has no model of its own yet.

One folder a family below `fleet/shipped`, as `transfer.model.checkpoint` keeps models, with `devices.json`
beside: the devices whose heads it has, and their latencies on the reference programs. Made by
`benchmarks.pretrained`. Its heads become versions by `ShippedHeads`. Imports torch when called.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
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
    is_live,
)
from fleet.errors import FleetError
from fleet.json_types import Json, JsonDict
from fleet.models.registry import Registry
from fleet.models.registry_file import Champion, RegistryError
from fleet.models.versions import INHERITED, ORIGIN
from fleet.store.reader import StoreReader
from transfer.arrays import Rows
from transfer.checked_folder import MANIFEST_NAME

if TYPE_CHECKING:
    from transfer.adapt.base import Adapted
    from transfer.adapt.nearest import Fingerprint
    from transfer.data.dataset import Dataset
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
    #: Seconds of the reference programs (`transfer.adapt.nearest`).
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
        from transfer.adapt.nearest import Fingerprint, distances

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


def _device(entry: Json) -> ShippedDevice:
    spec, descriptor = device_from_json(entry["spec"], entry["descriptor"])
    if descriptor is None:
        raise ValueError("a device without a descriptor")
    programs = {CandidateId(candidate_id): float(secs) for candidate_id, secs in entry["fingerprint"].items()}
    return ShippedDevice(spec=spec, descriptor=descriptor, fingerprint=programs)


# The shipped model's heads for the devices of a store: candidates for champion everywhere, until beaten.
#
# A head that serves is a version like any other. One is added only when a head takes a place, so that a
# fleet without need of them keeps none. Called by trainings, onboardings, searches and `fleet models use`.
# Imports torch when called.

#: What manifests of its heads take over from the shipped model: where it came from, and how good it is.
_COPIED_KEYS = ("candidates", "workloads", "seed", "train", "trained_workloads")


def is_servable(spec: DeviceSpec) -> bool:
    """Whether the shipped model may serve a device: a live one, for it learnt from programs like ours."""
    return is_live(spec) and has_shipped(spec.family)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShippedHead:
    """A head of the shipped model for a device of the store."""

    shipped: ShippedModel
    adapted: Adapted
    manifest: Json

    def is_of(self, manifest: Json) -> bool:
        """Whether a version is this very head."""
        names = (SHIPPED_KEY, "onboarded")
        return (
            all(manifest.get(name) == self.manifest[name] for name in names)
            and manifest.get("notes", {}).get("sources") == self.adapted.notes["sources"]
        )


class ShippedHeads:
    """Heads of the shipped models for the devices of a store, each made once. Not safe between threads.

    Where not `enabled` (`onboarding.shipped`) there are none.
    """

    def __init__(self, registry: Registry, store: StoreReader, *, enabled: bool = True) -> None:
        self.registry, self.store, self._enabled = registry, store, enabled
        self._models: dict[Family, ShippedModel | ShippedModelError] = {}
        self._heads: dict[DeviceId, ShippedHead] = {}

    def head(self, device_id: DeviceId, fingerprint: Fingerprint | None = None) -> ShippedHead | None:
        """The head for a device, by its fingerprint; by that in the store if none is given.

        Returns:
            None where no model is shipped for the device's family, where it only answers from records, or
            was never probed.

        Raises:
            ShippedModelError: The shipped model is damaged, or of another release.
        """
        entry = self.store.devices().get(device_id)
        if entry is None or entry.descriptor is None or not self._enabled or not is_servable(entry.spec):
            return None
        if device_id in self._heads and fingerprint is None:
            return self._heads[device_id]
        shipped = self.model(entry.spec.family)
        near = fingerprint or self._fingerprint(device_id, shipped)
        adapted = shipped.head(entry.spec, entry.descriptor, near)
        manifest = {
            **{key: shipped.manifest[key] for key in _COPIED_KEYS if key in shipped.manifest},
            "expected": shipped.expected(entry.descriptor),
            SHIPPED_KEY: shipped.name,
            "onboarded": device_id,
            "samples": 0,
            # It has seen nothing of this store.
            "table_version": 0,
            "strategy": "day_zero",
            "notes": dict(adapted.notes),
            "trained_heads": [],
            "train_secs": 0.0,
            "devices": list(shipped.model.device_ids),
        }
        head = ShippedHead(shipped=shipped, adapted=adapted, manifest=manifest)
        self._heads[device_id] = head
        return head

    def version(self, head: ShippedHead, other_than: str = "") -> str:
        """The version of a head: one that is there already, or a new one, which serves nobody yet.

        It is none that is called `other_than`, as that of a damaged one.
        """
        from transfer.adapt.kept import files_of

        for version in reversed(self.registry.versions()):
            with suppress(RegistryError):
                if version != other_than and head.is_of(self.registry.manifest(version)):
                    return version
        return self.registry.add(head.adapted.model, head.manifest, files_of(head.adapted))

    def serve(self, head: ShippedHead, decision: Json) -> str:
        """Let a head serve its device, by a decision as of `Registry.publish`.

        Returns:
            Its version; empty where another one serves the device, which came meanwhile or is pinned.
        """
        version = self.version(head, other_than=str(decision.get("instead_of", "")))
        return version if self.registry.publish(version, {head.manifest["onboarded"]: decision}) else ""

    def serve_first(self, device_id: DeviceId, fingerprint: Fingerprint | None = None) -> str:
        """Let the shipped model serve a device that nothing serves.

        Returns:
            The version; empty where another one serves the device, or there is no head for it.

        Raises:
            ShippedModelError: The shipped model is damaged, or of another release.
        """
        if self.registry.champion(device_id) is not None:
            return ""
        if (head := self.head(device_id, fingerprint)) is None:
            return ""
        like = ", ".join(head.adapted.notes["sources"])
        reason = (
            f"of the shipped model {head.shipped.name}, without a measurement: its head of {like}, the most "
            "alike"
        )
        # Whoever came to serve meanwhile was judged, or was chosen by hand.
        return self.serve(head, {"reason": reason, "instead_of": ""})

    def serve_instead(self, champion: Champion, why: str) -> str:
        """Let the shipped model serve a device whose champion cannot any more, for that reason.

        Returns:
            The version; empty where the champion is pinned, or there is no head for the device.

        Raises:
            ShippedModelError: The shipped model is damaged, or of another release.
        """
        if champion.pinned_at is not None or (head := self.head(champion.device_id)) is None:
            return ""
        reason = f"{why}; the head of the shipped model {head.shipped.name} serves until another is as good"
        return self.serve(head, {"reason": reason, "instead_of": champion.version})

    def boosting_start(self, device_ids: Sequence[str], dataset: Dataset, rows: Rows) -> ShippedModel | None:
        """The shipped model that own models of some devices of a family go on from by boosting.

        Returns:
            None if it may serve none of them, or is damaged, or some rows of a dataset do not suffice.
        """
        from transfer.train.tree_fit import can_continue

        for device_id in device_ids:
            with suppress(ShippedModelError):
                if (head := self.head(DeviceId(device_id))) is not None:
                    return head.shipped if can_continue(dataset, rows, device_ids) else None
        return None

    def model(self, family: Family) -> ShippedModel:
        """The shipped model of a family that has one.

        Raises:
            ShippedModelError: It is damaged, or of another release.
        """
        if family not in self._models:
            try:
                shipped = read_shipped(family)
                assert shipped is not None  # one is shipped
                self._models[family] = shipped
            except ShippedModelError as error:
                self._models[family] = error
        model = self._models[family]
        if isinstance(model, ShippedModelError):
            raise model
        return model

    def _fingerprint(self, device_id: DeviceId, shipped: ShippedModel) -> Fingerprint | None:
        """What the store has of the device's latencies on the reference programs; None where it has none."""
        from transfer.adapt.nearest import from_records

        programs = {
            CandidateId(program) for device in shipped.devices.values() for program in device.fingerprint
        }
        records = self.store.records(device_id=device_id)
        fingerprint = from_records(device_id, records, programs)
        return fingerprint if fingerprint.latency_secs else None


def serve_unserved(shipped: ShippedHeads, device_ids: Iterable[str]) -> None:
    """Let the shipped model serve those of some devices that nothing serves.

    A damaged one serves none, and stops nothing: the judge says of each challenger that it is.
    """
    for device_id in device_ids:
        with suppress(ShippedModelError):
            shipped.serve_first(DeviceId(device_id))


def boosting_provenance(shipped: ShippedModel, provenance: Json) -> JsonDict:
    """What the manifest of a model says beside its own provenance that went on from the shipped one."""
    inherited = shipped.trained_workloads - set(provenance["trained_workloads"])
    return {ORIGIN: shipped.name, INHERITED: sorted(inherited)}
