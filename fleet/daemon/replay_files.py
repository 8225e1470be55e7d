"""Make devices of kind `replay` ready: the file that each answers from, and what its YAML leaves to it.

Called before agents start. An agent reads an exported Parquet file and knows no store, so the records of a
store are exported here, once a version of the store.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from agents.device.replay_file import open_file, read_devices
from agents.device.replay_records import check_apart
from agents.errors import AgentError
from agents.records import DeviceId, DeviceKind, DeviceSpec
from fleet.errors import FleetError, disk_errors
from fleet.interchange.export_store import export
from fleet.store.store import Store

#: Folder of the files made here, beside the store that is written to.
REPLAY = "replay"
#: Name of an export: device and store, then the version.
_EXPORT = re.compile(r"(.+-[0-9a-f]{8})-[0-9]+\.parquet")


def ready(specs: Mapping[DeviceId, DeviceSpec], folder: Path) -> dict[DeviceId, DeviceSpec]:
    """Complete the specs of replay devices; other devices stay as they are.

    Args:
        specs: Devices, as their files describe them.
        folder: Where exported files are kept; made if missing.

    Returns:
        All devices in the same order. A replay device has a Parquet file as its records, and target, threads
        and cores of the recorded device.

    Raises:
        FleetError: Records cannot be read, lack the device, or contradict the family or target of the YAML.
    """
    return {
        name: _ready(spec, folder) if spec.kind is DeviceKind.REPLAY else spec for name, spec in specs.items()
    }


def _ready(spec: DeviceSpec, folder: Path) -> DeviceSpec:
    replay = spec.replay
    if replay is None:
        raise FleetError(
            f"device {spec.device_id}: its records are known, but it cannot be asked for new ones"
        )
    source = Path(replay.records)
    try:
        is_there = source.exists()
    except OSError as error:
        # Where nobody may look, or a name that no disk has: one device must not end the others.
        raise FleetError(f"device {spec.device_id}: records: {error.strerror}: {source}") from error
    if not is_there:
        raise FleetError(
            f"device {spec.device_id}: records: {source} does not exist; name a store, or a Parquet file "
            "that `fleet export` wrote"
        )
    try:
        if source.is_dir():
            path = _exported(replay.device, source, folder)
        else:
            path = source
            check_apart(path, replay.device)
        with open_file(path) as file:
            devices = read_devices(file, path)
    except (FleetError, AgentError, OSError) as error:
        raise FleetError(f"device {spec.device_id}: records: {error}") from error
    if replay.device not in devices:
        raise FleetError(
            f"device {spec.device_id}: {replay.records} does not say what device {replay.device!r} is; it "
            f"knows {', '.join(sorted(devices)) or 'none'}"
        )
    recorded = devices[replay.device].spec
    if recorded.family is not spec.family:
        raise FleetError(
            f"device {spec.device_id}: family is {spec.family}, but {replay.device} is a "
            f"{recorded.family}: write family: {recorded.family}"
        )
    if spec.target and spec.target != recorded.target:
        raise FleetError(
            f"device {spec.device_id}: target differs from that of {replay.device}, "
            f"{recorded.target_json}: leave target out"
        )
    return replace(
        spec,
        target_json=recorded.target_json,
        threads=recorded.threads,
        cores=recorded.cores,
        replay=replace(replay, records=str(path.absolute())),
    )


def delete_older(specs: Iterable[DeviceSpec], folder: Path) -> None:
    """Delete exports in whose place others have come, of the records that some devices answer from now.

    For the one engine that writes beside the folder, as it starts. While it runs none may go: another device
    of the same records answers from an older one, and its agent may have to open it again.

    Args:
        specs: Devices as `ready` gave them.
        folder: As it was given to `ready`.

    Raises:
        StoreError: The disk failed.
    """
    used = {Path(spec.replay.records) for spec in specs if spec.replay is not None}
    name_by_path = {path: _EXPORT.fullmatch(path.name) for path in used if path.parent == folder.absolute()}
    sources = {name[1] for name in name_by_path.values() if name is not None}
    with disk_errors("deleting old exports", folder):
        for path in folder.absolute().iterdir() if sources else ():
            name = _EXPORT.fullmatch(path.name)
            if name is not None and name[1] in sources and path not in used:
                path.unlink()


def _exported(device_id: DeviceId, source: Path, folder: Path) -> Path:
    """The file of a store's version and device; made where it is not there yet."""
    reader = Store.read(source)
    place = hashlib.sha256(str(source.absolute()).encode()).hexdigest()[:8]
    path = folder / f"{device_id}-{place}-{reader.version}.parquet"
    if not path.exists():
        export(reader, path, "parquet", [device_id])
    return path
