"""What an import did, line by line accounted for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from msgspec import Struct, field

from agents.records import Descriptor, DeviceId, DeviceSpec, Family, Workload
from fleet.config.device_files import DEVICE_ID, load_device
from fleet.errors import FleetError
from fleet.interchange.logs.json_values import BLANK, COMMENT, WORKLOAD_LINE
from fleet.interchange.logs.targets import Machine, device_from_log, has_sheet
from fleet.store.catalog import DeviceEntry
from fleet.store.store import AppendResult
from fleet.terminal_text import visible

# The device that logs are imported under: one that is known, or one that only the logs describe.


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


#: Reasons of lines that are no measurements and are not meant to be.
NO_MEASUREMENTS = frozenset({BLANK, COMMENT, WORKLOAD_LINE})


class LineCounts(Struct):
    """Lines of one file or of all: `lines == valid + sum of rejected`."""

    lines: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    #: Measurements by dialect, and by outcome.
    dialects: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def valid(self) -> int:
        """Lines that are measurements."""
        return self.dialects.total()

    def add(self, other: LineCounts) -> None:
        """Count the lines of another file in."""
        self.lines += other.lines
        self.rejected.update(other.rejected)
        self.dialects.update(other.dialects)
        self.outcomes.update(other.outcomes)


class ImportReport(Struct, kw_only=True):
    """What became of every line."""

    device_id: DeviceId
    counts: LineCounts = field(default_factory=LineCounts)
    #: Records that are new in the store. The others of `counts.valid` were there, or stand twice in the logs.
    imported: int = 0
    files: int = 0
    #: Files that an earlier import had read to their end: their measurements count as duplicates.
    files_known: int = 0
    #: Files of the folders that hold no log.
    files_skipped: list[Path] = field(default_factory=list)
    #: First line of each reason of rejection: file:line, and what was found.
    examples: dict[str, str] = field(default_factory=dict)
    #: Compressed files that are damaged, with what is wrong.
    damaged: dict[str, str] = field(default_factory=dict)
    #: Workloads that are new in the store.
    workloads: int = 0
    #: Networks that the workloads were counted to.
    networks: set[str] = field(default_factory=set)
    #: Where the device's description comes from.
    described_by: str = ""
    targets: set[str] = field(default_factory=set)
    #: Version of the store's table that holds all of it.
    table_version: int = 0
    seconds: float = 0.0

    @property
    def duplicates(self) -> int:
        """Measurements that the store held already, or that stand twice in the logs."""
        return self.counts.valid - self.imported

    @property
    def rejected(self) -> int:
        """Lines that should be measurements and are not."""
        return sum(count for reason, count in self.counts.rejected.items() if reason not in NO_MEASUREMENTS)

    @property
    def unaccounted(self) -> int:
        """Lines of which nothing is known: always 0."""
        return self.counts.lines - self.imported - self.duplicates - self.counts.rejected.total()

    def to_json(self) -> dict[str, Any]:
        """The report for `--json`; its keys are told in `docs/import.md`."""
        return {
            "device": self.device_id,
            "described_by": self.described_by,
            "targets": sorted(self.targets),
            "files": self.files,
            "files_known": self.files_known,
            "files_skipped": [str(path) for path in self.files_skipped],
            "lines": self.counts.lines,
            "imported": self.imported,
            "duplicates": self.duplicates,
            "rejected_by_reason": dict(self.counts.rejected.most_common()),
            "unaccounted_lines": self.unaccounted,
            "first_examples": dict(self.examples),
            "damaged": dict(self.damaged),
            "dialects": dict(sorted(self.counts.dialects.items())),
            "outcomes": dict(sorted(self.counts.outcomes.items())),
            "workloads_new": self.workloads,
            "networks": sorted(self.networks),
            "table_version": self.table_version,
            "seconds": round(self.seconds, 3),
            "lines_per_s": round(self.counts.lines / self.seconds, 1) if self.seconds else None,
        }
