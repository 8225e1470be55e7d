"""Devices that need candidates: one agent draws for all alike, everybody is answered, nothing comes twice."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.device.messages import ProposeRequest
from agents.records import Candidate, DeviceId
from fleet.coverage.coverage import Coverage
from fleet.planner.candidate_requests import CandidateRequest, CandidateRequests, space_of
from fleet.state.state_file import StateFile
from tests.record_fixtures import make_record, make_spec, make_workload
from tests.state_fixtures import state_of, take_in
from tests.transport_fixtures import replay_spec

WORKLOAD, OTHER = make_workload(1), make_workload(2)
SPACES = {DeviceId(name): "x" for name in "abc"} | {DeviceId("d"): "y"}
FAMILIES = dict.fromkeys(map(DeviceId, "abcde"), "cpu")


class Fleet:
    """Requests of five devices, and what their agents were asked."""

    def __init__(self, file: StateFile, **options: int) -> None:
        self.coverage = Coverage(file, FAMILIES, [WORKLOAD.workload_id])
        self.sent: list[tuple[str, ProposeRequest]] = []
        self.requests = CandidateRequests(
            *(self.coverage, FAMILIES, SPACES, lambda *message: self.sent.append(message)), seed=7, **options
        )

    def add(self, device: str, count: int = 4, name: str = "", **changes: object) -> CandidateRequest:
        values: dict[str, Any] = {"workload": WORKLOAD, "count": count, **changes}
        request = CandidateRequest(device_id=DeviceId(device), request_id=name or f"r-{device}", **values)
        self.requests.add(request)
        return request

    def asked(self) -> list[tuple[str, int]]:
        """Agents that are asked now, and for how many candidates."""
        self.requests.send()
        sent = [(device, message.count) for device, message in self.sent]
        self.sent.clear()
        return sent

    def served(self, name: str) -> list[str]:
        question = self.requests.answered(name)
        return [] if question is None else [request.request_id for request in question.requests]


def test_one_agent_is_asked_for_all_that_draw_alike(state: StateFile) -> None:
    fleet = Fleet(state)
    for device, count in (("a", 4), ("b", 8), ("c", 4), ("d", 4), ("e", 4)):
        fleet.add(device, count)
    assert fleet.asked() == [("b", 8), ("d", 4), ("e", 4)], "d draws from elsewhere, of e nobody knows"
    assert fleet.asked() == []
    fleet.add("a", 8, "later")
    fleet.add("c", 9, "more")
    assert fleet.asked() == [("c", 9)], "an answer that is on its way is waited for if it is large enough"
    assert fleet.served("r-b") == ["r-b", "r-a", "r-c", "later"]
    assert fleet.served("more") == ["more"]
    assert fleet.served("r-b") == [], "an answer that comes twice is for nobody"
    fleet.add("a", name="new")
    assert fleet.asked() == [("a", 4)]


def test_what_differs_is_asked_apart(state: StateFile) -> None:
    fleet = Fleet(state)
    others: list[dict[str, object]] = [{}, {"parents": ("p",)}, {"workload": OTHER}, {"is_ranked": True}]
    for number, changes in enumerate(others):
        fleet.add("a", name=f"r{number}", **changes)
    assert len(fleet.asked()) == len(others)
    fleet.add("b", is_ranked=True)
    assert fleet.asked() == [("b", 4)], "each head has draws of its own"
    drawn = Candidate(workload_id=WORKLOAD.workload_id, trace="drawn")
    fleet.coverage.candidates.add(("cpu", WORKLOAD.workload_id), [drawn])
    fleet.add("c")
    assert fleet.asked() == [("c", 4)], "more is known than when the first was asked"


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(1, 9), st.booleans(), st.sampled_from("asl")),
        max_size=30,
    )
)
@settings(max_examples=50, deadline=None)
def test_every_request_is_answered_once_with_enough(steps: list[tuple[str, int, bool, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder, state_of(Path(folder)) as file:
        fleet = Fleet(file)
        unanswered: dict[str, CandidateRequest] = {}
        in_flight: dict[str, int] = {}

        def send() -> None:
            fleet.requests.send()
            in_flight.update({message.request_id: message.count for _, message in fleet.sent})
            fleet.sent.clear()

        def end(name: str, *, is_lost: bool) -> None:
            count = in_flight.pop(name)
            if is_lost:
                unanswered.pop(name)
                fleet.requests.unanswered([name], lambda request: request.request_id in unanswered)
                return
            for served in fleet.served(name):
                assert unanswered.pop(served).count <= count

        for number, (device, count, is_idle, what) in enumerate(steps):
            name = f"r{number}"
            unanswered[name] = fleet.add(device, count, name, is_idle=is_idle)
            if what != "a":
                send()
            if what == "l" and in_flight:
                end(min(in_flight), is_lost=True)
        send()
        while in_flight:
            end(min(in_flight), is_lost=False)
        assert unanswered == {}


def test_an_agent_is_told_the_latest_and_is_not_believed_when_it_draws_an_older_one(state: StateFile) -> None:
    fleet, workload_id = Fleet(state, most_excluded=2), WORKLOAD.workload_id

    def candidates(*traces: str) -> list[Candidate]:
        return [Candidate(workload_id=workload_id, trace=trace) for trace in traces]

    def drawn(*traces: str) -> tuple[list[str], bool]:
        """What is new of an answer, and whether it shows that there is no other."""
        request, answer = fleet.add("a", 9), candidates(*traces)
        fleet.requests.send()
        question = fleet.requests.answered(request.request_id)
        assert question is not None
        excluded = question.excluded
        fresh = fleet.requests.fresh(request, excluded, excluded.without(answer))
        return [one.trace for one in fresh.values()], excluded.is_end(answer)

    old = make_record(7, workload=workload_id, device="a")
    fleet.coverage.set_environment(old.device_id, old.environment_id)
    take_in(state, fleet.coverage, [old])
    assert drawn(old.trace) == ([], True), "it was told all that is known"
    assert fleet.sent[-1][1].seed == 7 + 1
    latest = candidates("a", "b")
    fleet.coverage.candidates.add(("cpu", workload_id), latest)
    assert drawn(old.trace, "c") == (["c"], False)
    assert fleet.sent[-1][1].exclude == {one.candidate_id for one in latest}
    assert drawn(old.trace) == ([], False), "others may be left: it was not told all"
    assert drawn() == ([], True)


def test_devices_draw_alike_if_their_programs_are_made_alike(tmp_path: Path) -> None:
    one, other = (replay_spec(tmp_path / "x.parquet", name) for name in ("one", "two"))
    assert space_of(one) == space_of(other)
    assert space_of(one) != space_of(replay_spec(tmp_path / "y.parquet", "one"))
    spec = make_spec()
    changed = msgspec.structs.replace(spec, target_json='{"kind":"llvm","num-cores":2}')
    assert space_of(spec) != space_of(changed)
