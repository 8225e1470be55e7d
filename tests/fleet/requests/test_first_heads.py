"""Which device is the first of its family to get a head."""

from __future__ import annotations

from typing import Any

from agents.records import DeviceId, DeviceKind, DeviceSpec, Family
from fleet.core.words import Request, RequestId, RequestKind
from fleet.requests.first_heads import first_head_requests
from tests.record_fixtures import make_spec

SPECS: dict[DeviceId, DeviceSpec] = {
    DeviceId("board"): make_spec("board", kind=DeviceKind.REPLAY),
    DeviceId("one"): make_spec("one"),
    DeviceId("two"): make_spec("two"),
}


def shown(**changes: dict[str, Any]) -> dict[DeviceId, dict[str, Any]]:
    usual = {"state": "idle", "champion": "", "incarnation": 3}
    return {one: {**usual, **changes.get(one, {})} for one in SPECS}


def asked(**changes: dict[str, Any]) -> list[str]:
    found = first_head_requests(SPECS, shown(**changes), [], {"cpu"}, 64)
    return [str(one.arguments["device"]) for one in found.values()]


def test_a_live_device_that_works_is_asked_and_no_recorded_one() -> None:
    [request] = first_head_requests(SPECS, shown(), [], {"cpu"}, 64).values()
    assert request.arguments == {"device": "one", "samples": 64}
    assert request.request_id == "onboarding-one-3"
    assert asked(one={"state": "probing"}) == ["two"]
    assert asked(one={"state": "lost"}, two={"state": "quarantined"}) == []


def test_nobody_is_asked_where_a_device_of_the_family_has_a_head_or_will_have_one() -> None:
    assert asked(two={"champion": "v000001"}) == []
    assert asked(board={"champion": "v000001"}) == []
    request = Request(request_id=RequestId("mine"), kind=RequestKind.TUNING, arguments={"device": "two"})
    assert first_head_requests(SPECS, shown(), [request], {"cpu"}, 64) == {}


def test_no_family_without_a_shipped_model() -> None:
    assert first_head_requests(SPECS, shown(), [], set(), 64) == {}
    assert first_head_requests(SPECS, shown(), [], {Family.GPU.value}, 64) == {}
