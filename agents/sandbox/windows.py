"""One stream of jobs through the worker processes, cut into windows between two readings of the canaries.

Called by `worker.py`. Canaries are jobs of the stream like others, so builders wait for no reading: while
they are timed the next candidates are being compiled. A window ends when its reading is complete, and
what ended since the reading before belongs to it, whichever was handed in first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

from agents.programs.quality import Drift
from agents.sandbox.canary_watch import CanaryWatch
from agents.sandbox.job import CandidateJob, JobResult
from agents.sandbox.pool import WorkerPool

#: A window pays for its own readings of the canaries: of tiny ones they would be a large share.
_LEAST_JOBS = 4


@dataclass(frozen=True, slots=True)
class Planned:
    """A job, and the attempt that its measurement will be."""

    job: CandidateJob
    attempt: int


@dataclass(frozen=True, slots=True)
class Window:
    """What ended between two readings, and how the device did meanwhile."""

    results: list[tuple[Planned, JobResult]]
    drift: Drift
    #: Every job of the stream has ended.
    is_last: bool


class _Reading:
    """One set of canaries in the stream."""

    def __init__(self, jobs: list[CandidateJob]) -> None:
        self.jobs = jobs
        self.results: dict[int, JobResult] = {}

    @property
    def is_complete(self) -> bool:
        return len(self.results) == len(self.jobs)

    @property
    def ordered(self) -> list[JobResult]:
        return [self.results[place] for place in range(len(self.jobs))]


def in_windows(
    jobs: Iterable[Planned],
    pool: WorkerPool,
    watch: CanaryWatch,
    best_secs: Mapping[str, float],
    *,
    window_secs: float,
    clock: Callable[[], float] = time.monotonic,
) -> Generator[Window, None, None]:
    """Measure a stream of jobs.

    Args:
        jobs: Read as worker processes become free, so it may depend on the windows so far.
        pool: Measures them.
        watch: The device's canaries.
        best_secs: Best latency known by workload id, in seconds.
        window_secs: A window is ended after so long.
        clock: Gives seconds that only grow.

    Yields:
        At least one window; the last one ends with the last job.
    """
    ahead = _Reading(watch.jobs() if watch.is_due() else [])
    behind = _Reading(watch.jobs())
    #: By number in the stream: a candidate, or a reading and the place in it.
    handed: list[Planned | tuple[_Reading, int]] = []

    def read(reading: _Reading) -> Iterator[CandidateJob]:
        for place, job in enumerate(reading.jobs):
            handed.append((reading, place))
            yield job

    def stream() -> Iterator[CandidateJob]:
        yield from read(ahead)
        began, count = clock(), 0
        for one in jobs:
            if count >= _LEAST_JOBS and clock() - began >= window_secs:
                yield from read(_Reading(watch.jobs()))
                began, count = clock(), 0
            handed.append(one)
            count += 1
            yield one.job
        yield from read(behind)

    # A program that is timed at several moments belongs to the window of its last timing.
    ended: list[tuple[Planned, JobResult]] = []
    with closing(pool.run(stream(), best_secs)) as results:
        for result in results:
            one = handed[result.job]
            if isinstance(one, Planned):
                ended.append((one, result))
                continue
            reading, place = one
            reading.results[place] = result
            # The last reading is taken in when everything has ended: nothing is timed after its window.
            if not reading.is_complete or reading is behind:
                continue
            drift = watch.read(reading.ordered)
            if reading is not ahead and ended:
                yield Window(ended, drift, is_last=False)
                ended = []
    yield Window(ended, watch.read(behind.ordered), is_last=True)
