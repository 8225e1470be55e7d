"""When programs are timed again, and when they are let go."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agents.programs.gate import Disturbance, Repeats
from agents.records import Outcome
from agents.sandbox.job import JobResult
from agents.sandbox.retimed_programs import (
    FRONT_RUNNER_GAP_SECS,
    GAP_SECS,
    LAST_TIMINGS,
    SpacedRetiming,
    most_timings,
)

#: Clean repeats that a program needs here, and moments of its protocol.
NEEDS, VISITS = 3, 4
#: A program that is faster than all of these leads their workload.
LEADER_SECS = 0.001


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def repeats(secs: float, clean: int = 0, disturbed: int = 0) -> Repeats:
    disturbances = (Disturbance.NONE,) * clean + (Disturbance.SLOW_CORE,) * disturbed
    return Repeats((secs,) * len(disturbances), disturbances)


def keep(
    retiming: SpacedRetiming,
    job: int,
    *,
    secs: float = 0.01,
    clean: int = 0,
    again: Callable[[], bool] = lambda: True,
    workload_id: str = "a",
) -> bool:
    """Keep a program with so many clean repeats, of which a later timing is clean if `again` says so."""
    return retiming.keep(
        job,
        lambda: repeats(secs, clean=1) if again() else repeats(secs, disturbed=1),
        repeats(secs, clean, disturbed=1),
        workload_id,
        visits=VISITS,
        needs=NEEDS,
    )


def retiming_behind_a_leader() -> tuple[SpacedRetiming, Clock]:
    clock = Clock()
    retiming = SpacedRetiming(clock)
    retiming.note("a", LEADER_SECS)
    return retiming, clock


def moments(retiming: SpacedRetiming, clock: Clock, job: int, secs: float) -> list[float]:
    """When a program is timed again if somebody looks every half a second for so long."""
    began, timed_at = clock.now, []
    while clock.now < began + secs:
        clock.now += 0.5
        for program in retiming.due():
            retiming.time_again(program)
            if program.job == job:
                timed_at.append(clock.now - began)
    return timed_at


def test_a_program_is_kept_only_if_it_lacks_clean_repeats_or_leads() -> None:
    retiming, _clock = retiming_behind_a_leader()
    assert not keep(retiming, 1, clean=NEEDS)
    assert keep(retiming, 2, clean=NEEDS - 1)
    assert keep(retiming, 3, clean=NEEDS, workload_id="other"), "the first of a workload leads it"
    once = retiming.keep(4, Repeats, repeats(0.01, disturbed=2), "a", visits=1)
    assert not once, "its protocol has it timed at one moment"


def test_a_program_is_timed_again_until_enough_of_its_repeats_are_clean() -> None:
    retiming, clock = retiming_behind_a_leader()
    keep(retiming, 1, clean=1)
    answers = iter([False, True, False, True])
    keep(retiming, 2, clean=1, again=lambda: next(answers))
    assert moments(retiming, clock, 2, 60.0) == [GAP_SECS, 2 * GAP_SECS, 3 * GAP_SECS]
    assert retiming.last() == [], "both have their clean repeats"


def test_moments_that_are_not_quiet_are_few() -> None:
    retiming, clock = retiming_behind_a_leader()
    keep(retiming, 1, again=lambda: False)
    timed = 0
    for _ in range(100):
        clock.now += GAP_SECS
        for program in retiming.due(is_quiet=False):
            retiming.time_again(program)
            timed += 1
    assert timed == VISITS - 1
    assert retiming.due(), "a quiet moment serves it"


def test_disturbed_moments_end_some_time() -> None:
    retiming, clock = retiming_behind_a_leader()
    keep(retiming, 1, again=lambda: False)
    timed = moments(retiming, clock, 1, 600.0)
    assert len(timed) == 3 * VISITS - 1
    assert len(timed) + 1 <= most_timings(VISITS)
    keep(retiming, 2, again=lambda: False)
    last = [(program.job, retiming.time_again(program).clean) for program in retiming.last()]
    assert last == [(2, 0)] * LAST_TIMINGS


def test_those_near_the_fastest_of_their_workload_get_more_clean_repeats_and_sooner() -> None:
    clock = Clock()
    retiming = SpacedRetiming(clock)
    for job, secs in enumerate((0.0100, 0.0109, 0.0111)):
        keep(retiming, job, secs=secs, clean=2)
    often = [FRONT_RUNNER_GAP_SECS * turn for turn in range(1, 2 * NEEDS - 1)]
    assert moments(retiming, clock, 1, 20.0) == often
    assert retiming.due() == []
    assert [program.job for program in retiming.last()] == [0, 1] * LAST_TIMINGS


def test_a_front_runner_that_is_overtaken_needs_no_more_than_others() -> None:
    clock = Clock()
    retiming = SpacedRetiming(clock)
    keep(retiming, 1, clean=1, again=iter([False] * 3 + [True] * 9).__next__)
    assert moments(retiming, clock, 1, 1.5) == [0.5, 1.0, 1.5]
    retiming.note("a", 0.0)
    retiming.note("a", LEADER_SECS)
    assert moments(retiming, clock, 1, 20.0) == [GAP_SECS]


@pytest.mark.parametrize(
    ("secs", "order"),
    [
        # One that leads, one that lacks a clean repeat, another leader: in turns.
        ((0.0100, 0.0200, 0.0101), [0, 1, 2] + [0, 2] * (LAST_TIMINGS - 1)),
        # Long runs: their leader needs no more than others, and still has its last timings.
        ((1.0, 2.0), [0, 1] + [0] * (LAST_TIMINGS - 1)),
    ],
)
def test_at_the_end_every_program_has_its_last_timings(secs: tuple[float, ...], order: list[int]) -> None:
    retiming = SpacedRetiming(Clock())
    for job, each in enumerate(secs):
        keep(retiming, job, secs=each, clean=NEEDS - (each > 1.5 * secs[0]))
    jobs = []
    for program in retiming.last():
        if program.timings_left:
            retiming.time_again(program)
            jobs.append(program.job)
    assert jobs == order
    assert retiming.last() == []


def test_a_program_that_raises_the_second_time_is_let_go() -> None:
    def broken() -> Repeats:
        raise RuntimeError("the second time")

    retiming = SpacedRetiming(Clock())
    retiming.keep(1, broken, repeats(0.01, disturbed=1), "a", visits=VISITS)
    program, *others = retiming.last()
    assert (retiming.time_again(program), program.timings_left) == (Repeats(), 0)
    assert set(map(id, others)) == {id(program)}, "they are passed over: nothing of it is left"
    assert retiming.last() == []


def test_a_result_takes_in_the_repeats_of_a_later_timing() -> None:
    result = JobResult(
        job=3,
        outcome=Outcome.OK,
        run_secs=(1.2, 1.2),
        disturbances=(Disturbance.NONE, Disturbance.PREEMPTED),
        timing_secs=2.0,
        quality={"a": 1},
    )
    more = result.retimed(repeats(1.0, clean=1), 0.5).retimed(repeats(1.1, disturbed=1), 0.5)
    assert more.run_secs == (1.2, 1.2, 1.0, 1.1)
    assert more.repeats.clean == 2
    assert (more.job, more.timing_secs, more.quality) == (3, 3.0, {"a": 1, "visits": 3})
    assert more.ended_at >= result.ended_at
    assert result.retimed(Repeats(), 0.1).run_secs == result.run_secs
