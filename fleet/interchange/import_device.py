"""The device that logs are imported under: one that is known, or one that only the logs describe."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from agents.records import Descriptor, DeviceId, DeviceSpec, Family, Workload
from fleet.config.device_files import DEVICE_ID, load_device
from fleet.errors import FleetError
from fleet.interchange.logs.targets import Machine, device_from_log, has_sheet
from fleet.store.catalog import DeviceEntry
from fleet.store.store import AppendResult
from fleet.terminal_text import visible


class ImportTarget(Protocol):
    """What an import writes to (`fleet.store.store.Store`, `fleet.drivers.store_proxy.StoreProxy`)."""

    @property
    def path(self) -> Path:
        """Folder of the store."""

    @property
    def version(self) -> int:
        """Version of its table."""

    def devices(self) -> Mapping[DeviceId, DeviceEntry]:
        """What it knows of devices."""

    def put_device(self, spec: DeviceSpec, descriptor: Descriptor | None = None) -> bool:
        """Keep what a device is."""

    def put_workloads(self, workloads: Iterable[Workload]) -> int:
        """Keep workloads, not as our own; returns how many are new."""

    def append_table(self, device_id: str, table: pa.Table) -> AppendResult:
        """Keep rows of a device."""


def check_device_id(device_id: str) -> DeviceId:
    """Refuse an id that cannot be a device's.

    Raises:
        FleetError: It holds other characters than small letters, digits, '-' and '_'.
    """
    if not DEVICE_ID.fullmatch(device_id):
        raise FleetError(
            f"device {device_id!r} is not allowed: use up to 64 small letters, digits, '-' and '_', starting"
            f" with a letter or digit, such as {_suggested(device_id)!r}"
        )
    return DeviceId(device_id)


def _suggested(device_id: str) -> str:
    return re.sub(r"[^a-z0-9_-]+", "-", device_id.lower()).strip("-_")[:64] or "board-1"


def family_of(store: ImportTarget, folder: Path, device_id: DeviceId) -> Family | None:
    """Family of a device that the store or the device files know; None for a new one.

    Raises:
        ConfigError: Its device file has a fault.
    """
    entry = store.devices().get(device_id)
    if entry is not None:
        return entry.spec.family
    return load_device(folder, device_id).family if _device_file(folder, device_id) else None


def _device_file(folder: Path, device_id: DeviceId) -> Path | None:
    paths = [folder / f"{device_id}{suffix}" for suffix in (".yaml", ".yml")]
    return next((path for path in paths if path.is_file()), None)


def keep_device(store: ImportTarget, folder: Path, device_id: DeviceId, machine: Machine) -> str:
    """Make sure that the store knows the device; returns where its description comes from, for people.

    What the first line says (`machine`) is for a device that is described nowhere else.
    """
    if device_id in store.devices():
        return "the store"
    if path := _device_file(folder, device_id):
        store.put_device(load_device(folder, device_id))
        return str(path)
    spec, descriptor = device_from_log(device_id, machine)
    store.put_device(spec, descriptor)
    if spec.family is Family.GPU and not has_sheet(descriptor):
        name = visible(machine.device_name) or device_id
        return f"the logs; no data sheet of {name!r} is known, so likeness to others shows in samples only"
    return "the logs"
