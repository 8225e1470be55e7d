"""Stores for the tests of what verifies, backs up and makes again: written without a coordinator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from agents.records import Candidate, DeviceId, Record, Workload
from fleet.state.contents import LATE
from fleet.state.questions import StateReader
from fleet.state.rows import pack, result_of
from fleet.state.schema import STATE
from fleet.state.state_file import StateFile
from fleet.state.table import RecordsTable
from fleet.store.catalog import put_device, put_workloads
from fleet.store.delta.log import RECORDS, load_snapshot
from fleet.store.delta.schema import TABLE_SCHEMA, read_batches, records_to_table
from fleet.store.reader import DEVICES, WORKLOADS
from tests.record_fixtures import make_batch, make_descriptor, make_spec, make_workload

OURS = [make_workload(number) for number in (1, 2)]


def named(record: Record) -> Record:
    """A record whose candidate has the id that it must have."""
    candidate = Candidate(workload_id=record.workload_id, trace=record.trace, dialect=record.dialect)
    return replace(record, candidate_id=candidate.candidate_id)


def batch(start: int, count: int, device: str = "dev-a", workload: Workload = OURS[0]) -> list[Record]:
    return [named(one) for one in make_batch(start, count, device=device, workload=workload.workload_id)]


def rows_of(records: list[Record]) -> pa.Table:
    devices = pa.array([record.device_id for record in records])
    return records_to_table(records).add_column(0, TABLE_SCHEMA.field("device_id"), devices)


def with_column(table: pa.Table, name: str, values: Iterable[Any]) -> pa.Table:
    """Rows as a store has them, with other values of a column."""
    field = table.schema.field(name)
    return table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))


#: Where all rows wait.
LANE = 2


class WrittenStore:
    """A store that is open for writing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in (WORKLOADS, DEVICES):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.state = StateFile(folder / STATE)
        self.table = RecordsTable(folder / RECORDS, self.state)

    def take_in(self, records: list[Record]) -> None:
        """Acknowledge records of one device: they wait for the table."""
        [device] = {record.device_id for record in records}
        by_workload: dict[str, list[Candidate]] = {}
        for one in records:
            candidate = Candidate(workload_id=one.workload_id, dialect=one.dialect, trace=one.trace)
            by_workload.setdefault(one.workload_id, []).append(candidate)
        with self.state.turn() as turn:
            for candidates in by_workload.values():
                workload_id = candidates[0].workload_id
                turn.add_candidates("cpu", workload_id, candidates)
                turn.settle_candidates("cpu", workload_id, [one.candidate_id for one in candidates])
            turn.add_results(map(result_of, records))
            turn.add_waiting(LANE, [device], len(records), pack(rows_of(records)), 100.0)
            turn.add_events(b"taken in")

    def append(self, records: list[Record]) -> None:
        self.take_in(records)
        self.table.flush([LANE])

    def lanes(self) -> list[int]:
        return sorted({lane for lane, *_ in self.state.waiting_sizes()})

    def devices(self) -> list[DeviceId]:
        return [DeviceId(path.stem) for path in (self.folder / DEVICES).glob("*.jsonl")]


@contextmanager
def opened(folder: Path) -> Iterator[WrittenStore]:
    store = WrittenStore(folder)
    with closing(store.state):
        yield store


def fill(folder: Path, *, rows: Sequence[int] = (300, 40, 60, 20)) -> Path:
    """Several devices, files of so many rows, versions, a checkpoint, and records that wait for the table."""
    first, second, third, fourth = rows
    with opened(folder) as store:
        put_workloads(folder / WORKLOADS, OURS, own=True)
        for name in ("dev-a", "dev-b"):
            put_device(folder / DEVICES, make_spec(name), make_descriptor())
        with store.state.turn() as turn:
            turn.put_snapshot(b"snapshot")
            turn.put_note("name", b"note")
            turn.keep_letter(LATE, "letter", 1, b"{}", most_rows=9, most_bytes=99)
        store.append(batch(0, first))
        store.append(batch(300, second, workload=OURS[1]))
        store.table.checkpoint()
        store.append(batch(0, third, device="dev-b"))
        store.append(batch(400, fourth))
        store.take_in(batch(500, 5))
    return folder


def record_ids(folder: Path) -> list[str]:
    """Ids of all records of a store, sorted: those of the table and those that wait."""
    with StateReader(folder / STATE) as state:
        tables = [pa.ipc.open_stream(piece.body).read_all() for piece in state.waiting()]
        version = state.table_version()
    found = [name for table in tables for name in table.column("record_id").to_pylist()]
    for path in data_files(folder, version):
        for rows in read_batches(path, ["record_id"]):
            found += rows.column(0).to_pylist()
    return sorted(found)


def ids_of(records: Iterable[Record]) -> list[str]:
    return sorted(record.record_id for record in records)


def data_files(folder: Path, version: int | None = None) -> list[Path]:
    snapshot = load_snapshot(folder / RECORDS, version)
    return [folder / RECORDS / file.path for file in snapshot.files]


def data_file(folder: Path) -> Path:
    """The largest one."""
    return max(data_files(folder), key=lambda path: path.stat().st_size)


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)
