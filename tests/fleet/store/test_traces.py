from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.records import CandidateId, DeviceId, content_hash
from fleet.store.lanes import LaneSettings
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from fleet.store.trace_lookup import find_candidates, find_records
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


def test_all_records_of_some_candidates_are_found(reader: StoreReader) -> None:
    expected = {make_record(700), make_record(7, attempt=1, origin="noise"), make_record(7)}
    found = list(find_records(reader, A, {one.candidate_id for one in expected}))
    assert (len(found), set(found)) == (3, expected)
