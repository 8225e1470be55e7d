"""Records of many devices, durable at once and in the table in larger pieces.

`fleet.engine.coordinator` puts what the agents deliver into an `Intake`; who writes for one device at a time
uses `fleet.store.store.Store` by itself. It knows nothing of agents, leases and Ray.

The table has a folder a device, so a commit costs a file for every device in it: a thousand devices that
deliver ten records a second would need a thousand files a second, and some 2 ms and a wait for the disk for
each. So records are kept in a log beside the table first (`fleet.store.intake_log`, one wait for the disk
for all of a turn), and handed on to the table some devices at a time. A kill in between costs nothing:
opening the store takes up what is in the log, and the table tells by their ids what it has already.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import pyarrow as pa

from agents.records import Record
from fleet.errors import StoreError, StoreFull
from fleet.state.packed_rows import pack, unpack
from fleet.store.catalog import check_name
from fleet.store.delta.columns import check_columns
from fleet.store.delta.schema import TABLE_SCHEMA, records_to_table
from fleet.store.intake_log import INTAKE, IntakeLog, by_device
from fleet.store.store import Store
from fleet.store.writer import AppendResult

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeSettings:
    """When rows go on to the table."""

    #: Devices that are handed on together, in one commit.
    devices_per_commit: int = 32
    #: Least time between two commits. With 32 devices each, the rows of 1,000 devices wait 32 s.
    commit_every_secs: float = 1.0
    #: Least pause between two commits, over the time that a commit takes: on a busy host commits must not
    #: take all the time there is.
    pause: float = 6.0
    #: Rows wait at least so long, so that more of the device come with them.
    wait_secs: float = 2.0
    #: Above so many packed bytes, or rows, commits do not wait for their time.
    most_bytes: int = 64 << 20
    most_rows: int = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeResult(AppendResult):
    """What became of records."""

    #: Records that were not known before, each once.
    fresh: list[Record]


@dataclass(slots=True)
class _Group:
    """Rows of some devices that are handed on together."""

    #: Packed rows by their number in the log.
    packed: dict[int, bytes] = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)
    candidates: set[str] = field(default_factory=set)
    #: Reading of the clock when the first of them came.
    since: float = 0.0


class Intake:
    """Takes in records of many devices for one store.

    Promises: when `append` returns, all of its records survive a kill and a power cut, and each `record_id`
    is in the table once in the end. Readers of the table see them after `IntakeSettings.wait_secs`, with
    many devices after as many seconds as there are groups of `devices_per_commit`; or after `flush`.
    Memory is bounded by `most_bytes` and `most_rows`. Not to be shared by threads.

    Args:
        store: The open store; nobody else writes to it meanwhile. It is not closed here.
        settings: When rows go on to the table.
        clock: Seconds that never go back.

    Attributes:
        log: Where they are durable first; not to be changed by others.
        no_room: Why rows that were to go on to the table wait in the log; None while they need not.
    """

    def __init__(
        self,
        store: Store,
        settings: IntakeSettings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._settings = settings or IntakeSettings()
        self._clock = clock
        self.log = IntakeLog(store.path / INTAKE)
        #: Each device stays in its group, so that a commit holds all that waits of its devices.
        self._group_of: dict[str, int] = {}
        self._groups: list[_Group] = []
        #: Ids of all rows that wait.
        self._ids: set[str] = set()
        self._bytes = 0
        self._rows = 0
        self._committed_at, self._took_secs = clock(), 0.0
        self._closed = False
        self.no_room: StoreFull | None = None

    @property
    def waiting(self) -> int:
        """Records that are durable but not in the table yet."""
        return self._rows

    @property
    def waiting_secs(self) -> float:
        """How long the oldest of them has waited."""
        since = [group.since for group in self._groups if group.packed]
        return max(0.0, self._clock() - min(since)) if since else 0.0

    def waiting_rows(self) -> Iterator[pa.Table]:
        """Yield the records that are durable but not in the table yet, as rows of `TABLE_SCHEMA`."""
        for group in self._groups:
            for packed in group.packed.values():
                yield unpack(packed)

    def append(self, records: Sequence[Record]) -> IntakeResult:
        """Keep records; when this returns, all of them are on the disk.

        The batch is kept whole or not at all. Known records, by `record_id`, are left as they are. An empty
        batch is a good way to let the others go on to the table.

        Returns:
            What became of them. `table_version` is the newest version; the records come with a later one.

        Raises:
            StoreFull: No room. Nothing was kept; it can go on once there is room.
            StoreError: A record cannot be stored, or the disk failed.
        """
        self._begin()
        by_id: dict[str, Record] = {}
        for record in records:
            by_id.setdefault(record.record_id, record)
        fresh = [one for one, known in zip(by_id, self.known(list(by_id)), strict=True) if not known]
        grouped: dict[int, list[str]] = {}
        for one in fresh:
            grouped.setdefault(self._number(by_id[one].device_id), []).append(one)
        if grouped:
            ids = [one for group in grouped.values() for one in group]
            devices = pa.array([by_id[one].device_id for one in ids], pa.string())
            table = records_to_table([by_id[one] for one in ids], ids)
            # Now, not when it goes on to the table: by then it is acknowledged.
            check_columns(table)
            self._take(table.add_column(0, TABLE_SCHEMA.field("device_id"), devices), grouped)
        self._end()
        return IntakeResult(
            appended=len(fresh),
            duplicates=len(records) - len(fresh),
            table_version=self._store.version,
            fresh=[by_id[one] for one in fresh],
        )

    def known(self, record_ids: Sequence[str]) -> list[bool]:
        """Say of each id whether a record with it is durable here: in the table, or on the way to it.

        Raises:
            StoreError: The store was closed, or must be opened again.
        """
        in_table = self._store.known(record_ids)
        if not self._ids:
            return in_table
        return [is_there or one in self._ids for is_there, one in zip(in_table, record_ids, strict=True)]

    def flush(self, *, device_id: str | None = None, candidate_ids: Collection[str] | None = None) -> None:
        """Hand all rows on to the table, or those that somebody is about to read there, and their neighbours.

        Args:
            device_id: Only rows that go on together with this device's.
            candidate_ids: Only rows that go on together with one of these candidates'.

        Raises:
            StoreFull: No room; what is not in the table yet stays in the log, and in memory.
            StoreError: The disk failed.
        """
        self._check_open()
        groups = self._groups
        if device_id is not None:
            groups = [groups[self._group_of[device_id]]] if device_id in self._group_of else []
        if candidate_ids is not None:
            groups = [one for one in groups if not one.candidates.isdisjoint(candidate_ids)]
        for group in sorted((one for one in groups if one.packed), key=lambda one: one.since):
            self._hand_on(group)

    def close(self) -> None:
        """Hand all rows on to the table, if there is room; the store stays open. Twice does no harm."""
        if self._closed:
            return
        try:
            self.flush()
            self.log.clear()
        except StoreError as error:
            _LOG.warning("%d records wait in the log until the store is opened: %s", self._rows, error)
            self.log.close()
        self._closed = True

    def __enter__(self) -> Intake:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self._store.path}: this intake was closed; make a new one")

    def _begin(self) -> None:
        self._check_open()
        limits = self._settings
        while self._bytes > limits.most_bytes or self._rows > limits.most_rows:
            self._hand_on(self._oldest())

    def _end(self) -> None:
        now = self._clock()
        least = max(self._settings.commit_every_secs, self._settings.pause * self._took_secs)
        is_time = now - self._committed_at >= least
        if is_time and self._rows and now - self._oldest().since >= self._settings.wait_secs:
            self._took_secs = 0.0
            try:
                self._hand_on(self._oldest())
                self._took_secs = self._clock() - now
            except StoreFull as error:
                # The records are durable. `_begin` refuses new ones before too many wait.
                _LOG.warning("%d records wait for room: %s", self._rows, error)
            self._committed_at = self._clock()

    def _oldest(self) -> _Group:
        return min((one for one in self._groups if one.packed), key=lambda one: one.since)

    def _number(self, device_id: str) -> int:
        """The group of a device, which it gets when it is first seen."""
        if device_id not in self._group_of:
            check_name("device", device_id)
            number = len(self._group_of) // self._settings.devices_per_commit
            self._group_of[device_id] = number
            if number == len(self._groups):
                self._groups.append(_Group())
        return self._group_of[device_id]

    def _take(self, table: pa.Table, ids: Mapping[int, Collection[str]]) -> None:
        """Write rows to the log, those of one group behind each other, and note them."""
        counts = [len(chosen) for chosen in ids.values()]
        ends = accumulate(counts)
        parts = [table.slice(end - count, count) for end, count in zip(ends, counts, strict=True)]
        pieces = list(map(pack, parts))
        numbers = self.log.append(pieces)
        now = self._clock()
        for (number, chosen), place, part, packed in zip(ids.items(), numbers, parts, pieces, strict=True):
            group = self._groups[number]
            if not group.packed:
                group.since = now
            group.packed[place] = packed
            group.ids += chosen
            group.candidates.update(part.column("candidate_id").to_pylist())
            self._ids.update(chosen)
            self._bytes += len(packed)
        self._rows += table.num_rows

    def _hand_on(self, group: _Group) -> None:
        """Put the rows of a group into the table, then forget them."""
        rows = pa.concat_tables([unpack(packed) for packed in group.packed.values()])
        try:
            self._store.append_tables(by_device(rows), is_checked=True)
            self.log.drop(group.packed)
        except StoreFull as error:
            self.no_room = error
            raise
        self.no_room = None
        self._bytes -= sum(map(len, group.packed.values()))
        self._rows -= rows.num_rows
        self._ids.difference_update(group.ids)
        group.packed.clear()
        group.ids.clear()
        group.candidates.clear()
