"""When programs are timed again, and when they are let go."""

from __future__ import annotations

from collections.abc import Callable

from agents.job import Result
from agents.records import Outcome
from agents.visits import GAP_SECS, Visits


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def program(secs: float) -> Callable[[], tuple[float, ...]]:
    return lambda: (secs,)


def test_a_program_is_visited_when_its_time_has_come_until_it_had_all_visits() -> None:
    clock = Clock()
    visits = Visits(clock)
    visits.keep(1, program(0.5), 2)
    clock.now += 1
    visits.keep(2, program(0.25), 1)
    assert visits.due() == []
    clock.now += GAP_SECS - 1
    [one] = visits.due()
    assert (one.job, visits.visit(one), one.left) == (1, (0.5,), 1)
    clock.now += GAP_SECS
    assert [(one.job, visits.visit(one), one.left) for one in visits.due()] == [
        (1, (0.5,), 0),
        (2, (0.25,), 0),
    ]
    clock.now += GAP_SECS
    assert visits.due() == []


def test_at_the_end_every_program_has_its_last_visit() -> None:
    visits = Visits(Clock())
    for job in range(3):
        visits.keep(job, program(1.0), 7)
    left = []
    for one in visits.last():
        visits.visit(one)
        left.append((one.job, one.left))
    assert left == [(0, 0), (1, 0), (2, 0)]
    assert visits.last() == []


def test_of_too_many_programs_the_oldest_have_their_last_visit_at_once() -> None:
    visits = Visits(Clock())
    for job in range(70):
        visits.keep(job, program(1.0), 7)
    due = visits.due()
    assert [one.job for one in due] == list(range(6))
    for one in due:
        visits.visit(one)
        assert one.left == 0
    assert visits.due() == []


def test_a_program_that_raises_the_second_time_is_let_go() -> None:
    def broken() -> tuple[float, ...]:
        raise RuntimeError("the second time")

    visits = Visits(Clock())
    visits.keep(1, broken, 5)
    [one] = visits.last()
    assert (visits.visit(one), one.left) == ((), 0)
    assert visits.last() == []


def test_a_result_takes_in_the_repeats_of_a_visit() -> None:
    result = Result(
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
