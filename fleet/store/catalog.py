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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import asdict, replace

from agents.codec import value_from_json
from agents.errors import AgentError
from agents.files import fsync, write_all_durably
from agents.records import (
    Descriptor,
    DeviceId,
    DeviceSpec,
    Workload,
    WorkloadId,
    as_json_dict,
    canonical_json,
    content_hash,
    is_imported,
)
from fleet.errors import StoreError

#: Layout of the files in both folders.
CATALOG_SCHEMA = 1

#: Key of the sum of all else in a line.
_SUM = "sum"

#: Workloads that are made durable at once: their modules are held in memory until then.
WRITE_TOGETHER = 64

#: Key beside a workload: an agent of ours has made its module.
_OWN = "own"

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEntry:
    """What was known of a device from one moment on."""

    spec: DeviceSpec
    #: What the probe saw; None for a device that was never probed (imported logs).
    descriptor: Descriptor | None


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


def put_workloads(folder: Path, workloads: Iterable[Workload], *, own: bool) -> int:
    """Keep each module once; the networks of a workload known before are joined.

    One of our own takes the place of one that only claims its id, and nothing of others changes ours.
    Durable in groups: after an error some may be kept, each whole.

    Args:
        folder: Of the workloads.
        workloads: To keep.
        own: Whether agents of ours made their modules; see `read_workloads`.

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
            entry = _read_workload(path)
            if entry.is_own and not own:
                continue
            networks = tuple(sorted({**dict(entry.workload.networks), **dict(workload.networks)}.items()))
            if networks == entry.workload.networks and entry.is_own is own:
                continue
            # A module that is ours is better than any that was there before.
            takes_place = own and not entry.is_own
            workload = replace(workload if takes_place else entry.workload, networks=networks)
        else:
            new += 1
        # Tuples of texts and numbers all the way down: JSON as it is, without the copies of `as_json_dict`.
        mark = {_OWN: True} if own else {}
        waiting[path] = _text({"schema": CATALOG_SCHEMA, "workload": asdict(workload), **mark})
    write_all_durably(waiting)
    return new


def read_workloads(
    folder: Path, workload_ids: Iterable[str] | None = None, *, only_own: bool = False
) -> dict[WorkloadId, Workload]:
    """Workloads by id, sorted by id.

    Args:
        folder: Of the workloads.
        workload_ids: Only those of these that are there; all if None.
        only_own: Leave out those whose module is of others.
    """
    if workload_ids is None:
        paths = sorted(folder.glob("[!.]*.json"))
    else:
        paths = [
            folder / f"{workload_id}.json"
            for workload_id in sorted(set(workload_ids))
            if _NAME.fullmatch(workload_id)
        ]
    entries = [_read_workload(path) for path in paths if path.exists()]
    return {entry.workload.workload_id: entry.workload for entry in entries if entry.is_own or not only_own}


def _text(value: Mapping[str, Any]) -> bytes:
    """One line of JSON with a sum of all that it says."""
    return (canonical_json({**value, _SUM: _sum(value)}) + "\n").encode()


def _sum(value: Mapping[str, Any]) -> str:
    return content_hash(canonical_json({key: entry for key, entry in value.items() if key != _SUM}))


def sum_fault(line: str) -> str:
    """What is wrong with the sum of a line of one of these files; empty where it holds."""
    value = json.loads(line)
    # A last digit more or less may be the same number, so a line must be written as lines are.
    if not isinstance(value, dict) or (value.get(_SUM) == _sum(value) and canonical_json(value) == line):
        return ""
    return "its sum is another one: a bit has changed since it was written"


class _Stored(NamedTuple):
    """A workload, and whether its module is ours."""

    workload: Workload
    is_own: bool


def _read_workload(path: Path) -> _Stored:
    value = _entry(path, path.read_text())
    workload = _valid(Workload, value.get("workload"), path)
    is_own = value.get(_OWN) is True and not is_imported(workload.workload_id)
    return _Stored(workload, is_own)


def _entry(path: Path, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise StoreError(f"{path} is damaged: {error}; delete it and store its content again") from error
    if not isinstance(value, dict) or not isinstance(value.get("schema"), int):
        raise StoreError(f"{path} is no file of this store: it has no schema number")
    if value["schema"] != CATALOG_SCHEMA:
        raise StoreError(
            f"{path} has layout {value['schema']}, this version reads {CATALOG_SCHEMA}; open the store with "
            "the version that wrote it"
        )
    return value


def _valid(
    kind: type[T], value: Any, where: Any, cure: str = "delete the file and store its content again"
) -> T:
    try:
        return value_from_json(kind, value, str(where))
    except AgentError as error:
        raise StoreError(f"{error}; {cure}") from error


def put_device(folder: Path, spec: DeviceSpec, descriptor: Descriptor | None) -> bool:
    """Add what a device is to its history, unless it is as before.

    Returns:
        Whether anything was added. A change of the current clock alone adds nothing.
    """
    path = folder / f"{check_name('device', spec.device_id)}.jsonl"
    if path.exists():
        _drop_torn_line(path)
        last = _last_entry(path)
        if last is not None and last.spec == spec and _lasting(last.descriptor) == _lasting(descriptor):
            return False
    value = {
        "schema": CATALOG_SCHEMA,
        "stored_at": time.time(),
        "spec": as_json_dict(spec),
        "descriptor": None if descriptor is None else as_json_dict(descriptor),
    }
    # A line that cannot be read back would hide every device. (To Python, True is a number; not to JSON.)
    cure, where = "give the field the type that DeviceSpec says", f"device {spec.device_id} cannot be stored"
    _valid(DeviceSpec, value["spec"], where, cure)
    if descriptor is not None:
        _valid(Descriptor, value["descriptor"], where, "give the field the type that Descriptor says")
    before = path.stat().st_size if path.exists() else 0
    with path.open("ab", buffering=0) as stream:
        try:
            data = _text(value)
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
    return [_device_entry(path, line) for line in path.read_text().split("\n")[:-1]]


def _device_entry(path: Path, line: str) -> DeviceEntry:
    value = _entry(path, line)
    descriptor = value.get("descriptor")
    return DeviceEntry(
        spec=_valid(DeviceSpec, value.get("spec"), path),
        descriptor=None if descriptor is None else _valid(Descriptor, descriptor, path),
    )


def read_devices(folder: Path) -> dict[DeviceId, DeviceEntry]:
    """The last entry of each device, sorted by device; however long its history is, one line is parsed."""
    entries: dict[DeviceId, DeviceEntry] = {}
    for path in sorted(folder.glob("[!.]*.jsonl")):
        if (entry := _last_entry(path)) is not None:
            entries[entry.spec.device_id] = entry
    return entries


def _last_entry(path: Path) -> DeviceEntry | None:
    lines = path.read_text().rsplit("\n", 2)[-2:]
    return _device_entry(path, lines[0]) if len(lines) == 2 else None  # the end of the text is no line
