"""The matrix of what was measured, told record by record and read from a store: both must agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agents.records import CandidateId, DeviceId, Outcome, Record, WorkloadId, content_hash
from fleet.coverage.candidate_index import ID_BYTES, MERGE_AT, CandidateIndex
from fleet.coverage.coverage import Coverage
from fleet.coverage.matrix import CHUNK_BYTES, MAX_LOSSES, PlaceBits
from fleet.store.delta.ids import keys_of_column
from fleet.store.store import Store
from tests.record_fixtures import make_record, make_spec

A, B = DeviceId("dev-a"), DeviceId("dev-b")
W = WorkloadId("a1b2")
FAMILIES = {A: "cpu", B: "cpu"}
ENVIRONMENT = "e" * 32
Make = Callable[[list[Record]], Coverage]


def counts(coverage: Coverage, device: DeviceId) -> tuple[int, int]:
    """Measured candidates and gaps."""
    ((_, measured, gaps, _),) = coverage.counts(device, [W])
    return measured, gaps


def told(records: list[Record]) -> Coverage:
    coverage = Coverage(FAMILIES, [W])
    for record in records:
        coverage.add([record])
    return coverage


def read(records: list[Record], folder: Path) -> Coverage:
    with Store.open(folder / "store") as store:
        store.put_device(make_spec())
        store.append(records)
        coverage = Coverage(FAMILIES, [W])
        coverage.load(store)
        coverage.load(store)  # a second time changes nothing
    return coverage


@pytest.fixture(params=["told", "read"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    def made(records: list[Record]) -> Coverage:
        coverage = told(records) if request.param == "told" else read(records, tmp_path)
        for device in FAMILIES:
            coverage.set_environment(device, ENVIRONMENT)
        return coverage

    return made


def test_gaps_are_what_siblings_know(make: Make) -> None:
    records = [make_record(number, device="dev-a") for number in range(1, 7)]
    killer = make_record(8, quality='{"quarantined":true}')
    others = [make_record(1, workload="other"), make_record(1, device="foreign")]
    coverage = make([*records, make_record(2, device="dev-b"), killer, *others])
    wanted = [one.candidate_id for one in records]
    assert (counts(coverage, A)[0], counts(coverage, B)) == (7, (1, 5))
    assert coverage.records(A) == 7
    assert coverage.gaps(A, W, 10) == []
    assert coverage.gaps(B, W, 10) == [one for one in wanted if one != wanted[1]]
    assert coverage.gaps(B, W, 2, {wanted[0]}) == wanted[2:4]
    assert coverage.measured_among(B, W, wanted[:2]) == {wanted[1]}
    assert coverage.stored_among("cpu", W, wanted[:1]) == {wanted[0]}
    assert set(coverage.latest("cpu", W, 1000)) == {*wanted, killer.candidate_id}


def test_another_environment_has_measured_nothing(make: Make) -> None:
    records = [make_record(number) for number in (1, 2)]
    coverage = make(records)
    coverage.set_environment(A, "f" * 32)
    assert (counts(coverage, A)[0], coverage.records(A)) == (0, 0)
    assert len(coverage.gaps(A, W, 9)) == 2
    assert coverage.stored_among("cpu", W, [records[0].candidate_id])
    assert coverage.best(A, W, 4) == []


def test_proposed_candidates_are_gaps_of_every_device(make: Make) -> None:
    coverage = make([make_record(1)])
    new = CandidateId(content_hash("new"))
    coverage.propose("cpu", W, [new])
    assert coverage.gaps(A, W, 9) == [new]
    assert not coverage.stored_among("cpu", W, [new])
    unknown = CandidateId(content_hash("unknown"))
    assert coverage.by_workload("cpu", [WorkloadId("x"), W], [unknown, new]) == {W: [new]}
    coverage.block("cpu", W, [new])
    assert coverage.gaps(A, W, 9) == []
    assert counts(coverage, A)[1] == 0


def make_lost(number: int, attempt: int, **changes: Any) -> Record:
    return make_record(number, outcome=Outcome.LOST, run_secs=(), attempt=attempt, quality="{}", **changes)


def test_a_lost_candidate_is_tried_again_with_the_next_attempt(make: Make) -> None:
    coverage = make([make_lost(1, 0)])
    one = make_record(1).candidate_id
    assert coverage.next_attempts(A).get(one, 0) == 1
    assert coverage.gaps(A, W, 9) == [one]
    # The first loss was under another agent.
    for attempt in range(1, MAX_LOSSES + 1):
        coverage.add([make_lost(1, attempt)])
    assert coverage.gaps(A, W, 9) == []
    assert counts(coverage, A)[1] == 0
    coverage.set_environment(A, ENVIRONMENT)
    assert coverage.gaps(A, W, 9) == [one]
    coverage.add([make_record(1, attempt=MAX_LOSSES + 1)])
    assert coverage.gaps(A, W, 9) == []
    assert coverage.next_attempts(A).get(one, 0) == 0


def test_what_was_given_up_and_is_measured_or_blocked_then_hides_no_other_gap(make: Make) -> None:
    coverage = make([make_record(number, device="dev-b") for number in (1, 2, 3)])
    for number in (1, 2):
        for attempt in range(MAX_LOSSES + 1):
            coverage.add([make_lost(number, attempt)])
    assert counts(coverage, A) == (0, 1)
    # Measured for a search, say, that asked for this one.
    coverage.add([make_record(1, attempt=MAX_LOSSES + 1)])
    assert counts(coverage, A) == (1, 1)
    coverage.block("cpu", W, [make_record(2).candidate_id])
    assert counts(coverage, A) == (1, 1)
    assert coverage.gaps(A, W, 9) == [make_record(3).candidate_id]


def test_the_best_are_steady_and_fast(make: Make) -> None:
    records = [make_record(number, run_secs=(1.0 / number,)) for number in (1, 2, 3, 5, 6, 7)]
    suspect = make_record(9, run_secs=(1e-6,), quality='{"suspect":true}')
    coverage = make([*records, suspect])
    assert coverage.best(A, W, 4) == [[one.candidate_id for one in records[::-1][:4]]]


def test_an_aa_run_is_known_where_it_is_whole_and_was_not_lost(make: Make) -> None:
    first = make_record(1, origin="noise", attempt=1, measured_at=40.0)
    second = make_record(1, origin="noise", attempt=2, measured_at=50.0)
    lost = make_lost(2, 4, origin="noise", measured_at=90.0)
    other = make_record(1, origin="noise", attempt=1, measured_at=60.0, device="dev-b")
    coverage = make([first, second, lost, other])
    assert (coverage.noise_at(A), coverage.noise_at(B)) == (50.0, 0.0)


def test_a_sample_is_of_what_was_measured(make: Make) -> None:
    records = [make_record(number) for number in range(1, 30)]
    coverage = make(records)
    sample = coverage.sample(A, 10, seed=1)
    assert len(set(sample)) == 10
    assert set(sample) <= {one.candidate_id for one in records}
    assert sample == coverage.sample(A, 10, seed=1) != coverage.sample(A, 10, seed=2)
    assert coverage.sample(B, 10, seed=1) == []


BATCH = st.lists(st.integers(0, 3 * MERGE_AT), max_size=2 * MERGE_AT)


@given(st.lists(st.tuples(st.booleans(), BATCH), max_size=6))
@settings(max_examples=40, deadline=None)
def test_an_index_numbers_candidates_in_order(batches: list[tuple[bool, list[int]]]) -> None:
    index, model = CandidateIndex(), {}
    for is_many, batch in batches:
        # Ids that end in zeros are ids too.
        names = [CandidateId(content_hash(str(one))[:28] + "0000") for one in batch]
        if not names:
            continue
        raw = np.frombuffer(bytes.fromhex("".join(names)), dtype=f"S{ID_BYTES}")
        places = index.add(raw).tolist() if is_many else index.place(names)
        for name in names:
            model.setdefault(name, len(model))
        assert places == [model[name] for name in names]
    assert len(index) == len(model)
    assert index.latest(len(model)) == list(model)
    assert index.latest(3) == list(model)[-3:]
    assert index.find(model) == list(model.values())
    assert [index.id_at(place) for place in model.values()] == list(model)
    assert index.find([CandidateId(content_hash("never"))]) == [-1]


def test_an_id_of_a_foreign_table_has_the_same_place_however_it_comes() -> None:
    foreign, ours = CandidateId("not a hash of ours"), CandidateId(content_hash("ours"))
    index = CandidateIndex()
    rows = np.frombuffer(keys_of_column(pa.array([ours, foreign])), dtype=f"S{ID_BYTES}")
    assert index.add(rows).tolist() == [0, 1]
    assert index.place([foreign, ours]) == index.find([foreign, ours]) == [1, 0]


@given(st.sets(st.integers(0, 70_000), max_size=200), st.integers(0, 70_000))
@settings(max_examples=60, deadline=None)
def test_open_places_are_those_that_are_not_set(places: set[int], count: int) -> None:
    bits = PlaceBits()
    if places:
        bits.set_many(np.array(sorted(places)))
    assert list(bits.open_places(count)) == [place for place in range(count) if place not in places]


def test_a_few_devices_hold_what_is_looked_for(make: Make) -> None:
    both = [make_record(number, device=device) for number in range(8) for device in ("dev-a", "dev-b")]
    coverage = make([*both, make_record(9, device="dev-b")])
    one, other = make_record(3).candidate_id, make_record(9).candidate_id
    assert coverage.holders("cpu", [one]) == [A]
    assert set(coverage.holders("cpu", [one, other, CandidateId(content_hash("new"))])) == {A, B}
    assert coverage.holders("cpu", [other]) == [B]
    assert coverage.holders("gpu", [one]) == []


def test_no_more_gaps_are_made_than_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    coverage = Coverage(FAMILIES, [W])
    coverage.set_environment(A, ENVIRONMENT)
    ids = [CandidateId(content_hash(str(number))) for number in range(50_000)]
    coverage.propose("cpu", W, ids)
    looked: list[int] = []
    id_at = CandidateIndex.id_at
    monkeypatch.setattr(
        CandidateIndex, "id_at", lambda index, place: looked.append(place) or id_at(index, place)
    )
    unpacked: list[int] = []
    unpackbits = np.unpackbits

    def noted(part: Any, **options: Any) -> Any:
        unpacked.append(len(part))
        return unpackbits(part, **options)

    monkeypatch.setattr(np, "unpackbits", noted)
    coverage.add([replace(make_record(0), candidate_id=one) for one in (ids[0], ids[-1])])
    assert coverage.gaps(A, W, 64) == ids[1:65]
    assert looked == list(range(1, 65))
    assert sum(unpacked) < 50_000 / 8, "the rest of the row is not looked at"


@given(st.lists(st.lists(st.integers(0, 12_000), min_size=1, max_size=9), max_size=9))
@settings(max_examples=60, deadline=None)
def test_bits_are_set_alike_one_by_one_and_as_arrays(batches: list[list[int]]) -> None:
    few, many, seen = PlaceBits(), PlaceBits(), set[int]()
    for batch in batches:
        new = len(set(batch) - seen)
        seen |= set(batch)
        assert few.set_few(batch) == many.set_many(np.unique(batch)) == new
        assert few.places().tolist() == many.places().tolist() == sorted(seen)
        assert all(few.holds(place) == (place in seen) for place in range(0, 13_000, 7))


def test_few_of_very_many_places_take_little_room() -> None:
    bits = PlaceBits()
    bits.set_many(np.arange(8_000_000, 8_000_100))
    bits.set_few([5, 100_000_000])
    assert sum(map(len, bits.chunks.values())) <= 4 * CHUNK_BYTES
    assert bits.places().tolist() == [5, *range(8_000_000, 8_000_100), 100_000_000]
