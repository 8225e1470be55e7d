"""A coordinator whose clock jumps or that is paused, agents that are or say nothing: nobody is blamed."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from benchmarks.faulty_transport import FaultyTransport
from fleet.engine.coordinator import Coordinator
from tests.coordinator_fixtures import Fleet, make_fleet

#: Fifty jobs are leased at once.
MANY = tuple(f"d{number:02d}" for number in range(50))


def check_nobody_is_blamed(view: dict[str, Any], *, expiries: int = 0) -> None:
    for name, one in view["devices"].items():
        assert (one["failures"], one["crashes"]) == (0, 0), name
        assert one["state"] != "quarantined", name
    assert sum(one["expiries"] for one in view["devices"].values()) == expiries
    assert view["jobs"]["quarantined"] == 0


def turn_until_leased(fleet: Fleet, coordinator: Coordinator, transport: FaultyTransport) -> list[Any]:
    """Let every device have a lease; returns their batches, which no agent has yet."""
    held: list[Any] = []
    with mock.patch.object(transport, "measure", lambda *asked: held.append(asked)):
        fleet.turn_until(coordinator, lambda _: {asked[0].device_id for asked in held} == set(fleet.specs))
    return held


def test_fifty_leases_outlive_pauses_and_a_clock_that_is_set(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path, MANY)
    with fleet.coordinator() as (coordinator, transport):
        held = turn_until_leased(fleet, coordinator, transport)
        assert len(held) >= 50
        for _ in range(3):  # as often as quarantines a job
            for what, secs in (("pause", 600.0), ("set", 7e5), ("set", -3600.0)):
                getattr(fleet.clock, what)(secs)
                coordinator.turn(0.0)
                check_nobody_is_blamed(coordinator.view())
        for asked in held:
            transport.measure(*asked)
        fleet.turn_until(
            coordinator, lambda one: fleet.clock.skip(1.0) > 0 and one.view()["jobs"]["done"] >= len(held)
        )
        view = coordinator.view()
    check_nobody_is_blamed(view)
    assert {one["incarnation"] for one in view["devices"].values()} == {1}, "no agent was stopped"
    ids = fleet.record_ids()
    assert len(set(ids)) == len(ids) >= len(MANY) * fleet.limits.job_candidates
    assert (view["clock"]["gaps"], view["clock"]["steps"]) == (3, 6)
    assert view["now"] == pytest.approx(fleet.clock.wall(), abs=5.0)
