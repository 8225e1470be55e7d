"""`fleet tune`: where the rounds go, what they measure, and a real search on this host."""

from __future__ import annotations

import math
import random
import statistics
import zlib
from collections.abc import Iterable, Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agents.records import Candidate, CandidateId, DeviceId, Outcome, Record
from fleet.errors import FleetError
from fleet.models.freshness import NOT_RANKED
from fleet.planner.settings import Clock
from fleet.tuning.decision_scorer import DecisionScorer
from fleet.tuning.evolution import Evolution
from fleet.tuning.search import (
    Search,
    choose,
    end_where_nothing_is_left,
    next_search,
    round_count,
)
from fleet.tuning.tuning import choose_searched, network_seconds
from tests.dataset_fixtures import gmm_trace, gmm_workload, record_of
from tests.record_fixtures import make_record, make_workload
from transfer.search.decisions import DesignTable


def search(number: int, *, uses: int = 1, best: float = math.inf, rounds: int = 0, idle: int = 0) -> Search:
    one = Search(make_workload(number, (("net", uses),)), best_secs=best, idle_rounds=idle)
    one.curve = [(16 * turn, best) for turn in range(1, rounds + 1)]
    return one


def expect(one: Search, *gains: float) -> None:
    one.tried = one.tried or 16
    for gain in gains:
        one.expect(gain)


def ran(number: int, secs: float, **changes: object) -> Record:
    return make_record(
        number, **{"outcome": Outcome.OK, "run_secs": (secs,), "error": "", "origin": "model", **changes}
    )


def candidates(count: int) -> list[Candidate]:
    workload_id = make_workload(1).workload_id
    return [Candidate(workload_id=workload_id, trace=f"[{number}]") for number in range(count)]


def test_a_short_search_gives_every_workload_a_schedule_first() -> None:
    fresh = [search(number) for number in range(1, 5)]
    known = search(5, best=1e-3, rounds=1)
    every = [*fresh, known]
    assert [round_count(fresh[0], every, left, left) for left in (100, 32, 20, 9, 2)] == [8, 8, 5, 2, 1]
    assert round_count(fresh[0], every, 100, 12) == 3, "its minutes are short"
    assert round_count(known, every, 9, 1) == 8
    light = search(6)
    light.workload = replace(light.workload, flops=0.0)
    assert round_count(light, [light], 100, 100) == 4, "it moves more than it computes"
    light.curve.append((4, 1e-5))
    assert round_count(light, [light], 100, 100) == 8


def test_rounds_go_where_time_is_spent_and_leave_where_nothing_falls() -> None:
    searches = [search(1), search(2, uses=9), search(3, uses=2, best=1e-3, rounds=1)]
    assert next_search(searches) is searches[1]
    searches[1].curve.append((16, 1e-6))
    assert next_search(searches) is searches[0], "every workload has its turn before one has two"
    heavy = search(1, uses=10, best=1e-3, rounds=1)
    light = search(2, uses=1, best=1e-3, rounds=1)
    assert next_search([light, heavy]) is heavy
    expect(heavy, 0.02, 0.02, 0.02)
    assert next_search([light, heavy]) is light, "where most may be gained"
    expect(heavy, 1.0)
    heavy.idle_rounds = 5
    assert next_search([light, heavy]) is light
    # One that never ran gets a round now and then, not all of them.
    broken = search(3, uses=50, rounds=1)
    assert next_search([broken, light]) is broken
    broken.idle_rounds = 20
    assert next_search([broken, light]) is light


@given(
    count=st.integers(0, 60),
    wanted=st.integers(1, 20),
    exploration=st.floats(0, 1),
    seed=st.text(max_size=3),
)
def test_a_round_holds_the_first_and_some_others(
    count: int, wanted: int, exploration: float, seed: str
) -> None:
    ranked = candidates(count)
    chosen = choose(ranked, wanted, exploration, seed)
    assert len(chosen) == len({one.candidate_id for one in chosen}) == min(count, wanted)
    at_random = round(min(count, wanted) * exploration)
    assert chosen[: min(count, wanted - at_random)] == ranked[: min(count, wanted - at_random)]
    assert choose(ranked, wanted, exploration, seed) == chosen


def test_a_workload_ends_when_it_can_gain_no_more_than_chance() -> None:
    heavy, light = search(1, uses=10, best=1e-3, rounds=4), search(2, best=1e-5, rounds=4)
    for one in (heavy, light):
        one.tried, one.idle_rounds = 64, 1
        expect(one, 0.3)
    # Three of ten microseconds are nothing beside ten milliseconds.
    for gains, idle_rounds, tried, ended in (
        ((0.012, 0.012, 0.012), 1, 64, ""),
        ((0.012, 0.0, 0.008), 1, 64, ""),  # one round may see no promising candidate
        ((0.008, 0.0, 0.008), 0, 64, ""),  # the last round still brought something
        ((0.008, 0.0, 0.008), 1, 32, ""),  # too little is known
        ((0.008, 0.0, 0.008), 1, 64, "nothing left to gain"),
    ):
        expect(heavy, *gains)
        heavy.idle_rounds, heavy.tried = idle_rounds, tried
        end_where_nothing_is_left([heavy, light], noise_floor=0.01)
        assert (heavy.ended, light.ended) == (ended, "others have more to gain")


class FakeAgent:
    """Makes programs of GMM traces; measures them by the innermost tiles."""

    def __init__(self) -> None:
        self.workload = gmm_workload()
        self.derived = 0
        self.table = DesignTable()
        self.table.read(gmm_trace())
        [self.design] = self.table.designs

    def draw(self, count: int, exclude: Iterable[CandidateId]) -> list[Candidate]:
        dice, left = random.Random(0), set(exclude)
        drawn = [self.candidate(self.design.trace(self.design.draw(dice))) for _ in range(2 * count)]
        return [one for one in drawn if one.candidate_id not in left][:count]

    def derive(self, traces: Sequence[str]) -> list[Candidate]:
        self.derived += len(traces)
        # One in five fits no program.
        return [self.candidate(one) for one in traces if zlib.crc32(one.encode()) % 5]

    def candidate(self, trace: str) -> Candidate:
        return Candidate(workload_id=self.workload.workload_id, trace=trace, origin="random")

    def secs(self, trace: str) -> float:
        _, genes = self.table.read(trace)
        tiles = [one for one in genes if isinstance(one, tuple)]
        far = sum(abs(math.log2(one[-1] / 4)) + abs(math.log2(one[-2] / 2)) for one in tiles)
        return float(1e-4 * 1.3**far)


def test_a_search_without_a_head_learns_from_its_rounds() -> None:
    agent = FakeAgent()
    ranker = SimpleNamespace(head=lambda _: None, why_not=lambda _: "")
    judge = DecisionScorer(ranker, DeviceId("new"))  # type: ignore[arg-type]
    evolution = Evolution(agent.workload, judge, agent.draw, agent.derive, Clock())
    one = Search(agent.workload)
    for _ in range(5):
        chosen = evolution.propose(one, 16, seed=0)
        assert len(chosen) == len({each.candidate_id for each in chosen}) == 16
        assert not {each.candidate_id for each in chosen} & one.excluded
        # What a search has learnt chose them, so they judge nobody, as what a champion chose.
        assert {each.origin for each in chosen} == {"model", "random"}
        assert "model" not in NOT_RANKED
        records = [record_of(each, "new", agent.secs(each.trace)) for each in chosen]
        one.learn(chosen, records)
        evolution.learn(records)
    at_random = sorted(agent.secs(each.trace) for each in agent.draw(80, ()))
    assert one.best_secs <= at_random[0]
    # Most of what the last round measured is faster than nearly all random ones.
    last = [agent.secs(each.trace) for each in chosen if each.origin == "model"]
    assert statistics.median(last) < at_random[8]
    assert 0 <= one.may_gain < 0.6
    assert agent.derived < 5 * 14 * 2


def test_a_network_counts_when_all_of_its_tuned_workloads_ran() -> None:
    first, second = search(1, uses=3, best=1e-3), search(2, uses=2, best=2e-3)
    first.know([ran(0, 2e-3)])
    first.best_secs = 1e-3
    assert network_seconds([first, second], ["net", "other"]) == {"net": {"best_secs": pytest.approx(7e-3)}}
    second.know([ran(1, 3e-3)])
    second.best_secs = 2e-3
    assert network_seconds([first, second], ["net"])["net"]["before_secs"] == pytest.approx(12e-3)
    second.best_secs = math.inf
    assert network_seconds([first, second], ["net"]) == {}


def test_named_workloads_are_searched_or_all_and_an_unknown_one_is_named() -> None:
    listed = [make_workload(1), make_workload(2)]
    assert choose_searched(listed, (), ("net",)) == listed
    assert choose_searched(listed, ("GMM_2", "GMM_2"), ("net",)) == [make_workload(2)]
    with pytest.raises(FleetError, match="no workload 'GMM_9' in net; known: GMM_1, GMM_2"):
        choose_searched(listed, ("GMM_9",), ("net",))
