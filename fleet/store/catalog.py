"""The two small folders beside the records: each workload's module once, and what each device is.

`fleet.store.store` and `fleet.store.reader` call it. Plain JSON files, so that people can read them; there
are at most some thousands.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from agents.records import (
    Descriptor,
    DeviceId,
    DeviceSpec,
    Workload,
    WorkloadId,
    as_json_dict,
    canonical_json,
)
from fleet.durable import fsync, write_all_durably
from fleet.errors import StoreError

#: Layout of the files in both folders. 1: first published layout.
CATALOG_SCHEMA = 1

#: Workloads that are made durable at once: their modules are held in memory until then.
WRITE_TOGETHER = 64

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_WORKLOAD = TypeAdapter(Workload)
_SPEC = TypeAdapter(DeviceSpec)
_DESCRIPTOR = TypeAdapter(Descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEntry:
    """What was known of a device from one moment on."""

    spec: DeviceSpec
    #: What the probe saw; None for a device that was never probed (imported logs).
    descriptor: Descriptor | None
    #: Unix seconds when this was stored.
    stored_at: float


def check_name(kind: str, name: str) -> str:
    """Refuse an id that cannot be a file name.

    Raises:
        StoreError: It holds other characters than letters, digits, dot, underscore, hyphen.
    """
    if not _NAME.fullmatch(name):
        raise StoreError(
            f"{kind} {name!r} cannot be stored: expected 1 to 128 letters, digits, '.', '_' or '-',"
            " a letter or digit first; rename it"
        )
    return name


def put_workloads(folder: Path, workloads: Iterable[Workload]) -> int:
    """Keep each module once; the networks of a workload known before are joined.

    Durable in groups: after an error some may be kept, each whole.

    Returns:
        How many workloads were new.
    """
    new = 0
    waiting: dict[Path, bytes] = {}
    for workload in workloads:
        path = folder / f"{check_name('workload', workload.workload_id)}.json"
        if path in waiting or len(waiting) >= WRITE_TOGETHER:
            write_all_durably(waiting)
            waiting = {}
        if path.exists():
            known = _read_workload(path)
            networks = tuple(sorted({**dict(known.networks), **dict(workload.networks)}.items()))
            if networks == known.networks:
                continue
            workload = replace(known, networks=networks)
        else:
            new += 1
        # Tuples of texts and numbers all the way down: JSON as it is, without the copies of `as_json_dict`.
        waiting[path] = _text("workload", {one.name: getattr(workload, one.name) for one in fields(workload)})
    write_all_durably(waiting)
    return new


def read_workloads(folder: Path) -> dict[WorkloadId, Workload]:
    """All workloads by id, sorted by id."""
    found = [_read_workload(path) for path in sorted(folder.glob("[!.]*.json"))]
    return {workload.workload_id: workload for workload in found}


def _text(key: str, value: Mapping[str, Any]) -> bytes:
    return (canonical_json({"schema": CATALOG_SCHEMA, key: value}) + "\n").encode()


def _read_workload(path: Path) -> Workload:
    value = _entry(path, path.read_text())
    return _valid(_WORKLOAD, value.get("workload"), path)


def _entry(path: Path, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise StoreError(f"{path} is damaged: {error}; delete it and store its content again") from error
    found = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(found, int):
        raise StoreError(f"{path} is no file of this store: it has no schema number")
    if found > CATALOG_SCHEMA:
        raise StoreError(
            f"{path} has layout {found}, this version knows {CATALOG_SCHEMA}; upgrade tensor-fleet"
        )
    assert isinstance(value, dict)
    return value


def _valid(
    adapter: TypeAdapter[T], value: Any, where: Any, cure: str = "delete the file and store its content again"
) -> T:
    try:
        return adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise StoreError(f"{where}: {key}: {first['msg']}; {cure}") from error


def put_device(folder: Path, spec: DeviceSpec, descriptor: Descriptor | None) -> bool:
    """Add what a device is to its history, unless it is as before.

    Returns:
        Whether anything was added. A change of the current clock alone adds nothing.
    """
    path = folder / f"{check_name('device', spec.device_id)}.jsonl"
    if path.exists():
        _drop_torn_line(path)
        history = read_device(path)
        if history and history[-1].spec == spec and _lasting(history[-1].descriptor) == _lasting(descriptor):
            return False
    value = {
        "schema": CATALOG_SCHEMA,
        "stored_at": time.time(),
        "spec": as_json_dict(spec),
        "descriptor": None if descriptor is None else as_json_dict(descriptor),
    }
    # A line that cannot be read back would hide every device. (To Python, True is a number; not to JSON.)
    cure = "give the field the type that DeviceSpec says"
    _valid(_SPEC, value["spec"], f"device {spec.device_id} cannot be stored", cure)
    before = path.stat().st_size if path.exists() else 0
    with path.open("ab", buffering=0) as stream:
        try:
            data = (canonical_json(value) + "\n").encode()
            written = stream.write(data)
            if written != len(data):
                stream.write(data[written:])
            os.fsync(stream.fileno())
        except OSError:
            stream.truncate(before)
            raise
    fsync(folder)
    return True


def _lasting(descriptor: Descriptor | None) -> Descriptor | None:
    return None if descriptor is None else replace(descriptor, clock_now_mhz=0.0)


def _drop_torn_line(path: Path) -> None:
    """Cut off what a killed writer left of its line: it was never acknowledged."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole != len(data):
        os.truncate(path, whole)


def read_device(path: Path) -> list[DeviceEntry]:
    """The history of one device, oldest first; a torn last line does not count."""
    text = path.read_text()
    entries = []
    for line in text.split("\n")[:-1]:
        value = _entry(path, line)
        seen = value.get("descriptor")
        entries.append(
            DeviceEntry(
                spec=_valid(_SPEC, value.get("spec"), path),
                descriptor=None if seen is None else _valid(_DESCRIPTOR, seen, path),
                stored_at=float(value.get("stored_at", 0.0)),
            )
        )
    return entries


def read_devices(folder: Path) -> dict[DeviceId, DeviceEntry]:
    """The last entry of each device, sorted by device."""
    histories = [read_device(path) for path in sorted(folder.glob("[!.]*.jsonl"))]
    return {history[-1].spec.device_id: history[-1] for history in histories if history}


__all__ = [
    "DeviceEntry",
    "check_name",
    "put_device",
    "put_workloads",
    "read_device",
    "read_devices",
    "read_workloads",
]
