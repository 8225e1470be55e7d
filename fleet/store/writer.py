"""What a writer of a store does with each turn: new records come in, rows go on to the table.

Only `fleet.store.store` builds on it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import filelock
import pyarrow as pa

from agents.records import Descriptor, DeviceId, DeviceSpec, Record, Workload
from fleet.errors import StoreError, StoreFull, disk_errors
from fleet.state.rows import Result, WaitingRows, pack, result_of, with_device
from fleet.state.state_file import StateFile
from fleet.state.table import RecordsTable
from fleet.state.turn import Turn
from fleet.store.catalog import check_name, put_device, put_workloads
from fleet.store.delta.log import TableSnapshot
from fleet.store.delta.schema import BATCH_ROWS, TABLE_SCHEMA, check_columns, records_to_table
from fleet.store.lanes import Lanes, LaneSettings
from fleet.store.reader import DEVICES, WORKLOADS, StoreReader, release
from fleet.store.store_time import StoreTime

_LOG = logging.getLogger(__name__)

#: Commits between two checkpoints. Opening reads the last checkpoint and the commits after it, 0.2 ms each.
CHECKPOINT_EVERY = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPiece:
    """Rows of a lane that are not in the state file yet."""

    lane: int
    device_ids: tuple[DeviceId, ...]
    rows: int
    #: As `fleet.state.rows.pack` makes it.
    body: bytes
    #: Results that are to be added with them; empty if they are there.
    results: Sequence[Result] = ()

    def write(self, turn: Turn) -> None:
        """Keep the rows in a turn."""
        turn.add_results(self.results)
        turn.add_waiting(self.lane, self.device_ids, self.rows, self.body, time.time())


def pieces_of_records(
    records: Mapping[str, Record], results: Mapping[str, Result], lane_of: Callable[[DeviceId], int]
) -> Iterator[RowPiece]:
    """Yield records as rows of the table: a piece per lane.

    Args:
        records: By their ids.
        results: Likewise: what the state file keeps of each.
        lane_of: The lane of a device.

    Raises:
        StoreError: One cannot be stored.
    """
    by_lane: dict[int, dict[str, Record]] = {}
    for record_id, record in records.items():
        lane = lane_of(DeviceId(check_name("device", record.device_id)))
        by_lane.setdefault(lane, {})[record_id] = record
    for lane, some in by_lane.items():
        devices = [record.device_id for record in some.values()]
        rows = records_to_table(list(some.values()), list(some))
        # Now, not when they go on to the table: by then they are acknowledged.
        check_columns(rows)
        table = rows.add_column(0, TABLE_SCHEMA.field("device_id"), pa.array(devices, pa.string()))
        yield RowPiece(
            lane=lane,
            device_ids=tuple(dict.fromkeys(devices)),
            rows=len(some),
            body=pack(table),
            results=[results[record_id] for record_id in some],
        )


def pieces_of_rows(device_id: DeviceId, table: pa.Table, lane: int) -> Iterator[RowPiece]:
    """Yield checked rows of a device, whose results are noted, some at a time."""
    for start in range(0, table.num_rows, BATCH_ROWS):
        part = table.slice(start, BATCH_ROWS)
        body = pack(with_device(device_id, part))
        yield RowPiece(lane=lane, device_ids=(device_id,), rows=part.num_rows, body=body)


class StoreWriter(StoreReader):
    """A reader that also writes; it shows every record that is durable.

    What `take` was given is seen at once, and comes to the disk with the next turn of the state file, or with
    `settle`.

    Attributes:
        state: The state file.
        repairs: What had to be mended when the store was opened, one line each; mostly empty.
        no_room: Why rows could not go on to the table; None if they can.
    """

    def __init__(
        self,
        path: Path,
        lock: filelock.BaseFileLock,
        state: StateFile,
        table: RecordsTable,
        *,
        settings: LaneSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(path, table.snapshot())
        self.state = state
        self._table, self._lock, self._clock = table, lock, clock
        self._time = StoreTime(path)
        self._lanes = Lanes(settings or LaneSettings())
        self._lanes.recount(state.waiting_sizes(), clock())
        self._checkpointed = table.checkpointed
        self._closed = False
        self.repairs = (*state.notes, *table.notes)
        self.no_room: StoreFull | None = None

    @property
    def snapshot(self) -> TableSnapshot:
        """The files of the table now."""
        if self._snapshot.version != self._table.version:
            self._snapshot = self._table.snapshot()
        return self._snapshot

    def waiting(self) -> Sequence[WaitingRows]:
        """Rows that wait for the table, oldest first."""
        return list(self.state.waiting())

    @property
    def version(self) -> int:
        """The newest version of the table."""
        return self._table.version

    @property
    def rows(self) -> int:
        """How many records there are, those of the open turn among them."""
        return self.snapshot.rows + self._lanes.rows

    @property
    def waiting_count(self) -> int:
        """Records that wait for the table."""
        return self._lanes.rows

    @property
    def waiting_secs(self) -> float:
        """How long the oldest of them has waited in this process."""
        return self._lanes.waiting_secs(self._clock())

    def put_workloads(self, workloads: Iterable[Workload], *, own: bool = False) -> int:
        """Keep workloads; of one known before, the networks are joined and the module stays.

        A module of our own takes the place of one that only claims the id.

        Args:
            workloads: To keep.
            own: Whether they are as an agent of a live device has just listed them. Whatever came from a log,
                a file or a replay device is not.

        Returns:
            How many were new.

        Raises:
            StoreFull: No room; some may be kept, each whole.
            StoreError: An id is no file name, or the disk failed.
        """
        self._check_open()
        with disk_errors("storing workloads", self.path):
            return put_workloads(self.path / WORKLOADS, workloads, own=own)

    def put_device(self, spec: DeviceSpec, descriptor: Descriptor | None = None) -> bool:
        """Keep what a device is. The last one wins; the earlier ones stay as its history.

        Returns:
            Whether it differed from the last one.

        Raises:
            StoreFull: No room; the last one stays.
            StoreError: The id is no file name, or the disk failed.
        """
        self._check_open()
        with disk_errors("storing a device", self.path):
            return put_device(self.path / DEVICES, spec, descriptor)

    def take(self, records: Sequence[Record]) -> list[Record]:
        """Take in new records, all of them or none; the next turn brings them to the disk.

        Returns:
            Those that are new, each once; known ones, by `record_id`, are left as they are.

        Raises:
            StoreFull: Too many rows wait, and the table has no room. Nothing was taken in.
            StoreError: A record cannot be stored, or the disk failed. Nothing was taken in.
        """
        self._check_open()
        self._make_way()
        by_id: dict[str, Record] = {}
        for record in records:
            by_id.setdefault(record.record_id, record)
        results = {record_id: result_of(record) for record_id, record in by_id.items()}
        stored = dict(zip(by_id, self._stored(results), strict=True))
        fresh = {record_id: record for record_id, record in by_id.items() if not stored[record_id]}
        for piece in list(pieces_of_records(fresh, results, self._lanes.number)):
            self.state.change(piece.write)
            self._note(piece)
        return list(fresh.values())

    def _make_way(self) -> None:
        """Hand rows on if too many wait: on a full disk nobody may bring more."""
        if self._lanes.is_full:
            self._move(self._lanes.due(self._clock()))

    def are_stored(self, records: Sequence[Record]) -> list[bool]:
        """Say of each record whether the store has it.

        Raises:
            StoreError: The store was closed, or the disk failed.
        """
        self._check_open()
        by_id = {record.record_id: result_of(record) for record in records}
        stored = dict(zip(by_id, self._stored(by_id), strict=True))
        return [stored[record.record_id] for record in records]

    def _stored(self, results: Mapping[str, Result]) -> list[bool]:
        """Say of each result, by its record id, whether its record is stored."""
        try:
            return self.state.are_stored(list(results.values()))
        except OverflowError as error:
            raise StoreError(f"a record cannot be stored: {error}") from error

    def _note(self, piece: RowPiece) -> None:
        self._lanes.add(piece.lane, piece.device_ids, piece.rows, len(piece.body), self._clock())

    def settle(self) -> None:
        """Make what was taken durable without waiting for the next turn.

        Raises:
            StoreFull: No room; it comes with a later turn.
            StoreError: The disk failed.
        """
        self._check_open()
        self.state.keep()

    def move_on(self) -> None:
        """Hand rows of one lane on to the table, if any is due; on a full disk they wait on.

        Raises:
            StoreError: The disk failed; the rows wait.
        """
        self._check_open()
        # After a disk without room something must be tried: else nobody learns that there is some.
        if due := self._lanes.due(self._clock()) or (self._lanes.waiting() if self.no_room else []):
            try:
                self._move(due[:1])
            except StoreFull as error:
                # The records are durable. `take` refuses new ones before too many wait.
                _LOG.warning("%d records wait for room: %s", self._lanes.rows, error)

    def flush(self) -> None:
        """Hand all rows on to the table, those that were taken just now among them.

        Raises:
            StoreFull: No room; what is not in the table yet waits.
            StoreError: The disk failed; likewise.
        """
        self._move(self._lanes.waiting())

    def _move(self, lanes: Sequence[int]) -> None:
        self.settle()  # the table takes what is durable
        try:
            self._table.flush(lanes)
        except StoreError as error:
            if isinstance(error, StoreFull):
                self.no_room = error
            # Of rows that take several commits, some may be in the table.
            self._lanes.recount(self.state.waiting_sizes(), self._clock())
            raise
        self.no_room = None
        self._lanes.drop(lanes)
        if self.version - self._checkpointed >= CHECKPOINT_EVERY:
            self._checkpoint()

    def _checkpoint(self) -> None:
        self._table.checkpoint()
        self._checkpointed = self.version

    def close(self) -> None:
        """Hand all rows on to the table, and let another process write. Closing twice does no harm."""
        if self._closed:
            return
        try:
            self.flush()
        except StoreError as error:
            _LOG.warning("%d records wait for the table until the next start: %s", self._lanes.rows, error)
        self.abandon()

    def abandon(self) -> None:
        """Let go of the files as a kill does, so that another process may write."""
        self._closed = True
        self.state.close()
        release(self.path, self._lock)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path}: this store was closed; open it again")
