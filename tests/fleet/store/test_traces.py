from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from agents.records import CandidateId, DeviceId, content_hash
from fleet.store.lanes import LaneSettings
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from fleet.store.trace_lookup import Answer, StoreThread, find_candidates, find_records
from tests.record_fixtures import make_batch, make_record, make_spec

A, B = DeviceId("dev-a"), DeviceId("dev-b")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two devices, several files."""
    with Store.open(tmp_path / "store") as made:
        made.put_device(make_spec())
        for batch in (
            make_batch(0, 10),
            make_batch(10, 3000),
            make_batch(0, 5, device="dev-b"),
            [make_record(7, attempt=1, origin="noise")],
        ):
            made.append(batch)
            made.flush()
    return tmp_path / "store"


@pytest.fixture(params=["waits", "table"])
def reader(request: pytest.FixtureRequest, store: Path, tmp_path: Path) -> Iterator[StoreReader]:
    """The same records, in the table and waiting for it."""
    if request.param == "table":
        yield Store.read(store)
        return
    with Store.open(tmp_path / "waiting", settings=LaneSettings(rows_per_device=1 << 20)) as made:
        made.append(list(Store.read(store).records()))
        yield Store.read(tmp_path / "waiting")


def test_candidates_come_back_with_their_traces(reader: StoreReader) -> None:
    records = [make_record(number) for number in (3, 500, 2500)]
    wanted = [one.candidate_id for one in records]
    nowhere = CandidateId(content_hash("nowhere"))
    found = find_candidates(reader, [A], [*wanted, nowhere])
    assert {one.candidate_id: one.trace for one in found} == {one.candidate_id: one.trace for one in records}
    assert {one.origin for one in found} == {"paired"}
    assert find_candidates(reader, [B], wanted[1:]) == []


def test_where_a_file_cannot_be_read_the_others_are_searched(store: Path) -> None:
    reader = Store.read(store)
    here, there = make_record(3), make_record(500)
    [broken] = [one for one in reader.data_files() if _holds(one, there.candidate_id)]
    broken.write_bytes(b"no parquet")
    found = find_candidates(reader, [A], [here.candidate_id, there.candidate_id])
    assert [one.candidate_id for one in found] == [here.candidate_id]


def _holds(path: Path, candidate_id: CandidateId) -> bool:
    return candidate_id in pq.read_table(path, columns=["candidate_id"]).column(0).to_pylist()


def test_all_records_of_some_candidates_are_found(reader: StoreReader) -> None:
    expected = {make_record(700), make_record(7, attempt=1, origin="noise"), make_record(7)}
    found = list(find_records(reader, A, {one.candidate_id for one in expected}))
    assert (len(found), set(found)) == (3, expected)


def answers(thread: StoreThread) -> list[Answer]:
    """All that a thread says, and its end."""
    found: list[Answer] = []
    deadline = time.monotonic() + 30
    while not thread.is_idle and time.monotonic() < deadline:
        found += thread.poll()
        time.sleep(0.01)
    thread.close()
    return found


def test_the_thread_answers_in_order_and_tells_of_failures(store: Path, tmp_path: Path) -> None:
    thread, said = StoreThread(store), list[Any]()
    thread.ask(lambda reader: reader.version, said.append)
    thread.ask(lambda reader: sorted(reader.devices()), said.append)
    assert not thread.is_idle
    for one in answers(thread):
        one.then(one.value)
    assert said == [4, ["dev-a"]]
    broken = StoreThread(tmp_path / "no-store")
    broken.ask(lambda reader: reader.version, said.append)
    [found] = answers(broken)
    assert "no store" in found.error

    def lack_memory() -> None:
        raise MemoryError

    wordless = StoreThread(store)
    wordless.do(lack_memory, said.append)
    [found] = answers(wordless)
    assert found.error == "MemoryError", "an error without words is one"
