"""The coordinator beside what goes wrong around it: poison records, no room in the table, agents' deaths."""

from __future__ import annotations

import contextlib
import errno
import io
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import Any
from unittest import mock

import pytest
from rich.console import Console

from agents.device.messages import AgentGone, Failed, Heartbeat, Message, MorePending, Results
from agents.lease import LeaseTag
from agents.records import DeviceId
from agents.spool.disk_spool import Spool
from fleet.core.events import (
    AgentHeartbeat,
    DeviceAdded,
    DeviceState,
    GrantLease,
    Job,
    JobId,
    JobState,
    JobSubmitted,
)
from fleet.core.limits import Limits
from fleet.core.state import FleetState
from fleet.engine.agent_events import events_of
from fleet.engine.coordinator import Coordinator
from fleet.engine.notices import Notices
from fleet.errors import StoreFull
from fleet.journal.journal import Journal
from fleet.planner.candidate_pools import CandidatePools
from fleet.store.store import Store
from fleet.transport.local import LocalTransport
from tests.coordinator_fixtures import OFFERED, WORKLOADS, Fleet, everything_measured, make_fleet

ALL = OFFERED * len(WORKLOADS)
ONE, TWO = DeviceId("one"), DeviceId("two")


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return make_fleet(tmp_path)


def turns(
    fleet: Fleet, coordinator: Coordinator, is_done: Callable[[Coordinator], bool], most: int = 400
) -> None:
    fleet.turn_until(coordinator, is_done, most)


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
                        records[number] = replace(record, run_secs=(math.nan, 1e-3))
                messages[place] = replace(one, records=tuple(records))
        return messages

    with mock.patch.object(LocalTransport, "poll", poll):
        yield


def test_a_record_that_the_store_refuses_is_set_aside_and_everything_goes_on(fleet: Fleet) -> None:
    bad: set[str] = set()

    def is_done(coordinator: Coordinator) -> bool:
        fleet.clock.now += 1.0
        devices = coordinator.view()["devices"]
        return (
            devices["one"]["records"] >= ALL - 1
            and devices["two"]["records"] >= ALL - 1
            and (coordinator.is_quiet)
        )

    with poisoned_polls(bad):
        view = fleet.run(is_done)
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


def test_a_refused_record_of_an_earlier_life_ends_its_job_too(fleet: Fleet) -> None:
    bad: set[str] = set()
    with (
        poisoned_polls(bad),
        mock.patch.object(LocalTransport, "acknowledge"),
        fleet.coordinator() as (one, transport),
    ):
        turns(fleet, one, lambda it: bool(bad))
        transport.crash(ONE, 1, is_done=True)
        turns(
            fleet,
            one,
            lambda it: fleet.clock.skip(1.0) > 0 and it.view()["devices"]["one"]["incarnation"] > 1,
        )
    # What its spool holds is good: only what came over the wire was not.
    view = fleet.run(everything_measured(fleet))
    assert view["store"]["records"] == 2 * ALL
    assert view["jobs"]["leased"] == 0


# ---- no room ----


@contextlib.contextmanager
def table_without_room(is_full: list[bool]) -> Iterator[None]:
    """A table that has no room while `is_full` says so; log, journal and pools have."""

    def write(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_full[0]:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args, **kwargs)

        return call

    from fleet.store import writer

    with mock.patch.object(writer, "write_data_files", write(writer.write_data_files)):
        yield


def hasten(coordinator: Coordinator) -> None:
    """Let what waits in the intake go on to the table with every turn, not after seconds."""
    intake = coordinator._parts.intake
    intake._settings = replace(intake._settings, wait_secs=0.0, commit_every_secs=0.0)


def finish(fleet: Fleet, coordinator: Coordinator) -> dict[str, Any]:
    """Go on until everything is measured; returns the last view."""
    turns(fleet, coordinator, everything_measured(fleet), most=600)
    fleet.clock.now += 2.0
    coordinator.turn(0.0)
    view = coordinator.view()
    coordinator.close()
    return view


def check_all(fleet: Fleet, view: dict[str, Any]) -> None:
    assert view["coordinator"]["state"] == "running"
    assert view["store"]["records"] == 2 * ALL
    ids = fleet.record_ids()
    assert len(ids) == len(set(ids)) == 2 * ALL
    assert not fleet.set_aside("late")
    assert view["jobs"]["leased"] == view["jobs"]["quarantined"] == 0


def test_a_table_without_room_is_told_and_gone_on_with(fleet: Fleet) -> None:
    is_full = [False]
    with table_without_room(is_full), fleet.coordinator() as (coordinator, _):
        for _ in range(6):
            coordinator.turn(0.0)
        is_full[0] = True
        hasten(coordinator)
        for _ in range(60):
            fleet.clock.now += 3.0
            coordinator.turn(0.0)
        view = coordinator.view()
        assert view["coordinator"]["state"] == "disk_full"
        epochs = [one["epoch"] for one in view["devices"].values()]
        for _ in range(30):
            fleet.clock.now += 10.0
            coordinator.turn(0.0)
        view = coordinator.view()
        assert [one["epoch"] for one in view["devices"].values()] == epochs
        assert sum("no lease is granted until there is room" in line for line in fleet.lines) == 1
        is_full[0] = False
        check_all(fleet, finish(fleet, coordinator))


def test_a_full_disk_while_traces_are_looked_for_gives_up_no_lease(fleet: Fleet) -> None:
    """A device needs traces that are on their way to the table: they cannot go there, and it waits."""
    is_full = [False]
    with table_without_room(is_full), fleet.coordinator() as (coordinator, _):
        hasten(coordinator)
        is_full[0] = True
        # Nothing stays in memory, so every trace that a sibling has measured is looked for in the store.
        with mock.patch.object(coordinator._parts.pools, "_cache_bytes", 0):
            for _ in range(80):
                fleet.clock.now += 3.0
                coordinator.turn(0.0)
        assert not any("neither in the pools nor in the store" in line for line in fleet.lines)
        assert coordinator.view()["jobs"]["cancelled"] == 0
        assert coordinator.view()["coordinator"]["state"] == "disk_full"
        is_full[0] = False
        check_all(fleet, finish(fleet, coordinator))


def test_a_lease_whose_traces_wait_for_room_is_granted_once_there_is_some(fleet: Fleet) -> None:
    from fleet.store.intake import Intake

    keep, refused = Intake.flush, [0]

    def flush(self: Intake, **which: Any) -> None:
        if which.get("candidate_ids") and refused[0] < 3:
            refused[0] += 1
            raise StoreFull("no room while appending records: No space left on device")
        keep(self, **which)

    # The sibling comes when all is measured, so it needs traces that nothing but the records has.
    sibling = fleet.specs.pop(TWO)
    with fleet.coordinator() as (coordinator, _):
        turns(fleet, coordinator, everything_measured(fleet), most=600)
    fleet.specs[TWO] = sibling
    with mock.patch.object(Intake, "flush", flush), fleet.coordinator() as (coordinator, _):
        view = finish(fleet, coordinator)
    assert refused[0] == 3
    check_all(fleet, view)
    assert view["jobs"]["cancelled"] == 0
    assert not any("neither in the pools nor in the store" in line for line in fleet.lines)
    assert {one["crashes"] for one in view["devices"].values()} == {0}, "no lease was left to expire"


def test_what_was_taken_before_the_disk_was_found_full_again_is_counted(fleet: Fleet) -> None:
    from fleet.engine.disk_watch import DiskWatch
    from fleet.store.intake import Intake

    keep, probe, left = Intake.append, DiskWatch.probe, [2, 6]

    def append(self: Intake, records: list[Any]) -> Any:
        if records and left[0]:
            left[0] -= 1
            raise StoreFull("no room while taking in records: No space left on device")
        return keep(self, records)

    def find_no_room(self: DiskWatch) -> None:
        if self.is_full and left[1]:
            left[1] -= 1
            raise StoreFull("no room while looking for room: No space left on device")
        probe(self)

    with (
        mock.patch.object(Intake, "append", append),
        mock.patch.object(DiskWatch, "probe", find_no_room),
        fleet.coordinator() as (coordinator, _),
    ):
        view = finish(fleet, coordinator)
        state = coordinator._parts.state
        assert {state.describe(one)["records"] for one in fleet.specs} == {ALL}, "trainings go by it"
    assert left == [0, 0]
    check_all(fleet, view)


def test_a_full_disk_at_the_daily_run_or_at_the_list_of_workloads_ends_nothing(fleet: Fleet) -> None:
    from fleet.store.intake import Intake

    fleet.settings["noise"] = 4
    keep, refusals = Intake.flush, [0]

    def flush(self: Intake, **which: Any) -> None:
        if refusals[0] < 3:
            refusals[0] += 1
            raise StoreFull("no room while appending records: No space left on device")
        keep(self, **which)

    def has_noise(coordinator: Coordinator) -> bool:
        fleet.clock.now += 6.0
        return all(one["records"] >= ALL + 8 for one in coordinator.view()["devices"].values())

    with mock.patch.object(Intake, "flush", flush):
        view = fleet.run(has_noise, turns=600)
        assert refusals[0] == 3
        # And once more, when the daily run is due: it is planned as soon as there is room, not a day later.
        refusals[0] = 1
        fleet.clock.now += 25 * 3600.0
        view = fleet.run(
            lambda one: (
                fleet.clock.skip(6.0) > 0
                and all(it["records"] >= ALL + 16 for it in one.view()["devices"].values())
            ),
            turns=600,
        )
    assert refusals[0] == 3
    assert view["coordinator"]["state"] in ("running", "stopping")


def test_pools_without_room_hold_everything_back(fleet: Fleet) -> None:
    keep, is_full = CandidatePools._write, [False]

    def write(self: CandidatePools) -> None:
        if is_full[0]:
            raise StoreFull("no room while keeping candidates: No space left on device")
        keep(self)

    with mock.patch.object(CandidatePools, "_write", write), fleet.coordinator() as (coordinator, transport):
        is_full[0] = True
        journalled: list[str] = []
        append = Journal.append

        def note(self: Journal, events: list[dict[str, Any]]) -> None:
            journalled.extend(one["event"] for one in events)
            append(self, events)

        with (
            mock.patch.object(Journal, "append", note),
            mock.patch.object(transport, "measure") as grant,
        ):
            for _ in range(20):
                fleet.clock.now += 3.0
                coordinator.turn(0.0)
            assert coordinator.view()["coordinator"]["state"] == "disk_full"
            assert not grant.called
            assert "JobSubmitted" not in journalled, "no job may name what is not on the disk"
        is_full[0] = False
        check_all(fleet, finish(fleet, coordinator))


class Output(io.StringIO):
    """Where lines go; there may be no room for them."""

    is_full = False

    def write(self, text: str) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_a_log_on_the_full_disk_does_not_end_what_it_tells_of(fleet: Fleet) -> None:
    from fleet.store.intake import Intake

    output, keep = Output(), Intake.append

    def append(self: Intake, records: list[Any]) -> Any:
        if output.is_full:
            raise StoreFull("no room while taking in records: No space left on device")
        return keep(self, records)

    with mock.patch.object(Intake, "append", append), fleet.coordinator() as (coordinator, _):
        notices = coordinator._parts.notices
        notices._console = Console(file=output, width=200)
        with mock.patch.object(notices, "say", MethodType(Notices.say, notices)):
            for _ in range(10):
                fleet.clock.now += 1.0
                coordinator.turn(0.0)
            output.is_full = True
            for _ in range(10):
                fleet.clock.now += 1.0
                coordinator.turn(0.0)
            view = coordinator.view()
            assert view["coordinator"]["state"] == "disk_full"
            assert any("no lease is granted until there is room" in one["text"] for one in view["alarms"])
            output.is_full = False
            check_all(fleet, finish(fleet, coordinator))
    assert output.getvalue().count("there is room on the disk again") == 1
    assert "no lease is granted" not in output.getvalue()


# ---- deaths ----


def leased_state() -> FleetState:
    """A device at work on a job under its first lease."""
    state = FleetState(Limits())
    told: list[Any] = []
    for event in (
        DeviceAdded(at_secs=1.0, device_id=ONE, family="cpu"),
        *_up(1),
        JobSubmitted(at_secs=3.0, job=_job()),
    ):
        told += state.apply(event)
    assert any(isinstance(one, GrantLease) for one in told)
    return state


def _up(incarnation: int) -> list[Any]:
    from fleet.core.events import AgentStarted, ProbePassed

    return [
        AgentStarted(at_secs=2.0, device_id=ONE, incarnation=incarnation),
        ProbePassed(at_secs=2.0, device_id=ONE, incarnation=incarnation, environment_id="e"),
    ]


def _job() -> Job:
    return Job(
        job_id=JobId("job"),
        device_id=ONE,
        workload_ids=(),
        candidate_ids=(),
        origin="random",
        attempt=0,
        expected_secs=1.0,
    )


def kinds(message: Message, state: FleetState) -> list[str]:
    return [type(one).__name__ for one in events_of(message, state, 5.0, 5.0)]


@pytest.mark.parametrize(
    ("is_blameless", "expected"), [(False, ["JobCrashed", "AgentDied"]), (True, ["AgentDied"])]
)
def test_a_death_from_outside_blames_no_job(is_blameless: bool, expected: list[str]) -> None:
    gone = AgentGone(device_id=ONE, incarnation=1, reason="died", is_blameless=is_blameless)
    assert kinds(gone, leased_state()) == expected


def test_a_heartbeat_tells_the_time_zone_which_changes_twice_a_year() -> None:
    [told] = events_of(Heartbeat(device_id=ONE, incarnation=1), leased_state(), 5.0, 5.0)
    assert isinstance(told, AgentHeartbeat)
    assert told.utc_offset_secs == time.localtime(5.0).tm_gmtoff


@pytest.mark.parametrize(("is_blameless", "expected"), [(False, ["JobCrashed"]), (True, ["AgentDied"])])
def test_a_host_that_cannot_measure_blames_no_job(is_blameless: bool, expected: list[str]) -> None:
    from agents.device.messages import Asked

    failed = Failed(
        device_id=ONE,
        incarnation=1,
        what=Asked.MEASURE,
        error="no worker process starts",
        lease=LeaseTag(job_id="job", fencing_token=1),
        is_blameless=is_blameless,
    )
    state = leased_state()
    assert kinds(failed, state) == expected
    for event in events_of(failed, state, 5.0, 5.0):
        state.apply(event)
    # Either way the device gets another agent, and the job is still there.
    assert state.describe(ONE)["incarnation"] == 2
    assert state.describe(ONE)["failures"] == 1
    assert state.job_counts()[JobState.QUEUED] == 1


@pytest.mark.parametrize("is_blameless", [False, True])
def test_a_job_is_quarantined_by_deaths_of_its_own_only(fleet: Fleet, is_blameless: bool) -> None:
    fleet.specs = {ONE: fleet.specs[ONE]}
    with fleet.coordinator() as (coordinator, transport):
        for _ in range(4):
            turns(fleet, coordinator, lambda it: bool(it._parts.state.describe(ONE)["leases"]))
            incarnation = coordinator._parts.state.describe(ONE)["incarnation"]
            transport.crash(ONE, incarnation, is_blameless=is_blameless)
            turns(
                fleet,
                coordinator,
                lambda it, last=incarnation: (
                    fleet.clock.skip(1.0) > 0 and it._parts.state.describe(ONE)["incarnation"] > last
                ),
            )
        # With so few deaths the device itself is not given up.
        assert coordinator._parts.state.describe(ONE)["state"] != DeviceState.QUARANTINED
        counts = coordinator._parts.state.job_counts()
        if is_blameless:
            assert counts[JobState.QUARANTINED] == 0
            turns(fleet, coordinator, everything_measured(fleet))
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
        turns(fleet, coordinator, lambda it: bool(it._parts.state.describe(ONE)["leases"]))
        transport.crash(ONE, 1, is_done=True, is_blameless=True)
        parts = 0
        with mock.patch.object(LocalTransport, "poll", one_by_one):
            for _ in range(60):
                coordinator.turn(0.0)
                parts += sum(isinstance(one, MorePending) for one in list(waiting)[:1])
        assert parts > 1
        assert coordinator._parts.state.describe(ONE)["late"] == 0
        assert not fleet.set_aside("late")
    view = fleet.run(everything_measured(fleet))
    assert view["store"]["records"] == ALL
    assert view["devices"]["one"]["late"] == 0
