"""The coordinator beside what goes wrong around it: poison records, no room in the table, agents' deaths."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from agents.device.messages import AgentGone, Asked, Failed, Heartbeat, Message, MorePending
from agents.records import LeaseTag
from fleet.core.events import (
    DeviceAdded,
    GrantLease,
    JobCrashed,
    JobState,
    JobSubmitted,
    ProbePassed,
)
from fleet.core.state import FleetState
from fleet.engine.coordinator import Coordinator
from fleet.engine.ingest import events_of
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
from tests.fleet_world import job


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return make_fleet(tmp_path)


# ---- no room ----


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


WORK = {"what": Asked.MEASURE, "error": "no worker starts", "lease": LeaseTag(job_id="job", fencing_token=1)}


@pytest.mark.parametrize("is_blameless", [False, True])
@pytest.mark.parametrize(("kind", "about"), [(Failed, WORK), (AgentGone, {"reason": "killed"})])
def test_an_end_with_a_cause_outside_blames_no_job(
    kind: type[Message], about: dict[str, Any], is_blameless: bool
) -> None:
    message = kind(device_id=ONE, incarnation=1, is_blameless=is_blameless, **about)
    state = leased_state()
    events = events_of(message, state, 5.0)
    assert any(isinstance(one, JobCrashed) for one in events) is not is_blameless
    for event in events:
        state.apply(event)
    # Either way the device gets another agent, and the job is still there.
    assert state.describe(ONE)["incarnation"] == 2
    assert state.describe(ONE)["failures"] == 1
    assert state.job_counts()[JobState.QUEUED] == 1


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
