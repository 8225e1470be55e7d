"""What becomes of the jobs of a pool, whatever happens to their processes."""

from __future__ import annotations

from typing import Any

import pytest

from agents.errors import MessageError
from agents.records import Candidate, Outcome, Protocol
from agents.sandbox.job import CandidateJob, JobResult
from agents.sandbox.pool_jobs import MAX_EXCUSES, MAX_STRIKES, PoolRun
from agents.sandbox.process import end_of
from agents.sandbox.retimed_programs import most_timings
from agents.sandbox.stages import WorkerStage
from agents.sandbox.worker_messages import JobDone, Retimed, StageBegan
from tests.record_fixtures import make_workload

WORKLOAD = make_workload(7)
ID = WORKLOAD.workload_id


def job(number: int, **changes: Any) -> CandidateJob:
    candidate = Candidate(workload_id=ID, trace=f"[{number}]")
    values = {"candidate": candidate, "workload": WORKLOAD, "protocol": Protocol(), **changes}
    return CandidateJob(**values)


def begun(*jobs: CandidateJob, best: dict[str, float] | None = None, processes: int = 1) -> PoolRun:
    """A run whose first job is with a process."""
    run = PoolRun(iter(jobs), best or {}, processes)
    run.look_ahead(1)
    assert run.todo.popleft() == 0
    return run


def at(stage: WorkerStage) -> StageBegan:
    return StageBegan(job=0, stage=stage, build_secs=0.25, wait_secs=0.5)


def done(number: int = 0, **changes: Any) -> JobDone:
    return JobDone(**{"job": number, "outcome": Outcome.OK, "build_secs": 0.1, **changes})


#: A stage, and the outcomes of a candidate that kills its processes there, or takes too long.
ENDS = [
    (WorkerStage.BUILDING, Outcome.BUILD_FAILED, Outcome.BUILD_TIMEOUT),
    (WorkerStage.TIMING, Outcome.RUN_FAILED, Outcome.RUN_TIMEOUT),
    (WorkerStage.CHECKING, Outcome.RUN_FAILED, Outcome.RUN_TIMEOUT),
]


@pytest.mark.parametrize(("stage", "killed", "late"), ENDS)
def test_a_candidate_that_kills_its_processes_or_takes_too_long_is_given_up(
    stage: WorkerStage, killed: Outcome, late: Outcome
) -> None:
    run = begun(job(0), job(1), job(2), processes=2)
    for _ in range(MAX_STRIKES - 1):
        assert run.process_died(at(stage), "killed") is None
        assert run.todo.popleft() != 0, "others go first"
        run.todo.remove(0)
    assert run.timed == 0
    result = run.process_died(at(stage), "killed")
    assert result is not None
    assert (result.outcome, result.error, result.build_secs) == (killed, "killed", 0.25)
    assert result.quality == {"strikes": MAX_STRIKES, "quarantined": True}
    assert run.timed == 1
    protocol = Protocol(build_timeout_secs=3.0, run_timeout_secs=3.0)
    result = begun(job(0, protocol=protocol)).overdue(at(stage))
    assert result is not None
    assert result.error == f"{stage} took more than 3 s; its worker process was ended"
    assert (result.outcome, result.wait_secs) == (late, 0.5)


def test_a_death_that_no_candidate_causes_is_no_strike() -> None:
    run = begun(job(0))
    for _ in range(MAX_EXCUSES):
        assert run.process_died(at(WorkerStage.WAITING), "killed") is None
    result = run.process_died(at(WorkerStage.WAITING), "killed")
    assert result is not None
    assert (result.outcome, result.quality) == (Outcome.LOST, {})
    result = run.overdue(at(WorkerStage.WAITING))
    assert result is not None
    assert (result.outcome, result.wait_secs) == (Outcome.LOST, 0.5)
    assert "took more than 600 s" in result.error


@pytest.mark.parametrize("is_death", [True, False])
def test_a_program_whose_unscheduled_form_fails_is_measured_unchecked(is_death: bool) -> None:
    run = begun(job(0, check=True))
    assert run.is_checked(0)
    stage = at(WorkerStage.REFERENCE)
    assert (run.process_died(stage, "killed") if is_death else run.overdue(stage)) is None
    assert (run.todo.popleft(), run.is_checked(0)) == (0, False)


def test_memory_counts_against_a_candidate_only_in_a_process_of_its_own() -> None:
    run = begun(job(0, protocol=Protocol(memory_limit_gib=1.5)))
    assert run.over_memory(at(WorkerStage.BUILDING), is_alone=False) is None
    assert (run.todo.popleft(), run.needs_fresh_process(0)) == (0, True)
    result = run.over_memory(at(WorkerStage.BUILDING), is_alone=True)
    assert result is not None
    assert result.outcome is Outcome.BUILD_FAILED
    assert "building took more than 1.5 GiB of memory" in result.error


def test_a_broken_or_lost_device_ends_what_waits() -> None:
    run = begun(job(0), job(1))
    assert run.finish(done(outcome=Outcome.RUN_FAILED, is_broken=True)) is None
    assert list(run.todo) == [1, 0]
    lost = run.finish(done(outcome=Outcome.LOST, error="unplugged", is_device_lost=True))
    assert lost is not None
    assert (lost.outcome, lost.quality) == (Outcome.LOST, {"strikes": 1})
    after = run.lose_next()
    assert (after.job, after.outcome, after.error) == (1, Outcome.LOST, "unplugged")


def test_canaries_count_as_no_candidates_and_every_time_as_the_best_known() -> None:
    run = begun(job(0), job(1, is_canary=True), best={ID: 3.0})
    assert (run.best(ID), run.best("other")) == (3.0, 0.0)
    run.look_ahead(1)
    first = run.finish(done(run_secs=(2.0, 2.5)))
    assert isinstance(first, JobResult)
    assert (run.timed, run.best(ID)) == (1, 2.0)
    again = run.retime(first, Retimed(job=0, run_secs=(1.5,), timing_secs=0.1, left=0))
    assert (again.run_secs, run.best(ID)) == ((2.0, 2.5, 1.5), 1.5)
    run.finish(done(1, run_secs=(1.0,)))
    assert run.timed == 1


@pytest.mark.parametrize("event", [{"run_secs": (1.5,), "left": 1}, {"run_secs": (), "left": 1}])
def test_a_program_has_no_more_timings_than_there_are(event: dict[str, Any]) -> None:
    run = begun(job(0, protocol=Protocol(visits=2)))
    result = run.finish(done(run_secs=(2.0,)))
    assert result is not None
    for _ in range(most_timings(2) - 1):
        result = run.retime(result, Retimed(job=0, run_secs=(2.0,), timing_secs=0.1, left=1))
    with pytest.raises(MessageError, match="goes on to time job 0, which has had its timings"):
        run.retime(result, Retimed(job=0, timing_secs=0.1, **event))


@pytest.mark.parametrize(
    ("code", "words"),
    [(3, "exited with status 3"), (-9, "killed by SIGKILL"), (-40, "killed by signal 40")],
)
def test_every_end_of_a_process_has_words(code: int, words: str) -> None:
    assert end_of(code) == words
