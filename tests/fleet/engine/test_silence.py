"""Agents that say nothing any more while they have no lease."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

from agents.device.messages import Heartbeat
from fleet.engine.ingest import LivenessMonitor
from fleet.transport.local import LocalTransport
from tests.coordinator_fixtures import ALL, ONE, TWO, Clock, make_fleet


def test_who_was_not_heard_for_too_long_is_silent() -> None:
    clock = Clock()
    silence = LivenessMonitor(60.0, clock)
    up = {ONE: 1, TWO: 3}
    assert silence.silent(up) == []
    for _ in range(7):
        clock.now += 10.0
        silence.heard(Heartbeat(device_id=ONE, incarnation=1))
        silence.heard(Heartbeat(device_id=TWO, incarnation=2))  # of a life that is over
        found = silence.silent(up)
    assert found == [(TWO, 3)]
    assert silence.silent({ONE: 1, TWO: 4}) == [], "a new life has its time"


def test_nobody_is_silent_because_a_coordinator_was_held_up() -> None:
    clock = Clock()
    silence = LivenessMonitor(60.0, clock)
    silence.silent({ONE: 1})
    clock.pause(600.0)
    clock.tick()
    assert silence.silent({ONE: 1}) == []
    clock.skip(55.0)
    assert silence.silent({ONE: 1}) == []
    clock.skip(10.0)
    assert silence.silent({ONE: 1}) == [(ONE, 1)]


def test_an_idle_agent_that_was_stopped_is_started_again_and_measures(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path, ("one",))
    with fleet.coordinator() as (coordinator, transport):
        with mock.patch.object(LocalTransport, "propose"):  # so that it is up and has no lease
            fleet.turn(coordinator, 5)
        assert not coordinator._parts.state.describe(ONE)["leases"]
        transport.freeze(ONE, 1)
        describe = coordinator._parts.state.describe
        fleet.turn_until(
            coordinator, lambda _: fleet.clock.skip(5.0) > 0 and describe(ONE)["incarnation"] == 2, 40
        )
        shown = describe(ONE)
        assert (shown["incarnation"], shown["failures"], shown["outages"]) == (2, 0, 1)
        view = fleet.finish(coordinator, 400)
    assert view["store"]["records"] == ALL
    assert any("says nothing any more" in line for line in fleet.lines)
