"""Drivers of requests beside a coordinator: what they ask for is measured once, whatever ends in between."""

from __future__ import annotations

import errno
import re
import socket
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agents.records import Candidate, DeviceId, Record
from fleet.config.settings import FleetConfig
from fleet.core.words import Limits, Request, RequestId, RequestKind
from fleet.daemon.driver_display import DriverDisplay
from fleet.daemon.driver_process import say_end
from fleet.drivers.session import DriverChannel, EngineSession
from fleet.engine.coordinator import Coordinator
from fleet.engine.disk_watch import RETRY_SECS
from fleet.interchange.import_logs import ImportRequest, import_logs
from fleet.requests.kinds import perform
from fleet.requests.work import Work
from fleet.store.store import Store
from tests.coordinator_fixtures import WORKLOADS, Fleet, make_fleet, without_room
from tests.log_fixtures import autotvm, write_log

ONE = DeviceId("one")
R1 = RequestId("r1")
SOME = 6


class Driver:
    """A driver in a thread."""

    def __init__(self, drivers: Drivers) -> None:
        ours, theirs = socket.socketpair()
        self.channel, self._other = DriverChannel(ours), DriverChannel(theirs)
        self.session, self.work = EngineSession(self._other, drivers.store), drivers.work
        self.is_stopped, self._drivers = False, drivers
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            say_end(self.session, lambda: self.work(self.session))
        except SystemExit:
            self._other.close()  # without a word

    def stop(self) -> None:
        self.is_stopped = True
        self.channel.close()

    def is_over(self, timeout_secs: float = 0.0) -> bool:
        self._drivers.waits.append(timeout_secs)
        return self._drivers.is_over

    def failure(self) -> str:
        return "it was killed"


class Drivers:
    """Starts drivers, and remembers them."""

    def __init__(self, fleet: Fleet, work: Callable[[EngineSession], dict[str, Any]]) -> None:
        self.started: list[Driver] = []
        self.store, self.work = fleet.folder / "store", work
        #: Whether their processes have ended, and how long the coordinator waited for that each time.
        self.is_over, self.waits = True, list[float]()

    def __call__(self, request: Request) -> Driver:
        driver = Driver(self)
        self.started.append(driver)
        return driver


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return make_fleet(tmp_path, limits=Limits(job_candidates=8, requests_only=True))


def collection(request_id: str = R1, **arguments: Any) -> Request:
    return Request(
        request_id=RequestId(request_id),
        kind=RequestKind.COLLECTION,
        arguments={"devices": [ONE], **arguments},
    )


def draw(session: EngineSession, count: int = SOME, seed: int = 1) -> list[Candidate]:
    """A few candidates of the first workload."""
    session.ready([ONE])
    [workload, *_] = session.network_workloads(ONE, ["bert-tiny"])
    found: list[Candidate] = session.propose(ONE, workload, count, seed, ()).result()
    return found


def measure_some(session: EngineSession) -> dict[str, Any]:
    """Draw a few candidates and measure them."""
    candidates = draw(session)
    records: list[Record] = session.measure(ONE, candidates).result()
    stored = {record.candidate_id for record in session.store().records(device_id=ONE)}
    assert {one.candidate_id for one in candidates} <= stored
    return {"measured": len({one.candidate_id for one in records})}


def sleep(session: EngineSession) -> dict[str, Any]:
    return {"slept": threading.Event().wait(30)}


def turn_until(fleet: Fleet, coordinator: Coordinator, is_so: Callable[[], bool]) -> None:
    def is_so_now(_: Coordinator) -> bool:
        fleet.clock.now += 0.2
        threading.Event().wait(0.005)  # the driver is a thread
        return is_so()

    Fleet.turn_until(coordinator, is_so_now, turns=3000)


def run_to_end(fleet: Fleet, coordinator: Coordinator, request_id: str = R1) -> dict[str, Any]:
    def is_over() -> bool:
        shown = coordinator.desk.get(request_id)
        return shown is not None and shown["ended_at"] is not None

    turn_until(fleet, coordinator, is_over)
    found = coordinator.desk.get(request_id)
    assert found is not None
    return dict(found)


def end_of(fleet: Fleet, request: Request) -> dict[str, Any]:
    """How a request ends that is the only one in the life of a coordinator."""
    with fleet.coordinator() as (coordinator, _):
        coordinator.desk.submit(request)
        return run_to_end(fleet, coordinator, request.request_id)


def driven(fleet: Fleet, work: Callable[[EngineSession], dict[str, Any]]) -> tuple[dict[str, Any], Drivers]:
    """How a collection ends whose driver does this work."""
    drivers = fleet.launch = Drivers(fleet, work)
    return end_of(fleet, collection()), drivers


def test_candidates_that_are_measured_again_beside_others_keep_their_origins(fleet: Fleet) -> None:
    def measure_both(session: EngineSession) -> dict[str, Any]:
        [again, *others] = draw(session)
        records: list[Record] = session.measure(ONE, [replace(again, origin="remeasure"), *others]).result()
        return {one.origin: one.candidate_id == again.candidate_id for one in records}

    ended, _ = driven(fleet, measure_both)
    assert ended["result"] == {"remeasure": True, "random": False}


@pytest.mark.parametrize(
    ("kind", "step", "times", "work"),
    [
        (Store, "put_workloads", 0.0, measure_some),
        (Store, "put_workloads", 2.0, measure_some),
        (Drivers, "__call__", 4.0, measure_some),
        (Store, "flush", 3.0, lambda session: {"version": session.store().version}),
    ],
    ids=["room", "a list of workloads", "a start", "what waits for the table"],
)
def test_what_a_driver_asks_for_is_done_once_there_is_room(
    fleet: Fleet, kind: type, step: str, times: float, work: Callable[[EngineSession], dict[str, Any]]
) -> None:
    left = [times]
    with without_room(kind, step, left):
        ended, drivers = driven(fleet, work)
    assert (ended["state"], left, len(drivers.started)) == ("succeeded", [0.0], 1)
    if work is measure_some:
        assert ended["result"] == {"measured": SOME}
        assert len(fleet.record_ids()) == len(set(fleet.record_ids())) == SOME


def test_a_coordinator_that_is_killed_starts_the_driver_again_and_nothing_counts_twice(fleet: Fleet) -> None:
    hold, drivers = threading.Event(), Drivers(fleet, measure_some)

    def held(session: EngineSession) -> dict[str, Any]:
        result = measure_some(session)
        hold.wait(20)
        return result

    drivers.work = held
    fleet.launch = drivers
    with fleet.coordinator() as (coordinator, _):
        coordinator.desk.submit(collection())
        turn_until(fleet, coordinator, lambda: coordinator.view()["devices"][ONE]["records"] >= SOME)
    drivers.work = measure_some
    with fleet.coordinator() as (coordinator, _):
        ended = run_to_end(fleet, coordinator)
    hold.set()
    assert ended["state"] == "succeeded"
    assert len(drivers.started) == 2
    assert len(fleet.record_ids()) == len(set(fleet.record_ids())) == SOME


def die(session: EngineSession) -> dict[str, Any]:
    raise SystemExit


def test_a_driver_that_ends_without_a_word_is_started_three_times(fleet: Fleet) -> None:
    ended, drivers = driven(fleet, die)
    assert (ended["state"], len(drivers.started)) == ("failed", 3)
    assert ended["reason"] == "its driver ended 3 times; the last time it was killed"


def test_a_driver_that_does_not_die_holds_up_no_turn_and_may_be_cancelled(fleet: Fleet) -> None:
    drivers = fleet.launch = Drivers(fleet, die)
    drivers.is_over = False
    with fleet.coordinator() as (coordinator, _):
        coordinator.desk.submit(collection())
        turn_until(fleet, coordinator, lambda: len(drivers.waits) > 3)
        assert set(drivers.waits) == {0.0}, "a turn waits for nothing"
        assert len(drivers.started) == 1, "it is not known yet how it ended"
        coordinator.desk.cancel(R1)
        ended = run_to_end(fleet, coordinator)
        count = len(drivers.waits)
        fleet.turn(coordinator, 3)
        assert (ended["state"], len(drivers.waits)) == ("cancelled", count)


def test_a_request_that_is_cancelled_stops_its_driver_and_leaves_no_job(fleet: Fleet) -> None:
    def ask_for_much(session: EngineSession) -> dict[str, Any]:
        for seed in range(4):
            session.measure(ONE, draw(session, 5, seed))
        return sleep(session)

    drivers = fleet.launch = Drivers(fleet, ask_for_much)
    with fleet.coordinator() as (coordinator, _):
        coordinator.desk.submit(collection())
        turn_until(fleet, coordinator, lambda: bool(coordinator.view()["devices"][ONE]["records"]))
        second = coordinator.desk.submit(collection("r2", devices=[ONE, "two"]))
        turn_until(fleet, coordinator, second.done)
        assert "request r1 works on one already" in str(second.exception())
        coordinator.desk.cancel(R1)
        ended = run_to_end(fleet, coordinator)
        fleet.clock.now += 2.0
        fleet.turn(coordinator, 50)
        fleet.turn(coordinator, 1, 2.0)
        jobs = coordinator.view()["jobs"]
    assert ended["state"] == "cancelled"
    assert drivers.started[0].is_stopped
    assert jobs["queued"] == 0


UNKNOWN = WORKLOADS[0]


def ask_for_an_unknown_workload(session: EngineSession) -> dict[str, Any]:
    session.ready([ONE])
    return {"drawn": session.propose(ONE, UNKNOWN, 1, 0, ()).result()}


def babble(session: EngineSession) -> dict[str, Any]:
    question = {"op": "measure", "device": ONE, "candidates": [["only", "three", "words"]]}
    return {"told": session.ask(question).result()}


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (ask_for_an_unknown_workload, f"the store has no module of workload {UNKNOWN.workload_id} for one$"),
        (babble, "its driver says what cannot be understood: "),
        (
            lambda session: session.ask({"op": "draw", "devices": []}).result(),
            "its driver says what cannot be understood: IndexError",
        ),
    ],
    ids=["unknown workload", "no question", "no device"],
)
def test_a_driver_that_asks_for_what_cannot_be_ends_its_request(
    fleet: Fleet, work: Callable[[EngineSession], dict[str, Any]], reason: str
) -> None:
    ended, _ = driven(fleet, work)
    assert ended["state"] == "failed"
    assert re.match(reason, ended["reason"])


def import_request(request_id: str = R1, **arguments: Any) -> Request:
    return Request(request_id=RequestId(request_id), kind=RequestKind.IMPORT, arguments=arguments)


def imported(
    fleet: Fleet, log: Path, device: str = "board-7", request_id: str = R1, **more: Any
) -> dict[str, Any]:
    """How an import ends whose driver does what the driver of an import does, in a folder of its own."""
    folder = fleet.folder / "driver"
    folder.mkdir(exist_ok=True)
    request = import_request(request_id, paths=[str(log)], device=device, **more)
    work = Work(
        kind=request.kind,
        arguments=dict(request.arguments),
        minutes=None,
        settings=FleetConfig.model_validate({"devices": {"folder": str(folder)}}),
        models=folder,
        folder=folder,
    )
    fleet.launch = Drivers(fleet, lambda session: perform(work, session, DriverDisplay(session)))
    return end_of(fleet, request)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Forty measurements, and a line that is none."""
    return write_log(tmp_path / "log.json", [*map(autotvm, range(40)), "no record"])


@pytest.mark.parametrize("device", ["board-7", "one"])
def test_an_import_beside_a_coordinator_leaves_the_store_as_one_without_it(
    fleet: Fleet, tmp_path: Path, log: Path, device: str
) -> None:
    ended = imported(fleet, log, device)
    assert ended["state"] == "succeeded", ended["reason"]
    assert (ended["result"]["imported"], ended["result"]["unaccounted_lines"]) == (40, 0)
    assert list((tmp_path / "driver").glob("*")) == []
    with Store.open(tmp_path / "alone") as alone:
        report = import_logs(alone, ImportRequest(paths=(log,), device_id=device))
        wanted = {one.record_id for one in alone.records(device_id=DeviceId(device))}
        workloads = alone.workloads()
    assert report.imported == 40
    with Store.open(fleet.folder / "store") as store:
        found = {one.record_id for one in store.records(device_id=DeviceId(device))}
        assert wanted == found
        assert workloads.keys() <= store.workloads().keys()
        assert store.state.device_sums()[DeviceId(device)][0] >= 40
    # The same once more adds nothing.
    ended = imported(fleet, log, device, "r2", again=True)
    assert (ended["result"]["imported"], ended["result"]["duplicates"]) == (0, 40)


def test_an_import_waits_for_room_in_the_store(fleet: Fleet, tmp_path: Path, log: Path) -> None:
    left = {step: [3.0] for step in ("put_device", "put_workloads", "append_table")}

    def is_imports(*arguments: Any, **_: Any) -> bool:
        return arguments[1].device_id == "board-7"

    with (
        without_room(Store, "put_device", left["put_device"], is_imports),
        without_room(Store, "put_workloads", left["put_workloads"]),
        without_room(Store, "append_table", left["append_table"]),
    ):
        ended = imported(fleet, log)
    assert (ended["state"], ended["reason"]) == ("succeeded", "")
    assert set(map(tuple, left.values())) == {(0.0,)}
    assert (ended["result"]["imported"], ended["result"]["duplicates"]) == (40, 0)
    # What cannot be read ends it with one reason.
    ended = imported(fleet, tmp_path / "missing", request_id="r2")
    assert ended["state"] == "failed"
    assert str(tmp_path / "missing") in ended["reason"]


@pytest.mark.parametrize(("times", "state"), [(2, "succeeded"), (3, "failed")])
def test_a_driver_that_finds_no_room_for_its_own_files_is_started_again(
    fleet: Fleet, times: int, state: str
) -> None:
    ends: list[float] = []

    def publish(session: EngineSession) -> dict[str, Any]:
        ends.append(fleet.clock())
        if len(ends) <= times:
            raise OSError(errno.ENOSPC, "No space left on device")
        return {"version": "v000001"}

    ended, drivers = driven(fleet, publish)
    assert (ended["state"], len(drivers.started)) == (state, 3)
    assert all(one.is_stopped for one in drivers.started[:2])
    assert min(later - sooner for sooner, later in pairwise(ends)) >= RETRY_SECS
    assert ("No space left on device" in ended["reason"]) is (state == "failed")
