"""Device YAML: one file a device becomes one frozen `DeviceSpec`, or every fault of every file is named.

Called through `fleet.config.settings`. Checks what a file says against itself; whether the host keeps it is
`agents.host.device_kinds`. The meaning of each key is in the header of the shipped files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agents.host.device_kinds import KINDS
from agents.records import (
    DeviceId,
    DeviceKind,
    DeviceSpec,
    Family,
    Replay,
    canonical_json,
)
from fleet.config.device_targets import is_encodable, target_faults
from fleet.config.sections import DEFAULT_HARDWARE, ProtocolSection
from fleet.config.yaml_files import ConfigError, key_lines, model_faults, nearest, read_mapping, show
from fleet.errors import UsageError
from fleet.json_types import Json, JsonDict

# A device id names a file, a table partition, a Ray resource and a head of the model; torch allows no dot
# in the name of a module.
DEVICE_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
# Host name, IPv4 address, or IPv6 address in brackets; then the port.
_TRACKER = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})")
# TVM's tracker splits what it is told at colons, its server at spaces.
_RPC_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Ids in a store may also come from logs of other tools.
_RECORDED_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_REPLAY_KEYS = frozenset({"records", "device", "seed", "noise", "failures"})
_SUFFIXES = (".yaml", ".yml")
_MAX_NUMBER = 2**31 - 1


class _DeviceFile(BaseModel):
    """The keys of a device file and the type of each."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    schema_version: Literal[1] = Field(alias="schema")
    device_id: str
    kind: Annotated[DeviceKind, Field(strict=False)]
    family: Annotated[Family, Field(strict=False)]
    #: A replay device may leave it to the device that it answers for.
    target: JsonDict | None = None
    threads: int = Field(default=1, ge=1, le=1024)
    cores: list[int] = Field(default=[0], min_length=1, max_length=1024)
    index: int = Field(default=0, ge=0, le=1023)
    tracker: str = ""
    key: str = ""
    protocol: JsonDict = {}
    records: str = Field(default="", max_length=4096)
    device: str = ""
    seed: int = Field(default=0, ge=0, le=_MAX_NUMBER)
    noise: bool = False
    failures: bool = False
    note: str = Field(default="", max_length=2000)


_KEYS = {"": [field.alias or name for name, field in _DeviceFile.model_fields.items()]}


def load_device(folder: Path, device_id: str) -> DeviceSpec:
    """Read the file of one device; faults in the files of others do not matter.

    Raises:
        ConfigError: The device is not known, with the nearest names and the folder, or its file has a fault.
    """
    if folder == DEFAULT_HARDWARE and not folder.exists():
        specs = specs_of_this_host()
        if device_id in specs:
            return specs[DeviceId(device_id)]
        raise unknown_device(device_id, specs, folder)
    files = device_paths(folder)
    matching = [path for path in files if path.stem == device_id]
    if not matching:
        raise unknown_device(device_id, (path.stem for path in files), folder)
    if len(matching) > 1:
        raise ConfigError(f"{matching[1]}: device_id: {device_id!r} is also in {matching[0]}: delete one")
    return load_file(matching[0])


class UnknownDeviceError(ConfigError, UsageError):
    """A device id that no file has."""


def unknown_device(device_id: str, device_ids: Iterable[str], folder: Path) -> UnknownDeviceError:
    """Make the error for a device id that no file has; it names the nearest ids and the folder."""
    known_ids = list(device_ids)
    place = f"in {folder}"
    if folder == DEFAULT_HARDWARE and not folder.exists():
        place = f"on this host, which can be {', '.join(sorted(known_ids)) or 'none'}"
    return UnknownDeviceError(f"no device {device_id!r} {place}{nearest(device_id, known_ids)}")


def parse_device(value: Json, name: str) -> DeviceSpec:
    """Turn the mapping of one device file into a spec; `name` is the id that the file's name promises.

    Raises:
        ConfigError: All faults of the mapping, each `key: sentence`.
    """
    try:
        file = _DeviceFile.model_validate(value)
    except ValidationError as error:
        raise ConfigError(*(f"{key}: {fault}" for key, fault in model_faults(error, _KEYS))) from error
    faults = [
        *_id_faults(file, name),
        *_kind_faults(file),
        *_rpc_faults(file),
        *_core_faults(file),
        *_replay_faults(file),
        *_file_target_faults(file),
    ]
    try:
        protocol_changes = _protocol_changes(file.protocol)
    except ConfigError as error:
        faults.extend(error.args)
    if not is_encodable(file.note):
        faults.append("note: holds characters that are no Unicode text")
    if faults:
        raise ConfigError(*faults)
    return DeviceSpec(
        device_id=DeviceId(file.device_id),
        kind=file.kind,
        family=file.family,
        target_json=canonical_json(file.target or {}),
        threads=file.threads,
        cores=tuple(file.cores),
        index=file.index,
        tracker=file.tracker,
        key=file.key,
        protocol_changes=protocol_changes,
        replay=_replay(file),
        note=file.note,
    )


def specs_of_this_host() -> dict[DeviceId, DeviceSpec]:
    """The profiles that `fleet init` would write for this host: the devices where no folder of files is."""
    # Imported here: init writes the files that this module reads.
    from fleet.config.init import host_profiles

    return dict(sorted((profile.spec.device_id, profile.spec) for profile in host_profiles()))


def device_schema() -> JsonDict:
    """JSON Schema of a device file, for editors; `fleet init` writes it beside the files, which name it."""
    return _DeviceFile.model_json_schema()


def device_paths(folder: Path) -> list[Path]:
    """The device files of a folder, sorted; hidden and other files are none.

    Raises:
        ConfigError: There is no such folder, or it cannot be read.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder of device files: run `fleet init --folder {folder}`")
    try:
        every = list(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read: {error.strerror or error}") from error
    return sorted(path for path in every if path.suffix in _SUFFIXES and not path.name.startswith("."))


def load_file(path: Path, name: str | None = None) -> DeviceSpec:
    """Read one device file.

    Args:
        path: The file.
        name: The id that it must give; that of its name if None, and any if empty.

    Raises:
        ConfigError: All faults of the file, each with its path, and with line and key where it has these.
    """
    value = read_mapping(path)
    try:
        expected_id = str(value.get("device_id", "")) if name == "" else name
        return parse_device(value, path.stem if expected_id is None else expected_id)
    except ConfigError as error:
        lines = key_lines(path)
        raise ConfigError(*(f"{path}: {_line_of(fault, lines)}{fault}" for fault in error.args)) from error


def _line_of(fault: str, lines: Mapping[str, int]) -> str:
    """`line 3: ` for a fault that begins with a key, or with one inside of a key that has a line."""
    key = fault.partition(": ")[0]
    while key not in lines and "." in key:
        key = key.rpartition(".")[0]
    return f"line {lines[key]}: " if key in lines else ""


def _id_faults(file: _DeviceFile, name: str) -> Iterable[str]:
    if not DEVICE_ID.fullmatch(file.device_id):
        yield (
            f"device_id: {show(file.device_id)} is not allowed: use up to 64 small letters, digits, '-' "
            "and '_', starting with a letter or digit"
        )
    elif file.device_id != name:
        yield f"device_id: is {file.device_id!r}, but the file is named {name!r}: rename one of them"


def _kind_faults(file: _DeviceFile) -> Iterable[str]:
    targets = KINDS[file.kind].targets
    if not targets:
        return
    kind = file.kind.value
    if file.family not in targets:
        families = " or ".join(repr(family.value) for family in targets)
        yield f"family: a device of kind {kind!r} belongs to {families}, got {file.family.value!r}"
    target_kind, expected = (
        (file.target or {}).get("kind"),
        targets.get(file.family, next(iter(targets.values()))),
    )
    if target_kind not in (None, expected):
        of = f" and family {file.family.value!r}" if len(targets) > 1 else ""
        got = show(target_kind)
        yield f"target.kind: a device of kind {kind!r}{of} needs {expected!r}, got {got}"
    if file.family is Family.CPU and file.index:
        yield f"index: is for CUDA devices; write 0, got {file.index}"


def _rpc_faults(file: _DeviceFile) -> Iterable[str]:
    address = _TRACKER.fullmatch(file.tracker)
    is_address = address is not None and 0 < int(address[1]) < 1 << 16
    where = "the address of the RPC tracker as host:port, such as 127.0.0.1:9190"
    which = "the key of the device's RPC server: up to 64 letters, digits, '.', '-' and '_'"
    for key, value, fits, expected in (
        ("tracker", file.tracker, is_address, where),
        ("key", file.key, _RPC_KEY.fullmatch(file.key), which),
    ):
        if file.kind != "rpc" and value:
            yield f"{key}: is for devices of kind 'rpc'; delete it, or write kind: rpc"
        elif file.kind == "rpc" and not fits:
            fault = f"{show(value)} is not allowed" if value else "missing"
            yield f"{key}: {fault}; write {expected}"


def _replay_faults(file: _DeviceFile) -> Iterable[str]:
    if file.kind != "replay":
        for key in sorted(_REPLAY_KEYS & file.model_fields_set):
            yield f"{key}: is for devices of kind 'replay'; delete it, or write kind: replay"
        return
    if not file.records:
        yield "records: missing; write the path of a store, or of a Parquet file that `fleet export` wrote"
    elif not is_encodable(file.records) or "\0" in file.records:
        yield f"records: {show(file.records)} is no path"
    if not file.device:
        yield "device: missing; write the id of the recorded device that it answers for"
    elif not _RECORDED_ID.fullmatch(file.device):
        yield f"device: {show(file.device)} is no device id"
    elif file.device == file.device_id:
        yield f"device: is {file.device!r}, the device's own id: records of the two must be told apart"


def _replay(file: _DeviceFile) -> Replay | None:
    if file.kind != "replay":
        return None
    return Replay(
        records=file.records,
        device=DeviceId(file.device),
        seed=file.seed,
        noise=file.noise,
        failures=file.failures,
    )


def _file_target_faults(file: _DeviceFile) -> Iterable[str]:
    if file.target is not None:
        yield from target_faults(file.target, file.kind, file.threads)
    elif file.kind != "replay":
        yield "target: missing"


def _protocol_changes(value: Json) -> tuple[tuple[str, float], ...]:
    """Changes to the fleet's protocol for one device: sorted (field, number), yes as 1, no as 0."""
    try:
        section = ProtocolSection.model_validate(value)
    except ValidationError as error:
        faults = model_faults(error, {"": ProtocolSection.model_fields})
        raise ConfigError(*(f"protocol.{key}: {fault}" for key, fault in faults)) from error
    return tuple(sorted((name, float(getattr(section, name))) for name in section.model_fields_set))


def _core_faults(file: _DeviceFile) -> Iterable[str]:
    if any(core < 0 or core > _MAX_NUMBER for core in file.cores):
        yield f"cores: numbers of logical CPUs start at 0, got {show(file.cores)}"
    if len(set(file.cores)) < len(file.cores):
        yield f"cores: a core is named twice in {show(file.cores)}"
    if len(file.cores) < file.threads:
        yield f"cores: {file.threads} threads need at least {file.threads} cores, got {len(file.cores)}"
