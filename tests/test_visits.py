"""When programs are timed again, and when they are let go."""

from __future__ import annotations

import copy
from collections.abc import Callable

from agents.records import Outcome
from agents.sandbox.job import JobResult
from agents.sandbox.retimed_programs import (
    GAP_SECS,
    LAST_LEADER_VISITS,
    LEADER_GAP_SECS,
    LEADER_VISITS,
    SpacedRetiming,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def program(secs: float) -> Callable[[], tuple[float, ...]]:
    return lambda: (secs,)


def keep(visits: SpacedRetiming, job: int, left: int, secs: float = 1.0, workload_id: str = "one") -> None:
    visits.keep(job, program(secs), left, workload_id, secs)


def moments(visits: SpacedRetiming, clock: Clock, job: int, secs: float) -> list[float]:
    """When a program is visited if somebody looks every half a second for so long."""
    began, found = clock.now, []
    while clock.now < began + secs:
        clock.now += 0.5
        for one in visits.due():
            visits.visit(one)
            if one.job == job:
                found.append(clock.now - began)
    return found


def test_a_program_is_visited_when_its_time_has_come_until_it_had_all_visits() -> None:
    clock = Clock()
    visits = SpacedRetiming(clock)
    keep(visits, 1, 2, 0.5)
    clock.now += 1
    keep(visits, 2, 1, 0.6, "other")
    assert visits.due() == []
    clock.now += GAP_SECS - 1
    [one] = visits.due()
    assert (one.job, visits.visit(one), one.left) == (1, (0.5,), 1)
    clock.now += GAP_SECS
    assert [(one.job, visits.visit(one), one.left) for one in visits.due()] == [
        (1, (0.5,), 0),
        (2, (0.6,), 0),
    ]
    clock.now += GAP_SECS
    assert visits.due() == []


def test_those_near_the_fastest_of_their_workload_are_visited_more_often() -> None:
    clock = Clock()
    visits = SpacedRetiming(clock)
    keep(visits, 1, 3, secs=0.0100)
    keep(visits, 2, 3, secs=0.0109)
    keep(visits, 3, 3, secs=0.0111)
    keep(visits, 4, 3, secs=0.0111, workload_id="other")
    often = [LEADER_GAP_SECS * turn for turn in range(1, 4 * (LEADER_VISITS - 1) + 1)]
    seldom = [GAP_SECS * turn for turn in range(1, 4)]
    again = copy.deepcopy((visits, clock))
    assert moments(visits, clock, 1, 20.0) == often + [often[-1] + one for one in seldom]
    assert moments(*again, 3, 20.0) == seldom
    assert visits.due() == []


def test_a_leader_that_is_overtaken_has_no_more_visits_than_others() -> None:
    clock = Clock()
    visits = SpacedRetiming(clock)
    keep(visits, 1, 3, secs=0.0100)
    assert moments(visits, clock, 1, 2.0) == [0.5, 1.0, 1.5, 2.0]
    visits.note("one", 0.0)
    visits.note("one", 0.0090)
    assert moments(visits, clock, 1, 20.0) == [GAP_SECS, 2 * GAP_SECS, 3 * GAP_SECS]


def test_a_slow_leader_is_visited_no_more_often_than_its_time_allows() -> None:
    clock = Clock()
    visits = SpacedRetiming(clock)
    keep(visits, 1, 3, secs=0.1)
    assert len(moments(visits, clock, 1, 30.0)) == 3 + 4
    keep(visits, 2, 3, secs=0.3)
    assert len(moments(visits, clock, 2, 30.0)) == 3


def test_at_the_end_every_program_has_its_last_visit() -> None:
    visits = SpacedRetiming(Clock())
    for job in range(3):
        keep(visits, job, 7)
    left = []
    for one in visits.last():
        visits.visit(one)
        left.append((one.job, one.left))
    assert left == [(0, 0), (1, 0), (2, 0)]
    assert visits.last() == []


def test_leaders_have_several_last_visits_and_others_between() -> None:
    visits = SpacedRetiming(Clock())
    for job, secs in enumerate((0.0100, 0.0200, 0.0101)):
        keep(visits, job, 7, secs)
    jobs = []
    for one in visits.last():
        visits.visit(one)
        jobs.append(one.job)
    assert jobs == [0, 1, 2] + [0, 2] * (LAST_LEADER_VISITS - 1)
    assert visits.last() == []


def test_of_too_many_programs_the_oldest_have_their_last_visit_at_once() -> None:
    visits = SpacedRetiming(Clock())
    for job in range(134):
        keep(visits, job, 7)
    due = visits.due()
    assert [one.job for one in due] == list(range(6))
    for one in due:
        visits.visit(one)
        assert one.left == 0
    assert visits.due() == []


def test_a_program_that_raises_the_second_time_is_let_go() -> None:
    def broken() -> tuple[float, ...]:
        raise RuntimeError("the second time")

    visits = SpacedRetiming(Clock())
    visits.keep(1, broken, 5, "one", 0.01)
    one, *others = visits.last()
    assert (visits.visit(one), one.left) == ((), 0)
    assert others == [one] * (LAST_LEADER_VISITS - 1), "they are passed over: nothing of it is left"
    assert visits.last() == []


def test_a_result_takes_in_the_repeats_of_a_visit() -> None:
    result = JobResult(
        job=3,
        outcome=Outcome.OK,
        run_secs=(1.2, 1.2, 1.2),
        timing_secs=2.0,
        quality={"interval": 0.0, "a": 1},
    )
    more = result.visited([1.0], 0.5).visited([1.1], 0.5)
    assert more.run_secs == (1.2, 1.2, 1.2, 1.0, 1.1)
    assert (more.job, more.timing_secs, more.quality["visits"], more.quality["a"]) == (3, 3.0, 3, 1)
    assert more.quality["interval"] > 0.05, "a faster moment says how far the first repeats could be off"
    assert more.ended_at >= result.ended_at
    assert result.visited([], 0.1).run_secs == result.run_secs
