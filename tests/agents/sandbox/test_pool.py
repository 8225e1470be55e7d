from __future__ import annotations

import dataclasses
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from agents.errors import AgentError
from agents.programs.workloads import operator_workload
from agents.records import Candidate, Outcome, Protocol, Workload
from agents.sandbox.footprint import MOST_THREADS, Footprint
from agents.sandbox.job import CandidateJob, JobResult
from agents.sandbox.pool import WorkerPool
from agents.sandbox.pool_jobs import MAX_EXCUSES, MAX_STRIKES
from agents.sandbox.process import WorkerProcess
from agents.sandbox.retimed_programs import LAST_TIMINGS
from agents.sandbox.stages import WorkerStage
from benchmarks.bad_programs import EMPTY_TRACE, calling
from tests.conftest import child_settings

pytestmark = pytest.mark.tvm

#: Busy cores make a run slow, not endless: the time-out is far beyond any of these.
QUICK = Protocol(
    repeat=3, min_repeat_ms=2.0, visits=1, run_timeout_secs=30.0, check_share=0.0, early_stop_ratio=0.0
)

#: Makes so many jobs that end well.
Good = Callable[..., list[CandidateJob]]
#: A question that costs no time.
NOTHING = {"op": "networks", "networks": []}


def jobs(
    pairs: Sequence[tuple[Workload, Candidate]], *, check: bool = False, protocol: Protocol = QUICK
) -> list[CandidateJob]:
    return [
        CandidateJob(workload=workload, candidate=candidate, protocol=protocol, check=check)
        for workload, candidate in pairs
    ]


def of(workload: Workload, candidates: Sequence[Candidate], **changes: Any) -> list[CandidateJob]:
    return jobs([(workload, candidate) for candidate in candidates], **changes)


@pytest.fixture
def good(matmul: Workload, matmul_candidates: list[Candidate]) -> Good:
    """Makes jobs of the first candidates of the small matmul."""
    return lambda count=6, **changes: of(matmul, matmul_candidates[:count], **changes)


def by_job(results: Sequence[JobResult]) -> list[JobResult]:
    return sorted(results, key=lambda result: result.job)


def test_bad_programs_have_their_outcomes_and_the_batch_goes_on(
    pool: WorkerPool, good: Good, matmul: Workload
) -> None:
    [fine] = good(1, check=True)
    # Each of the four elements maps 256 MiB and touches all of it (MAP_PRIVATE|MAP_ANONYMOUS|MAP_POPULATE):
    # steps small enough for a host with little memory, and a pause in which a busy host notices the limit.
    eats = calling("eats", "mmap", 0, 1 << 28, 3, 0x8022, -1, 0)
    greedy = replace(QUICK, repeat=20, memory_limit_gib=1.0, cooldown_ms=5000)
    unknown_block = '[[["GetSBlock",[],["no_such_block","main"],["b0"]]],[]]'
    traces = [
        Candidate(workload_id=matmul.workload_id, trace=trace)
        # The others say what no trace may say, so TVM never sees them.
        for trace in (unknown_block, '[[["NoSuchInstruction",[],[],[]]],[]]', "[]")
    ]
    bad = [
        # glibc's free() of a pointer that it never gave out aborts and says so on stderr.
        (jobs([calling("calls_free", "free", 64)]), Outcome.RUN_FAILED, "while timing: "),
        (jobs([calling("calls_raise", "raise", signal.SIGSEGV)]), Outcome.RUN_FAILED, "SIGSEGV"),
        (jobs([eats], protocol=greedy), Outcome.RUN_FAILED, "timing took more than 1 GiB of memory"),
        # What libc's rand() adds to the output is different at every call.
        (jobs([calling("adds_rand", "rand")], check=True), Outcome.WRONG_OUTPUT, "differs in"),
        (of(matmul, traces[:1]), Outcome.BUILD_FAILED, "does not replay"),
        (of(matmul, traces[1:2]), Outcome.BUILD_FAILED, "the trace is refused"),
        (of(matmul, traces[2:]), Outcome.BUILD_FAILED, "the trace is refused"),
    ]
    results = by_job(list(pool.run([*(job for [job], _, _ in bad), fine])))
    for result, (_, outcome, words) in zip(results, bad, strict=False):
        assert result.outcome is outcome, result.error
        assert words in result.error
    for result in results[:2]:
        assert result.quality == {"strikes": MAX_STRIKES, "quarantined": True}
    wrong, last = results[3], results[-1]
    assert len(wrong.run_secs) >= QUICK.repeat  # it ran, so its seconds are kept
    assert last.outcome is Outcome.OK
    assert (wrong.quality["checked"], last.quality["checked"]) == (True, True)
    assert "strikes" not in last.quality


def test_arguments_that_the_program_does_not_take_are_refused(good: Good) -> None:
    """They are not checked at the call: the program would read beyond their ends."""
    with WorkerPool([child_settings()]) as own:
        for changes in (
            {"arg_shapes": ((1, 128, 128), (1, 128, 64), (1, 128, 128))},
            {"arg_dtypes": ("float16",) * 3},
        ):
            [job] = good(1, check=True)
            [result] = own.run([dataclasses.replace(job, workload=replace(job.workload, **changes))])
            assert result.outcome is Outcome.BUILD_FAILED
            assert "the workload names arguments" in result.error


def test_a_timing_lock_that_cannot_be_opened_costs_candidates_no_strike(good: Good, tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    folder.mkdir()
    settings = dataclasses.replace(child_settings(), lock_path=str(folder / "timing.lock"))
    with WorkerPool([settings]) as own:
        own.ask(NOTHING)
        folder.rename(tmp_path / "gone")
        results = by_job(list(own.run(good(2))))
        assert own.started == 2 * (1 + MAX_EXCUSES), "each is tried so often, and no more"
        (tmp_path / "gone").rename(folder)
        [after] = own.run(good(1))
    assert [result.outcome for result in results] == [Outcome.LOST] * 2
    assert [result.quality for result in results] == [{}, {}]
    assert all("while waiting" in result.error and "timing.lock" in result.error for result in results)
    assert after.outcome is Outcome.OK


def test_an_endless_program_ends_at_its_time_out_and_leaves_no_process(pool: WorkerPool) -> None:
    bad = calling("sleeps", "sleep", 600)
    short = replace(QUICK, run_timeout_secs=2.0)
    pool.ask(NOTHING)  # started: only the time-out is timed below
    worker = pool.pids[-1]
    started = time.monotonic()
    [result] = pool.run(jobs([bad], protocol=short))
    seconds = time.monotonic() - started
    assert not psutil.pid_exists(worker)
    assert result.outcome is Outcome.RUN_TIMEOUT
    assert "more than 2 s" in result.error
    # Others may hold the host's timing lock for as long as they like, and building takes what it takes.
    seconds -= result.wait_secs + result.build_secs
    assert short.run_timeout_secs < seconds < short.run_timeout_secs + 2 + 10  # its reaction on a loaded host


def test_a_pause_of_the_host_is_no_time_out_of_a_candidate(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = calling("calls_usleep", "usleep", 50_000)
    # Far more than the program takes with all its extra repeats, and less than the pause.
    protocol = replace(QUICK, run_timeout_secs=4.0)
    paused = []
    select = selectors.DefaultSelector.select

    def paused_once(selector: selectors.DefaultSelector, timeout: float | None = None) -> Any:
        if WorkerStage.TIMING in pool.stages and not paused:
            paused.extend(pool.pids[1:])
            for pid in paused:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(4.5)
            for pid in paused:
                os.kill(pid, signal.SIGCONT)
        return select(selector, timeout)

    monkeypatch.setattr(selectors.DefaultSelector, "select", paused_once)
    (result,) = pool.run(jobs([slow], protocol=protocol))
    assert paused
    assert result.outcome is Outcome.OK, result.error


@pytest.mark.parametrize("stage", [WorkerStage.TIMING, WorkerStage.RETIMING])
def test_what_a_program_holds_beyond_its_limits_ends_its_process(
    pool: WorkerPool, good: Good, monkeypatch: pytest.MonkeyPatch, stage: WorkerStage
) -> None:
    is_first_timing = stage is WorkerStage.TIMING
    threads, memory_bytes = (2 * MOST_THREADS, 0) if is_first_timing else (1, 1 << 60)
    ended = []

    def footprint(process: WorkerProcess) -> Footprint:
        is_first = not is_first_timing or (process.at is not None and process.at.job == 0)
        if process.stage is stage and is_first:
            ended.append(process.pid)
            return Footprint(memory_bytes=memory_bytes, threads=threads)
        return Footprint(memory_bytes=0, threads=1)

    monkeypatch.setattr(WorkerProcess, "footprint", footprint)
    slow = replace(QUICK, visits=3, repeat=20, min_repeat_ms=300.0)
    results = by_job(list(pool.run(good(2, protocol=slow))))
    # A program that is timed again has its seconds by then.
    first = Outcome.RUN_FAILED if is_first_timing else Outcome.OK
    assert [result.outcome for result in results] == [first, Outcome.OK]
    assert ("threads and processes; its worker process was ended" in results[0].error) is is_first_timing
    assert ended
    assert not set(ended) & set(pool.pids)


def test_memory_that_earlier_workloads_hold_is_not_held_against_a_candidate() -> None:
    # Arguments of 16 MiB, kept as values and as tensors; making the values takes some 50 MiB more.
    softmaxes = [operator_workload("SFM", (1024, 2048 + 16 * number)) for number in range(6)]
    pairs = [(one, Candidate(workload_id=one.workload_id, trace=EMPTY_TRACE)) for one in softmaxes]
    with WorkerPool([child_settings()]) as own:
        [first] = own.run(jobs(pairs[:1]))
        worker = psutil.Process(own.pids[-1])
        limit = (worker.memory_info().rss + (90 << 20)) / 2**30
        room = replace(QUICK, memory_limit_gib=limit)
        results = by_job(list(own.run(jobs(pairs[1:], protocol=room))))
        assert own.started > 1, "the limit was not met"
        # In a process of its own, too, the memory that is taken is the candidate's.
        started = own.started
        tight = replace(QUICK, memory_limit_gib=0.05)
        [refused] = own.run(jobs(pairs[:1], protocol=tight))
        assert own.started == started + 1
    assert [result.outcome for result in (first, *results)] == [Outcome.OK] * 6
    assert refused.outcome in {Outcome.BUILD_FAILED, Outcome.RUN_FAILED}
    assert "more than 0.05 GiB of memory" in refused.error


def test_early_stop_flushed_caches_warm_up_and_cooldown_are_applied(pool: WorkerPool, good: Good) -> None:
    # 4.2 MFLOP in 1 us: everything is thousands of times slower.
    best = {good()[0].workload.workload_id: 1e-6}

    def result_of(best_secs: dict[str, float], **changes: Any) -> JobResult:
        protocol = replace(QUICK, **changes)
        [result] = pool.run(good(1, protocol=protocol), best_secs)
        assert result.outcome is Outcome.OK
        return result

    stopped = result_of(best, early_stop_ratio=2.5)
    assert len(stopped.run_secs) == 1
    assert stopped.quality["stopped_early"] is True
    assert len(result_of(best).run_secs) >= QUICK.repeat
    assert result_of({}, cache_flush=True).number == 1
    heated = result_of({}, warmup_ms=60.0, cooldown_ms=50.0)
    assert len(heated.warmup_secs) > 2
    assert heated.timing_secs > 0.11


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_threads_and_cores_are_really_applied(good: Good) -> None:
    cores = tuple(sorted(os.sched_getaffinity(0)))[:2]
    two = dataclasses.replace(child_settings(), timing_cores=cores, build_cores=cores, threads=2)
    with WorkerPool([two]) as own:
        results = list(own.run(good()))
        tasks = psutil.Process(own.pids[-1]).threads()
        affinities = {tuple(sorted(os.sched_getaffinity(task.id))) for task in tasks}
    assert {result.environment["threads"] for result in results} == {2}
    assert len(tasks) >= 2
    assert affinities == {cores}


def test_an_idle_process_or_zygote_that_was_killed_costs_no_candidate(pool: WorkerPool, good: Good) -> None:
    pool.ask(NOTHING)
    os.kill(pool.pids[-1], signal.SIGKILL)
    results = list(pool.run(good(2)))
    os.kill(pool.pids[-1], signal.SIGKILL)
    assert pool.ask(NOTHING) == {"workloads": []}
    zygote, worker = pool.pids
    os.kill(zygote, signal.SIGKILL)
    results += pool.run(good(2))
    assert pool.pids[0] != zygote
    psutil.wait_procs([psutil.Process(worker)] if psutil.pid_exists(worker) else [], timeout=10)
    assert not psutil.pid_exists(worker)
    assert [result.outcome for result in results] == [Outcome.OK] * 4


def test_questions_are_answered_side_by_side_and_one_that_kills_costs_no_other(matmul: Workload) -> None:
    question = {"op": "propose", "workload_id": matmul.workload_id, "family": "cpu", "exclude": []}
    drawing = [({**question, "count": 2, "seed": seed}, matmul) for seed in range(3)]
    with WorkerPool([child_settings(), child_settings()]) as own:
        answers = dict(own.ask_each([drawing[0], ({"op": "nothing"}, None), *drawing[1:]]))
        assert own.started == 4, "both were used, and each that died was replaced"
        assert isinstance(error := answers.pop(1), AgentError)
        assert "at 'nothing'" in str(error)
        alone = [own.ask(*one) for one in drawing]
        assert [answers[place] for place in (0, 2, 3)] == alone
        with closing(own.ask_each(drawing)) as some:
            next(some)
        assert own.ask(*drawing[2]) == alone[2], "an answer that nobody waited for is no other's"


def test_a_pool_that_nobody_asked_for_long_is_as_good_as_new(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if it had been started hours ago.
    monkeypatch.setattr("agents.sandbox.process.START_TIMEOUT_SECS", 0.0)
    with WorkerPool([child_settings()]) as own:
        own.start()
        time.sleep(0.1)
        assert own.ask(NOTHING) == {"workloads": []}


def test_processes_are_recycled(pool: WorkerPool, good: Good, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agents.sandbox.pool._RECYCLE_AFTER", 2)
    before = pool.started
    results = list(pool.run(good(5)))
    assert pool.started - before in {2, 3}
    assert [result.outcome for result in results] == [Outcome.OK] * 5


def test_a_process_that_cannot_start_says_what_to_do() -> None:
    broken = dataclasses.replace(child_settings(), device="no-such-device")
    with WorkerPool([broken]) as own, pytest.raises(AgentError, match="fleet doctor"):
        own.ask(NOTHING)


def test_disturbed_programs_are_timed_again_while_others_are_built_and_a_last_time_at_the_end(
    pool: WorkerPool, good: Good
) -> None:
    often = replace(QUICK, visits=3, early_stop_ratio=0.0)
    # A front-runner of its workload has timings on top of the others' (`test_retimed_programs.py`).
    nobody_leads = {good()[0].workload.workload_id: 1e-9}
    before, best_secs = pool.timed, pool.probe_secs
    pool.probe_secs = 1e-9  # each probe is slow beside this one
    try:
        [alone] = pool.run(good(1, protocol=often), nobody_leads)
        assert pool.timed == before + 1
        # The pause between jobs is longer than that between moments (`retimed_programs.GAP_SECS`).
        results = by_job(list(pool.run(slowly(good(4, protocol=often), secs=3.6), nobody_leads)))
    finally:
        pool.probe_secs = best_secs
    last = LAST_TIMINGS
    assert alone.quality["visits"] == 1 + last, "its first moment and the last ones"
    assert [result.quality["visits"] for result in results] == [3 + last, 3 + last, 2 + last, 1 + last]
    for result in results:
        assert result.repeats.clean == 0
        assert all(1e-6 < seconds < 1.0 for seconds in result.run_secs)


def test_an_abandoned_batch_leaves_nobody_at_work(good: Good) -> None:
    # Without a lock the endless program does not wait for the other one, nor the other way round.
    settings = dataclasses.replace(child_settings(), lock_path="")
    with WorkerPool([settings, settings]) as own:
        slow = replace(QUICK, run_timeout_secs=60.0)
        endless = jobs([calling("sleeps", "sleep", 600)], protocol=slow)
        abandoned = own.run([*good(1, protocol=slow), *endless])
        assert next(abandoned).job == 0
        assert set(own.stages) - {WorkerStage.IDLE}
        abandoned.close()
        assert not set(own.stages) - {WorkerStage.IDLE}, "nobody watches its clock"


def slowly(made: Sequence[CandidateJob], secs: float) -> Iterator[CandidateJob]:
    for number, job in enumerate(made):
        if number:
            time.sleep(secs)
        yield job
