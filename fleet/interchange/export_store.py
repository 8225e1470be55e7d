"""Export records from a snapshot of the store: Parquet, databases and lines of other tuners.

`fleet export` calls it; `fleet.daemon.replay_files` makes the file of a replay device with it. What comes
out, column by column and key by key: `docs/export.md`. It never writes to the store and holds no records in
memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from agents.records import DeviceId
from fleet.config.yaml_files import nearest
from fleet.errors import FleetError
from fleet.interchange.export_knobs import FORMATS as KNOB_FORMATS
from fleet.interchange.export_knobs import write_knobs
from fleet.interchange.export_lines import write_ansor, write_autotvm
from fleet.interchange.export_parquet import write_database, write_parquet
from fleet.interchange.export_source import Source, whole_file, whole_folder, write_manifest
from fleet.store.reader import StoreReader

_LINE_SUFFIXES = (".json", ".jsonl", ".log", ".json.gz", ".jsonl.gz", ".log.gz")


@dataclass(frozen=True, slots=True)
class _Format:
    """How the records of devices are written."""

    #: Writes those of one device to a path; gives the number of records. None for a file of several devices.
    write: Callable[[Path, Source], int] | None = None
    #: End of the name of a device's file; empty where a device has a folder.
    suffix: str = ""
    #: Ends of a destination's name that make it a file instead of a folder.
    file_suffixes: tuple[str, ...] = ()

    def write_all(self, path: Path, sources: Sequence[Source]) -> int:
        """Write the records of some devices to one path."""
        return write_parquet(path, sources) if self.write is None else self.write(path, *sources)


#: What `fmt` may be.
FORMATS: Final = {
    "parquet": _Format(None, ".parquet", (".parquet",)),
    "meta_schedule": _Format(write_database),
    "ansor": _Format(write_ansor, ".jsonl", _LINE_SUFFIXES),
    "autotvm": _Format(write_autotvm, ".jsonl", _LINE_SUFFIXES),
    **{tool: _Format(partial(write_knobs, form=form)) for tool, form in KNOB_FORMATS.items()},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """What an export wrote."""

    format: str
    #: The files, sorted; a manifest is not among them.
    files: tuple[Path, ...]
    records: int
    #: Records of the chosen devices that were left out, by reason.
    skipped: Mapping[str, int]
    #: Version of the store that was exported.
    table_version: int


def export(
    reader: StoreReader,
    destination: Path,
    fmt: str,
    devices: Sequence[str] = (),
    *,
    replace: bool = False,
) -> ExportResult:
    """Write the records of some devices in another tool's format.

    The result is there as a whole or not at all, durable when this returns. The same version of a store
    gives the same bytes again, except in Parquet files written by another version of pyarrow.

    Args:
        reader: The store; later appends do not matter.
        destination: Parquet: a name that ends in `.parquet` is one file, any other a folder with a file a
            device. Ansor and AutoTVM lines: a name in `.json`, `.jsonl` or `.log`, also with `.gz`, is the
            file of one device, any other a folder. Others: a folder with a folder a device.
        fmt: One of `FORMATS`.
        devices: Device ids; all that have records if empty.
        replace: Whether an earlier export at the destination is replaced.

    Raises:
        FleetError: An unknown format or device, nothing to export, or the destination is taken.
        StoreError: The store is damaged, or the disk failed; `StoreFull` where there was no room.
    """
    if fmt not in FORMATS:
        raise FleetError(f"unknown format {fmt!r}{nearest(fmt, FORMATS)}; known: {', '.join(FORMATS)}")
    chosen = _chosen(reader, devices)
    sources = [Source(reader, device_id) for device_id in chosen]
    form = FORMATS[fmt]
    if destination.name.lower().endswith(form.file_suffixes):
        if form.write is not None and len(sources) != 1:
            raise FleetError(
                f"{destination}: lines do not name their device, so one file holds one device, got "
                f"{', '.join(chosen)}: choose one with --device, or name a folder"
            )
        with whole_file(destination, replace=replace) as path:
            count = form.write_all(path, sources)
            _check_any(count, fmt, sources)
        files = [destination]
    else:
        count, files = _export_folder(destination, fmt, sources, replace)
    return ExportResult(
        format=fmt,
        files=tuple(sorted(files)),
        records=count,
        skipped=_skipped(sources),
        table_version=reader.version,
    )


def _export_folder(
    destination: Path, fmt: str, sources: Sequence[Source], replace: bool
) -> tuple[int, list[Path]]:
    """One file, or folder of files, a device; devices without a fitting record are left out."""
    counts: dict[DeviceId, int] = {}
    with whole_folder(destination, replace=replace) as folder:
        for source in sources:
            name = source.device_id
            path = folder / f"{name}{FORMATS[fmt].suffix}"
            counts[name] = FORMATS[fmt].write_all(path, [source])
            if not counts[name]:
                path.unlink(missing_ok=True)
        total = sum(counts.values())
        _check_any(total, fmt, sources)
        names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        facts = {
            "format": fmt,
            "table_version": sources[0].reader.version,
            "records": {str(name): count for name, count in counts.items() if count},
            "skipped": _skipped(sources),
        }
        write_manifest(folder, facts)
    return total, [destination / name for name in names]


def _chosen(reader: StoreReader, devices: Sequence[str]) -> list[DeviceId]:
    present = reader.counts()
    device_ids = sorted({*present, *reader.devices()})
    if not present:
        raise FleetError(
            f"{reader.path} holds no records at version {reader.version}: run `fleet collect` or "
            "`fleet import`"
        )
    for name in devices:
        if name not in device_ids:
            raise FleetError(f"no device {name!r} in {reader.path}{nearest(name, device_ids)}")
        if DeviceId(name) not in present:
            raise FleetError(f"device {name} has no records in {reader.path}: collect or import some first")
    return sorted({DeviceId(name) for name in devices} or present)


def _skipped(sources: Sequence[Source]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for source in sources:
        total += source.skipped
    return dict(sorted(total.items()))


def _check_any(count: int, fmt: str, sources: Sequence[Source]) -> None:
    if count:
        return
    why = "; ".join(f"{number} left out: {reason}" for reason, number in _skipped(sources).items())
    names = ", ".join(source.device_id for source in sources)
    raise FleetError(f"nothing to export as {fmt} from {names}: {why}; nothing was written")
