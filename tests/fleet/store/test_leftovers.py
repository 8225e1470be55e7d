"""What a killed coordinator leaves in the spools counts, whatever became of its jobs meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agents.records import DeviceId
from agents.spool.disk_spool import Spool
from fleet.state.schema import STATE
from fleet.store.store import Store
from tests.coordinator_fixtures import OFFERED, WORKLOADS, Fleet, everything_measured, make_fleet

ALL = OFFERED * len(WORKLOADS)
ONE, TWO = DeviceId("one"), DeviceId("two")


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """One whose coordinator was killed while a device had measured a whole job into its spool."""
    made = make_fleet(tmp_path)
    with made.coordinator() as (coordinator, transport):
        for _ in range(200):
            coordinator.turn(0.0)
            shown = coordinator._parts.state.describe(TWO)
            if shown["leases"]:
                break
        transport.crash(TWO, shown["incarnation"], is_done=True)
    return made


def spooled(fleet: Fleet) -> dict[str, float]:
    """When each record that only the spool has was measured."""
    with Spool(fleet.folder / "spool" / TWO) as spool:
        found = {record.record_id: record.measured_at for record in spool.pending()}
    # Opening takes up what an intake has left in its log.
    Store.open(fleet.folder / "store").close()
    stored = fleet.record_ids()
    return {one: at for one, at in found.items() if one not in stored}


def check(fleet: Fleet, view: dict[str, Any], waiting: dict[str, float]) -> None:
    assert waiting
    assert not fleet.set_aside("late")
    assert view["devices"][TWO]["late"] == 0
    assert view["store"]["records"] == 2 * ALL
    ids = fleet.record_ids()
    assert len(ids) == len(set(ids)) == 2 * ALL
    records = {one.record_id: one for one in Store.read(fleet.folder / "store").records(device_id=TWO)}
    # As they were measured then: nothing was measured again.
    assert {one: records[one].measured_at for one in waiting} == waiting


def test_a_start_without_the_device_costs_no_measurement(fleet: Fleet) -> None:
    waiting = spooled(fleet)
    spec = fleet.specs.pop(TWO)
    fleet.run(everything_measured_by_one(fleet))
    fleet.specs[TWO] = spec
    check(fleet, fleet.run(everything_measured(fleet)), waiting)


def test_a_lost_state_file_costs_no_measurement(fleet: Fleet) -> None:
    waiting = spooled(fleet)
    (fleet.folder / "store" / STATE).unlink()
    check(fleet, fleet.run(everything_measured(fleet)), waiting)


def everything_measured_by_one(fleet: Fleet) -> Any:
    return lambda coordinator: (
        fleet.clock.skip(1.0) > 0
        and coordinator.view()["devices"][ONE]["records"] >= ALL
        and coordinator.is_quiet
    )
