"""What a start wants to know of all records, kept beside the table: so that it does not read them again.

The coordinator opens it as it starts, and has it written now and then and at its end. It is a cache: delete
the folder, and the next start reads the records and writes it again.

What makes it safe to believe: the file names one version of the table, with a hash of that version's commit
and the rows of its files, and a checksum ends it. Whoever opens it follows the commits from there, and reads
only rows that came since (`fleet.store.delta.changes`). Anything unexpected on the way (a torn file, a commit
that is gone or another one, rows that do not add up, other workloads or families than those that it was made
for) and the records are read instead.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import uuid
import zlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from agents.records import DeviceId, Outcome, WorkloadId
from agents.trust import IMPORTED
from fleet.coverage.coverage_rows import COLUMNS
from fleet.coverage.matrix import Matrix
from fleet.coverage.matrix_file import TYPES, pack, unpack
from fleet.durable import fsync
from fleet.store.delta.changes import StaleError, changes_of_cache, commit_hash
from fleet.store.delta.ids import keys_of
from fleet.store.delta.log import commit_path
from fleet.store.delta.schema import RECORD_ID_DIGITS
from fleet.store.reader import RECORDS, RowParts, StoreReader
from fleet.store.store import Store

_LOG = logging.getLogger(__name__)

#: Folder beside the table, and the file in it.
SUMMARY, FILE = "summary", "matrix.bin"
#: Layout of the file.
SUMMARY_SCHEMA = 1
#: The file is written again when it lacks so many rows, or this share of all rows; at the end, for fewer.
SAVE_ROWS, SAVE_SHARE, SAVE_ROWS_AT_END = 131_072, 1 / 64, 16_384
#: Or when it lacks so many commits: each takes a start 0.2 ms, and old ones are deleted.
SAVE_COMMITS = 4096

_MAGIC = b"tfleetS1"
_CHUNK = 4 << 20
#: Arrays begin at multiples of this.
_ALIGNED = 64

#: Rows of devices, with `COLUMNS`.
Batches = list[tuple[DeviceId, pa.RecordBatch]]
#: What is to be written: the header, and the pieces of each array. A copy that nobody changes.
Packed = tuple[Mapping[str, Any], Mapping[str, list[NDArray[Any]]]]


@dataclass(slots=True)
class Counts:
    """What the store has of one device."""

    records: int = 0
    ok: int = 0
    #: Unix seconds of the last measurement; 0 for none.
    last_at: float = 0.0
    #: Records that came with a log.
    imported: int = 0

    def add(self, records: int, ok: int, last_at: float) -> None:
        """Count more records, of our own agents."""
        self.records += records
        self.ok += ok
        self.last_at = max(self.last_at, last_at)

    def add_rows(self, batch: pa.RecordBatch) -> None:
        """Count rows with `COLUMNS`, those that came with a log among them."""
        ok = pc.sum(pc.equal(batch.column("outcome"), Outcome.OK.value)).as_py()
        self.add(batch.num_rows, ok, pc.max(batch.column("measured_at")).as_py())
        self.imported += pc.sum(pc.equal(batch.column("origin"), IMPORTED)).as_py()


@dataclass(frozen=True, slots=True)
class Saving:
    """Stands for a copy that is being written, where its end is told."""


@dataclass(slots=True)
class TableSummary:
    """The summary of one table.

    Attributes:
        counts: Records of each device, in the newest version.
        parts: Rows of the newest version that the file lacks; all of them where it is not believed.
        saved_version, saved_rows: What the file holds; -1 and 0 where there is none to be believed.
    """

    folder: Path
    counts: dict[DeviceId, Counts] = field(default_factory=dict)
    parts: RowParts | None = None
    saved_version: int = -1
    saved_rows: int = 0
    _header: Mapping[str, Any] | None = None
    _fresh: Batches = field(default_factory=list)
    _arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @classmethod
    def open(cls, store: Store) -> TableSummary:
        """Read what there is, and count what came since; what an intake had taken in is in the table.

        Raises:
            StoreError: The records cannot be read.
        """
        summary = cls(store.path / SUMMARY)
        try:
            summary._read(store)
        except StaleError as error:
            if (summary.folder / FILE).exists():
                _LOG.info("%s: all records are read: %s", store.path, error)
        if summary.parts is None:
            summary._count(store.columns(("outcome", "measured_at", "origin")))
        else:
            summary._fresh = list(store.columns(COLUMNS, parts=summary.parts))
            summary._count(summary._fresh)
        return summary

    @property
    def imported_devices(self) -> list[DeviceId]:
        """Devices with records that came with a log."""
        return [device_id for device_id, one in self.counts.items() if one.imported]

    def matrix(
        self, families: Mapping[DeviceId, str], workloads: Set[WorkloadId]
    ) -> tuple[Matrix, Batches | None]:
        """Give the matrix of the file, if it was made for these, and the rows that it lacks.

        It may be asked once: the matrix is the caller's then.

        Returns:
            An empty matrix and None where it is of no use.
        """
        header, self._header = self._header, None
        fresh, self._fresh = self._fresh, []
        try:
            if header is None:
                raise StaleError("there is no summary")
            kept = {path.partition("/")[0].removeprefix("device_id=") for path in header["files"]}
            if workloads != set(header["wanted"]):
                raise StaleError("it was made for other workloads")
            if any(header["families"].get(one) != families.get(DeviceId(one)) for one in kept):
                raise StaleError("devices are of other families now")
            return unpack(header, self._arrays, families), fresh
        except (StaleError, KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
            if header is not None:
                _LOG.info("%s: all records are read: %s", self.folder, error)
            # The counts hold, but what the file has is of no use to the next start either.
            self.saved_version, self.saved_rows = -1, 0
            return Matrix(), None

    def is_due(self, store: StoreReader) -> bool:
        """Whether so much is missing in the file that writing it pays."""
        missing = store.rows - self.saved_rows
        behind = store.version - self.saved_version
        return missing >= max(SAVE_ROWS, SAVE_SHARE * store.rows) or (
            behind >= SAVE_COMMITS and store.rows >= SAVE_ROWS_AT_END
        )

    def is_worth_it(self, store: StoreReader) -> bool:
        """Whether writing it pays when the coordinator ends."""
        return store.rows - self.saved_rows >= SAVE_ROWS_AT_END or self.is_due(store)

    def packed(
        self,
        store: StoreReader,
        matrix: Matrix,
        counts: Mapping[DeviceId, Counts],
        families: Mapping[DeviceId, str],
        workloads: Set[WorkloadId],
        waiting: Iterable[pa.Table],
    ) -> Packed:
        """Take a copy of what is known now.

        Args:
            store: The table.
            matrix: What is known of its records, and of those that wait.
            counts: Records of each device, those that wait included.
            families: Family of each device of the matrix.
            workloads: Of the matrix.
            waiting: Rows of `fleet.store.delta.schema.TABLE_SCHEMA` that will be in the table.
        """
        header, pieces = pack(matrix)
        told = {name: [one.records, one.ok, one.last_at, one.imported] for name, one in counts.items()}
        # The rows come again as new rows of the table. Only these counts must not be told twice.
        ids: list[str] = []
        of_rows = {(one["device"], one["environment"]): one for one in header["rows"]}
        for table in waiting:
            ids += table.column("record_id").to_pylist()
            columns = ("device_id", "environment_id", "workload_id", "outcome")
            every = zip(*(table.column(name).to_pylist() for name in columns), strict=True)
            for device_id, environment_id, workload_id, outcome in every:
                told[device_id][0] -= 1
                told[device_id][1] -= outcome == Outcome.OK
                if device_id in families and workload_id in workloads:
                    of_rows[device_id, environment_id]["records"] -= 1
        pieces["waiting"].append(np.frombuffer(keys_of(ids), dtype=np.uint8))
        snapshot = store.snapshot
        header |= {
            "schema": SUMMARY_SCHEMA,
            "version": snapshot.version,
            "commit": commit_hash(commit_path(store.path / RECORDS, snapshot.version)),
            "files": {file.path: file.rows for file in snapshot.files},
            "counts": told,
            "families": dict(families),
            "wanted": sorted(workloads),
        }
        # From now on, whatever becomes of the file: else a failing disk would be tried again and again.
        self.saved_version, self.saved_rows = snapshot.version, snapshot.rows
        return header, pieces

    def write(self, packed: Packed) -> None:
        """Put a copy on the disk, in one step; any thread may do it.

        Raises:
            OSError: The disk is full or failed; the file is as before.
        """
        self.folder.mkdir(exist_ok=True)
        temporary = self.folder / f".{FILE}.{uuid.uuid4().hex[:8]}.tmp"
        try:
            with temporary.open("xb") as stream:
                _write(stream, packed)
            fsync(temporary)
            temporary.replace(self.folder / FILE)
            fsync(self.folder)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def _count(self, batches: Iterable[tuple[DeviceId, pa.RecordBatch]]) -> None:
        for device_id, batch in batches:
            self.counts.setdefault(device_id, Counts()).add_rows(batch)

    def _read(self, store: Store) -> None:
        """Take what the file holds, all of it or nothing."""
        for leftover in self.folder.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        try:
            header, arrays = mapped(self.folder / FILE)
            if header["schema"] != SUMMARY_SCHEMA:
                raise StaleError(f"the summary has layout {header['schema']}")
            version, table = int(header["version"]), store.path / RECORDS
            before = {str(path): int(rows) for path, rows in header["files"].items()}
            counts = {
                DeviceId(name): Counts(int(records), int(ok), float(last_at), int(imported))
                for name, (records, ok, last_at, imported) in header["counts"].items()
            }
        except FileNotFoundError as error:
            raise StaleError("there is no summary") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
            raise StaleError(f"the summary is damaged: {error}") from error
        changes = changes_of_cache(table, version, header.get("commit"), sum(before.values()), store.snapshot)
        ids = arrays["waiting"].tobytes().hex()
        if not all(
            store.known([ids[at : at + RECORD_ID_DIGITS] for at in range(0, len(ids), RECORD_ID_DIGITS)])
        ):
            raise StaleError("records that were on their way into the table are not in it")
        self.parts = dict(changes.new_parts(before, store.snapshot))
        self.counts, self._header, self._arrays = counts, header, arrays
        self.saved_version, self.saved_rows = version, sum(before.values())


def _write(stream: Any, packed: Packed) -> None:
    """Marker, length of the header, header, arrays, checksum of all of it."""
    crc = 0

    def put(data: Any) -> int:
        nonlocal crc
        crc = zlib.crc32(data, crc)
        stream.write(data)
        return len(data)

    header, pieces = packed
    lengths = {name: sum(one.nbytes for one in some) for name, some in pieces.items()}
    head = zlib.compress(json.dumps({**header, "lengths": lengths}).encode(), 1)
    at = put(_MAGIC + len(head).to_bytes(8, "little"))
    at += put(head)
    for name in TYPES:
        at += put(bytes(-at % _ALIGNED))
        for piece in pieces[name]:
            if piece.nbytes:
                data = np.ascontiguousarray(piece).view(np.uint8).data
                at += sum(put(data[start : start + _CHUNK]) for start in range(0, len(data), _CHUNK))
    stream.write(crc.to_bytes(4, "little"))
    stream.flush()


def mapped(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Check a file and map it: what nobody looks at takes no memory.

    Raises:
        ValueError: It is damaged.
        OSError: It cannot be read.
    """
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size < len(_MAGIC) + 12:
            raise ValueError("it is cut off")
        crc, left = 0, size - 4
        while left:
            chunk = stream.read(min(_CHUNK, left))
            if not chunk:
                raise ValueError("it is cut off")
            crc, left = zlib.crc32(chunk, crc), left - len(chunk)
        if int.from_bytes(stream.read(4), "little") != crc:
            raise ValueError("its checksum is another one")
        data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    if data[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it is something else")
    at = len(_MAGIC) + 8
    length = int.from_bytes(data[len(_MAGIC) : at], "little")
    header: dict[str, Any] = json.loads(zlib.decompress(data[at : at + length]))
    at += length
    arrays: dict[str, NDArray[Any]] = {}
    for name, kind in TYPES.items():
        at += -at % _ALIGNED
        count = int(header["lengths"][name]) // np.dtype(kind).itemsize
        arrays[name] = np.frombuffer(data, dtype=kind, count=count, offset=at)
        at += int(header["lengths"][name])
    return header, arrays
