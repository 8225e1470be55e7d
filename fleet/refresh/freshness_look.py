"""One look at fresh records: whether each champion still orders them, or the one before would do better.

Runs in the process of `fleet.refresh.process`; the decisions are those of `fleet.models.freshness`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np

from agents.records import DeviceId, ModelRef
from fleet.errors import FleetError
from fleet.models.freshness import Freshness, Look, look, window
from fleet.models.opponents import HeadCache, head_standing
from fleet.models.registry import ChampionHeldError, Registry
from fleet.models.registry_file import Champion, RegistryError
from fleet.models.standings import LEAST_RANKED, Standing
from fleet.models.training_rows import JudgedRows, RecentPart
from fleet.models.versions import load_snapshot
from fleet.refresh.request import RefreshRequest
from fleet.refresh.run import opened
from fleet.store.reader import StoreReader
from transfer.data.dataset import Dataset
from transfer.errors import DatasetError, TransferError


def run_watch(request: RefreshRequest) -> dict[str, Any]:
    """Look at every device with a champion, and take back what has gone bad.

    Returns:
        What was found, JSON-ready: `looks` by device, and the devices `rolled_back`.

    Raises:
        FleetError: The store or the registry cannot be used.
    """
    registry, reader, device_ids = opened(request)
    champions = {
        device_id: champion for device_id, champion in registry.champions().items() if device_id in device_ids
    }
    looks = _Looks(registry, reader, champions)
    looks_by_device = {device_id: looks.look(champion) for device_id, champion in champions.items()}
    rolled_back = []
    for device_id, device_look in looks_by_device.items():
        if device_look.freshness is Freshness.ROLL_BACK:
            # Whoever was published meanwhile is not what was looked at.
            with suppress(ChampionHeldError):
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
        self._judged = JudgedRows()
        self._dataset = self._read(reader) if champions else None
        if self._dataset is not None:
            #: (N, D) Unix seconds of the measurements that may judge; NaN elsewhere.
            self._measured_at = np.where(
                self._judged.not_ranked(self._dataset), self._judged.measured_at(self._dataset), np.nan
            )

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

    def _read(self, reader: StoreReader) -> Dataset | None:
        since = min(self._fresh_from.values())
        try:
            return load_snapshot(
                reader,
                device_ids=list(self._fresh_from),
                part=RecentPart(new_since=since, only_new=True),
                judged=self._judged,
                published=self._registry.asks_published(self._fresh_from),
            ).dataset
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
        dataset = self._dataset
        if dataset is None or device_id not in dataset.device_ids:
            return np.zeros(0, dtype=np.int64)
        column = dataset.column(device_id)
        at = self._measured_at[:, column]
        is_ok = np.isfinite(dataset.latency_secs[:, column])
        rows = np.flatnonzero(is_ok & (at > self._fresh_from[device_id]))
        chosen: np.ndarray = rows[window(at[rows], dataset.group[rows], LEAST_RANKED)]
        return chosen

    def _standing(self, version: str, device_id: DeviceId, rows: np.ndarray) -> Standing | None:
        """How a head orders some rows; None where it cannot be asked, which the next refresh will report."""
        if self._dataset is None:
            return None
        try:
            sha256 = self._registry.sha256(version)
            head = self._heads.head(ModelRef(version=version, device_id=device_id, sha256=sha256))
        except (FleetError, TransferError, OSError):
            return None
        return head_standing(head, self._dataset, rows, self._judged.floors.get(device_id, 0.0))
