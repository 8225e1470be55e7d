"""How a stream of jobs becomes windows between readings, with worker processes that end in any order."""

from __future__ import annotations

import inspect
import random
from collections.abc import Generator, Iterable, Mapping
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from agents.programs.quality import Drift
from agents.records import Outcome
from agents.sandbox.canary_watch import CANARY_PROTOCOL, CanaryWatch
from agents.sandbox.job import CandidateJob, JobResult
from agents.sandbox.pool import WorkerPool
from agents.sandbox.windows import Window, in_windows
from tests.agents.sandbox.test_pool_jobs import job

CANARIES = ("[compute]", "[memory]", "[latency]")


class Pool:
    """Worker processes in a dream: `width` jobs at once, each takes a second, any of them may end first."""

    def __init__(self, width: int, seed: int) -> None:
        self.width, self.rng, self.now = width, random.Random(seed), 0.0
        #: Traces in the order in which they ended.
        self.ended: list[str] = []

    def run(
        self, jobs: Iterable[CandidateJob], best_secs: Mapping[str, float]
    ) -> Generator[JobResult, None, None]:
        source, busy = enumerate(jobs), list[tuple[int, CandidateJob]]()
        while True:
            while len(busy) < self.width and (one := next(source, None)) is not None:
                busy.append(one)
            if not busy:
                return
            number, done = busy.pop(self.rng.randrange(len(busy)))
            self.now += 1.0
            self.ended.append(done.candidate.trace)
            yield JobResult(job=number, outcome=Outcome.OK, run_secs=(1.0 + number,))


class Watch:
    """Notes how many jobs had ended at each reading."""

    def __init__(self, pool: Pool, is_due: bool) -> None:
        self.pool, self.due = pool, is_due
        self.read_at: list[int] = []

    def is_due(self) -> bool:
        return self.due

    def jobs(self) -> list[CandidateJob]:
        return [job(name[1:-1], protocol=CANARY_PROTOCOL) for name in CANARIES]

    def read(self, results: list[JobResult]) -> Drift:
        assert len(results) == len(CANARIES)
        self.read_at.append(len(self.pool.ended))
        return Drift(suspect=False, ratios={"reading": float(len(self.read_at))}, which=())


def windows_of(
    pool: Pool, watch: Watch, jobs: Iterable[CandidateJob], window_secs: float
) -> Generator[Window, None, None]:
    subject = (cast(WorkerPool, pool), cast(CanaryWatch, watch))
    return in_windows(jobs, *subject, {}, window_secs=window_secs, clock=lambda: pool.now)


@given(
    count=st.integers(0, 60),
    width=st.integers(1, 4),
    seed=st.integers(0, 1000),
    window_secs=st.sampled_from([1.0, 6.0, 20.0, float("inf")]),
    is_due=st.booleans(),
)
def test_every_job_is_in_the_window_in_which_it_ended(
    count: int, width: int, seed: int, window_secs: float, is_due: bool
) -> None:
    pool = Pool(width, seed)
    watch = Watch(pool, is_due)
    planned = [job(number, attempt=number) for number in range(count)]
    windows = list(windows_of(pool, watch, planned, window_secs))

    assert [window.is_last for window in windows] == [False] * (len(windows) - 1) + [True]
    in_order = [one.candidate.trace for window in windows for one, _ in window.results]
    assert in_order == [trace for trace in pool.ended if trace not in CANARIES]
    assert sorted(in_order) == sorted(one.candidate.trace for one in planned)
    assert all(int(one.candidate.trace[1:-1]) == one.attempt for w in windows for one, _ in w.results)
    assert len(pool.ended) == count + len(CANARIES) * len(watch.read_at)
    # No window but the last goes on after its reading, and all but the last pay for it.
    for window in windows[:-1]:
        ends = watch.read_at[int(window.drift.ratios["reading"]) - 1]
        assert {one.candidate.trace for one, _ in window.results} <= set(pool.ended[:ends])
    assert len(watch.read_at) <= 1 + is_due + count // 4
    if window_secs == float("inf"):
        assert len(windows) == 1
    elif count > 3 * (window_secs + width + 4):
        assert len(windows) > 1


def test_windows_that_nobody_reads_any_more_end_the_batch() -> None:
    class Noted(Pool):
        def run(self, *args: Any) -> Generator[JobResult, None, None]:
            self.running = super().run(*args)
            return self.running

    pool = Noted(width=2, seed=0)
    planned = map(job, range(20))
    windows = windows_of(pool, Watch(pool, is_due=False), planned, 4.0)
    assert not next(windows).is_last
    windows.close()
    assert inspect.getgeneratorstate(pool.running) == inspect.GEN_CLOSED
