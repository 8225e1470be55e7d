"""Requests on their way to a coordinator: answered once they are durable, carried on after a kill."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from fleet.core.events import TrainingFinished, TrainingReason, TrainingStarted
from fleet.core.state import FleetState
from fleet.core.words import Request, RequestId, RequestKind, RequestSubmitted
from fleet.engine.coordinator import Coordinator
from fleet.engine.event_log import EventLog
from fleet.errors import StoreFull
from fleet.requests.kinds import DeskFull, RequestDesk, check_request, parse_request
from fleet.requests.request_kind import KnownFleet, RequestRefused
from tests.coordinator_fixtures import Announcer, Fleet, Killed, killed_at, make_fleet
from tests.scenario_fixtures import read_scenarios
from tests.table_fixtures import rows

FLEET = KnownFleet(
    families={"one": "cpu", "two": "cpu", "gpu-1": "gpu"},
    trains=True,
    devices=frozenset({"one", "two", "gpu-1"}),
)


def body(request_id: str = "t1", **changes: Any) -> bytes:
    value = {"id": request_id, "kind": "training", "arguments": {"family": "cpu"}}
    return json.dumps(value | changes).encode()


def a_request(request_id: str = "t1", **changes: Any) -> Request:
    return parse_request(body(request_id, **changes))


class Trainer(Announcer):
    """Trains as long as a test wants it to."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.view: dict[str, Any] = {"family": "cpu", "epochs": {}}

    def start(self, family: str, reasons: Sequence[TrainingReason]) -> None:
        self.started.append(family)
        self._events.append(TrainingStarted(at_secs=0.0, family=family))

    def stop(self, family: str) -> None:
        self.stopped.append(family)
        self._events.clear()

    def judge(self) -> None:
        self._events.append(
            TrainingFinished(at_secs=0.0, family="cpu", version="v000003", serves={"one": "better"})
        )


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return make_fleet(tmp_path, ("one",), trainer=Trainer())


def answered(coordinator: Coordinator, answer: Future[Any]) -> dict[str, Any]:
    for _ in range(20):
        if answer.done():
            break
        coordinator.turn(0.0)
    return dict(answer.result(timeout=0))


def test_the_answer_comes_after_the_disk_and_never_before_and_the_training_is_followed(fleet: Fleet) -> None:
    with fleet.coordinator() as (coordinator, _):
        coordinator.turn(0.0)
        answer = coordinator.desk.submit(a_request())
        with mock.patch.object(EventLog, "_keep", side_effect=StoreFull("no room")):
            for _ in range(5):
                coordinator.turn(0.0)
                fleet.clock.now += 5.0
            assert not answer.done()
            assert coordinator.desk.listed() == []
            assert fleet.trainer.started == []
        assert answered(coordinator, answer)["state"] == "queued"
        assert fleet.trainer.started == ["cpu"]
        epochs = {"done": 3, "of": 12, "left_secs": 9.0, "finding": "epoch 3 of at most 12, loss 0.4"}
        fleet.trainer.view["epochs"] = epochs
        fleet.turn(coordinator, 2, 10.0)
        assert coordinator.desk.get("t1").items() >= epochs.items()


@pytest.mark.parametrize("number", range(1, 30, 3))
def test_killed_at_any_step_a_request_exists_once_and_comes_to_its_end(tmp_path: Path, number: int) -> None:
    fleet = make_fleet(tmp_path, ("one",), trainer=Trainer())
    with fleet.coordinator() as (coordinator, _):
        coordinator.turn(0.0)
    was_accepted = False
    try:
        with killed_at(number), fleet.coordinator() as (coordinator, _):
            answer = coordinator.desk.submit(a_request())
            was_accepted = bool(answered(coordinator, answer))
            for _ in range(10):
                coordinator.turn(0.0)
    except Killed:
        pass
    fleet.trainer = Trainer()
    with fleet.coordinator() as (coordinator, _):
        if was_accepted:
            assert [one["id"] for one in coordinator.desk.listed()] == ["t1"]
        # The client does not know whether it was heard, and sends it again.
        answered(coordinator, coordinator.desk.submit(a_request()))
        coordinator.turn(0.0)
        coordinator.turn(0.0)
        assert fleet.trainer.started == ["cpu"]
        fleet.trainer.judge()
        coordinator.turn(0.0)
        assert [(one["id"], one["state"]) for one in coordinator.desk.listed()] == [("t1", "succeeded")]


def test_cancelled_it_stops_its_training_and_both_who_ask_are_answered(fleet: Fleet) -> None:
    with fleet.coordinator() as (coordinator, _):
        answered(coordinator, coordinator.desk.submit(a_request()))
        coordinator.turn(0.0)
        both = [coordinator.desk.cancel("t1"), coordinator.desk.cancel("t1")]
        assert [answered(coordinator, one)["state"] for one in both] == ["cancelled", "cancelled"]
        assert fleet.trainer.stopped == ["cpu"]
        assert answered(coordinator, coordinator.desk.cancel("t1"))["state"] == "cancelled"
        # Another one may ask for the same now; judged in the turn of its cancelling it has succeeded.
        assert answered(coordinator, coordinator.desk.submit(a_request("t2")))["state"] == "queued"
        coordinator.turn(0.0)
        fleet.trainer.judge()
        assert answered(coordinator, coordinator.desk.cancel("t2"))["state"] == "succeeded"
        assert fleet.trainer.stopped == ["cpu"]


def test_without_a_trainer_it_is_refused_and_one_that_was_left_fails(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path, ("one",), trainer=Trainer())
    with fleet.coordinator() as (coordinator, _):
        answered(coordinator, coordinator.desk.submit(a_request()))
    fleet.trainer = None
    with fleet.coordinator() as (coordinator, _):
        (left,) = coordinator.desk.listed()
        assert (left["state"], left["reason"]) == ("failed", "nothing trains here")
        with pytest.raises(RequestRefused, match=r"daemon\.refresh"):
            answered(coordinator, coordinator.desk.submit(a_request("t2")))


def served(*orders: Request | str, state: FleetState | None = None) -> tuple[FleetState, list[Any]]:
    """What a desk answers to orders of one turn: a state, or the class of a refusal."""
    desk, state, told = RequestDesk(), state or FleetState(), []
    answers = [desk.cancel(one) if isinstance(one, str) else desk.submit(one) for one in orders]
    desk.serve(state, lambda: FLEET, told.append)
    for event in told:
        state.apply(event)
    for request_id in state.request_ids():
        desk.show(state, request_id)
    return state, [one.exception(0) or one.result(0)["state"] for one in answers]


def test_a_training_that_the_fleet_began_refuses_nobody() -> None:
    own = Request(
        request_id=RequestId("own"),
        kind=RequestKind.TRAINING,
        arguments={"family": "cpu", "reasons": ["600 new records"]},
    )
    assert own.is_own_training
    state = FleetState()
    state.apply(RequestSubmitted(at_secs=1.0, request=own))
    assert served(a_request(), state=state)[1] == ["queued"]
    # And nobody can send one that looks like it.
    [refused] = served(a_request(arguments={"family": "cpu", "reasons": ["mine"]}))[1]
    assert isinstance(refused, RequestRefused)
    assert "reasons" in str(refused)


def driven(request_id: str, kind: str, **arguments: Any) -> Request:
    return a_request(request_id, kind=kind, arguments=arguments)


def order_of(text: str) -> Request | str:
    """A request, or the id of one that is to be cancelled."""
    if text.startswith("cancel "):
        return text.split()[1]
    head, _, minutes = text.rpartition("}")
    request_id, kind, arguments = f"{head}}}".split(" ", 2)
    more = {"minutes": float(minutes)} if minutes else {}
    return a_request(request_id, kind=kind, arguments=yaml.safe_load(arguments), **more)


SCENARIOS = read_scenarios(Path(__file__).with_name("desk_scenarios.txt"))


@pytest.mark.parametrize("title", SCENARIOS)
def test_a_scenario(title: str) -> None:
    state, there = FleetState(), set()
    for turn in "\n".join(SCENARIOS[title]).split("then\n"):
        expected = rows(turn)
        orders = [order_of(text) for text, _ in expected]
        for order, (text, words), answer in zip(
            orders, expected, served(*orders, state=state)[1], strict=True
        ):
            is_refused = isinstance(answer, Exception)
            assert re.match(words, f"{type(answer).__name__}: {answer}" if is_refused else answer), text
            there |= {order.request_id} if isinstance(order, Request) and not is_refused else set()
        assert set(state.request_ids()) == there


def test_a_collection_is_for_the_devices_that_were_there_when_it_came() -> None:
    state, _ = served(driven("c1", "collection", samples=8))
    shown = state.request(RequestId("c1"))
    assert shown["arguments"] == {"devices": ["gpu-1", "one", "two"], "samples": 8}


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("import", {"paths": ["{}"], "device": "theirs"}),
        ("tuning", {"device": "one", "trials": 8, "out": "{}"}),
        ("tuning", {"device": "one", "trials": 8, "networks": ["resnet-50", "{}/net.pt2"]}),
        ("collection", {"networks": ["{}/net.onnx"]}),
    ],
)
def test_a_request_reads_and_writes_in_the_folders_of_its_daemon_only(
    kind: str, arguments: dict[str, Any], tmp_path: Path
) -> None:
    inside, outside = tmp_path / "fleet", tmp_path / "fleet-of-others"
    for folder in (inside, outside):
        folder.mkdir()
    (inside / "link").symlink_to(outside)
    (inside / "loop").symlink_to(inside / "loop")
    confined = replace(FLEET, folders=(inside,))

    def told(path: Path, fleet: KnownFleet = confined) -> str:
        given = json.loads(json.dumps(arguments).replace("{}", str(path)))
        try:
            check_request(driven("r1", kind, **given), fleet, ())
        except RequestRefused as error:
            return str(error)
        return ""

    assert told(inside / "logs") == ""
    for path in (outside, inside / ".." / outside.name, inside / "link" / "logs", Path("/etc/shadow")):
        assert re.fullmatch(rf"{kind}: '.*' is outside of .*{inside}.*: add its folder to .*", told(path))
        assert told(path, FLEET) == "", "who runs the engine itself may do what the account may"
    assert told(inside / "loop")


#: A kind of request with its arguments, and words of the refusal.
UNFITTING = """
training {family: npu}                          -> no device of family 'npu'; there are: cpu, gpu
training {family: [cpu]}                        -> family: expected `str | null`, got `array`, got ['cpu']
training {devices: [three]}                     -> no device 'three' here; there are: gpu-1, one, two
training {devices: [{}]}                        -> devices[0]: expected `str`, got `object`
training {devices: []}                          -> devices: expected `array` of length >= 1
training {devices: one}                         -> devices: expected `array | null`
training {devices: [one, gpu-1]}                -> are of cpu, gpu; send one for each
training {}                                     -> expected family, or devices
training {family: cpu, devices: [one]}          -> expected family, or devices
collection {devices: [gone]}                    -> no device 'gone' here; there are: gpu-1, one, two
collection {devices: one}                       -> devices: expected `array`, got `str`, got 'one'
collection {samples: 0}                         -> samples: expected `int` >= 1, got 0
collection {samples: true}                      -> samples: expected `int | null`, got `bool`
collection {sampels: 8}                         -> object contains unknown field `sampels`
collection {"a - at `$.b": 8}                   -> unknown field `a - at `$.b`
collection {networks: ["a - at `$.b`"]}         -> networks: unknown network 'a - at `$.b`'
collection {noise: 8, remeasure: 8}             -> noise makes an A/A run and nothing else
onboarding {}                                   -> missing required field `device`
onboarding {device: gone}                       -> no device 'gone' here
onboarding {device: {a: 1}}                     -> device: expected `str`, got `object`
onboarding {device: one, strategy: magic}       -> strategy: expected one of auto, source_dev
onboarding {device: one, selector: magic}       -> selector: expected one of paired, search
evaluation {version: latest, folds: 3}          -> judges a model that is there: leave out folds
evaluation {devices: [gone]}                    -> no device 'gone' here; there are: gpu-1, one, two
evaluation {seeds: 0}                           -> seeds: expected `int` >= 1, got 0
evaluation {version: ../x}                      -> version: expected `str` matching
import {paths: [/a], device: b, dialect: latin} -> dialect: expected auto
import {paths: [], device: b}                   -> paths: expected `array` of length >= 1
import {paths: [logs], device: b}               -> paths[0]: expected `str` matching
import {paths: [/a]}                            -> missing required field `device`
tuning {device: one, trials: 1.0e+9}            -> trials: expected `int`
tuning {device: one, trials: 8, seed: -1}       -> seed: expected `int` >= 0
retirement {}                                   -> missing required field `device`
retirement {device: gone}                       -> no device 'gone' here
"""


def test_arguments_that_fit_nothing_are_refused_with_their_name_and_what_there_is() -> None:
    for request, why in rows(UNFITTING):
        kind, arguments = request.split(" ", 1)
        state, (refusal,) = served(driven("r1", kind, **yaml.safe_load(arguments)))
        assert isinstance(refusal, RequestRefused), request
        assert str(refusal).startswith(f"{kind}: ")
        assert why in str(refusal)
        assert "\n" not in str(refusal)
        assert state.request_ids() == []


#: What is changed in a good request, and words of the refusal.
CHANGED = """
more: 1           -> unknown field `more`
id: ""            -> id: expected
id: ../x          -> id: expected
kind: dance       -> kind: expected one of training, collection
kind: [training]  -> kind: expected
arguments: []     -> arguments: expected `object`
minutes: 0        -> minutes: expected `float` > 0
minutes: -1       -> minutes: expected
minutes: true     -> minutes: expected
"""


def test_what_is_no_request_is_refused_in_one_line() -> None:
    refused = [
        *((text, "one JSON object") for text in (b"", b"[" * 60_000, b"\xff")),
        (b"[]", "expected `object`, got `array`"),
        (b'{"id": NaN}', "JSON is malformed"),
        (body(id="x" * 65), "id: expected"),
        (body(minutes=10**400), "minutes: number out of range"),
        *((body(**yaml.safe_load(f"{{{change}}}")), why) for change, why in rows(CHANGED)),
    ]
    for text, why in refused:
        with pytest.raises(RequestRefused) as caught:
            parse_request(text)
        assert why in str(caught.value)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400


def test_a_flood_of_orders_is_bounded_and_one_whose_client_left_harms_nobody() -> None:
    desk, state, told = RequestDesk(), FleetState(), []
    first = desk.submit(a_request())
    with pytest.raises(DeskFull, match="try again"):
        [desk.cancel("t1") for _ in range(1000)]
    assert first.cancel()
    desk.serve(state, lambda: FLEET, told.append)
    state.apply(told[0])
    desk.show(state, told[0].request.request_id)
    assert desk.get("t1") is not None
