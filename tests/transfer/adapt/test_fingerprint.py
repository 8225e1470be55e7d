"""A device described by its latencies on fixed programs: what is alike is near, and nothing is made up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agents.records import CandidateId, DeviceId, Outcome
from tests.record_fixtures import make_record
from transfer.adapt.nearest import (
    LEAST_SHARED,
    ORIGIN,
    Fingerprint,
    distance,
    distances,
    drifted,
    from_records,
)

PROGRAMS = [CandidateId(f"c{number}") for number in range(8)]


def of(name: str, values: list[float]) -> Fingerprint:
    latency_secs = dict(zip(PROGRAMS, values, strict=False))
    return Fingerprint(device_id=DeviceId(name), latency_secs=latency_secs, tried=len(PROGRAMS))


BASE = [1e-3 * (number + 1) for number in range(8)]


def test_the_nearest_comes_first_and_the_device_itself_not_at_all() -> None:
    faster_throughout = of("b", [value / 3 for value in BASE])
    assert distance(of("a", BASE), faster_throughout) == pytest.approx(0, abs=1e-12)
    near = of("near", [value * (1 + 0.1 * (place % 2)) for place, value in enumerate(BASE)])
    far = of("far", list(reversed(BASE)))
    found = distances(of("a", BASE), [far, of("a", BASE), near])
    assert list(found) == ["near", "far"]
    assert found["near"] < found["far"]


def test_too_few_shared_programs_say_nothing() -> None:
    few = of("b", [1e-3] * (LEAST_SHARED - 1))
    assert not few.is_usable
    assert distance(of("a", BASE), few) is None
    assert distances(of("a", BASE), [few]) == {}


def test_records_of_other_programs_and_failures_are_passed_over() -> None:
    good = make_record(0, origin=ORIGIN, outcome=Outcome.OK, run_secs=(2e-3, 1e-3))
    again = replace(good, run_secs=(5e-4,), attempt=1)
    other = replace(good, origin="random", candidate_id=CandidateId("other"))
    failed = replace(good, candidate_id=CandidateId("bad"), outcome=Outcome.BUILD_FAILED, run_secs=())
    found = from_records(good.device_id, [good, again, other, failed])
    assert found.latency_secs == {good.candidate_id: 5e-4}
    assert found.tried == 2
    assert from_records(good.device_id, [other], [other.candidate_id]).tried == 1
    assert from_records(DeviceId("elsewhere"), [good]).tried == 0


def test_drift_names_the_programs_that_changed() -> None:
    now = of("a", [*BASE[:-1], BASE[-1] * 1.2])
    assert drifted(of("a", BASE), now, 0.05) == {PROGRAMS[-1]: pytest.approx(0.2)}
