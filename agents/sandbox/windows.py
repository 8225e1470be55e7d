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
class Window:
    """What ended between two readings, and how the device did meanwhile."""

    results: list[tuple[CandidateJob, JobResult]]
    drift: Drift
    #: Every job of the stream has ended.
    is_last: bool


def in_windows(
    jobs: Iterable[CandidateJob],
    pool: WorkerPool,
    watch: CanaryWatch,
    best_secs: Mapping[str, float],
    *,
    window_secs: float,
    clock: Callable[[], float] = time.monotonic,
) -> Generator[Window, None, None]:
    """Measure a stream of jobs; gives at least one window, and the last one ends with the last job.

    Jobs are read as worker processes become free, so they may depend on the windows so far. A window is ended
    after `window_secs` of a clock that only grows.
    """
    canaries = watch.jobs()
    #: Results of the readings at both ends of the stream, by place in their canaries.
    ahead: dict[int, JobResult] = {}
    behind: dict[int, JobResult] = {}
    #: By number in the stream: a candidate, or a reading and the place in it.
    handed: list[CandidateJob | tuple[dict[int, JobResult], int]] = []

    def read(reading: dict[int, JobResult]) -> Iterator[CandidateJob]:
        for place, canary in enumerate(canaries):
            handed.append((reading, place))
            yield canary

    def stream() -> Iterator[CandidateJob]:
        if watch.is_due():
            yield from read(ahead)
        began, count = clock(), 0
        for job in jobs:
            if count >= _LEAST_JOBS and clock() - began >= window_secs:
                yield from read({})
                began, count = clock(), 0
            handed.append(job)
            count += 1
            yield job
        yield from read(behind)

    # A program that is timed at several moments belongs to the window of its last timing.
    ended: list[tuple[CandidateJob, JobResult]] = []
    with closing(pool.run(stream(), best_secs)) as results:
        for result in results:
            entry = handed[result.job]
            if isinstance(entry, CandidateJob):
                ended.append((entry, result))
                continue
            reading, place = entry
            reading[place] = result
            # The last reading is taken in when everything has ended: nothing is timed after its window.
            if len(reading) < len(canaries) or reading is behind:
                continue
            drift = watch.read(_in_order(reading))
            if reading is not ahead and ended:
                yield Window(ended, drift, is_last=False)
                ended = []
    yield Window(ended, watch.read(_in_order(behind)), is_last=True)


def _in_order(reading: dict[int, JobResult]) -> list[JobResult]:
    return [reading[place] for place in sorted(reading)]
