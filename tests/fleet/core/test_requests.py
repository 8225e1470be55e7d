"""Requests in the pure state: from coming to their end, and kept for a while."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from agents.records import DeviceId
from fleet.core import events as ev
from fleet.core.events import JobId, ReasonKind, ShowRequest, StartTraining, StopTraining, Verdict
from fleet.core.job_state import PATIENCE
from fleet.core.requests import KEPT_REQUESTS, KEPT_SECS
from fleet.core.state import FleetState
from fleet.core.words import Request, RequestId, RequestKind
from tests.fleet_world import LIMITS, finished, job, reopened, shown

R1, R2 = RequestId("r1"), RequestId("r2")


def training(request_id: RequestId = R1, family: str = "cpu", minutes: float | None = None) -> Request:
    arguments = {"family": family}
    return Request(request_id=request_id, kind=RequestKind.TRAINING, arguments=arguments, minutes=minutes)


def begun() -> FleetState:
    """A fleet of one device, with nothing that asks for a training by itself."""
    state = FleetState(LIMITS)
    state.apply(ev.CoordinatorStarted(at_secs=100.0))
    state.apply(ev.DeviceAdded(at_secs=100.0, device_id=DeviceId("a"), family="cpu"))
    return state


def submit(state: FleetState, request: Request, at_secs: float = 100.0) -> list[Any]:
    return state.apply(ev.RequestSubmitted(at_secs=at_secs, request=request))


def outcome(state: FleetState, request_id: RequestId = R1) -> tuple[str, str]:
    found = shown(state, request_id)
    return found["state"], found["reason"]


def judged(at_secs: float = 130.0) -> ev.TrainingFinished:
    return ev.TrainingFinished(
        at_secs=at_secs, family="cpu", version="v000007", text="1 better", serves={"a": "better"}
    )


def test_whoever_asks_waits_for_no_pause_and_is_not_tried_again() -> None:
    state = begun()
    submit(state, training())
    state.apply(ev.TrainingStarted(at_secs=110.0, family="cpu"))
    made = state.apply(ev.TrainingFailed(at_secs=120.0, family="cpu", reason="no memory"))
    assert made == [ShowRequest(request_id=R1)], "it is not asked for again"
    assert outcome(state) == ("failed", "no memory")
    state.apply(ev.Tick(at_secs=1e6))
    assert state.training()["state"] == "idle"
    state = begun()
    submit(state, training())
    state.apply(judged())
    made = submit(state, training(R2), at_secs=130.1)
    assert isinstance(made[1], StartTraining), "no pause after the last one"
    state.apply(ev.TrainingFinished(at_secs=140.0, family="cpu", text="nothing trains here"))
    assert outcome(state, R2) == ("failed", "nothing trains here"), "it judged nobody"


def test_one_that_comes_while_a_training_runs_waits_for_the_next() -> None:
    state = begun()
    submit(state, training())
    state.apply(ev.TrainingStarted(at_secs=110.0, family="cpu"))
    assert submit(state, training(R2)) == [ShowRequest(request_id=R2)]
    made = state.apply(judged())
    assert shown(state, R2)["state"] == "queued"
    assert [one.request_id for one in made[-1].reasons] == [R2]


def test_cancelled_before_its_turn_it_never_begins() -> None:
    state = begun()
    submit(state, training())
    submit(state, training(R2, "gpu"))
    state.apply(ev.RequestCancelled(at_secs=105.0, request_id=R2, reason="enough"))
    made = state.apply(judged())
    assert made == [ShowRequest(request_id=R1)]
    assert outcome(state, R2) == ("cancelled", "enough")


def test_a_training_that_others_want_as_well_goes_on() -> None:
    state = begun()
    device_id = DeviceId("a")
    # What waits for the pause after a training is taken along by the next one.
    submit(state, training())
    state.apply(judged())
    state.apply(ev.RecordsStored(at_secs=131.0, device_id=device_id, count=LIMITS.training_records))
    made = submit(state, training(R2), at_secs=132.0)
    assert {one.kind for one in made[1].reasons} == {ReasonKind.REQUEST, ReasonKind.NEW_RECORDS}
    state.apply(ev.TrainingStarted(at_secs=133.0, family="cpu"))
    made = state.apply(ev.RequestCancelled(at_secs=134.0, request_id=R2))
    assert made == [ShowRequest(request_id=R2)]
    assert state.training()["state"] == "running"


def test_its_minutes_count_from_its_start() -> None:
    state = FleetState(LIMITS)
    submit(state, training(minutes=2.0))
    assert not state.is_news(ev.Tick(at_secs=3000.0)), "it has not begun"
    state.apply(ev.TrainingStarted(at_secs=3000.0, family="cpu"))
    assert not state.is_news(ev.Tick(at_secs=3119.0))
    assert state.is_news(ev.Tick(at_secs=3120.0))
    made = state.apply(ev.Tick(at_secs=3120.0))
    assert made == [ShowRequest(request_id=R1), StopTraining(family="cpu")]
    assert outcome(state) == ("failed", "it was not done after its 2 minutes")


def test_ended_ones_are_kept_for_a_while_and_not_without_end() -> None:
    state = begun()
    for number in range(KEPT_REQUESTS + 3):
        name = RequestId(f"n{number}")
        submit(state, training(name, "gpu"), at_secs=200.0 + number)
        if number:
            state.apply(ev.RequestCancelled(at_secs=200.0 + number, request_id=name))
    kept = state.request_ids()
    assert kept[0] == "n0", "an open one is never dropped"
    assert len(kept) <= KEPT_REQUESTS + 2
    assert "n1" not in kept
    assert f"n{KEPT_REQUESTS + 2}" in kept
    submit(state, training(RequestId("last")), at_secs=1300.0 + KEPT_SECS)
    assert state.request_ids() == ["n0", "last"]


def collection(name: str, kind: RequestKind = RequestKind.COLLECTION) -> Request:
    arguments = {"device": "a", "devices": ["a"]}
    return Request(request_id=RequestId(name), kind=kind, arguments=arguments)


def grants(state: FleetState, count: int) -> list[str]:
    """The requests whose jobs a device gets one after the other."""
    made: list[str] = []
    for at_secs in range(count):
        [lease] = state.describe(DeviceId("a"))["leases"]
        job = state.job(lease["job_id"])
        assert job is not None
        made.append(job.request_id)
        state.apply(finished(300.0 + at_secs, "a", job.job_id, lease["fencing_token"]))
    return made


def at_work(*jobs: tuple[str, int, int]) -> FleetState:
    """A device with so many jobs of some requests, each with its priority."""
    state = FleetState()
    state.apply(ev.CoordinatorStarted(at_secs=100.0, limits=replace(LIMITS, leases=1)))
    state.apply(ev.DeviceAdded(at_secs=100.0, device_id=DeviceId("a"), family="cpu"))
    state.apply(ev.AgentStarted(at_secs=100.0, device_id=DeviceId("a"), incarnation=1))
    for name, priority, count in jobs:
        for number in range(count):
            one = replace(job(f"{name}{number}", "a"), request_id=name, priority=priority)
            state.apply(ev.JobSubmitted(at_secs=110.0, job=one))
    state.apply(ev.ProbePassed(at_secs=120.0, device_id=DeviceId("a"), incarnation=1, environment_id="e"))
    return reopened(state)


def test_requests_of_one_priority_take_turns() -> None:
    assert grants(at_work(("x", 1, 9), ("y", 1, 9), ("z", 1, 9)), 9) == ["x", "y", "z"] * 3


def test_a_lower_priority_waits_and_does_not_starve() -> None:
    found = grants(at_work(("low", 0, 3), ("high", 2, 60)), 3 * (PATIENCE + 1))
    assert found == [*["high"] * PATIENCE, "low"] * 3


def test_a_request_is_not_overtaken_for_ever() -> None:
    state = begun()
    state.apply(ev.CoordinatorStarted(at_secs=100.0, limits=replace(LIMITS, drivers=1)))
    submit(state, collection("runs", RequestKind.TUNING))
    submit(state, collection("waits"))
    last = RequestId("runs")
    for number in range(5):
        submit(state, collection(f"t{number}", RequestKind.TUNING))
        state.apply(ev.RequestEnded(at_secs=200.0, request_id=last, result={}))
        last = RequestId(f"t{number}")
        if shown(state, RequestId("waits"))["state"] == "running":
            break
    assert number == 4


def test_a_retirement_ends_with_its_device_and_is_begun_again_after_a_restart() -> None:
    state = begun()
    asked = collection("r1", RequestKind.RETIREMENT)
    taken = ev.RetireDevice(request_id=R1, device_id=DeviceId("a"))
    assert submit(state, asked) == [ShowRequest(request_id=R1), taken]
    state = reopened(state)
    assert taken in state.apply(ev.CoordinatorStarted(at_secs=150.0))
    assert shown(state, R1)["state"] == "running"
    state.apply(ev.DeviceRetired(at_secs=160.0, device_id=DeviceId("a"), reason="no file"))
    assert outcome(state) == ("succeeded", "")
    assert shown(state, R1)["result"] == {"device": "a", "records": 0}


def test_a_cancelled_retirement_and_one_that_cannot_be_done_are_over() -> None:
    state = begun()
    submit(state, collection("r1", RequestKind.RETIREMENT))
    assert state.apply(ev.RequestCancelled(at_secs=101.0, request_id=R1)) == [ShowRequest(request_id=R1)]
    submit(state, collection("r2", RequestKind.RETIREMENT))
    state.apply(ev.RequestEnded(at_secs=102.0, request_id=R2, result={}, reason="no file"))
    assert (shown(state, R1)["state"], shown(state, R2)["state"]) == ("cancelled", "failed")


def test_what_the_spool_holds_of_a_command_that_was_killed_is_not_late() -> None:
    state, device = begun(), DeviceId("a")
    arguments = {"devices": [device], "embedded": True}
    request = Request(request_id=R1, kind=RequestKind.COLLECTION, arguments=arguments)
    submit(state, request)
    state.apply(ev.ProbePassed(at_secs=101.0, device_id=device, incarnation=1, environment_id="e"))
    made = [replace(job(name, device), request_id=R1, priority=1) for name in ("j1", "j2", "j3")]
    for one in made:
        state.apply(ev.JobSubmitted(at_secs=102.0, job=one))
    assert state.at_work(device) == ("j1", 1)
    # The next command: leases are released, none expired, and their request is over.
    state.apply(ev.CoordinatorStarted(at_secs=110.0))
    assert shown(state, R1)["state"] == "cancelled"
    assert {one: state.job(one.job_id) for one in made} == dict.fromkeys(made)
    for number, name in ((1, "j1"), (2, "j2")):
        assert state.verdict(device, JobId(name), number) is Verdict.REPEATED, "stored, for no job"


def test_fingerprints_that_a_command_measures_inside_of_itself_are_no_background() -> None:
    def asked(**arguments: object) -> Request:
        told = {"devices": ["one"], **arguments}
        return Request(request_id=RequestId("prints"), kind=RequestKind.FINGERPRINT, arguments=told)

    assert (asked().is_background, asked().priority) == (True, 0)
    # Nothing of the background is granted there: it would wait for ever.
    assert (asked(embedded=True).is_background, asked(embedded=True).priority) == (False, 1)
