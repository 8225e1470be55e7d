"""Finished records on the device's host until the coordinator has acknowledged them.

`agents.device.worker` puts every record here before it hands it over, so neither a lost message nor a dead
coordinator costs a measurement. It knows nothing of who fetches the records.

A spool is a folder with one file of rows (`agents.row_file`). A row is a `SpooledRecord` in JSON.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agents.codec import SpooledRecord, decode_spooled, encode_spooled
from agents.errors import AgentError, SpoolError, SpoolFull
from agents.files import make_folder
from agents.records import LeaseTag, Record
from agents.row_file import RowFile

_LOG = logging.getLogger(__name__)

#: Most bytes of records: some 100,000 records, days of one device without a coordinator.
MAX_BYTES = 1 << 30
#: Name of the file in the folder of a spool.
FILE = "spool.sqlite"

#: Acknowledged records that wait for the next `put` to be deleted with it, at most.
_GONE_ROWS = 1000
#: How often a lock that another process holds is tried again.
_LOCK_POLL_SEC = 0.05
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an unacknowledged record is."""

    number: int
    length: int
    tag: LeaseTag | None


class Spool:
    """Records kept until acknowledged.

    Promises: when `put` returns, the records survive a kill and a power cut. `pending` gives each record
    that is not known to be acknowledged, in the order of putting. Acknowledgements do not wait for the disk:
    the next `put` takes them along. So after a kill a record may be pending once more: deliver it again, its
    id tells the receiver. One process at a time may have a spool open, and one thread may use it.

    Args:
        path: Folder; made if missing.
        max_bytes: Most bytes of unacknowledged records.
        lock_timeout_secs: How long to wait until another process, such as a dying one, lets go of it.

    Raises:
        SpoolError: The folder cannot be used, another process has it, another version wrote it; or it was
            damaged. A damaged file is set aside as `.corrupt` first and its good records kept, so the spool
            opens the next time.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES, lock_timeout_secs: float = 0.0) -> None:
        self._path, self._max_bytes = path, max_bytes
        #: By record id, in the order of putting.
        self._pending: dict[str, _Place] = {}
        #: Bytes of those.
        self._held_bytes = 0
        #: Numbers of rows that are to be deleted.
        self._gone: list[int] = []
        self._rows: RowFile | None = None
        with _disk_errors(f"the spool {path} cannot be opened"):
            make_folder(path)
            self._lock = _lock(path, lock_timeout_secs)
            try:
                self._load()
            except BaseException:
                self.close()
                raise

    def put(self, records: Sequence[Record], tag: LeaseTag | None = None) -> None:
        """Keep records that were made under a lease (`tag`); they are on the disk when this returns.

        Records that are pending with the same tag already are skipped. One that is pending with another tag
        is replaced: only the newer lease can still count.

        Raises:
            SpoolFull: No room; none of them was kept.
            SpoolError: The disk failed; none of them was kept.
        """
        rows = self._opened()
        pending = self._pending
        fresh = {
            record.record_id: record
            for record in records
            if record.record_id not in pending or pending[record.record_id].tag != tag
        }
        if not fresh:
            return
        added = [
            (record_id, encode_spooled(SpooledRecord(record=record, lease=tag)))
            for record_id, record in fresh.items()
        ]
        added_bytes = sum(len(body) for _, body in added)
        what = f"{len(fresh)} records of {added_bytes} bytes"
        if self._held_bytes + added_bytes > self._max_bytes:
            raise SpoolFull(
                f"the spool {self._path} holds {self._held_bytes} of at most {self._max_bytes} bytes, no "
                f"room for {what}; start the coordinator, it fetches and acknowledges them"
            )
        replaced = [pending[record_id].number for record_id in fresh if record_id in pending]
        with _disk_errors(f"the spool {self._path} could not keep {what}"):
            numbers = rows.change(added, [*self._gone, *replaced])
        self._gone.clear()
        for number, (record_id, body) in zip(numbers, added, strict=True):
            self._keep_place(record_id, _Place(number, len(body), tag))

    def pending(self) -> list[Record]:
        """Return the records that nobody has acknowledged, in the order of putting.

        Raises:
            SpoolError: The disk failed, or changed behind the spool's back.
        """
        return [record for _, record in self.pending_tagged()]

    def pending_tagged(self) -> Iterator[tuple[LeaseTag | None, Record]]:
        """Give the pending records one by one, each with its lease: a long spool need not fit in memory.

        Nothing may be put or acknowledged meanwhile.

        Raises:
            SpoolError: As `pending`.
        """
        rows = self._opened()
        with _disk_errors(f"the spool {self._path} cannot be read"):
            for row in rows.get([place.number for place in self._pending.values()]):
                tagged = decode_spooled(row.body)
                yield tagged.lease, tagged.record

    def acknowledge(self, record_ids: Iterable[str]) -> None:
        """Forget records that the store holds for good; unknown ids are ignored.

        It never fails for lack of room: it is what makes room.
        """
        self._opened()
        for record_id in record_ids:
            if (place := self._forget_place(record_id)) is not None:
                self._gone.append(place.number)
        if len(self._gone) >= _GONE_ROWS:
            self._forget()

    def close(self) -> None:
        """Let another process open the spool; what is pending stays."""
        if self._rows is not None:
            self._forget()
            if not self._pending:
                self._rows.shrink()
            self._rows.close()
            self._rows = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> RowFile:
        if self._rows is None:
            raise SpoolError(f"the spool {self._path} was closed; open it again")
        return self._rows

    def _keep_place(self, record_id: str, place: _Place) -> None:
        self._forget_place(record_id)
        self._pending[record_id] = place
        self._held_bytes += place.length

    def _forget_place(self, record_id: str) -> _Place | None:
        place = self._pending.pop(record_id, None)
        if place is not None:
            self._held_bytes -= place.length
        return place

    def _forget(self) -> None:
        if self._gone:
            try:
                self._opened().change([], self._gone)
                self._gone.clear()
            except OSError as error:
                _LOG.warning("%s: acknowledgements may be asked for again: %s", self._path, error)

    def _load(self) -> None:
        where = str(self._path)
        try:
            rows = self._rows = RowFile(self._path / FILE)
            for row in rows.rows():
                where = f"{rows.path}, row {row.number}"
                tagged = decode_spooled(row.body)
                place = _Place(row.number, len(row.body), tagged.lease)
                self._keep_place(tagged.record.record_id, place)
        except AgentError as error:
            raise SpoolError(f"{where}: {error}") from error
        if rows.notes:
            raise SpoolError("; ".join(rows.notes) + "; open the spool again to go on with the rest")


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


@contextmanager
def _disk_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise SpoolFull(f"{what}: {error.strerror}; free some space on the disk and try again") from error
        raise SpoolError(f"{what}: {error.strerror or error}; check the folder and its disk") from error


class MemorySpool:
    """Records kept until acknowledged, or until the process ends."""

    def __init__(self) -> None:
        self._pending: dict[str, tuple[LeaseTag | None, Record]] = {}

    def put(self, records: Sequence[Record], tag: LeaseTag | None = None) -> None:
        """See `Spool.put`."""
        for record in records:
            record_id = record.record_id
            if record_id in self._pending:
                if self._pending[record_id][0] == tag:
                    continue
                del self._pending[record_id]  # its place is now at the end
            self._pending[record_id] = (tag, record)

    def pending_tagged(self) -> Iterator[tuple[LeaseTag | None, Record]]:
        """See `Spool.pending_tagged`."""
        return iter(self._pending.values())

    def acknowledge(self, record_ids: Iterable[str]) -> None:
        """See `Spool.acknowledge`."""
        for record_id in record_ids:
            self._pending.pop(record_id, None)

    def close(self) -> None:
        """Nothing is open."""
