"""Verbs about devices and settings: `fleet init`, `probe`, `doctor` and `config show`.

Registered by `fleet.cli.app`. Prints tables for people, or one JSON value with `--json`; failures are raised
as `FleetError`, which `fleet.cli.app` turns into a line and an exit code. Loads nothing heavy before a verb
runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fleet.api.client import ask
from fleet.cli.options import FolderSettings, Settings
from fleet.cli.output import ConfigOption, JsonOption, SetOption, parse_changes, print_json
from fleet.errors import FleetError
from fleet.json_types import JsonDict
from fleet.terminal_text import print_rows, print_text

if TYPE_CHECKING:
    from agents.records import Descriptor, DeviceSpec
    from fleet.config.settings import FleetConfig
    from fleet.doctor.words import ConfinementRow


def init(
    settings: FolderSettings,
    threads: Annotated[int, typer.Option(min=1, help="Threads of a measured program.")] = 1,
    force: Annotated[bool, typer.Option("--force", help="Replace files that differ.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a device file for each CPU profile and GPU of this host.

    Existing files that differ are kept unless --force is given. The lowest usable core measures; the other
    cores build.

    Example: fleet init --folder configs/hardware
    """
    from fleet.config.init import Action, host_profiles, write_profiles

    done = write_profiles(Path(settings.devices.folder), host_profiles(threads), force)
    if as_json:
        print_json([{"device": path.stem, "path": path, "action": action} for path, action in done.items()])
        return
    print_rows(("device", "file", ""), [(path.stem, path, action) for path, action in done.items()])
    if Action.KEPT in done.values():
        print_text("kept: the file differs from what this host would write; --force replaces it")


def probe(
    settings: FolderSettings,
    device: Annotated[str | None, typer.Option("--device", help="Compare the host with this device.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the hardware of this host, and whether it matches a device file.

    For a board behind an RPC tracker, it asks the tracker for the board. Fails (exit 1) if the host does not
    match the file of --device, or the board does not answer.

    Example: fleet probe --device x86-64-v3
    """
    from agents.host.device_kinds import differences
    from agents.host.probe import probe as look
    from agents.records import DeviceKind, as_json_dict
    from fleet.config.device_files import load_device

    spec = load_device(Path(settings.devices.folder), device) if device else None
    descriptor = look()
    faults = differences(spec, descriptor) if spec else []
    board = _ask_board(spec, faults) if spec and spec.kind is DeviceKind.RPC and not faults else None
    if as_json:
        value: JsonDict = {"descriptor": as_json_dict(descriptor)}
        if spec:
            value |= {"device": as_json_dict(spec), "differences": faults}
            if spec.kind is DeviceKind.RPC:
                value["board"] = board
        print_json(value)
    else:
        print_rows(("host", descriptor.host), _descriptor_rows(descriptor))
        if spec and not faults:
            print_text(f"device {device}: {_board_line(spec, board) if board else 'this host can be it'}")
    if faults:
        raise FleetError(f"device {device} cannot be measured on this host: {'; '.join(faults)}")


def _ask_board(spec: DeviceSpec, faults: list[str]) -> JsonDict | None:
    """What answers for an RPC device; None, and one more fault, if nothing does."""
    from dataclasses import asdict

    from agents.host.rpc_tracker import NotYetError, ask_board

    try:
        return asdict(ask_board(spec.tracker, spec.key))
    except NotYetError as error:
        faults.append(str(error))
        return None


def _board_line(spec: DeviceSpec, board: JsonDict) -> str:
    servers = f"{len(board['servers'])} server{'s' * (len(board['servers']) != 1)}, {board['free']} free"
    at_work = "all in use, and a server in use answers its user only"
    answer = f"{', '.join(board['answering'])} takes connections" if board["answering"] else at_work
    return f"the RPC tracker {spec.tracker} lists the key {spec.key!r} ({servers}); {answer}"


def doctor(
    settings: FolderSettings,
    as_json: JsonOption = False,
) -> None:
    """Check this host: what would disturb measurements, and how well worker processes are confined.

    Fails (exit 1) if something would stop the program.

    Example: fleet doctor
    """
    from dataclasses import asdict

    from agents.host.probe import probe as look_at_host
    from fleet.api.client import TOKEN
    from fleet.config.settings import select_devices
    from fleet.doctor.doctor import diagnose
    from fleet.doctor.look import look
    from fleet.doctor.words import Level, confinement_rows
    from fleet.transport.ray_folder import ray_default_folder
    from fleet.transport.ray_token import token_path

    devices = list(select_devices(settings, without_retired=True).values())
    tokens = (token_path(), Path(settings.daemon.root) / TOKEN)
    state = look(Path(settings.store.path), specs=devices, tokens=tokens, ray_folder=ray_default_folder())
    findings = diagnose(look_at_host(), devices, state)
    confined = [] if isinstance(state.confinement, str) else confinement_rows(state.confinement)
    if as_json:
        print_json({"findings": list(map(asdict, findings)), "confinement": list(map(asdict, confined))})
    else:
        if findings:
            rows = [(each.level, each.what, each.why, each.do) for each in findings]
            print_rows(("", "what", "why", "what to do"), rows)
        else:
            print_text("nothing found: this host is fit to measure")
        print_text("")
        _print_confinement(confined)
    errors = [finding for finding in findings if finding.level is Level.ERROR]
    if errors:
        raise FleetError("; ".join(f"{finding.what}: {finding.do}" for finding in errors))


def _print_confinement(rows: Sequence[ConfinementRow]) -> None:
    if not rows:
        return
    print_text("How far worker processes are confined here, found by trying:")
    print_rows(
        ("", "tried and refused", "by", "still possible"),
        [
            (
                row.aspect,
                f"{len(row.refused)} of {row.tried}",
                ", ".join(row.by) or "nothing",
                ", ".join(row.missing) or "-",
            )
            for row in rows
        ],
    )


def config_show(
    config: ConfigOption = None,
    changes: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every setting as YAML, and its origin: flag, environment, file or default; the first of them wins.

    Example: FLEET_PROTOCOL__REPEAT=5 fleet config show --set workloads.samples=32
    """
    from fleet.config.settings import load_fleet

    settings = load_fleet(config, parse_changes(changes or [])).settings()
    if as_json:
        print_json(settings)
        return
    rows = [(each["key"], _value_text(each["value"]), each["origin"]) for each in settings]
    print_rows(("setting", "value", "origin"), rows)


def config_schema(
    kind: Annotated[
        Literal["fleet", "device"], typer.Argument(help="Which file: the settings, or one device.")
    ],
) -> None:
    """Print the JSON Schema of a YAML file, with which an editor completes and checks it.

    Example: fleet config schema device > configs/device.schema.json
    """
    from fleet.config.device_files import device_schema
    from fleet.config.settings import FleetConfig

    if kind == "device":
        print_json(device_schema())
        return
    schema = FleetConfig.model_json_schema()
    schema["properties"]["schema"] = {"const": 1}
    print_json(schema)


def _descriptor_rows(descriptor: Descriptor) -> list[tuple[str, ...]]:
    from agents.host.cpu_features import runnable_levels
    from agents.records import ANSOR_HARDWARE_PARAMS

    ansor_parameters = zip(ANSOR_HARDWARE_PARAMS, descriptor.ansor_params, strict=True)
    cores = ",".join(map(str, descriptor.usable_cores))
    levels = [level.name for level in runnable_levels(descriptor.arch, descriptor.isa_flags)]
    caches = (descriptor.l1d_bytes, descriptor.l2_bytes, descriptor.l3_bytes)
    clocks = (descriptor.clock_min_mhz, descriptor.clock_now_mhz, descriptor.clock_max_mhz)
    smt = "SMT on" if descriptor.smt else "no SMT"
    rows: list[tuple[str, ...]] = [
        ("cpu", descriptor.cpu_model or "unknown"),
        ("architecture", f"{descriptor.arch}, kernel {descriptor.kernel}"),
        ("cores", f"{descriptor.physical_cores} physical, {descriptor.logical_cores} logical, {smt}"),
        ("usable cores", cores),
        ("levels", ", ".join(levels) or "none known"),
        ("vectors", f"{descriptor.vector_bytes} bytes"),
        ("caches", " / ".join(map(_size, caches)) + " (L1d / L2 / L3)"),
        ("cache line", f"{descriptor.cache_line_bytes} bytes"),
        ("memory", _size(descriptor.memory_bytes)),
        ("clock MHz", " / ".join(f"{mhz:.0f}" if mhz else "?" for mhz in clocks) + " (least / now / most)"),
        ("governor", descriptor.governor or "hidden"),
        ("Ansor parameters", ", ".join(f"{name} {value}" for name, value in ansor_parameters)),
        ("instruction sets", " ".join(descriptor.isa_flags)),
        ("versions", ", ".join(f"{name} {version}" for name, version in descriptor.versions)),
    ]
    return rows + [
        (f"cuda {gpu['index']}", f"{gpu.get('name', 'unknown')}, {gpu.get('arch', 'unknown arch')}")
        for gpu in map(dict, descriptor.cuda_devices)
    ]


def _size(count: int) -> str:
    if not count:
        return "?"
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << shift:
            return f"{count / (1 << shift):.4g} {unit}"
    return f"{count} B"


def _value_text(value: Any) -> str:
    """A value as a settings file has it, on one line."""
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=float("inf"))
    return text.splitlines()[0]


# Verbs about the folder of device files: `fleet devices list`, `add` and `retire`.
#
# Registered by `fleet.cli.app`. They change files only; a daemon that runs sees that within seconds.


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
                "kind": spec.kind if spec else None,
                "target": spec.target if spec else None,
                "file": path,
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
        print_json({"device": spec.device_id, "file": path})
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


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    target = row["target"] or {}
    name = target.get("mcpu") or target.get("arch") or target.get("kind") or "-"
    return (row["device"], row["kind"] or "broken", name, row["file"] or "-", row["daemon"] or "-")
