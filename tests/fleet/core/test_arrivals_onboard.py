"""A device that comes onboards itself: when, how often in an environment, and what waits for it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from agents.records import DeviceId
from fleet.core import events as ev
from fleet.core.events import StartDriver
from fleet.core.state import FleetState
from fleet.core.words import RequestId
from tests.fleet_world import LIMITS, job, reopened, shown

OLD, NEW = DeviceId("old"), DeviceId("new")
ASKED = RequestId("onboarding-new-1")


def fleet(**limits: Any) -> FleetState:
    """A device with a head, on the host where a new one comes up."""
    state = FleetState()
    chosen = replace(LIMITS, **{"arrival_samples": 64, "return_samples": 32} | limits)
    state.apply(ev.CoordinatorStarted(at_secs=100.0, limits=chosen))
    comes(state, OLD)
    state.apply(ev.ModelPublished(at_secs=110.0, version="v000001", device_ids=(OLD,)))
    return state


def drivers(made: list[Any]) -> list[StartDriver]:
    return [one for one in made if isinstance(one, StartDriver)]


def comes(
    state: FleetState, device_id: DeviceId, incarnation: int = 1, environment: str = "e1", **more: str
) -> list[Any]:
    host, family = more.get("host", "here"), more.get("family", "cpu")
    if incarnation == 1:
        state.apply(ev.DeviceAdded(at_secs=120.0, device_id=device_id, family=family, neighbourhood="cores"))
    told = {"at_secs": 120.0, "device_id": device_id, "incarnation": incarnation}
    state.apply(ev.AgentStarted(**told))
    return state.apply(ev.ProbePassed(**told, environment_id=environment, host=host))


def again(state: FleetState, device_id: DeviceId, incarnation: int, environment: str) -> list[Any]:
    state.apply(ev.DeviceChanged(at_secs=130.0, device_id=device_id))
    return comes(state, device_id, incarnation, environment)


def ended(state: FleetState, reason: str = "", request_id: RequestId = ASKED) -> list[Any]:
    return state.apply(ev.RequestEnded(at_secs=140.0, request_id=request_id, result={}, reason=reason))


def leases(state: FleetState, device_id: DeviceId, number: int) -> int:
    """Leases of a device once a job of the background is there."""
    state.apply(ev.JobSubmitted(at_secs=125.0, job=job(f"j{number}", device_id)))
    return len(state.describe(device_id)["leases"])


def test_a_new_device_gets_a_head_at_once() -> None:
    state = fleet()
    assert StartDriver(request_id=ASKED) in comes(state, NEW)
    asked = shown(state, ASKED)
    assert asked["state"] == "running"
    assert asked["arguments"] == {"device": "new", "samples": 64}


def test_nothing_is_asked_where_nobody_could_teach_it_or_it_is_switched_off() -> None:
    assert not drivers(comes(fleet(), NEW, family="gpu"))
    assert not drivers(comes(fleet(arrival_samples=0, return_samples=0), NEW))
    assert fleet().open_requests() == [], "no fingerprint without the limit"


def test_a_device_that_waited_for_a_first_model_gets_its_head_when_there_is_one() -> None:
    state = FleetState()
    state.apply(ev.CoordinatorStarted(at_secs=100.0, limits=replace(LIMITS, arrival_samples=64)))
    comes(state, OLD)
    comes(state, NEW)
    made = state.apply(ev.ModelPublished(at_secs=130.0, version="v000001", device_ids=(OLD,)))
    assert StartDriver(request_id=ASKED) in made


def test_one_training_gives_heads_to_all_that_have_measured_enough() -> None:
    state = FleetState()
    limits = replace(LIMITS, arrival_samples=64, reason_records=8, training_pause_secs=0.0)
    state.apply(ev.CoordinatorStarted(at_secs=100.0, limits=limits))
    waiting = [DeviceId(f"waits-{number}") for number in range(3)]
    for one in (OLD, NEW, *waiting):
        comes(state, one)
    state.apply(ev.RecordsStored(at_secs=121.0, device_id=OLD, count=8))
    state.apply(ev.Tick(at_secs=121.0))
    state.apply(ev.TrainingStarted(at_secs=121.0, family="cpu"))
    for one in waiting:
        state.apply(ev.RecordsStored(at_secs=122.0, device_id=one, count=8))
    ended_now = state.apply(ev.TrainingFinished(at_secs=129.0, family="cpu", text="1 first, 4 refused"))
    made = state.apply(ev.ModelPublished(at_secs=130.0, version="v000001", device_ids=(OLD,)))
    assert drivers(made) == [StartDriver(request_id=ASKED)]
    asked = [one for one in (*ended_now, *made) if isinstance(one, ev.StartTraining)]
    assert {reason.device_id for one in asked for reason in one.reasons} == set(waiting)


def test_neighbours_wait_for_an_arrival_and_devices_of_other_hosts_do_not() -> None:
    state = fleet()
    comes(state, DeviceId("far"), host="there")
    ended(state, request_id=RequestId("onboarding-far-1"))
    comes(state, NEW)
    state = reopened(state)
    assert leases(state, NEW, 1) == 0
    assert leases(state, OLD, 2) == 0
    assert leases(state, DeviceId("far"), 3) == 1
    state.apply(ev.RequestProgressed(at_secs=135.0, request_id=ASKED, done=1, of=1, is_measuring=False))
    # Its head is made in half the time where nothing is compiled beside it.
    assert len(state.describe(OLD)["leases"]) == len(state.describe(NEW)["leases"]) == 0
    ended(state)
    assert len(state.describe(OLD)["leases"]) == len(state.describe(NEW)["leases"]) == 1


def test_an_arrival_does_not_wait_for_the_drivers_of_other_requests() -> None:
    state = fleet(drivers=0)
    assert StartDriver(request_id=ASKED) in comes(state, NEW)
    assert not drivers(comes(state, DeviceId("third")))
    assert StartDriver(request_id=RequestId("onboarding-third-1")) in ended(state)


def test_it_is_asked_for_once_in_an_environment() -> None:
    state = fleet()
    comes(state, NEW)
    ended(state, "none of the samples ran")
    assert not drivers(again(state, NEW, 2, "e1"))
    assert StartDriver(request_id=RequestId("onboarding-new-3")) in again(state, NEW, 3, "e2")


def test_a_device_in_another_environment_measures_fewer_and_asks_for_no_training() -> None:
    state = fleet()
    made = again(state, OLD, 2, "e2")
    assert StartDriver(request_id=RequestId("onboarding-old-2")) in made
    assert shown(state, "onboarding-old-2")["arguments"]["samples"] == 32
    state.apply(ev.RecordsStored(at_secs=150.0, device_id=OLD, count=LIMITS.reason_records))
    assert state.training()["state"] == "idle"


def test_where_no_head_came_of_it_a_training_gives_one() -> None:
    state = fleet()
    comes(state, NEW)
    state.apply(ev.RecordsStored(at_secs=130.0, device_id=NEW, count=LIMITS.reason_records))
    assert state.training()["state"] == "idle"
    ended(state, "its strategy failed")
    state.apply(ev.Tick(at_secs=200.0))
    assert [one["text"] for one in state.training()["reasons"]] == ["new has no head yet"]


def drifts(state: FleetState, at_secs: float) -> list[Any]:
    """It drifts for a while, and is steady from that moment on."""
    assert state.apply(ev.DriftAlarm(at_secs=at_secs - 20, device_id=OLD, text="drifts")) == []
    return steady(state, at_secs)


def steady(state: FleetState, at_secs: float) -> list[Any]:
    return state.apply(ev.DriftEnded(at_secs=at_secs, device_id=OLD))


def stored(state: FleetState, at_secs: float) -> list[Any]:
    return state.apply(ev.RecordsStored(at_secs=at_secs, device_id=OLD, count=1))


def test_a_device_that_drifts_gets_a_head_from_few_new_samples() -> None:
    state = fleet()
    state.apply(ev.ClockSet(at_secs=130.0, wall_secs=1_130.0))
    made = drifts(state, 200.0)
    request_id = RequestId("drift-old-200")
    assert StartDriver(request_id=request_id) in made
    # Records are stamped by the wall clock.
    wanted = {"device": "old", "samples": 32, "since": 1_200.0}
    assert shown(state, request_id)["arguments"] == wanted
    # A training follows all the same, once there is more to learn from.
    state.apply(ev.RecordsStored(at_secs=210.0, device_id=OLD, count=LIMITS.reason_records))
    assert [one["kind"] for one in state.training()["reasons"]] == ["drift"]


def test_a_drift_asks_once_in_an_hour_and_a_device_that_drifted_again_is_looked_at_again() -> None:
    state = fleet()
    drifts(state, 200.0)
    ended(state, request_id=RequestId("drift-old-200"))
    assert drifts(state, 300.0) == []
    assert state.describe(OLD)["drift"] == ""
    assert stored(state, 3_799.0) == []
    made = stored(state, 3_801.0)
    assert StartDriver(request_id=RequestId("drift-old-3801")) in made
    assert shown(state, "drift-old-3801")["arguments"]["since"] == 300.0
    ended(state, request_id=RequestId("drift-old-3801"))
    assert stored(state, 9_000.0) == [], "it has what it asked for"


def test_a_drift_waits_for_what_makes_the_device_a_head_anyhow() -> None:
    state = fleet()
    again(state, OLD, 2, "e2")
    assert drifts(state, 200.0) == [], "its new environment asks for one"
    ended(state, request_id=RequestId("onboarding-old-2"))
    assert StartDriver(request_id=RequestId("drift-old-210")) in stored(state, 210.0)
    # A device without a head has nothing that could be stale; nor is anything asked where that is off.
    state = fleet()
    comes(state, NEW)
    state.apply(ev.DriftAlarm(at_secs=130.0, device_id=NEW, text="drifts"))
    assert not drivers(state.apply(ev.DriftEnded(at_secs=140.0, device_id=NEW)))
    state = fleet()
    state.apply(ev.CoordinatorStarted(at_secs=150.0, limits=LIMITS))
    assert not drivers(drifts(state, 200.0))
    assert steady(fleet(), 200.0) == [], "it never drifted"


def test_a_new_champion_takes_back_an_alarm_about_the_one_before() -> None:
    state = fleet()
    state.apply(ev.DriftAlarm(at_secs=200.0, device_id=OLD, text="v000001: fresh records: tau fell"))
    assert state.unsteady() == []
    state.apply(ev.ModelPublished(at_secs=210.0, version="v000002", device_ids=(OLD,)))
    assert state.describe(OLD)["drift"] == ""


def test_devices_with_a_head_get_a_fingerprint_once_in_an_environment() -> None:
    state = fleet(fingerprints=True)
    [asked] = state.open_requests()
    assert (asked.kind, asked.arguments) == ("fingerprint", {"devices": ["old"]})
    assert state.request(asked.request_id)["state"] == "running"
    # It keeps the background off no device, and is no reason for another to wait.
    assert StartDriver(request_id=ASKED) in comes(state, NEW)
    ended(state, request_id=asked.request_id)
    ended(state)
    state.apply(ev.ModelPublished(at_secs=150.0, version="v000002", device_ids=(OLD, NEW)))
    assert state.open_requests() == [], "the onboarding has measured that of the new one"
    state = reopened(state)
    again(state, OLD, 2, "e1")
    assert state.open_requests() == []
    again(state, OLD, 3, "e2")
    assert [one.kind for one in state.open_requests()] == ["onboarding"], "that measures it again"


def test_a_fingerprint_waits_for_all_else() -> None:
    state = fleet(fingerprints=True)
    [asked] = state.open_requests()
    assert state.to_json()["leasing"]["devices"][OLD]["fingerprinted_in"] == "e1"
    assert (asked.priority, asked.is_background) == (0, True)
    comes(state, NEW)  # on the same host: the neighbours wait
    told = {"origin": "fingerprint", "request_id": asked.request_id, "priority": asked.priority}
    made = state.apply(ev.JobSubmitted(at_secs=130.0, job=replace(job("f1", OLD), **told)))
    assert not any(isinstance(one, ev.GrantLease) for one in made)
    made = ended(state)
    assert [one.job_id for one in made if isinstance(one, ev.GrantLease)] == ["f1"]
