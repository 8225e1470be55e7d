"""The shipped model's heads for the devices of a store: candidates for champion everywhere, until beaten.

A head that serves is a version like any other. One is added only when a head takes a place, so that a fleet
without need of them keeps none. Called by trainings, onboardings, searches and `fleet models use`. Imports
torch when called.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agents.records import CandidateId, DeviceId, DeviceSpec, Family
from agents.trust import is_live
from fleet.json_types import Json, JsonDict
from fleet.models.registry import Registry
from fleet.models.registry_file import Champion, RegistryError
from fleet.models.shipped_model import SHIPPED_KEY, ShippedModel, ShippedModelError, has_shipped, read_shipped
from fleet.models.versions import INHERITED, ORIGIN
from fleet.store.reader import StoreReader

if TYPE_CHECKING:
    from transfer.adapt.base import Adapted
    from transfer.adapt.fingerprint import Fingerprint
    from transfer.data.dataset import Dataset

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

    def boosting_start(
        self, device_ids: Sequence[str], dataset: Dataset, rows: NDArray[np.int64]
    ) -> ShippedModel | None:
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
        from transfer.adapt.fingerprint import from_records

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
