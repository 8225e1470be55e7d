"""When programs are timed again, and when they are let go."""

from __future__ import annotations

import copy

import pytest

from agents.records import Outcome
from agents.sandbox.job import JobResult
from agents.sandbox.retimed_programs import (
    FRONT_RUNNER_FACTOR,
    FRONT_RUNNER_GAP_SECS,
    GAP_SECS,
    LAST_FRONT_RUNNER_TIMINGS,
    SpacedRetiming,
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def keep(retiming: SpacedRetiming, job: int, left: int, secs: float = 1.0, workload_id: str = "one") -> None:
    retiming.keep(job, lambda: (secs,), left, workload_id, secs)


def moments(retiming: SpacedRetiming, clock: Clock, job: int, secs: float) -> list[float]:
    """When a program is timed again if somebody looks every half a second for so long."""
    began, found = clock.now, []
    while clock.now < began + secs:
        clock.now += 0.5
        for one in retiming.due():
            retiming.time_again(one)
            if one.job == job:
                found.append(clock.now - began)
    return found


def test_a_program_is_timed_again_when_its_time_has_come_until_it_had_all_timings() -> None:
    clock = Clock()
    retiming = SpacedRetiming(clock)
    keep(retiming, 1, 2, 0.5)
    clock.now += 1
    keep(retiming, 2, 1, 0.6, "other")
    assert retiming.due() == []
    clock.now += GAP_SECS - 1
    [one] = retiming.due()
    assert (one.job, retiming.time_again(one), one.timings_left) == (1, (0.5,), 1)
    clock.now += GAP_SECS
    assert [(one.job, retiming.time_again(one), one.timings_left) for one in retiming.due()] == [
        (1, (0.5,), 0),
        (2, (0.6,), 0),
    ]
    clock.now += GAP_SECS
    assert retiming.due() == []


def test_those_near_the_fastest_of_their_workload_are_timed_again_more_often() -> None:
    clock = Clock()
    retiming = SpacedRetiming(clock)
    keep(retiming, 1, 3, secs=0.0100)
    keep(retiming, 2, 3, secs=0.0109)
    keep(retiming, 3, 3, secs=0.0111)
    keep(retiming, 4, 3, secs=0.0111, workload_id="other")
    often = [FRONT_RUNNER_GAP_SECS * turn for turn in range(1, 4 * (FRONT_RUNNER_FACTOR - 1) + 1)]
    seldom = [GAP_SECS * turn for turn in range(1, 4)]
    again = copy.deepcopy((retiming, clock))
    assert moments(retiming, clock, 1, 20.0) == often + [often[-1] + one for one in seldom]
    assert moments(*again, 3, 20.0) == seldom
    assert retiming.due() == []


def test_a_front_runner_that_is_overtaken_has_no_more_timings_than_others() -> None:
    clock = Clock()
    retiming = SpacedRetiming(clock)
    keep(retiming, 1, 3, secs=0.0100)
    assert moments(retiming, clock, 1, 2.0) == [0.5, 1.0, 1.5, 2.0]
    retiming.note("one", 0.0)
    retiming.note("one", 0.0090)
    assert moments(retiming, clock, 1, 20.0) == [GAP_SECS, 2 * GAP_SECS, 3 * GAP_SECS]


@pytest.mark.parametrize(
    ("secs", "order"),
    [
        ((1.0, 1.0, 1.0), [0, 1, 2]),
        # Front-runners have several, the others between.
        ((0.0100, 0.0200, 0.0101), [0, 1, 2] + [0, 2] * (LAST_FRONT_RUNNER_TIMINGS - 1)),
    ],
)
def test_at_the_end_every_program_has_its_last_timing(secs: tuple[float, ...], order: list[int]) -> None:
    retiming = SpacedRetiming(Clock())
    for job, each in enumerate(secs):
        keep(retiming, job, 7, each)
    timed = [(one, retiming.time_again(one)) for one in retiming.last()]
    assert [one.job for one, _ in timed] == order
    assert {one.timings_left for one, _ in timed} == {0}
    assert retiming.last() == []


def test_a_program_that_raises_the_second_time_is_let_go() -> None:
    def broken() -> tuple[float, ...]:
        raise RuntimeError("the second time")

    retiming = SpacedRetiming(Clock())
    retiming.keep(1, broken, 5, "one", 0.01)
    one, *others = retiming.last()
    assert (retiming.time_again(one), one.timings_left) == ((), 0)
    assert others == [one] * (LAST_FRONT_RUNNER_TIMINGS - 1), "they are passed over: nothing of it is left"
    assert retiming.last() == []


def test_a_result_takes_in_the_repeats_of_a_later_timing() -> None:
    quality = {"interval": 0.0, "a": 1}
    result = JobResult(job=3, outcome=Outcome.OK, run_secs=(1.2,) * 3, timing_secs=2.0, quality=quality)
    more = result.retimed([1.0], 0.5).retimed([1.1], 0.5)
    assert more.run_secs == (1.2, 1.2, 1.2, 1.0, 1.1)
    assert (more.job, more.timing_secs, more.quality["visits"], more.quality["a"]) == (3, 3.0, 3, 1)
    assert more.quality["interval"] > 0.05, "a faster moment says how far the first repeats could be off"
    assert more.ended_at >= result.ended_at
    assert result.retimed([], 0.1).run_secs == result.run_secs
