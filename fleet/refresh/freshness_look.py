"""One look at fresh records: whether each champion still orders them, or the one before would do better.

Runs in the process of `fleet.refresh.process`; the decisions are those of `fleet.models.freshness`. Imports
torch when called.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from agents.records import DeviceId, Family, ModelRef
from fleet.errors import FleetError
from fleet.models.freshness import Freshness, Look, look, window
from fleet.models.head_scores import HeadCache
from fleet.models.opponents import head_standing
from fleet.models.registry import PinnedError, Registry, ReplacedError
from fleet.models.registry_file import Champion, RegistryError
from fleet.models.standings import LEAST_RANKED, Standing
from fleet.onboarding.choice import family_devices
from fleet.refresh.data import RefreshData, read_refresh_data
from fleet.refresh.request import RefreshRequest
from fleet.store.reader import StoreReader
from fleet.store.store import Store


def run_watch(request: RefreshRequest) -> dict[str, Any]:
    """Look at every device with a champion, and take back what has gone bad.

    Returns:
        What was found, JSON-ready: `looks` by device, and the devices `rolled_back`.

    Raises:
        FleetError: The store or the registry cannot be used.
    """
    registry = Registry(Path(request.models))
    reader = Store.read(Path(request.store)).parted(registry.environments_since())
    device_ids = set(family_devices(reader, Family(request.family)))
    if request.device_ids:
        device_ids &= set(map(DeviceId, request.device_ids))
    champions = {
        device_id: champion for device_id, champion in registry.champions().items() if device_id in device_ids
    }
    looks = _Looks(registry, reader, champions)
    looks_by_device = {device_id: looks.look(champion) for device_id, champion in champions.items()}
    rolled_back = []
    for device_id, device_look in looks_by_device.items():
        if device_look.freshness is Freshness.ROLL_BACK:
            # Whoever was published meanwhile is not what was looked at.
            with suppress(PinnedError, ReplacedError):
                registry.use(
                    device_id,
                    registry.before(device_id),
                    reason=f"fresh records: {device_look.text}",
                    instead_of=device_look.version,
                )
                rolled_back.append(str(device_id))
    return {
        "kind": "watch",
        "family": request.family,
        "rolled_back": rolled_back,
        "looks": {str(device_id): asdict(device_look) for device_id, device_look in looks_by_device.items()},
    }


class _Looks:
    """Fresh records of some devices, and the models to ask about them."""

    def __init__(
        self, registry: Registry, reader: StoreReader, champions: Mapping[DeviceId, Champion]
    ) -> None:
        self._registry = registry
        self._heads = HeadCache(registry)
        self._fresh_from = {device_id: self._cutoff(champion) for device_id, champion in champions.items()}
        self._data = self._read(reader) if champions else None
        #: (N, D) measurements that may judge.
        self._may = None if self._data is None else self._data.judged.not_ranked(self._data.snapshot.dataset)

    def _cutoff(self, champion: Champion) -> float:
        """Unix seconds from which no record has taught this champion anything, nor the one before it.

        The one before is the newer of the two where somebody chose the champion by hand.
        """
        until = self._learnt_until(champion.version, champion.device_id)
        before = self._registry.previous(champion)
        earlier = self._learnt_until(before, champion.device_id) if before else None
        return max(champion.since if until is None else until, -np.inf if earlier is None else earlier)

    def _learnt_until(self, version: str, device_id: DeviceId) -> float | None:
        """Unix seconds of the last record that taught a version something of a device; None if unknown."""
        try:
            until = self._registry.manifest(version).get("data_until", {}).get(device_id)
        except RegistryError:  # it cannot be asked either, and keeps no other device from being looked at
            return None
        return None if until is None else float(until)

    def _read(self, reader: StoreReader) -> RefreshData | None:
        from transfer.errors import DatasetError

        since = min(self._fresh_from.values())
        try:
            return read_refresh_data(
                reader,
                list(self._fresh_from),
                new_since=since,
                only_new=True,
                published=self._registry.asks_published(self._fresh_from),
            )
        except DatasetError:  # none of them is ok
            return None

    def look(self, champion: Champion) -> Look:
        """Judge one device's champion."""
        device_id = champion.device_id
        before = self._registry.previous(champion)
        rows = self._window(device_id)
        return look(
            device_id,
            champion.version,
            self._standing(champion.version, device_id, rows),
            previous_version=before,
            previous=self._standing(before, device_id, rows) if before else None,
            published=champion.judged,
        )

    def _window(self, device_id: DeviceId) -> np.ndarray:
        """Rows of the dataset that make the window of a device."""
        if self._data is None or self._may is None or device_id not in self._data.snapshot.dataset.device_ids:
            return np.zeros(0, dtype=np.int64)
        dataset = self._data.snapshot.dataset
        column = dataset.column(device_id)
        at = self._data.measured_at[:, column]
        fresh = np.isfinite(dataset.latency_secs[:, column]) & self._may[:, column]
        rows = np.flatnonzero(fresh & (at > self._fresh_from[device_id]))
        chosen: np.ndarray = rows[window(at[rows], dataset.group[rows], LEAST_RANKED)]
        return chosen

    def _standing(self, version: str, device_id: DeviceId, rows: np.ndarray) -> Standing | None:
        """How a head orders some rows; None where it cannot be asked, which the next refresh will report."""
        from transfer.errors import TransferError

        if self._data is None:
            return None
        try:
            sha256 = self._registry.sha256(version)
            head = self._heads.head(ModelRef(version=version, device_id=device_id, sha256=sha256))
        except (FleetError, TransferError, OSError):
            return None
        floor = self._data.judged.floors.get(device_id, 0.0)
        return head_standing(head, self._data.snapshot.dataset, rows, floor)
