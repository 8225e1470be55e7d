"""Equal requests of several devices: one agent is asked, everybody gets an answer, nobody waits in vain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.records import Candidate, CandidateId, DeviceId, WorkloadId
from fleet.coverage.coverage import Coverage
from fleet.planner.dedup_filter import DedupFilter, Excluded
from fleet.planner.request_coalescer import CandidateRequest, RequestCoalescer, space_of
from fleet.state.state_file import StateFile
from tests.record_fixtures import make_record, make_spec, make_workload
from tests.transport_fixtures import replay_spec

WORKLOAD = make_workload(1)
TOLD = Excluded(frozenset(), 0)
SPACES = {DeviceId(name): "x" for name in "abc"} | {DeviceId("d"): "y"}


def needs(device: str, count: int = 4, request: str = "", **changes: object) -> CandidateRequest:
    made = CandidateRequest(
        device_id=DeviceId(device),
        request_id=request or f"r-{device}",
        workload=WORKLOAD,
        count=count,
        excluded=TOLD,
        parents=(),
        is_ranked=False,
        is_idle=False,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def asked(sharing: RequestCoalescer) -> list[tuple[str, int]]:
    return [(device, request.count) for device, request in sharing.due(7)]


def test_one_agent_is_asked_for_all_that_draw_alike() -> None:
    sharing = RequestCoalescer(SPACES)
    for one in (needs("a"), needs("b", 8), needs("c"), needs("d"), needs("e")):
        sharing.add(one)
    assert asked(sharing) == [("b", 8), ("d", 4), ("e", 4)], "d draws from elsewhere, of e nobody knows"
    assert asked(sharing) == []
    sharing.add(needs("a", 8, "later"))
    sharing.add(needs("c", 9, "more"))
    assert asked(sharing) == [("c", 9)], "an answer that is on its way is waited for if it is large enough"
    assert [one.request_id for one in sharing.answered("r-b")] == ["r-b", "r-a", "r-c", "later"]
    assert [one.request_id for one in sharing.answered("more")] == ["more"]
    assert sharing.answered("r-b") == [], "an answer that comes twice is for nobody"
    sharing.add(needs("a", request="new"))
    assert asked(sharing) == [("a", 4)]


def test_what_differs_is_asked_apart() -> None:
    sharing = RequestCoalescer(SPACES)
    others: list[dict[str, object]] = [
        {},
        {"excluded": Excluded(frozenset(), 1)},
        {"parents": ("p",)},
        {"workload": make_workload(2)},
        {"is_ranked": True},
    ]
    for number, changes in enumerate(others):
        sharing.add(needs("a", request=f"r{number}", **changes))
    assert len(sharing.due(0)) == len(others)
    sharing.add(needs("b", is_ranked=True))
    assert asked(sharing) == [("b", 4)], "each head has draws of its own"


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(1, 9), st.booleans(), st.sampled_from("asl")),
        max_size=30,
    )
)
@settings(max_examples=100, deadline=None)
def test_every_request_is_answered_once_with_enough(steps: list[tuple[str, int, bool, str]]) -> None:
    sharing, open_, in_flight = RequestCoalescer(SPACES), {}, {}

    def send() -> None:
        in_flight.update({request.request_id: request.count for _, request in sharing.due(0)})

    def end(request: str, *, is_lost: bool) -> None:
        count = in_flight.pop(request)
        if is_lost:
            open_.pop(request)
            sharing.unanswered([request], lambda one: one.request_id in open_)
            send()
            return
        for one in sharing.answered(request):
            assert open_.pop(one.request_id).count <= count

    for number, (device, count, idle, what) in enumerate(steps):
        one = needs(device, count, f"r{number}", is_idle=idle)
        open_[one.request_id] = one
        sharing.add(one)
        if what != "a":
            send()
        if what == "l" and in_flight:
            end(min(in_flight), is_lost=True)
    send()
    while in_flight:
        end(min(in_flight), is_lost=False)
    assert open_ == {}


def test_devices_draw_alike_if_their_programs_are_made_alike(tmp_path: Path) -> None:
    one, other = (replay_spec(tmp_path / "x.parquet", name) for name in ("one", "two"))
    assert space_of(one) == space_of(other)
    assert space_of(one) != space_of(replay_spec(tmp_path / "y.parquet", "one"))
    spec = make_spec()
    assert space_of(spec) != space_of(
        msgspec.structs.replace(spec, target_json='{"kind":"llvm","num-cores":2}')
    )


# ---- what is known already ----


def test_an_agent_is_told_the_latest_and_is_not_believed_when_it_draws_an_older_one(state: StateFile) -> None:
    device, workload_id = make_record(0).device_id, WORKLOAD.workload_id
    coverage = Coverage(state, {device: "cpu"}, [workload_id])
    excluding = DedupFilter(coverage, most=2)

    def ids(*names: str) -> list[CandidateId]:
        return [one.candidate_id for one in candidates(*names)]

    def candidates(*names: str) -> list[Candidate]:
        return [Candidate(workload_id=workload_id, trace=name) for name in names]

    def drawn(*names: str) -> tuple[list[str], bool]:
        """What is new of an answer, and whether it says that there is no other."""
        told = excluding.exclusions("cpu", workload_id)
        answer = candidates(*names)
        fresh = excluding.fresh(told, device, workload_id, told.without(answer), 9)
        return [one.trace for one in fresh.values()], told.is_end(answer)

    old = make_record(7, workload=workload_id)
    coverage.set_environment(device, old.environment_id)
    coverage.add([old])
    coverage.propose("cpu", workload_id, ids("a", "b"))
    told = excluding.exclusions("cpu", workload_id)
    assert excluding.exclusions("cpu", workload_id) is told, "many devices share it"
    assert (set(told.ids), told.known_count) == (set(ids("a", "b")), 3)
    measured = Candidate(workload_id=workload_id, trace=old.trace, dialect=old.dialect)
    assert measured.candidate_id == old.candidate_id
    assert drawn(old.trace, "c") == (["c"], False)
    assert drawn(old.trace) == ([], False), "others may be left: it was not told all"
    assert drawn() == ([], True)
    # What is kept for the next device is bounded, and what is asked for again and again stays.
    many = [WorkloadId(f"{number:040x}") for number in range(100)]
    latest = DedupFilter(Coverage(state, {device: "cpu"}, many))
    first = latest.exclusions("cpu", many[0])
    for one in many:
        latest.exclusions("cpu", one)
        assert latest.exclusions("cpu", many[0]) is first
