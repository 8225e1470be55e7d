"""What the watch makes of canary readings: windows, front_runners, what is kept between runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agents.programs.canaries import Canary
from agents.records import Candidate, Outcome, Record, WorkloadId
from agents.sandbox.canary_watch import CanaryWatch, front_runners
from agents.sandbox.job import JobResult
from tests.record_fixtures import make_record, make_workload

NAMES = ("compute", "memory", "latency")
USUAL = (1e-3, 5e-3, 2e-3)
WORKLOAD = make_workload(7)
KNOWN = {WorkloadId(WORKLOAD.workload_id): WORKLOAD}


def canaries() -> list[Canary]:
    return [
        Canary(name, WORKLOAD, Candidate(workload_id=WORKLOAD.workload_id, trace=f'["{name}"]'))
        for name in NAMES
    ]


def reading(*factors: float) -> list[JobResult]:
    values = [secs * factor for secs, factor in zip(USUAL, factors or (1.0, 1.0, 1.0), strict=True)]
    return [
        JobResult(job=job, outcome=Outcome.OK, run_secs=(secs * 1.01, secs))
        for job, secs in enumerate(values)
    ]


@pytest.fixture
def watch(tmp_path: Path) -> CanaryWatch:
    made = CanaryWatch(tmp_path, canaries(), "env")
    for turn in range(20):
        made.read(reading(*(1 + 0.002 * ((turn + k) % 3) for k in range(3))))
    return made


def records(count: int, **changes: object) -> list[Record]:
    values = {"workload": WORKLOAD.workload_id, "outcome": Outcome.OK, "error": "", **changes}
    return [
        make_record(number, **{"run_secs": (1e-3 * (1 + 0.05 * number),), **values})
        for number in range(count)
    ]


def test_a_window_is_suspect_from_the_first_bad_reading_through_the_next_good_one(watch: CanaryWatch) -> None:
    assert not watch.read(reading()).suspect
    bad = watch.read(reading(1.0, 1.6, 1.0))
    assert bad.suspect
    assert bad.which == ("memory",)
    assert bad.ratios["memory"] == pytest.approx(1.6, rel=0.02)
    # The device may have been slow until a moment before this good reading.
    assert watch.read(reading()).suspect
    assert not watch.read(reading()).suspect


def test_leaders_are_near_the_best_that_their_workload_ever_had() -> None:
    found = records(8)  # 5 % apart
    near = front_runners(found, KNOWN, within=0.06, origin="confirm")
    assert [one.candidate.trace for one in near] == [record.trace for record in found[:2]]
    for ratio, leaders in ((1.04, [found[0].trace]), (2, [])):
        best = {WORKLOAD.workload_id: found[0].latency_secs / ratio}
        near_best = front_runners(found, KNOWN, within=0.06, origin="confirm", best_secs=best)
        assert [one.candidate.trace for one in near_best] == leaders
    assert {one.candidate.origin for one in near} == {"confirm"}
    assert len(front_runners(found, KNOWN, within=10.0, origin="confirm")) == 3


def test_failures_and_second_measurements_are_not_measured_again(watch: CanaryWatch) -> None:
    watch.remember(records(2, origin="noise") + records(2, origin="remeasure"), KNOWN)
    watch.remember(records(2, outcome=Outcome.RUN_FAILED, run_secs=()), KNOWN)
    assert watch.take_again() == []


def test_a_restarted_agent_still_knows_the_usual_speed(watch: CanaryWatch, tmp_path: Path) -> None:
    assert CanaryWatch(tmp_path, canaries(), "env").read(reading(1.0, 1.0, 1.6)).suspect
    assert not CanaryWatch(tmp_path, canaries(), "another").read(reading(1.0, 1.0, 1.3)).suspect


@pytest.mark.parametrize("text", ["", "[]", '{"environment_id":"env","monitor":{"version":9}}'])
def test_a_damaged_file_is_learned_afresh_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    (tmp_path / "canaries.json").write_text(text)
    made = CanaryWatch(tmp_path, canaries(), "env")
    assert "learned afresh" in caplog.text
    assert not made.read(reading()).suspect
    assert json.loads((tmp_path / "canaries.json").read_text())["environment_id"] == "env"


def test_a_canary_that_fails_is_said_and_says_nothing(
    watch: CanaryWatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed = [*reading()[:2], JobResult(job=2, outcome=Outcome.RUN_FAILED, error="no such device")]
    drift = watch.read(failed)
    assert "no such device" in caplog.text
    assert not drift.suspect
    assert set(drift.ratios) == {"compute", "memory"}
