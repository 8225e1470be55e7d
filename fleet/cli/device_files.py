"""Verbs about the folder of device files: `fleet devices list`, `add` and `retire`.

Registered by `fleet.cli.app`. They change files only; a daemon that runs sees that within seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleet.api.client import ask
from fleet.cli.options import Settings
from fleet.cli.output import JsonOption, print_json
from fleet.errors import FleetError
from fleet.terminal_text import print_rows, print_text

if TYPE_CHECKING:
    from agents.records import DeviceSpec
    from fleet.config.settings import FleetConfig


def list_devices(settings: Settings, as_json: JsonOption = False) -> None:
    """Show the device files, and whether a running daemon has each device and in which state.

    Example: fleet devices list --json
    """
    from fleet.config.device_folder import DeviceFolder

    device_files = DeviceFolder(Path(settings.devices.folder)).read()
    view = ask(Path(settings.daemon.root), "/v1/status")
    rows: list[dict[str, Any]] = []
    for device_id in sorted({*device_files.specs, *device_files.faults}):
        spec, path = device_files.specs.get(device_id), device_files.paths.get(device_id)
        rows.append(
            {
                "device": device_id,
                "kind": str(spec.kind) if spec else None,
                "target": spec.target if spec else None,
                "file": str(path) if path else None,
                "faults": list(device_files.faults.get(device_id, ())),
                "daemon": view["devices"].get(device_id, {}).get("state") if view is not None else None,
            }
        )
    if as_json:
        print_json(rows)
        return
    print_rows(("device", "kind", "target", "file", "daemon"), [_cells(row) for row in rows])
    for row in rows:
        for fault in row["faults"]:
            print_text(f"left out: {fault}")
    if view is None:
        print_text(f"no daemon runs on {settings.daemon.root}")


def add(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A device file of any name.")],
    settings: Settings,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the file of the same device.")] = False,
    other_host: Annotated[
        bool,
        typer.Option("--other-host", help="The device is on another host of a cluster: skip the check here."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a device file, against this host too, and put it into the folder of device files.

    A daemon that runs without --device looks after the device within five seconds.

    Example: fleet devices add ~/board-3.yaml
    """
    from fleet.config.device_files import load_file
    from fleet.config.device_folder import add_file

    spec = load_file(file, "")
    if not other_host:
        _check(spec, settings)
    follows = _who_follows(settings)
    path = add_file(Path(settings.devices.folder), spec, file, is_replaced=replace)
    if as_json:
        print_json({"device": spec.device_id, "file": str(path)})
        return
    print_text(f"device {spec.device_id}: {path}; {follows}")


def retire(
    device: Annotated[str, typer.Argument(metavar="ID", help="The device.")],
    settings: Settings,
    as_json: JsonOption = False,
) -> None:
    """Remove a device from the fleet: its file moves to the folder `retired`.

    Its records and its models stay. `fleet devices add` with the moved file brings it back.

    Example: fleet devices retire board-3
    """
    from fleet.config.device_files import device_paths, unknown_device
    from fleet.config.device_folder import retire_file

    folder = Path(settings.devices.folder)
    paths = device_paths(folder)
    mine = [path for path in paths if path.stem == device]
    if not mine:
        raise unknown_device(device, (path.stem for path in paths), folder)
    follows = _who_follows(settings)  # first: nothing may move if the daemon refuses
    places = [str(retire_file(folder, path)) for path in mine]
    if as_json:
        print_json({"device": device, "files": places})
        return
    print_text(f"device {device}: its records and its model stay; its file is {', '.join(places)} now")
    print_text(f"`fleet devices add {places[0]}` brings it back; {follows}")


def _check(spec: DeviceSpec, settings: FleetConfig) -> None:
    """Refuse a device that `fleet up` could not measure here."""
    from agents.host.device_kinds import differences
    from agents.host.probe import probe
    from fleet.daemon.replay_files import REPLAY, ready

    if mismatches := differences(spec, probe()):
        raise FleetError(
            f"device {spec.device_id} cannot be measured on this host: {'; '.join(mismatches)}; "
            "--other-host adds it for another host of a cluster"
        )
    ready({spec.device_id: spec}, Path(settings.store.path).parent / REPLAY)


def _who_follows(settings: FleetConfig) -> str:
    is_up = ask(Path(settings.daemon.root), "/v1/status") is not None
    return "the daemon follows within five seconds" if is_up else "no daemon runs; the next start follows"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    target = row["target"] or {}
    name = target.get("mcpu") or target.get("arch") or target.get("kind") or "-"
    return (row["device"], row["kind"] or "broken", name, row["file"] or "-", row["daemon"] or "-")
