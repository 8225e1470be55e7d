"""A device that drifts is onboarded again, once, whatever dies in between."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from agents.device import replay
from agents.device.replay_answers import answer
from agents.records import CandidateId, Record, canonical_json
from fleet.core import events as ev
from fleet.core.words import Limits, Request, RequestKind
from fleet.engine.coordinator import Coordinator
from fleet.onboarding.fingerprint import why_as_before
from fleet.store.store import Store
from tests.coordinator_fixtures import ONE, Announcer, Fleet, make_fleet
from tests.fleet.drivers.test_request_drivers import Driver, Drivers, run_to_end
from tests.record_fixtures import make_record
from transfer.adapt.nearest import Fingerprint

SAMPLES = 4
#: Answers before the drift.
STEADY = 32
#: Slower answers before the canaries take the new level for the usual one.
LEARNT = 24
SLOWER = 1.3


class Reonboarding(Drivers):
    """Starts what stands for the driver of an onboarding, and remembers what it was asked for.

    That such a driver measures known candidates again: `test_onboarding.py`.
    """

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet, lambda session: {"device": ONE})
        self.requests: list[Request] = []

    def __call__(self, request: Request) -> Driver:
        self.requests.append(request)
        return super().__call__(request)


@contextmanager
def drifting(after: int = 0) -> Iterator[None]:
    """Have the devices answer more slowly after some answers; canaries learn the new level after more."""
    answers = itertools.count(1)

    def slower(*arguments: Any) -> Record:
        made = answer(*arguments)
        if (number := next(answers)) <= after:
            return made
        run_secs = tuple(SLOWER * secs for secs in made.run_secs)
        quality = canonical_json({"suspect": number <= after + LEARNT})
        return replace(made, run_secs=run_secs, quality=quality)

    with mock.patch.object(replay, "answer", slower):
        yield


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    limits = Limits(job_candidates=8, return_samples=SAMPLES, training_records=1_000_000)
    made = make_fleet(tmp_path, ("one",), limits=limits)
    made.launch = Reonboarding(made)
    # Nothing but the canaries of a real device can drift.
    with mock.patch("fleet.engine.notices._WINDOW", 16), mock.patch("fleet.engine.ingest.is_live") as is_live:
        is_live.return_value = True
        yield made


def asked(fleet: Fleet) -> list[Request]:
    assert isinstance(fleet.launch, Reonboarding)
    return fleet.launch.requests


def test_a_device_that_drifts_is_onboarded_again_and_a_kill_costs_nothing(fleet: Fleet) -> None:
    fleet.trainer = Announcer(ev.ModelPublished(at_secs=fleet.clock(), version="v000001", device_ids=(ONE,)))
    with fleet.coordinator() as (coordinator, _), drifting(after=STEADY):
        Fleet.turn_until(coordinator, lambda _: bool(asked(fleet)))
        began = fleet.clock.wall()
        # The coordinator dies before it hears of its driver.
    [request] = asked(fleet)
    assert (request.kind, request.arguments["samples"]) == (RequestKind.ONBOARDING, SAMPLES)
    assert request.arguments["since"] == pytest.approx(began, abs=60.0)
    with fleet.coordinator() as (coordinator, _), drifting(after=-LEARNT):
        ended = run_to_end(fleet, coordinator, request.request_id)
        coordinator.close()
    assert ended["state"] == "succeeded", ended
    assert asked(fleet) == [request, request], "its driver is started again"


def test_a_drift_that_ends_after_a_restart_is_told_to_have_ended(fleet: Fleet) -> None:
    def told(coordinator: Coordinator) -> str:
        fleet.clock.skip(1.0)
        return str(coordinator.view()["devices"][ONE]["drift"])

    with fleet.coordinator() as (coordinator, _), drifting():
        Fleet.turn_until(coordinator, lambda one: bool(told(one)))
    with fleet.coordinator() as (coordinator, _):
        coordinator.turn(0.0)
        assert told(coordinator)
        Fleet.turn_until(coordinator, lambda one: not told(one))
    assert [line for line in fleet.lines if "steady again" in line] == ["one: is steady again"]


def of(*ratios: float) -> Fingerprint:
    latency = {CandidateId(f"c{place}"): 1e-3 * ratio for place, ratio in enumerate(ratios)}
    return Fingerprint(device_id=ONE, latency_secs=latency, tried=len(latency))


def test_a_head_stays_where_the_reference_programs_run_as_before(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        before = of(*[1.0] * 10)
        assert why_as_before(of(*[1.02] * 9, 1.5), before, store) == (
            "1 of 10 reference programs changed by more than 5%: its head stays"
        )
        assert why_as_before(of(*[1.2] * 3, *[1.0] * 7), before, store) == ""
        assert why_as_before(of(1.0, 1.0), before, store) == "", "too few tell"
        assert why_as_before(of(1.0, 1.0), None, store) == ""
        # Where repeats differ by so much anyhow, it is no change.
        pair = (replace(make_record(1), device_id=ONE, origin="noise", attempt=number) for number in (1, 2))
        store.append([replace(one, run_secs=((1 + 0.2 * (one.attempt - 1)) * 1e-3,) * 3) for one in pair])
        assert "changed by more than 40%" in why_as_before(of(*[1.2] * 10), before, store)
