"""A batch of candidates and the parts that it is measured in. Called by the workers and by who asks them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from agents.records import Candidate, Protocol, Record, Workload, WorkloadId

#: Candidates in the first part, whose time tells how long the next ones may be.
_FIRST_PART = 8
#: Each later part is as large as takes about this long: that is what a dead agent costs at most.
_PART_SECS = 15.0
#: A part pays for its own readings of the canaries: of tiny parts they would be a large share.
_LEAST_PART = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Candidates to measure on one device, and how."""

    candidates: tuple[Candidate, ...]
    #: Every workload that the candidates name.
    workloads: Mapping[WorkloadId, Workload]
    protocol: Protocol
    #: Counted up for a measurement of the same candidate in the same environment.
    attempt: int = 0
    #: Candidates within this fraction of the best of their workload are measured once more, seconds later:
    #: they decide what is chosen, and a neighbour on the host slows a program for seconds. 0: none.
    confirm_within: float = 0.05
    model_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a part of a batch gave."""

    records: list[Record]
    #: Seconds that it took.
    device_secs: float
    #: The batch is done.
    is_last: bool


def in_parts(
    batch: Batch,
    measure: Callable[[Batch], list[Record]],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Part]:
    """Measure a batch part by part.

    Args:
        batch: What to measure, and how.
        measure: Measures a batch that holds some of its candidates.
        clock: Gives seconds that only grow.

    Yields:
        At least one part.
    """
    at, size, count = 0, _FIRST_PART, len(batch.candidates)
    while True:
        if count - at < size + _LEAST_PART:
            size = count - at
        began = clock()
        records = measure(replace(batch, candidates=batch.candidates[at : at + size]))
        secs = clock() - began
        at += size
        yield Part(records=records, device_secs=secs, is_last=at == count)
        if at == count:
            return
        size = max(_LEAST_PART, int(size * _PART_SECS / max(1e-3, secs)))


__all__ = ["Batch", "Part", "in_parts"]
