"""The one clock: what counts as time that passed, and what is seen of a clock that is set."""

from __future__ import annotations

import time

import hypothesis.strategies as st
import pytest
from hypothesis import given

from fleet.engine.fleet_clock import LEAST_SET_SECS, MOST_STEP_SECS, FleetClock, boot_secs

START = 1_800_000_000.0


class Host:
    """The clocks of a host."""

    def __init__(self) -> None:
        self.wall, self.steady = START, 500.0
        #: How long it pauses when its wall clock is looked at next.
        self.pause_secs = 0.0

    def clock(self) -> FleetClock:
        return FleetClock(self._look, lambda: self.steady)

    def _look(self) -> float:
        secs, self.pause_secs = self.pause_secs, 0.0
        self.wait(secs)
        return self.wall

    def wait(self, secs: float) -> None:
        self.wall += secs
        self.steady += secs


def test_a_pause_between_its_two_looks_is_no_lasting_step() -> None:
    host = Host()
    clock = host.clock()
    host.pause_secs = 3600.0
    clock.tick()
    clock.tick()
    assert clock.step_secs == 0.0
    assert clock() <= START + MOST_STEP_SECS


def test_the_clock_of_this_host_goes_on_while_it_sleeps() -> None:
    assert boot_secs() >= time.monotonic() - 1e-3
    clock = FleetClock()
    before = clock()
    time.sleep(0.01)
    assert before + 0.01 <= clock.tick() <= before + MOST_STEP_SECS
    assert abs(clock.wall_ahead_secs) < LEAST_SET_SECS


@given(
    st.lists(
        st.tuples(st.sampled_from(["wait", "set", "tick"]), st.floats(-1e6, 1e6)), min_size=1, max_size=40
    )
)
def test_it_never_goes_back_and_never_jumps(doings: list[tuple[str, float]]) -> None:
    host = Host()
    clock = host.clock()
    ran = 0.0
    for kind, secs in doings:
        before = clock()
        if kind == "set":
            host.wall += secs
        elif kind == "wait":
            host.wait(abs(secs))
            ran += abs(secs)
        else:
            assert before <= clock.tick() <= before + MOST_STEP_SECS
            assert clock() + clock.wall_ahead_secs == pytest.approx(host.wall)
    clock.tick()
    assert clock() - START <= ran + 1e-3
