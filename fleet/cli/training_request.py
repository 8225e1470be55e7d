"""What `fleet train` asks for: the devices of each model, and a daemon's training that it follows.

Called by `fleet.cli.training`. It loads nothing heavy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet.api.client import DaemonClient
from fleet.cli.output import print_json
from fleet.cli.requests import finish, run_request
from fleet.errors import FleetError

if TYPE_CHECKING:
    from agents.records import DeviceId
    from fleet.config.settings import FleetConfig


def request_trainings(
    daemon: DaemonClient, devices: Sequence[str], *, is_detached: bool, as_json: bool
) -> None:
    """Ask a daemon to train each family of some devices, or every one where none is named; follow one by one.

    Raises:
        FleetError: The daemon has no such device, refuses, or a training failed.
    """
    devices_by_id = daemon.get("/v1/devices")
    if devices_by_id is None:
        raise FleetError(f"the daemon at {daemon.url} ends just now; start it again, then ask again")
    families = {device_id: str(device["family"]) for device_id, device in devices_by_id.items()}
    if unknown := [device_id for device_id in devices if device_id not in families]:
        listed = ", ".join(sorted(families)) or "none"
        raise FleetError(f"the daemon knows no device {unknown[0]!r}; it has: {listed}")
    ended: list[dict[str, Any]] = []
    for family in sorted({families[device_id] for device_id in devices or families}):
        named = sorted({device_id for device_id in devices if families[device_id] == family})
        arguments = {"devices": named} if named else {"family": family}
        ended.append(run_request(daemon, "training", arguments, is_detached=is_detached))
    if as_json:
        print_json(ended)
    for request in ended:
        finish(request, is_printed=not as_json)


def each_family(settings: FleetConfig, devices: Collection[str], family: str | None) -> list[tuple[str, ...]]:
    """Part devices into those of each model to train.

    Args:
        settings: With the store.
        devices: Devices to learn; all of the store where empty.
        family: Only those of this family; None for every family.

    Returns:
        Device ids, a tuple a model; the devices as they were given where all are of one family.

    Raises:
        FleetError: There is no store, a device is not in it, or there is none of the family with two `ok`
            records.
    """
    from fleet.store.store import Store

    reader = Store.read(Path(settings.store.path))
    entries = reader.devices()
    families: dict[str, list[DeviceId]] = {}
    for device_id, entry in sorted(entries.items()):
        if device_id in devices or not devices:
            families.setdefault(str(entry.spec.family), []).append(device_id)
    if family is None and len(families) <= 1:
        return [tuple(devices)]
    if unknown := sorted(device_id for device_id in devices if device_id not in entries):
        listed = ", ".join(sorted(entries)) or "none"
        raise FleetError(f"device {unknown[0]!r} has no records in {settings.store.path}; it holds: {listed}")
    counts = reader.counts()
    chosen = [
        # A device whose log held next to nothing keeps no other from being learnt.
        tuple(
            device_id
            for device_id in names
            if device_id in devices or (device_id in counts and counts[device_id].ok > 1)
        )
        for of, names in families.items()
        if family is None or of == family
    ]
    if not any(chosen):
        raise FleetError(
            f"no device of family {family or 'any'} has two ok records in {settings.store.path}; "
            "measure more with `fleet collect`, or import a log"
        )
    return [names for names in chosen if names]
