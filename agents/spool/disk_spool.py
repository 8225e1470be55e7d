"""Finished records on the device's host until the coordinator has acknowledged them.

`agents.device.worker` puts every record here before it hands it over, so neither a lost message nor a dead
coordinator costs a measurement. Standard library only; it knows nothing of who fetches the records.

A spool is a folder of segment files. A segment is a row of frames (`agents.spool.frames`) with either one
`record`, since the second version with the `lease` that it was made under, or a list of `acknowledged` ids.
Frames are only ever added at the end of the last segment.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents.codec import record_from_json, record_to_json
from agents.errors import AgentError, SpoolError, SpoolFull
from agents.lease import LeaseTag, tag_from_json
from agents.records import Record
from agents.spool.frames import (
    HEAD,
    MARKER,
    Scan,
    frame,
    fsync_folder,
    make_folder,
    payload_at,
    scan,
    set_aside,
    truncate,
)

_LOG = logging.getLogger(__name__)

#: A new segment is begun when the last one is this long; a segment is deleted as a whole.
SEGMENT_BYTES = 8 << 20
#: Most bytes on the disk: some 100,000 records, days of one device without a coordinator.
MAX_BYTES = 1 << 30

#: How often a lock that another process holds is tried again.
_LOCK_POLL_SEC = 0.05

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


#: Told apart from the tag None.
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the payload of an unacknowledged record is."""

    offset: int
    length: int
    tag: LeaseTag | None


@dataclass(slots=True)
class _Segment:
    path: Path
    #: Bytes of whole frames.
    size: int = 0
    #: By record id, in the order of putting.
    pending: dict[str, _Place] = field(default_factory=dict)


class Spool:
    """Records kept until acknowledged.

    Promises: when `put` returns, the records survive a kill and a power cut. `pending` gives each record
    that is not known to be acknowledged, in the order of putting. Acknowledgements are not waited for on the
    disk, so after a power cut a record may be pending once more: deliver it again, its id tells the receiver.
    One process at a time may have a spool open, and one thread may use it.

    Args:
        path: Folder; made if missing.
        segment_bytes: Length at which a new segment is begun.
        max_bytes: Most bytes on the disk, acknowledged records of unfinished segments included.
        lock_timeout_secs: How long to wait until another process, such as a dying one, lets go of it.

    Raises:
        SpoolError: The folder cannot be used, another process has it, a newer version wrote it; or it was
            damaged elsewhere than at its end. A damaged segment is set aside as `.corrupt` first and its good
            frames kept, so the spool opens the next time.
    """

    def __init__(
        self,
        path: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        max_bytes: int = MAX_BYTES,
        lock_timeout_secs: float = 0.0,
    ) -> None:
        self._path = path
        self._segment_bytes = segment_bytes
        self._max_bytes = max_bytes
        self._segments: list[_Segment] = []
        try:
            make_folder(path)
            self._lock = _lock(path, lock_timeout_secs)
        except OSError as error:
            raise _disk_error(f"the spool {path} cannot be opened", error) from error
        try:
            self._load()
        except OSError as error:
            self.close()
            raise _disk_error(f"the spool {path} cannot be opened", error) from error
        except BaseException:
            self.close()
            raise

    def put(self, records: Sequence[Record], tag: LeaseTag | None = None) -> None:
        """Keep records; they are on the disk when this returns.

        Records that are pending with the same tag already are skipped. One that is pending with another tag
        is replaced: only the newer lease can still count.

        Args:
            records: What to keep.
            tag: The lease that they were made under.

        Raises:
            SpoolFull: No room; none of them was kept.
            SpoolError: The disk failed; none of them was kept.
        """
        self._check_open()
        pending = {name: place.tag for segment in self._segments for name, place in segment.pending.items()}
        fresh = {one.record_id: one for one in records if pending.get(one.record_id, _ABSENT) != tag}
        if not fresh:
            return
        lease = {} if tag is None else {"lease": tag.as_json()}
        frames = [frame({"record": record_to_json(record), **lease}) for record in fresh.values()]
        asked = sum(map(len, frames))
        held = sum(segment.size for segment in self._segments)
        what = f"{len(fresh)} records of {asked} bytes"
        if held + asked > self._max_bytes:
            raise SpoolFull(
                f"the spool {self._path} holds {held} of at most {self._max_bytes} bytes, no room for {what};"
                " start the coordinator, it fetches and acknowledges them"
            )
        try:
            segment = self._writable()
            offset = segment.size
            _add(segment, b"".join(frames), durable=True)
        except OSError as error:
            raise _disk_error(f"the spool {self._path} could not keep {what}", error) from error
        for record_id, one in zip(fresh, frames, strict=True):
            self._keep(segment, record_id, _Place(offset + HEAD.size, len(one) - HEAD.size, tag))
            offset += len(one)

    def pending(self) -> list[Record]:
        """Return the records that nobody has acknowledged, in the order of putting.

        Raises:
            SpoolError: The disk failed, or changed behind the spool's back.
        """
        return [record for _, record in self.pending_tagged()]

    def pending_tagged(self) -> Iterator[tuple[LeaseTag | None, Record]]:
        """Give the same with the lease of each, one after the other: a long spool need not fit in memory.

        Nothing may be put or acknowledged meanwhile.

        Raises:
            SpoolError: As `pending`.
        """
        self._check_open()
        for segment in self._segments:
            yield from _read_pending(segment)

    def acknowledge(self, record_ids: Iterable[str]) -> None:
        """Forget records that the store holds for good; unknown ids are ignored.

        It never fails for lack of room: it is what makes room.
        """
        self._check_open()
        gone: list[str] = []
        wanted = set(record_ids)
        for segment in self._segments:
            done = wanted & segment.pending.keys()
            for record_id in done:
                del segment.pending[record_id]
            gone.extend(done)
        last = self._segments[-1:]
        for segment in [one for one in self._segments if not one.pending]:
            segment.path.unlink(missing_ok=True)
            self._segments.remove(segment)
        if gone and self._segments:
            try:
                if self._segments[-1:] != last:
                    # Were the last to come back, this one would not be it, and may end within a frame.
                    fsync_folder(self._path)
                _add(self._segments[-1], frame({"acknowledged": sorted(gone)}), durable=False)
            except OSError as error:
                _LOG.warning("%s: acknowledgements may be asked for again: %s", self._path, error)

    def close(self) -> None:
        """Let another process open the spool; what is pending stays."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Count the pending records."""
        return sum(len(segment.pending) for segment in self._segments)

    def _check_open(self) -> None:
        if self._lock < 0:
            raise SpoolError(f"the spool {self._path} was closed; open it again")

    def _keep(self, segment: _Segment, record_id: str, place: _Place) -> None:
        """Note where the newest frame of a record is."""
        for one in self._segments:
            one.pending.pop(record_id, None)
        segment.pending[record_id] = place

    def _writable(self) -> _Segment:
        """Return the segment to write to, a new one where the last is long enough."""
        if self._segments and self._segments[-1].size < self._segment_bytes:
            return self._segments[-1]
        number = 0
        if self._segments:
            # Only the last segment may end in the middle of a frame, so what was not waited for is now.
            fsync_folder(self._segments[-1].path)
            number = int(self._segments[-1].path.stem) + 1
        segment = _Segment(self._path / f"{number:010d}.seg")
        # It may be there, empty, if the disk was full at the next step.
        segment.path.touch()
        fsync_folder(self._path)
        self._segments.append(segment)
        return segment

    def _load(self) -> None:
        for leftover in self._path.glob("*.tmp"):
            leftover.unlink()
        reports = []
        paths = sorted(self._path.glob("*.seg"))
        for path in paths:
            data = path.read_bytes()
            found = scan(data)
            is_last = path == paths[-1]
            if found.end < len(data) and not is_last:
                found.holes.append(found.end)
            if found.holes:
                reports.append(set_aside(path, data, found))
                data = path.read_bytes()
                found = scan(data)
            elif found.end < len(data):
                _LOG.warning("%s: dropped %d bytes of an unfinished put", path, len(data) - found.end)
                truncate(path, found.end)
            elif is_last:
                # What a killed put has left is handed over from now on, so it must not go with the power.
                fsync_folder(path)
            self._take(path, data, found)
        empty = [one for one in self._segments if not one.pending]
        for segment in empty:
            segment.path.unlink()
            self._segments.remove(segment)
        if empty:
            fsync_folder(self._path)
        if reports:
            raise SpoolError("; ".join(reports) + "; open the spool again to go on with the rest")

    def _take(self, path: Path, data: bytes, found: Scan) -> None:
        """Play the frames of a segment, in order."""
        segment = _Segment(path, size=found.end)
        self._segments.append(segment)
        for offset, length in found.frames:
            value = json.loads(data[offset : offset + length])
            if "acknowledged" in value:
                for record_id in value["acknowledged"]:
                    for one in self._segments:
                        one.pending.pop(record_id, None)
            else:
                tag, record = _decode(value, path, offset)
                self._keep(segment, record.record_id, _Place(offset, length, tag))


def _decode(value: dict[str, Any], path: Path, offset: int) -> tuple[LeaseTag | None, Record]:
    try:
        return tag_from_json(value.get("lease")), record_from_json(value.get("record"))
    except (AgentError, ValueError) as error:
        raise SpoolError(f"{path}, byte {offset}: {error}") from error


def _read_pending(segment: _Segment) -> Iterator[tuple[LeaseTag | None, Record]]:
    if not segment.pending:
        return
    try:
        with segment.path.open("rb") as stream:
            for record_id, place in segment.pending.items():
                stream.seek(place.offset - HEAD.size)
                data = stream.read(HEAD.size + place.length)
                if payload_at(data, 0) != place.length:
                    raise SpoolError(f"{segment.path}, byte {place.offset}: record {record_id} is damaged")
                yield _decode(json.loads(data[HEAD.size :]), segment.path, place.offset)
    except OSError as error:
        raise _disk_error(f"{segment.path} cannot be read", error) from error


def _add(segment: _Segment, data: bytes, *, durable: bool) -> None:
    """Write at the end of a segment; after an error the segment is as it was."""
    descriptor = os.open(segment.path, os.O_WRONLY)
    try:
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(descriptor, data[done:], segment.size + done)
            if durable:
                os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, segment.size)
            raise
    finally:
        os.close(descriptor)
    segment.size += len(data)


def _lock(path: Path, timeout_secs: float) -> int:
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + timeout_secs
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() < deadline:
                time.sleep(_LOCK_POLL_SEC)
                continue
            os.close(descriptor)
            waited = f" and was so for {timeout_secs:g} s" if timeout_secs else ""
            raise SpoolError(
                f"the spool {path} is open in another process{waited}; one process may use it"
            ) from error
        return descriptor


def _disk_error(what: str, error: OSError) -> SpoolError:
    if error.errno in _FULL:
        return SpoolFull(f"{what}: {error.strerror}; free some space on the disk and try again")
    return SpoolError(f"{what}: {error.strerror or error}; check the folder and its disk")


__all__ = ["MARKER", "MAX_BYTES", "SEGMENT_BYTES", "Spool"]
