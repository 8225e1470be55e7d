"""Rows on their way into a store: packed per lane, with the results that the state file keeps of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from agents.records import DeviceId, Record
from fleet.state.packed_rows import pack, with_device
from fleet.state.rows import Result
from fleet.state.turn import Turn
from fleet.store.catalog import check_name
from fleet.store.delta.columns import check_columns
from fleet.store.delta.schema import BATCH_ROWS, TABLE_SCHEMA, records_to_table


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPiece:
    """Rows of a lane that are not in the state file yet."""

    lane: int
    device_ids: tuple[DeviceId, ...]
    rows: int
    #: As `fleet.state.packed_rows.pack` makes it.
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
