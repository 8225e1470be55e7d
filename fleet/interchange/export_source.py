"""What an export reads of one device: its entry in the store, its records, and which of them count.

The writers of the formats get one `Source` a device. It holds a flag a record in memory, never traces.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import io
import json
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import yaml
from numpy.typing import NDArray

from agents.files import fsync, make_folder
from agents.records import Descriptor, DeviceId, DeviceSpec, Record, Workload, WorkloadId
from fleet.errors import FleetError, disk_errors
from fleet.interchange.logs.catalog import checked_trace
from fleet.interchange.logs.json_values import Rejected, object_in
from fleet.store.catalog import DeviceEntry
from fleet.store.noise import SETTLING_COLUMNS, settled_rows
from fleet.store.reader import StoreReader

# Where an export is written: one file or one folder, which is there as a whole or not at all.
#
# Called by `export_store.py` and the writers beside it. It knows nothing of records.

#: In every exported folder: what it is, from which version of the store, how many records. YAML, because an
#: import of the folder takes JSON for a log.
MANIFEST = "export.yaml"
_FORMAT_KEY = "tensor_fleet_export"
#: Little is gained above, and imports of such lines are bound by the parser anyway.
_GZIP_LEVEL = 6
#: End of the hidden name of an export while another takes its place.
_OLD = ".old"


@contextmanager
def whole_file(path: Path, *, replace: bool) -> Iterator[Path]:
    """Write a file beside its place and move it there at the end; after a failure nothing is left of it.

    Yields the path to write to, with the same suffix; the folder of the file is made if missing.

    Raises:
        FleetError: Something is there and may not be replaced.
        StoreError: The disk failed; `StoreFull` where there was no room.
    """
    with disk_errors("exporting", path):
        if path.is_dir():
            raise FleetError(f"{path} is a folder; name a file that is not there yet")
        if path.exists() and not replace:
            raise _exists_error(path)
        make_folder(path.parent)
        beside = _beside(path, path.suffix)
        try:
            yield beside
            fsync(beside)
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        fsync(path.parent)


@contextmanager
def whole_folder(path: Path, *, replace: bool) -> Iterator[Path]:
    """Fill a folder beside its place and move it there at the end; after a failure nothing is left of it.

    Yields the folder to fill; those above are made if missing. What is replaced is an earlier export, never
    another folder.

    Raises:
        FleetError: Something is there and may not be replaced.
        StoreError: The disk failed; `StoreFull` where there was no room.
    """
    with disk_errors("exporting", path):
        _put_back(path)
        if path.exists() and not path.is_dir():
            raise FleetError(f"{path} is a file; this export is a folder: name one that is not there yet")
        is_taken = path.is_dir() and any(path.iterdir())
        if is_taken and not replace:
            raise _exists_error(path)
        if is_taken and not _is_export(path):
            raise FleetError(
                f"{path} is not replaced: it holds no {MANIFEST} of an earlier export; choose another place"
            )
        make_folder(path.parent)
        beside = _beside(path)
        try:
            beside.mkdir()
            yield beside
            for entry in [*beside.rglob("*"), beside]:
                fsync(entry)
            if is_taken:
                # A name by which the next export to this place knows it again.
                path.rename(_beside(path, _OLD))
            beside.rename(path)
        except BaseException:
            with contextlib.suppress(OSError):
                shutil.rmtree(beside)
            _put_back(path)
            raise
        fsync(path.parent)
        _put_back(path)


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> None:
    """Say in an exported folder what it is; `facts` are plain values."""
    (folder / MANIFEST).write_text(yaml.safe_dump({_FORMAT_KEY: 1, **facts}))


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write lines of text, compressed if the name ends in `.gz`; returns how many."""
    count = 0
    with ExitStack() as stack:
        raw: io.BufferedWriter | gzip.GzipFile = stack.enter_context(path.open("wb"))
        if path.suffix.lower() == ".gz":
            # Without name and time, so that equal records give equal files.
            raw = stack.enter_context(gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=0))
        text = stack.enter_context(io.TextIOWrapper(raw, encoding="utf-8", newline="\n"))
        for line in lines:
            text.write(f"{line}\n")
            count += 1
    return count


def _beside(path: Path, end: str = ".tmp") -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}{end}")


def _put_back(path: Path) -> None:
    """Give a replaced export its place again, if a kill left the place empty; remove it behind a new one.

    No error if that fails: the next export tries again.
    """
    with contextlib.suppress(OSError):
        for old in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}{_OLD}"):
            if not path.exists():
                old.rename(path)
            elif _is_export(path):
                # Renamed first: what a kill leaves of it here is no export any more.
                rest = _beside(path)
                old.rename(rest)
                shutil.rmtree(rest)


def _is_export(folder: Path) -> bool:
    try:
        value = yaml.safe_load((folder / MANIFEST).read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return False
    return isinstance(value, dict) and _FORMAT_KEY in value


def _exists_error(path: Path) -> FleetError:
    return FleetError(f"{path} is there already; choose another place, or replace it with --replace")


#: Reason of a record that is left out since its trace is none.
NO_TRACE: Final = "its trace cannot be read"

T = TypeVar("T")


class NotHeldError(Exception):
    """A format has no word for a record; the message is the reason counted."""


class Source:
    """The records of one device in one version of a store.

    Args:
        reader: The store.
        device_id: A device that has records.

    Attributes:
        skipped: Records that a writer left out, by reason; writers add to it.
    """

    def __init__(self, reader: StoreReader, device_id: DeviceId) -> None:
        self.reader, self.device_id = reader, device_id
        self.skipped: Counter[str] = Counter()

    @cached_property
    def entry(self) -> DeviceEntry | None:
        """The device's entry; None where the store has records of it and nothing else."""
        return self.reader.devices().get(self.device_id)

    @property
    def spec(self) -> DeviceSpec | None:
        """The device's spec, where there is an entry."""
        return self.entry.spec if self.entry else None

    @property
    def descriptor(self) -> Descriptor | None:
        """What the probe saw last; None for a device that was never probed."""
        return self.entry.descriptor if self.entry else None

    @cached_property
    def workloads(self) -> Mapping[WorkloadId, Workload]:
        """All workloads of the store."""
        return self.reader.workloads()

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the device with some columns, always in the same order."""
        for _, batch in self.reader.columns(columns, device_ids=[self.device_id]):
            yield batch

    def held(self, make: Callable[[Record], T]) -> Iterator[T]:
        """Yield what a writer makes of each record; counts those that `make` refuses (`NotHeldError`)."""
        for record in self.reader.records(device_id=self.device_id):
            try:
                entry = make(record)
            except NotHeldError as reason:
                self.skipped[str(reason)] += 1
            else:
                yield entry

    def workload_of(self, record: Record) -> Workload:
        """The workload of a record.

        Raises:
            NotHeldError: The store lacks it.
        """
        if record.workload_id not in self.workloads:
            raise NotHeldError("its workload is not in the store")
        return self.workloads[record.workload_id]

    @cached_property
    def counts(self) -> NDArray[np.bool_]:
        """(n,) which rows count (`fleet.store.noise.settled`): one a candidate and environment."""
        return settled_rows(self.batches(SETTLING_COLUMNS))


def has_module(workload: Workload) -> bool:
    """Whether a workload holds a TVM module; that of an imported log may name its origin instead."""
    try:
        value = json.loads(workload.module_json)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "dialect" not in value


@lru_cache(maxsize=16)
def json_object(text: str) -> Mapping[str, Any]:
    """The object in a text, such as what stands for the module of an imported workload; empty without one.

    A store may hold any text. What is given can be written again.
    """
    return object_in(text) or {}


def json_trace(record: Record, fault: Callable[[Any], str]) -> Any:
    """The trace of a record that is JSON.

    Args:
        record: Of others, maybe: then nobody has looked at its trace.
        fault: Says of a value why it is no trace of the dialect, "" where it is one.

    Raises:
        NotHeldError: It is none that its log could have held.
    """
    try:
        value = json.loads(record.trace)
        checked_trace(value)
    except (ValueError, RecursionError, Rejected):
        raise NotHeldError(NO_TRACE) from None
    if fault(value):
        raise NotHeldError(NO_TRACE)
    return value
