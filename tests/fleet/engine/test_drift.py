"""A device that drifts is onboarded again: from new samples, once, whatever dies in between."""

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
from agents.records import Candidate, CandidateId, Record, WorkloadId, canonical_json
from fleet.core import events as ev
from fleet.core.limits import Limits
from fleet.core.request_words import Request
from fleet.daemon.driver_display import DriverDisplay
from fleet.drivers.session import EngineSession
from fleet.engine.coordinator import Coordinator
from fleet.onboarding.drift import why_as_before
from fleet.planner.collect import Collection, CollectSettings
from fleet.store.store import Store
from tests.coordinator_fixtures import ONE, Announcer, Fleet, make_fleet
from tests.fleet.drivers.test_request_drivers import Driver, Drivers, run_to_end
from tests.record_fixtures import make_record
from transfer.adapt.fingerprint import Fingerprint

SAMPLES = 4
#: Answers before the drift.
STEADY = 32
#: Slower answers before the canaries take the new level for the usual one.
LEARNT = 24
SLOWER = 1.3


class Reonboarding(Drivers):
    """Starts what stands for the driver of an onboarding: it measures known candidates, as that does."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet, lambda session: {})
        self.requests: list[Request] = []
        self._fleet = fleet

    def __call__(self, request: Request) -> Driver:
        self.requests.append(request)
        arguments = dict(request.arguments)

        def measure(session: EngineSession) -> dict[str, Any]:
            session.ready([ONE])
            session.part(ONE, arguments["since"])
            known = sorted(self._outdated(arguments["since"]), key=lambda one: one.candidate_id)
            chosen = known[: arguments["samples"]]
            pool: dict[WorkloadId, list[Candidate]] = {}
            for one in chosen:
                pool.setdefault(one.workload_id, []).append(one)
            spec = self._fleet.specs[ONE]
            how = CollectSettings(samples=1)
            collection = Collection(session, {ONE: spec}, how, DriverDisplay(session))
            collection.measure({spec.family: pool})
            return {"device": ONE}

        self.work = measure
        return super().__call__(request)

    def _outdated(self, since: float) -> list[Candidate]:
        records = Store.read(self.store).records(device_id=ONE)
        found = {r.candidate_id: r for r in records if r.measured_at < since}
        return [
            Candidate(workload_id=r.workload_id, trace=r.trace, dialect=r.dialect) for r in found.values()
        ]


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


def measured(fleet: Fleet) -> dict[CandidateId, list[Record]]:
    found: dict[CandidateId, list[Record]] = {}
    with Store.open(fleet.folder / "store") as store:  # which takes in what waits for the table
        for record in store.records(device_id=ONE):
            found.setdefault(record.candidate_id, []).append(record)
    return found


def asked(fleet: Fleet) -> list[Request]:
    assert isinstance(fleet.launch, Reonboarding)
    return fleet.launch.requests


def test_a_device_that_drifts_measures_again_and_a_kill_costs_nothing(fleet: Fleet) -> None:
    fleet.trainer = Announcer(ev.ModelPublished(at_secs=fleet.clock(), version="v000001", device_ids=(ONE,)))
    with fleet.coordinator() as (coordinator, _), drifting(after=STEADY):
        Fleet.turn_until(coordinator, lambda _: bool(asked(fleet)))
        # The coordinator dies before its driver has measured anything.
    [request] = asked(fleet)
    assert request.arguments["samples"] == SAMPLES
    before = measured(fleet)
    with fleet.coordinator() as (coordinator, _), drifting(after=-LEARNT):
        ended = run_to_end(fleet, coordinator, request.request_id)
        assert len(asked(fleet)) == 2, "its driver is started again"
        coordinator.close()
    assert ended["state"] == "succeeded", ended
    since = request.arguments["since"]
    again = {
        one: [r for r in records if r not in before.get(one, [])] for one, records in measured(fleet).items()
    }
    twice = {one: fresh for one, fresh in again.items() if fresh and one in before}
    assert len(twice) == SAMPLES
    for candidate_id, [record] in twice.items():
        [old] = before[candidate_id]
        assert record.measured_at >= since
        assert (record.origin, record.environment_id) == ("remeasure", old.environment_id)
        assert record.attempt > old.attempt
    ids = fleet.record_ids()
    assert len(ids) == len(set(ids)), "and nothing twice"


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
