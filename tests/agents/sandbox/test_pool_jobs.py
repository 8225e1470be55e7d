"""What becomes of the jobs of a pool, whatever happens to their processes."""

from __future__ import annotations

from typing import Any

import pytest

from agents.records import Candidate, Outcome, Protocol
from agents.sandbox.job import CandidateJob
from agents.sandbox.pool_jobs import PoolRun
from agents.sandbox.stages import WorkerStage
from agents.sandbox.worker_messages import JobDone, Retimed, StageBegan
from tests.record_fixtures import make_workload

WORKLOAD = make_workload(7)
ID = WORKLOAD.workload_id


def job(trace: object, **changes: Any) -> CandidateJob:
    candidate = Candidate(workload_id=ID, trace=f"[{trace}]")
    values = {"candidate": candidate, "workload": WORKLOAD, "protocol": Protocol(), **changes}
    return CandidateJob(**values)


def begun(*jobs: CandidateJob, best: dict[str, float] | None = None, processes: int = 1) -> PoolRun:
    """A run whose first job is with a process."""
    run = PoolRun(iter(jobs), best or {}, processes)
    run.look_ahead(1)
    assert run.todo.popleft() == 0
    return run


def done(number: int = 0, **changes: Any) -> JobDone:
    return JobDone(**{"job": number, "outcome": Outcome.OK, "build_secs": 0.1, **changes})


@pytest.mark.parametrize("is_death", [True, False])
def test_a_program_whose_unscheduled_form_fails_is_measured_unchecked(is_death: bool) -> None:
    run = begun(job(0, check=True))
    assert run.is_checked(0)
    stage = StageBegan(job=0, stage=WorkerStage.REFERENCE, build_secs=0.25, wait_secs=0.5)
    assert (run.process_died(stage, "killed") if is_death else run.overdue(stage)) is None
    assert (run.todo.popleft(), run.is_checked(0)) == (0, False)


def test_a_broken_or_lost_device_ends_what_waits() -> None:
    run = begun(job(0), job(1))
    assert run.finish(done(outcome=Outcome.RUN_FAILED, is_broken=True)) is None
    assert list(run.todo) == [1, 0]
    lost = run.finish(done(outcome=Outcome.LOST, error="unplugged", is_device_lost=True))
    assert (lost.outcome, lost.quality) == (Outcome.LOST, {"strikes": 1})
    after = run.lose_next()
    assert (after.job, after.outcome, after.error) == (1, Outcome.LOST, "unplugged")


def test_canaries_count_as_no_candidates_and_every_time_as_the_best_known() -> None:
    run = begun(job(0), job(1, is_canary=True), best={ID: 3.0})
    assert (run.best(ID), run.best("other")) == (3.0, 0.0)
    run.look_ahead(1)
    first = run.finish(done(run_secs=(2.0, 2.5)))
    assert (run.timed, run.best(ID)) == (1, 2.0)
    again = run.retime(first, Retimed(job=0, run_secs=(1.5,), timing_secs=0.1, left=0))
    assert (again.run_secs, run.best(ID)) == ((2.0, 2.5, 1.5), 1.5)
    run.finish(done(1, run_secs=(1.0,)))
    assert run.timed == 1
