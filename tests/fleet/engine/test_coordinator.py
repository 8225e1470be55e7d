"""The coordinator over replay devices in this process: exactly once, whatever is killed, frozen or full."""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agents.device.messages import Message, Results, WorkloadsListed
from agents.device.replay import ReplayWorker
from agents.records import NOISE, Candidate, Descriptor, DeviceId, ModelRef, Workload
from fleet.core.events import DevicePolicy, Event, JobFinished, ModelPublished
from fleet.core.limits import Limits
from fleet.engine.coordinator import Coordinator
from fleet.engine.event_log import EventLog
from fleet.engine.ingest import Ingest, LivenessMonitor
from fleet.errors import FleetError
from fleet.planner.candidate_ranker import Ranking
from fleet.state.questions import StateReader
from fleet.state.schema import STATE
from fleet.state.table import RecordsTable
from fleet.store.store import Store
from fleet.transport.local import LocalTransport
from tests.coordinator_fixtures import (
    ALL,
    OFFERED,
    ONE,
    TWO,
    WORKLOADS,
    Fleet,
    Killed,
    everything_measured,
    killed_at,
    make_fleet,
    without_room,
)
from tests.state_fixtures import forget_candidates


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return make_fleet(tmp_path)


def check_books(fleet: Fleet, view: dict[str, object]) -> None:
    """Every record once, everything that was measured counted once, every job accounted for."""
    ids = fleet.record_ids()
    assert len(ids) == len(set(ids))
    devices = view["devices"]
    assert isinstance(devices, dict)
    assert len(ids) == sum(one["records"] for one in devices.values())
    jobs = view["jobs"]
    assert isinstance(jobs, dict)
    assert jobs["leased"] == 0
    assert jobs["quarantined"] == 0


def test_it_measures_everything_once_on_every_device_and_a_restart_lists_nothing_again(fleet: Fleet) -> None:
    both, fleet.specs = fleet.specs, {ONE: fleet.specs[ONE]}
    fleet.run(lambda one: one.view()["store"]["records"] > 20)
    fleet.specs = both
    with mock.patch.object(LocalTransport, "list_workloads") as listed:
        view = fleet.run(everything_measured(fleet))
    assert not listed.called
    check_books(fleet, view)
    assert {name: one["incarnation"] for name, one in view["devices"].items()} == {"one": 2, "two": 1}
    assert view["store"]["records"] == 2 * ALL
    assert view["jobs"]["done"] > 2
    origins = {record.origin for record in Store.read(fleet.folder / "store").records()}
    assert origins >= {"random", "paired"}
    with StateReader(fleet.folder / "store" / STATE) as reader:
        assert reader.waiting_candidates() == [], "nothing waits any more"
    assert any("up on here" in line for line in fleet.lines)


def test_the_fleet_measures_no_networks_that_only_a_request_asked_for(fleet: Fleet) -> None:
    with fleet.coordinator() as (coordinator, _):
        # The driver that asked is gone, and what the fleet itself measures is not listed yet.
        theirs = WorkloadsListed(
            device_id=ONE, incarnation=1, networks=("theirs",), workloads=tuple(WORKLOADS[:1])
        )
        coordinator._ingest.hear([theirs])
        planner = coordinator._parts.planner
        assert planner.workloads_of(ONE) == {}
        Fleet.turn_until(coordinator, lambda _: bool(planner.workloads_of(ONE)))
        assert len(planner.workloads_of(ONE)) == len(WORKLOADS)


def test_a_backlog_is_worked_off_in_many_turns_and_nothing_is_quiet_before(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    polled, heard = [0], [0]

    def poll(transport: LocalTransport, timeout_secs: float) -> list[Message]:
        found = ask(transport, timeout_secs)
        polled[0] += len(found)
        return found

    def hear(ingest: Ingest, messages: Sequence[Message]) -> None:
        assert sum(isinstance(one, Results) for one in messages) <= 1
        heard[0] += len(messages)
        work(ingest, messages)

    ask, work = LocalTransport.poll, Ingest.hear
    monkeypatch.setattr(LocalTransport, "poll", poll)
    monkeypatch.setattr(Ingest, "hear", hear)
    monkeypatch.setattr("fleet.engine.coordinator._RECORDS_PER_TURN", 1)
    behind = 0
    is_done = everything_measured(fleet)

    def is_over(coordinator: Coordinator) -> bool:
        nonlocal behind
        if polled != heard:
            behind += 1
            assert not coordinator.is_quiet
        return is_done(coordinator)

    check_books(fleet, fleet.run(is_over, 1000))
    assert behind > 0
    assert polled == heard


def test_what_canaries_measured_of_a_device_is_stored_with_it(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[DeviceId, int] = {}

    def measured(worker: ReplayWorker, environment_id: str) -> Descriptor:
        device_id = worker.spec.device_id
        told[device_id] = told.get(device_id, -1) + 1
        found = (("flops_per_sec", 1e9),) if told[device_id] else ()
        return replace(worker.descriptor, roofline=found)

    monkeypatch.setattr(ReplayWorker, "descriptor_in", measured)
    fleet.run(everything_measured(fleet))
    entries = Store.read(fleet.folder / "store").devices()
    assert set(entries) == set(fleet.specs)
    seen = [entry.descriptor for entry in entries.values()]
    assert [one.roofline for one in seen if one is not None] == [(("flops_per_sec", 1e9),)] * len(seen)


class LastFirst:
    """Stands for a registry's champions: ranks by id, which tells its choice from the order of drawing."""

    def rank(self, workload: Workload, device_id: str, candidates: Sequence[Candidate]) -> Ranking:
        order = sorted(range(len(candidates)), key=lambda place: candidates[place].candidate_id)
        ref = ModelRef(version="v000009", device_id=DeviceId(device_id), sha256="0" * 64)
        return Ranking(order=tuple(order), scores=(0.5,) * len(candidates), model=ref)


def test_a_head_chooses_among_drawn_candidates(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path, ("one",), ranker=LastFirst())
    with fleet.coordinator() as (coordinator, _):
        coordinator.turn(0.0)
    # What a training's end leaves among the events.
    with fleet.coordinator() as (coordinator, _):
        published = ModelPublished(at_secs=fleet.clock(), version="v000009", device_ids=(ONE,))
        coordinator._parts.event_log.append(published)
        coordinator.turn(0.0)
    view = fleet.run(everything_measured(fleet), turns=2000)
    check_books(fleet, view)
    records = list(Store.read(fleet.folder / "store").records())
    chosen = [record for record in records if record.origin == "model"]
    assert chosen
    assert {record.model_version for record in chosen} == {"v000009"}
    others = {(record.origin, record.model_version) for record in records if record.origin != "model"}
    assert {version for _, version in others} == {""}, others


def test_jobs_of_before_go_on_while_the_workloads_are_listed_again(fleet: Fleet) -> None:
    with fleet.coordinator() as (coordinator, transport), mock.patch.object(transport, "measure"):
        Fleet.turn_until(coordinator, lambda one: one.view()["jobs"]["leased"] == 2)
    # As after a change of the settings that choose them.
    (fleet.folder / "root" / "workloads.json").unlink()
    view = fleet.run(everything_measured(fleet))
    assert not [line for line in fleet.lines if "is cancelled" in line]
    assert view["jobs"]["cancelled"] == 0
    assert view["store"]["records"] == 2 * ALL
    check_books(fleet, view)


def test_jobs_of_before_measure_nothing_that_is_not_measured_now(fleet: Fleet) -> None:
    with fleet.coordinator() as (coordinator, transport), mock.patch.object(transport, "measure"):
        Fleet.turn_until(coordinator, lambda one: one.view()["jobs"]["leased"] == 2)
    kept = fleet.folder / "root" / "workloads.json"
    groups = json.loads(kept.read_text())
    [group] = groups["groups"].values()
    group["ids"] = group["ids"][:1]
    kept.write_text(json.dumps(groups))
    fleet.run(lambda one: fleet.clock.skip(1.0) > 0 and one.view()["store"]["records"] >= 2 * OFFERED)
    assert {one.workload_id for one in Store.read(fleet.folder / "store").records()} == {*group["ids"]}


def test_a_device_in_a_new_environment_leaves_its_records_with_a_word(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path, ("one",))
    fleet.run(everything_measured(fleet))
    fleet.run(lambda one: bool(one.view()["devices"]))
    assert not any("new environment" in line for line in fleet.lines)
    spec = fleet.specs[ONE]
    assert spec.replay is not None
    # A replay device's seed is part of its environment, as a local device's visits are.
    fleet.specs = {spec.device_id: replace(spec, replay=replace(spec.replay, seed=9))}
    view = fleet.run(lambda one: one.view()["store"]["records"] >= 2 * ALL)
    [said] = [line for line in fleet.lines if "new environment" in line]
    assert f"{ALL} records of earlier ones" in said
    check_books(fleet, view)


@given(number=st.integers(1, 150))
@settings(max_examples=15, deadline=None)
def test_a_kill_at_any_step_loses_nothing_and_counts_nothing_twice(number: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        fleet = make_fleet(Path(folder))
        is_done = everything_measured(fleet)
        with killed_at(number) as reached, contextlib.suppress(Killed):
            fleet.run(is_done)
        assert sum(reached.values()) >= number or number > 100
        view = fleet.run(is_done)
        check_books(fleet, view)
        assert view["store"]["records"] == 2 * ALL
        assert not fleet.set_aside("late")
        counted = sum(sum(one["outcomes"].values()) for one in view["devices"].values())
        # A job whose records were stored before its lease was granted again counts none of them.
        assert counted <= 2 * ALL


def test_a_kill_between_store_and_events_finishes_the_job_once(fleet: Fleet) -> None:
    keep = EventLog._keep

    def killed(self: EventLog, events: list[Event]) -> None:
        if any(isinstance(event, JobFinished) for event in events):
            raise Killed
        keep(self, events)

    with mock.patch.object(EventLog, "_keep", killed), pytest.raises(Killed):
        fleet.run(everything_measured(fleet))
    stored = len(fleet.record_ids())
    view = fleet.run(everything_measured(fleet))
    assert stored <= view["store"]["records"] == 2 * ALL
    check_books(fleet, view)


def test_an_agent_that_is_killed_comes_back_and_its_spool_counts(fleet: Fleet) -> None:
    with fleet.coordinator() as (coordinator, transport):
        fleet.turn(coordinator, 8)
        transport.crash(ONE, 1)
        view = fleet.finish(coordinator)
    assert view["devices"]["one"]["incarnation"] == 2
    assert view["store"]["records"] == 2 * ALL
    check_books(fleet, view)
    assert any("killed by SIGKILL" in line for line in fleet.lines)


def test_a_job_of_two_lives_does_not_make_candidates_look_fast(tmp_path: Path) -> None:
    fleet, ask = make_fleet(tmp_path, ("one",)), LocalTransport.poll
    cut: list[Results] = []

    def poll(transport: LocalTransport, timeout_secs: float) -> list[Message]:
        return [told(each) if isinstance(each, Results) else each for each in ask(transport, timeout_secs)]

    def told(results: Results) -> Results:
        records = results.records if cut else results.records[: len(results.records) // 2]
        whole = replace(results, records=records, device_secs=2.0 * len(records), is_last=bool(cut))
        cut.append(whole)
        return whole

    with mock.patch.object(LocalTransport, "poll", poll), fleet.coordinator() as (coordinator, transport):
        Fleet.turn_until(coordinator, lambda _: bool(cut))
        # The other half is in its spool, which tells no seconds.
        transport.crash(ONE, 1)
        Fleet.turn_until(coordinator, lambda each: each.view()["jobs"]["done"] > 0)
        assert coordinator._parts.planner.queues.candidate_secs(ONE) == pytest.approx(2.0)


def test_records_that_wait_for_the_table_and_come_again_are_counted_once(fleet: Fleet) -> None:
    with mock.patch.object(LocalTransport, "acknowledge"), fleet.coordinator() as (coordinator, transport):
        parts = coordinator._parts
        counts = parts.record_sink.counts
        while not (parts.store.waiting_count and counts[ONE].records):
            coordinator.turn(0.0)
        with mock.patch.object(RecordsTable, "flush") as flush:
            counted = counts[ONE].records
            transport.crash(ONE, 1)
            while parts.state.describe(ONE)["incarnation"] < 2 or ONE not in parts.up:
                coordinator.turn(0.0)
            # All of its spool has come again, and nothing of it was in the table yet.
            assert not flush.called
            assert parts.store.waiting_count >= counted
            assert parts.coverage.records(ONE) == counts[ONE].records
        fleet.turn(coordinator, 1, 2.0)
        view = coordinator.view()
        coordinator.close()
    assert len(fleet.record_ids()) == view["store"]["records"]


def test_results_of_an_expired_lease_are_kept_apart_and_never_counted(fleet: Fleet) -> None:
    fleet.limits = Limits(job_candidates=8, lease_secs=30.0, stall_secs=30.0)
    with fleet.coordinator() as (coordinator, transport):
        while not coordinator.view()["devices"][ONE]["leases"]:
            coordinator.turn(0.0)
            fleet.clock.now += 1.1
        transport.freeze(ONE, 1)
        fencing_token = coordinator.view()["devices"][ONE]["fencing_token"]
        # The device is stopped beyond its lease; its agent is ended, and another one started.
        fleet.turn(coordinator, 6, 10.0)
        assert coordinator.view()["devices"][ONE]["incarnation"] >= 2
        # What the first one had measured comes out of its spool, under leases that were taken back.
        view = fleet.finish(coordinator)
    assert fencing_token >= 1
    check_books(fleet, view)
    late = fleet.set_aside("late")
    assert len(late) == view["devices"][ONE]["late"]
    assert {told["record"]["device_id"] for told in late} == {ONE}


def test_a_full_disk_stops_the_grants_and_loses_nothing(fleet: Fleet) -> None:
    left = [0.0]
    full = without_room(Store, "take", left, lambda _, records: bool(records))
    with full, fleet.coordinator() as (coordinator, _):
        fleet.turn(coordinator, 6)
        left[0] = math.inf
        fleet.turn(coordinator, 10, 3.0)
        view = coordinator.view()
        assert view["coordinator"]["state"] == "disk_full"
        before = view["store"]["records"]
        epochs = [one["fencing_token"] for one in view["devices"].values()]
        fleet.turn(coordinator, 50, 10.0)  # far beyond any lease
        view = coordinator.view()
        assert [one["fencing_token"] for one in view["devices"].values()] == epochs
        assert view["store"]["records"] == before
        left[0] = 0.0
        view = fleet.finish(coordinator)
    assert view["coordinator"]["state"] == "running"
    assert view["store"]["records"] == 2 * ALL
    assert not fleet.set_aside("late")
    check_books(fleet, view)
    assert any("no lease is granted until there is room" in line for line in fleet.lines)


def test_a_state_file_without_room_holds_everything_back(fleet: Fleet) -> None:
    left = [0.0]
    full = without_room(EventLog, "_keep", left, lambda _, events: bool(events))
    with full, fleet.coordinator() as (coordinator, transport):
        fleet.turn(coordinator, 4)
        left[0] = math.inf
        with (
            mock.patch.object(transport, "acknowledge") as acknowledge,
            mock.patch.object(transport, "measure") as grant,
        ):
            fleet.turn(coordinator, 10, 3.0)
            assert not acknowledge.called
            assert not grant.called
        assert coordinator.view()["coordinator"]["state"] == "disk_full"
        left[0] = 0.0
        view = fleet.finish(coordinator)
    assert view["store"]["records"] == 2 * ALL
    check_books(fleet, view)


def test_jobs_whose_traces_are_gone_end_with_a_word(fleet: Fleet) -> None:
    with fleet.coordinator() as (coordinator, transport):
        with mock.patch.object(transport, "measure"):  # jobs are granted and never measured
            fleet.turn(coordinator, 20, 1.1)
        waiting = coordinator.view()["jobs"]
        assert waiting["queued"] + waiting["leased"] > 0
    forget_candidates(fleet.folder / "store")
    with mock.patch.object(LocalTransport, "propose"):  # nobody happens to propose the same again meanwhile
        view = fleet.run(lambda one: fleet.clock.skip(1.0) > 0 and one.view()["jobs"]["cancelled"] > 0)
    assert view["store"]["records"] == 0
    view = fleet.run(everything_measured(fleet))
    assert any("are not in the state file" in line for line in fleet.lines)
    assert view["store"]["records"] == 2 * ALL, "they are proposed again"
    check_books(fleet, view)


def test_once_measures_what_is_planned_and_no_more(fleet: Fleet) -> None:
    view = fleet.run(lambda one: one.is_drained, once=True)
    assert 0 < view["store"]["records"] < 2 * ALL
    assert view["jobs"]["queued"] == 0
    check_books(fleet, view)


def test_an_aa_run_is_made_once_a_day(fleet: Fleet) -> None:
    fleet.settings["noise"] = 4

    def has_noise(coordinator: Coordinator) -> bool:
        fleet.clock.now += 6.0
        return all(one["records"] >= ALL + 8 for one in coordinator.view()["devices"].values())

    fleet.run(has_noise)
    records = [one for one in Store.read(fleet.folder / "store").records() if one.origin == "noise"]
    assert sorted(one.attempt for one in records) == [3] * 8 + [4] * 8
    for device in ("one", "two"):
        chosen = [one for one in records if one.device_id == device]
        assert len({one.candidate_id for one in chosen}) == 4


def test_an_aa_run_that_waits_is_not_planned_again(fleet: Fleet) -> None:
    fleet.run(everything_measured(fleet))
    # Its host is in use for hours, as a board's is by day.
    fleet.settings |= {"noise": 4, "policy": DevicePolicy(idle_only=True)}
    awake = mock.patch.object(LivenessMonitor, "silent", return_value=[])
    with awake, fleet.coordinator() as (coordinator, _):
        queues = coordinator._parts.planner.queues

        def planned() -> list[str]:
            return sorted(job.device_id for job in queues.jobs() if job.origin == NOISE)

        Fleet.turn_until(coordinator, lambda _: fleet.clock.skip(6.0) > 0 and len(planned()) == 4)
        fleet.turn(coordinator, 12, 600.0)
        assert planned() == ["one", "one", "two", "two"]


def test_a_device_that_leaves_is_retired_with_its_jobs(fleet: Fleet) -> None:
    with fleet.coordinator() as (coordinator, transport), mock.patch.object(transport, "measure"):
        fleet.turn(coordinator, 20, 1.1)
    del fleet.specs[TWO]
    is_done = everything_measured(fleet)
    view = fleet.run(lambda one: is_done(one) or one.view()["devices"]["one"]["records"] == ALL)
    assert view["devices"]["two"]["state"] == "retired"
    assert view["jobs"]["cancelled"] > 0


def test_foreign_events_are_refused_in_one_sentence(fleet: Fleet) -> None:
    with Store.open(fleet.folder / "store") as store, store.state.turn() as turn:
        turn.add_events(b'[{"event": "SomethingElse", "at_secs": 1.0}]')
    with pytest.raises(FleetError, match=r"cannot be replayed.*SomethingElse"), fleet.coordinator():
        pass
