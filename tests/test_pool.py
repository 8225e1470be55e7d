from __future__ import annotations

import dataclasses
import os
import signal
import time

import psutil
import pytest
from conftest import child_settings
from faulty_workloads import calling

from agents.errors import AgentError
from agents.pool import WorkerPool
from agents.records import Candidate, Outcome, Protocol, Workload

pytestmark = pytest.mark.tvm

QUICK = Protocol(repeat=3, min_repeat_ms=2.0, run_timeout_sec=2.0)


def test_real_candidates_are_built_and_timed(
    pool: WorkerPool, matmul: Workload, matmul_candidates: list[Candidate]
) -> None:
    results = list(pool.run(matmul_candidates, [matmul] * len(matmul_candidates), QUICK))
    assert sorted(result.job for result in results) == list(range(len(matmul_candidates)))
    for result in results:
        assert result.outcome is Outcome.OK
        assert len(result.run_secs) == QUICK.repeat
        # 4.2 MFLOP: below 1 us it would beat any CPU, above 1 s something else was timed.
        assert all(1e-6 < seconds < 1.0 for seconds in result.run_secs)
        assert len(result.warmup_secs) in {1, 2}
        assert result.number >= 1
        assert result.build_secs > 0
        assert result.environment["cores"] == [0]


def test_the_same_seed_proposes_the_same_candidates(
    pool: WorkerPool, matmul: Workload, matmul_candidates: list[Candidate]
) -> None:
    ids = [candidate.candidate_id for candidate in matmul_candidates]
    question = {"op": "propose", "workload_id": matmul.workload_id, "family": "cpu", "count": 6, "seed": 1}
    again = pool.ask({**question, "exclude": []}, matmul)
    assert again["traces"] == [candidate.trace for candidate in matmul_candidates]
    others = pool.ask({**question, "exclude": ids}, matmul)
    assert len(others["traces"]) == 6
    assert not set(others["traces"]) & {candidate.trace for candidate in matmul_candidates}


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [("abort", (), "SIGABRT"), ("raise", (signal.SIGSEGV,), "SIGSEGV"), ("_exit", (3,), "status 3")],
)
def test_a_program_that_kills_its_process_is_a_run_failure_and_the_next_one_is_measured(
    matmul: Workload,
    matmul_candidates: list[Candidate],
    function: str,
    arguments: tuple[int, ...],
    words: str,
) -> None:
    workload, candidate = calling(f"calls_{function}", function, *arguments)
    with WorkerPool([child_settings()]) as own:
        results = list(own.run([candidate, matmul_candidates[0]], [workload, matmul], QUICK))
        assert own.started == 2
    assert [result.outcome for result in results] == [Outcome.RUN_FAILED, Outcome.OK]
    assert words in results[0].error


def test_an_endless_program_ends_at_its_time_out_and_leaves_no_process() -> None:
    workload, candidate = calling("sleeps", "sleep", 600)
    with WorkerPool([child_settings()]) as own:
        own.ask({"op": "networks", "networks": []})  # started: only the time-out is timed below
        pids = own.pids
        started = time.monotonic()
        [result] = own.run([candidate], [workload], QUICK)
        seconds = time.monotonic() - started
        assert not psutil.pid_exists(pids[0])
    assert result.outcome is Outcome.RUN_TIMEOUT
    assert "more than 2 s" in result.error
    assert seconds < QUICK.run_timeout_sec + 2 + 10  # time-out, its reaction, and a build on a loaded host


def test_traces_that_do_not_fit_are_build_failures(pool: WorkerPool, matmul: Workload) -> None:
    bad = [
        '[[["GetSBlock",[],["no_such_block","main"],["b0"]]],[]]',
        '[[["NoSuchInstruction",[],[],[]]],[]]',
        "[]",
    ]
    candidates = [Candidate(workload_id=matmul.workload_id, trace=trace) for trace in bad]
    results = list(pool.run(candidates, [matmul] * len(bad), QUICK))
    assert {result.outcome for result in results} == {Outcome.BUILD_FAILED}
    assert all("does not replay" in result.error for result in results)


def test_an_unknown_symbol_is_a_build_failure_or_a_run_failure(pool: WorkerPool) -> None:
    workload, candidate = calling("calls_nothing", "tensor_fleet_no_such_function")
    [result] = pool.run([candidate], [workload], QUICK)
    assert result.outcome in {Outcome.BUILD_FAILED, Outcome.RUN_FAILED}
    assert result.error


def test_an_idle_process_that_was_killed_is_replaced(
    matmul: Workload, matmul_candidates: list[Candidate]
) -> None:
    with WorkerPool([child_settings()]) as own:
        own.ask({"op": "networks", "networks": []})
        os.kill(own.pids[0], signal.SIGKILL)
        results = list(own.run(matmul_candidates[:2], [matmul] * 2, QUICK))
    # The kill may be seen only when the first job is handed over; the batch goes on either way.
    assert results[-1].outcome is Outcome.OK
    assert len(results) == 2


def test_processes_are_recycled(matmul: Workload, matmul_candidates: list[Candidate]) -> None:
    with WorkerPool([child_settings()], recycle_after=2) as own:
        results = list(own.run(matmul_candidates[:5], [matmul] * 5, QUICK))
        assert own.started == 3
    assert [result.outcome for result in results] == [Outcome.OK] * 5


def test_an_abandoned_batch_does_not_leak_into_the_next(
    pool: WorkerPool, matmul: Workload, matmul_candidates: list[Candidate]
) -> None:
    abandoned = pool.run(matmul_candidates, [matmul] * 6, QUICK)
    next(abandoned)
    abandoned.close()
    results = list(pool.run(matmul_candidates[:2], [matmul] * 2, QUICK))
    assert sorted(result.job for result in results) == [0, 1]


def test_a_pool_without_tvm_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = dataclasses.replace(child_settings(), device="no-such-device")
    with WorkerPool([broken]) as own, pytest.raises(AgentError, match="fleet doctor"):
        own.ask({"op": "networks", "networks": []})
