"""What was measured, as it is told, when the turn is on the disk, and as the next life reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.records import Candidate, CandidateId, DeviceId, Outcome, Record, WorkloadId
from fleet.coverage.coverage import MAX_LOSSES, Coverage
from fleet.state.state_file import StateFile
from fleet.store.store import Store
from tests.record_fixtures import make_record

A, B = DeviceId("dev-a"), DeviceId("dev-b")
W = WorkloadId("a1b2")
FAMILIES = {A: "cpu", B: "cpu"}
ENVIRONMENT = "e" * 32
Make = Callable[[list[Record]], Coverage]


def counts(coverage: Coverage, device: DeviceId) -> tuple[int, int]:
    """Measured candidates and gaps."""
    ((_, measured, gaps, _),) = coverage.counts(device, [W])
    return measured, gaps


def tell(store: Store, coverage: Coverage, records: list[Record]) -> None:
    coverage.add(store.take(records))


@pytest.fixture(params=["told", "kept", "read"])
def make(request: pytest.FixtureRequest, store: Store) -> Make:
    def made(records: list[Record]) -> Coverage:
        coverage = Coverage(store.state, FAMILIES, [W])
        for record in records:
            tell(store, coverage, [record])
        if request.param != "told":
            store.settle()
        if request.param == "read":
            coverage = Coverage(store.state, FAMILIES, [W])
            coverage.load()
            coverage.load()  # a second time changes nothing
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
    assert (counts(coverage, A)[0], counts(coverage, B), coverage.records(A)) == (7, (1, 5), 7)
    assert coverage.gaps(B, W, 10) == [one for one in wanted if one != wanted[1]]
    assert coverage.gaps(B, W, 2, {wanted[0]}) == wanted[2:4]
    assert set(coverage.candidates.latest(("cpu", W), 1000)) == {*wanted, killer.candidate_id}
    # In another environment nothing has been measured.
    coverage.set_environment(A, "f" * 32)
    assert (counts(coverage, A), coverage.records(A)) == ((0, 6), 0)
    assert coverage.best(A, W, 4) == [wanted[1:2]], "of its sibling"


def make_lost(number: int, attempt: int, **changes: Any) -> Record:
    return make_record(number, outcome=Outcome.LOST, run_secs=(), attempt=attempt, quality="{}", **changes)


def test_a_lost_candidate_is_tried_again_with_the_next_attempt(make: Make, store: Store) -> None:
    elsewhere = [make_lost(1, attempt, environment_id="f" * 32) for attempt in range(MAX_LOSSES)]
    coverage = make([*elsewhere, make_lost(1, 0)])
    one = make_record(1).candidate_id
    assert coverage.next_attempts(A).get(one, 0) == 1
    assert coverage.gaps(A, W, 9) == [one]
    # The first loss was under another agent.
    for attempt in range(1, MAX_LOSSES + 1):
        tell(store, coverage, [make_lost(1, attempt)])
    assert coverage.gaps(A, W, 9) == []
    assert counts(coverage, A)[1] == 0
    coverage.set_environment(A, ENVIRONMENT)
    assert coverage.gaps(A, W, 9) == [one]
    tell(store, coverage, [make_record(1, attempt=MAX_LOSSES + 1)])
    assert coverage.gaps(A, W, 9) == []
    assert coverage.next_attempts(A).get(one, 0) == 0


class Model:
    """What two devices have measured of some candidates, as plainly as can be."""

    def __init__(self) -> None:
        self.known: dict[CandidateId, None] = {}
        self.measured: dict[DeviceId, set[CandidateId]] = {A: set(), B: set()}
        #: In this life, and by a record.
        self.blocked: set[CandidateId] = set()
        self.quarantined: set[CandidateId] = set()

    def gaps(self, device: DeviceId) -> list[CandidateId]:
        left_out = self.measured[device] | self.blocked | self.quarantined
        return [name for name in self.known if name not in left_out]


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["measure", "measure", "quarantine"]), st.sampled_from([A, B]), st.integers(0, 11)
        ),
        st.tuples(st.just("propose"), st.just(A), st.integers(0, 11)),
        st.tuples(st.just("block"), st.just(A), st.integers(0, 11)),
        st.tuples(st.sampled_from(["keep", "read"]), st.just(A), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=30, deadline=None)
def test_any_order_of_news_gives_the_gaps_of_the_model(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, DeviceId, int]]
) -> None:
    model = Model()
    with Store.open(tmp_path_factory.mktemp("coverage")) as store:
        coverage = opened(store.state)
        for what, device, number in steps:
            quality = '{"quarantined":true}' if what == "quarantine" else "{}"
            name = make_record(number).candidate_id
            # A candidate is measured again only after its first attempt.
            again = what == "quarantine" and name in model.measured[device]
            record = make_record(number, device=device, quality=quality, attempt=int(again))
            if what in ("measure", "quarantine"):
                coverage.add(store.take([record]))
                model.known.setdefault(name)
                model.measured[device].add(name)
                model.quarantined |= {name} if what == "quarantine" else set()
            elif what == "propose":
                drawn = Candidate(workload_id=W, dialect=record.dialect, trace=record.trace)
                coverage.candidates.add(("cpu", W), [drawn])
                model.known.setdefault(name)
            elif what == "block" and name in model.known:
                coverage.candidates.block(("cpu", W), [name])
                model.blocked.add(name)
            elif what in ("keep", "read"):
                store.settle()
                if what == "read":
                    coverage = opened(store.state)
                    model.blocked.clear()
            for each in (A, B):
                assert coverage.gaps(each, W, 99) == model.gaps(each)
                assert coverage.measured_among(each, W, list(model.known)) == model.measured[each]
                assert counts(coverage, each)[0] == len(model.measured[each])
            assert coverage.candidates.count(("cpu", W)) == len(model.known)
            measured = model.measured[A] | model.measured[B]
            settled = coverage.candidates.among(("cpu", W), list(model.known), is_settled=True)
            assert settled == measured


def opened(state: StateFile) -> Coverage:
    coverage = Coverage(state, FAMILIES, [W])
    coverage.load()
    for device in FAMILIES:
        coverage.set_environment(device, ENVIRONMENT)
    return coverage
