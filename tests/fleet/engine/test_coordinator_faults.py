"""The coordinator beside what goes wrong around it: poison records, no room in the table, agents' deaths."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from agents.device.messages import Asked, Failed, Heartbeat, Message, MorePending, Results
from agents.records import LeaseTag
from agents.spool.disk_spool import Spool
from fleet.core.events import (
    AgentDied,
    DeviceAdded,
    DeviceState,
    GrantLease,
    JobCrashed,
    JobState,
    JobSubmitted,
    ProbePassed,
)
from fleet.core.state import FleetState
from fleet.engine.coordinator import Coordinator
from fleet.engine.ingest import events_of
from fleet.state import table
from fleet.store.lanes import LaneSettings
from fleet.store.store import Store
from fleet.transport.local import LocalTransport
from tests.coordinator_fixtures import (
    ALL,
    ONE,
    Fleet,
    everything_measured,
    make_fleet,
    without_room,
)
from tests.disk_fixtures import failing
from tests.fleet_world import job


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return make_fleet(tmp_path)


# ---- poison ----


@contextlib.contextmanager
def poisoned_polls(candidates: set[str]) -> Iterator[None]:
    """Let the first records of a device come with seconds that are no numbers."""
    real = LocalTransport.poll

    def poll(self: LocalTransport, timeout_secs: float) -> list[Message]:
        messages = real(self, timeout_secs)
        for place, one in enumerate(messages):
            if isinstance(one, Results) and one.device_id == ONE:
                records = list(one.records)
                if not candidates:
                    candidates.add(records[0].candidate_id)
                for number, record in enumerate(records):
                    if record.candidate_id in candidates:
                        records[number] = msgspec.structs.replace(record, run_secs=(math.nan, 1e-3))
                messages[place] = msgspec.structs.replace(one, records=tuple(records))
        return messages

    with mock.patch.object(LocalTransport, "poll", poll):
        yield


def test_a_record_that_the_store_refuses_is_set_aside_and_everything_goes_on(fleet: Fleet) -> None:
    bad: set[str] = set()
    with poisoned_polls(bad):
        view = fleet.run(everything_measured(fleet, ALL - 1))
    assert len(bad) == 1
    assert view["store"]["refused"] == 1
    assert view["jobs"]["leased"] == view["jobs"]["quarantined"] == 0
    assert any("the store refuses 1 of its records" in line for line in fleet.lines)
    [told] = fleet.set_aside("refused")
    assert told["record"]["candidate_id"] in bad
    assert "column run_secs holds nan" in told["reason"]
    # It was acknowledged: the agent does not bring it again.
    with Spool(fleet.folder / "spool" / "one") as spool:
        assert not spool.pending()
    ids = [one.candidate_id for one in Store.read(fleet.folder / "store").records("one")]
    assert not bad & set(ids)
    assert len(ids) == len(set(ids)) == ALL - 1
    # After a restart it is known, too, and the candidate may be tried again.
    view = fleet.run(everything_measured(fleet))
    assert view["store"]["refused"] == 1
    assert view["store"]["records"] == 2 * ALL


# ---- no room ----


def table_without_room() -> Any:
    """A table that has no room; log and state file have."""
    return mock.patch.object(table, "write_deltalake", failing())


def check_all(fleet: Fleet, view: dict[str, Any]) -> None:
    assert view["coordinator"]["state"] == "running"
    assert view["store"]["records"] == 2 * ALL
    ids = fleet.record_ids()
    assert len(ids) == len(set(ids)) == 2 * ALL
    assert not fleet.set_aside("late")
    assert view["jobs"]["leased"] == view["jobs"]["quarantined"] == 0


def test_a_table_without_room_is_told_and_gone_on_with(fleet: Fleet) -> None:
    fleet.lanes = LaneSettings(wait_secs=0.0)  # what waits goes on to the table with every turn
    with fleet.coordinator() as (coordinator, _):
        fleet.turn(coordinator, 2)
        with table_without_room():
            fleet.turn(coordinator, 60, 3.0)
            view = coordinator.view()
            assert view["coordinator"]["state"] == "disk_full"
            epochs = [one["fencing_token"] for one in view["devices"].values()]
            fleet.turn(coordinator, 30, 10.0)
            view = coordinator.view()
            assert [one["fencing_token"] for one in view["devices"].values()] == epochs
            assert sum("no lease is granted until there is room" in line for line in fleet.lines) == 1
        check_all(fleet, fleet.finish(coordinator, 600))


def test_a_full_disk_at_the_daily_run_or_at_the_list_of_workloads_ends_nothing(fleet: Fleet) -> None:
    fleet.settings["noise"] = 4
    wanted, left, after = ALL, [3.0], [0.0]

    def has_noise(coordinator: Coordinator) -> bool:
        fleet.clock.now += 6.0
        return all(one["records"] >= wanted for one in coordinator.view()["devices"].values())

    with without_room(Store, "settle", left, lambda _: fleet.clock.now >= after[0]):
        wanted += 8
        view = fleet.run(has_noise, turns=600)
        assert left == [0.0]
        # And once more, when the daily run is due: it is planned as soon as there is room, not a day later.
        left[0] = 1.0
        fleet.clock.now += 25 * 3600.0
        after[0] = fleet.clock.now + 10.0
        wanted += 8
        view = fleet.run(has_noise, turns=600)
    assert left == [0.0]
    assert view["coordinator"]["state"] in ("running", "stopping")


# ---- deaths ----


def leased_state() -> FleetState:
    """A device at work on a job under its first lease."""
    state = FleetState()
    state.apply(DeviceAdded(at_secs=1.0, device_id=ONE, family="cpu"))
    state.apply(ProbePassed(at_secs=2.0, device_id=ONE, incarnation=1, environment_id="e"))
    assert isinstance(state.apply(JobSubmitted(at_secs=3.0, job=job("job", ONE)))[0], GrantLease)
    return state


@pytest.mark.parametrize("is_blameless", [False, True])
def test_a_host_that_cannot_measure_blames_no_job(is_blameless: bool) -> None:
    failed = Failed(
        device_id=ONE,
        incarnation=1,
        what=Asked.MEASURE,
        error="no worker process starts",
        lease=LeaseTag(job_id="job", fencing_token=1),
        is_blameless=is_blameless,
    )
    state = leased_state()
    [event] = events_of(failed, state, 5.0)
    assert isinstance(event, AgentDied if is_blameless else JobCrashed)
    state.apply(event)
    # Either way the device gets another agent, and the job is still there.
    assert state.describe(ONE)["incarnation"] == 2
    assert state.describe(ONE)["failures"] == 1
    assert state.job_counts()[JobState.QUEUED] == 1


@pytest.mark.parametrize("is_blameless", [False, True])
def test_a_job_is_quarantined_by_deaths_of_its_own_only(fleet: Fleet, is_blameless: bool) -> None:
    fleet.specs = {ONE: fleet.specs[ONE]}

    def shown(coordinator: Coordinator) -> dict[str, Any]:
        fleet.clock.skip(1.0)
        device: dict[str, Any] = coordinator.view()["devices"][ONE]
        return device

    with fleet.coordinator() as (coordinator, transport):
        for incarnation in range(1, 5):
            fleet.turn_until(
                coordinator,
                lambda it, now=incarnation: shown(it)["incarnation"] == now and bool(shown(it)["leases"]),
            )
            transport.crash(ONE, incarnation, is_blameless=is_blameless)
        fleet.turn_until(coordinator, lambda it: shown(it)["incarnation"] == 5)
        # With so few deaths the device itself is not given up.
        assert shown(coordinator)["state"] != DeviceState.QUARANTINED
        if is_blameless:
            assert coordinator.view()["jobs"]["quarantined"] == 0
            fleet.turn_until(coordinator, everything_measured(fleet), 400)
        coordinator.close()


# ---- a long spool ----


def test_what_a_long_spool_brings_in_parts_is_not_late(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its agent may measure the same job again only when all of the spool is in."""
    monkeypatch.setattr("agents.device.agent._PENDING_PART", 4)
    fleet.specs = {ONE: fleet.specs[ONE]}
    waiting: deque[Message] = deque()
    real = LocalTransport.poll

    def one_by_one(self: LocalTransport, timeout_secs: float) -> list[Message]:
        waiting.extend(one for one in real(self, timeout_secs) if not isinstance(one, Heartbeat))
        return [waiting.popleft()] if waiting else []

    with mock.patch.object(LocalTransport, "acknowledge"), fleet.coordinator() as (coordinator, transport):
        fleet.turn_until(coordinator, lambda it: it.view()["jobs"]["leased"] > 0, 400)
        transport.crash(ONE, 1, is_done=True, is_blameless=True)
        parts = 0
        with mock.patch.object(LocalTransport, "poll", one_by_one):
            for _ in range(60):
                coordinator.turn(0.0)
                parts += sum(isinstance(one, MorePending) for one in list(waiting)[:1])
        assert parts > 1
        assert coordinator.view()["devices"][ONE]["late"] == 0
        assert not fleet.set_aside("late")
    view = fleet.run(everything_measured(fleet))
    assert view["store"]["records"] == ALL
    assert view["devices"]["one"]["late"] == 0
