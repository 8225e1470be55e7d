"""Rows that are acknowledged but not in the table yet: a log on the disk beside the table.

`fleet.store.intake` writes it, and `fleet.store.store` takes up what a killed writer has left there. It
knows columns, no `Record`; it decides nothing.

A log is a folder of segment files. A segment is a row of frames as in `agents.spool.frames` (marker, length,
CRC-32), each with some rows as an Arrow stream. Frames are only ever added at the end of the last segment;
a segment is deleted once the table has all its rows.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from agents.spool.frames import HEAD, MARKER, fsync_folder, scan, set_aside, truncate
from fleet.durable import disk_errors
from fleet.errors import StoreError
from fleet.histogram import Histogram
from fleet.store.delta.schema import TABLE_SCHEMA

_LOG = logging.getLogger(__name__)

#: Folder of the log in a store.
INTAKE = "intake"

#: A new segment is begun when the last one is this long.
SEGMENT_BYTES = 16 << 20

#: LZ4 takes a tenth of the time of writing the columns uncompressed to most disks.
_COMPRESSION = "lz4"


class IntakeLog:
    """Packed rows kept until they are dropped.

    Promises: when `append` returns, the rows survive a kill and a power cut. Only the holder of the store's
    lock may use one.

    Args:
        folder: Folder of the segments; made with the first one.
        segment_bytes: Length at which a new segment is begun.

    Attributes:
        waits: How long the disk took to make rows durable.
    """

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self.waits = Histogram()
        self._next = max(self.segments(), default=-1) + 1
        #: Whether the folder itself is known to be on the disk.
        self._is_made = False
        #: Bytes of each segment that this object has begun.
        self._sizes: dict[int, int] = {}
        self._writable: int | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes of the segments that were begun here and not dropped."""
        return sum(self._sizes.values())

    def append(self, packed: Sequence[bytes]) -> int:
        """Keep packed rows; they are on the disk when this returns. It waits for the disk once.

        Args:
            packed: Rows from `pack`.

        Returns:
            Number of the segment that has all of them.

        Raises:
            StoreFull: No room; nothing was kept.
            StoreError: The disk failed. The rows may be found again by `replay` or not.
        """
        data = b"".join(HEAD.pack(MARKER, len(one), zlib.crc32(one, len(one))) + one for one in packed)
        with disk_errors("taking in records", self._folder):
            number = self._segment()
            path = self._path(number)
            before = self._sizes[number]
            try:
                _write_at(path, before, data, self.waits)
            except BaseException:
                # What is on the disk now nobody knows, so nothing more is written behind it.
                self._writable = None
                truncate(path, before)
                if not before:
                    # Nothing is in it: else each try on a full disk would leave a segment of its own.
                    self.drop(number)
                raise
            self._sizes[number] = before + len(data)
        return number

    def drop(self, number: int) -> None:
        """Delete a segment whose rows the table has; one that is written to is ended first."""
        if self._writable == number:
            self._writable = None
        self._sizes.pop(number, None)
        with disk_errors("forgetting records that the table has", self._folder):
            self._path(number).unlink(missing_ok=True)

    def segments(self) -> list[int]:
        """Numbers of all segments that are on the disk, oldest first."""
        return sorted(int(path.stem) for path in self._folder.glob("*.log") if path.stem.isdigit())

    def replay(self, number: int, notes: list[str]) -> Iterator[pa.Table]:
        """Yield the tables of a segment that an earlier writer has left, in the order of writing.

        The beginning of a frame at the end of the last segment is left out: it was never acknowledged. All
        else that is no frame is damage: it is left out too, and the segment is kept for people as `.corrupt`.

        Args:
            number: The segment.
            notes: Gets a line for a damaged segment.

        Raises:
            StoreError: The segment cannot be read, or a newer version wrote it.
        """
        path = self._path(number)
        with disk_errors("reading what was taken in", path):
            data = path.read_bytes()
            found = scan(data)
            tail = data[found.end :]
            if tail and (number != self.segments()[-1] or not is_begun(tail)):
                found.holes.append(found.end)
            if found.holes:
                notes.append(set_aside(path, data, found))
            elif tail:
                _LOG.info("%s: left out %d bytes of an unfinished write", path, len(tail))
        for offset, length in found.frames:
            yield unpack(data[offset : offset + length])

    def _segment(self) -> int:
        if self._writable is not None and self._sizes[self._writable] < self._segment_bytes:
            return self._writable
        if not self._is_made:
            self._folder.mkdir(exist_ok=True)
            fsync_folder(self._folder.parent)
            self._is_made = True
        number, self._next = self._next, self._next + 1
        path = self._path(number)
        path.touch(exist_ok=False)
        try:
            fsync_folder(self._folder)
        except BaseException:
            path.unlink()
            raise
        self._writable, self._sizes[number] = number, 0
        return number

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:010d}.log"


def is_begun(tail: bytes) -> bool:
    """Whether bytes are the beginning of a frame and no more, as a kill amid a write leaves it.

    A power cut may leave other bytes of an unfinished write, such as zeros. They look like a damaged frame,
    so they count as one.
    """
    if len(tail) < HEAD.size:
        return MARKER.startswith(tail[: len(MARKER)])
    marker, length, crc = HEAD.unpack_from(tail)
    rest = tail[HEAD.size :]
    # Where the sum fits all that is there, the frame is whole and its length is what is damaged.
    return bool(marker == MARKER and len(rest) < length and crc != zlib.crc32(rest, len(rest)))


def _write_at(path: Path, offset: int, data: bytes, waits: Histogram) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        done = 0
        while done < len(data):
            done += os.pwrite(descriptor, data[done:], offset + done)
        with waits.timed():
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def pack(table: pa.Table) -> bytes:
    """Rows of `fleet.store.delta.schema.TABLE_SCHEMA` as a compressed Arrow stream: a fifth of the memory."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=_COMPRESSION)
    with pa.ipc.new_stream(sink, TABLE_SCHEMA, options=options) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()
    assert isinstance(data, bytes)
    return data


def unpack(packed: bytes) -> pa.Table:
    """The rows that `pack` was given.

    Raises:
        StoreError: They are of a newer version, or no rows at all.
    """
    try:
        table = pa.ipc.open_stream(packed).read_all()
    except pa.ArrowException as error:
        raise StoreError(f"rows that were taken in cannot be read: {error}") from error
    if not table.schema.equals(TABLE_SCHEMA):
        raise StoreError(
            f"rows that were taken in have the columns {table.schema.names}, this version knows"
            f" {TABLE_SCHEMA.names}; open the store once with the version that wrote them"
        )
    return table


def by_device(table: pa.Table) -> dict[str, pa.Table]:
    """Split rows of `TABLE_SCHEMA` into rows of the data files, those of one device in the order given."""
    ordered = table.take(pc.sort_indices(table.column("device_id")))
    names = ordered.column("device_id").combine_chunks()
    rows = ordered.drop_columns(["device_id"])
    found: dict[str, pa.Table] = {}
    start = 0
    for entry in pc.value_counts(names).to_pylist():
        found[entry["values"]] = rows.slice(start, entry["counts"])
        start += entry["counts"]
    return found


__all__ = ["INTAKE", "SEGMENT_BYTES", "IntakeLog", "by_device", "is_begun", "pack", "unpack"]
