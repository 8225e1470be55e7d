"""Batches for devices: what each has still to measure, and what it measures again. Pure.

Given the same facts and seed it plans the same. Called by `collect.py` with what `selection.py` chose; knows
no Ray, disk or clock.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from agents.records import (
    CONFIRM,
    NOISE,
    REMEASURE,
    REPEATS,
    Candidate,
    CandidateId,
    DeviceId,
    Outcome,
    Record,
    WorkloadId,
    content_hash,
)
from agents.sandbox.canary_watch import MOST_AHEAD
from fleet.store.noise import settled
from fleet.store.reader import environment_before

#: Candidates in one batch: enough that a device's processes never wait for the coordinator between two.
BATCH_SIZE = 64
#: Workloads whose candidates are mixed in one batch. More would drive their modules and arguments out of the
#: worker processes' memory; one alone would let a moment's disturbance fall on one workload.
WORKLOADS_PER_BATCH = 8
#: Times that a candidate may be lost in one run: it is tried again once.
MAX_LOSSES = 2
#: An A/A run holds for a day.
NOISE_EVERY_SECS = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBatch:
    """Candidates to measure on one device, at the same attempt."""

    device_id: DeviceId
    candidates: tuple[Candidate, ...]
    attempt: int


@dataclass(slots=True)
class DeviceProgress:
    """What one device has of the candidates in one environment; grows with its records."""

    environment_id: str
    #: Candidates that need no measurement.
    measured: set[CandidateId] = field(default_factory=set)
    #: Candidates whose every measurement was lost: the attempt that comes next.
    lost: dict[CandidateId, int] = field(default_factory=dict)
    #: Candidates that were measured before the device drifted, likewise.
    outdated: dict[CandidateId, int] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        """Take in one record of the device; those of other environments tell nothing."""
        if record.environment_id == environment_before(self.environment_id):
            # Its agent may have a second measurement in mind, which must not be this one.
            following = record.attempt + 1 + MOST_AHEAD
            self.outdated[record.candidate_id] = max(self.outdated.get(record.candidate_id, 0), following)
            return
        if record.environment_id != self.environment_id or record.candidate_id in self.measured:
            return
        if record.outcome is Outcome.LOST:
            self.lost[record.candidate_id] = max(self.lost.get(record.candidate_id, 0), record.attempt + 1)
        else:
            self.measured.add(record.candidate_id)
            self.lost.pop(record.candidate_id, None)


def plan_jobs(
    device_ids: Iterable[DeviceId],
    pools: Mapping[WorkloadId, Sequence[Candidate]],
    progress: Mapping[DeviceId, DeviceProgress],
    *,
    seed: int,
    batch_size: int = BATCH_SIZE,
    given_up: Mapping[DeviceId, Collection[CandidateId]] | None = None,
) -> list[DeviceBatch]:
    """Plan what is still to be measured: every candidate of every pool once on every device.

    A batch holds candidates of up to `WORKLOADS_PER_BATCH` workloads in random order, and batches come in
    random order: what drifts over time then falls on all of them alike. The order is the same on every
    device, so that an interrupted collection leaves the same candidates measured everywhere. Those that a
    device has `given_up` were lost too often in this run.
    """
    draws = random.Random(f"{seed}/order")
    order = draws.sample(sorted(pools), len(pools))
    mixes: list[list[Candidate]] = []
    for start in range(0, len(order), WORKLOADS_PER_BATCH):
        mix = [
            one for workload_id in order[start : start + WORKLOADS_PER_BATCH] for one in pools[workload_id]
        ]
        draws.shuffle(mix)
        mixes.append(mix)
    jobs: list[DeviceBatch] = []
    for device_id in device_ids:
        seen = progress.get(device_id, DeviceProgress(""))
        skipped = (given_up or {}).get(device_id, ())
        attempts = {
            one: max(seen.lost.get(one, 0), seen.outdated.get(one, 0))
            for one in seen.lost.keys() | seen.outdated.keys()
        }
        todo = [
            [
                replace(one, origin=REMEASURE) if one.candidate_id in seen.outdated else one
                for one in mix
                if one.candidate_id not in seen.measured and one.candidate_id not in skipped
            ]
            for mix in mixes
        ]
        planned = [batch for mix in todo for batch in _batches(device_id, mix, attempts, batch_size)]
        random.Random(f"{seed}/batches").shuffle(planned)
        jobs += planned
    return jobs


def plan_remeasure(
    records: Sequence[Record], *, count: int, seed: int, batch_size: int = BATCH_SIZE
) -> list[DeviceBatch]:
    """Plan a second measurement of `count` random candidates of one device, as far as it is missing.

    They are chosen among those that are `ok` and were measured in full.

    Args:
        records: All records of one device in one environment; those measured twice already count towards
            `count`.
        count: Candidates to have measured twice.
        seed: Draws the candidates.
        batch_size: Most candidates in one batch.
    """
    first = {r.candidate_id: r for r in records if r.origin not in REPEATS and is_full(r)}
    # A suspect one is measured again because it may be wrong: that tells nothing of how numbers repeat.
    steady = {key: r for key, r in first.items() if not r.is_suspect}
    first = steady if len(steady) >= min(count, len(first)) else first
    again = {r.candidate_id for r in records if r.origin in REPEATS - {CONFIRM}}
    attempts = _next_attempts(records)
    draws = random.Random(f"{seed}/again")
    chosen = draws.sample(sorted(first), min(count, len(first)))
    todo = [first[candidate_id] for candidate_id in chosen if candidate_id not in again]
    todo = todo[: max(0, count - len(again & first.keys()))]
    if not todo:
        return []
    return _batches(todo[0].device_id, _as_candidates(todo, REMEASURE), attempts, batch_size)


def plan_noise(
    records: Iterable[Record],
    workload_ids: Container[WorkloadId],
    *,
    count: int,
    seed: int,
    batch_size: int = BATCH_SIZE,
) -> list[DeviceBatch]:
    """Plan an A/A run of one device: the same candidates twice, in two random orders, nothing changed.

    The halves have attempts n+1 and n+2, where n is even; so a pair is always (odd, even), and half a run
    that was killed pairs with nothing. No attempt of the chosen candidates is higher than n, nor can be that
    of a second measurement which their agent has in mind.

    Args:
        records: Records of one device in one environment, in any order; only a sample of them is held.
        workload_ids: Candidates of others are not chosen.
        count: Candidates to choose among the settled `ok` ones that were measured in full. Those with a
            suspect record will do: what drifted then need not drift now.
        seed: Draws the candidates and the orders.
        batch_size: Most candidates in one batch.

    Returns:
        Jobs of the first half, then of the second; none where there is no such candidate.
    """
    sample = _sample(records, 4 * count, seed)
    eligible = {
        r.candidate_id: r
        for r in settled([record for group in sample.values() for record in group])
        if is_full(r) and r.workload_id in workload_ids
    }
    # The sample is in its random order.
    chosen = [eligible[candidate_id] for candidate_id in sample if candidate_id in eligible][:count]
    if not chosen:
        return []
    highest = max(r.attempt for one in chosen for r in sample[one.candidate_id]) + MOST_AHEAD
    highest += highest % 2
    jobs: list[DeviceBatch] = []
    for attempt in (highest + 1, highest + 2):
        order = random.Random(f"{seed}/noise/{attempt}").sample(chosen, len(chosen))
        candidates = _as_candidates(order, NOISE)
        attempts = {one.candidate_id: attempt for one in candidates}
        jobs += _batches(chosen[0].device_id, candidates, attempts, batch_size)
    return jobs


def is_full(record: Record) -> bool:
    """Whether a record has a latency from all its repeats; an early stop leaves one, which repeats badly."""
    return record.outcome is Outcome.OK and not record.is_stopped_early


def noise_is_due(records: Iterable[Record], now_secs: float, environment_id: str) -> bool:
    """Whether a device's last A/A run in this environment is a day old, unfinished, or never was.

    What is now is told in Unix seconds.
    """
    last = max(
        (
            record.measured_at
            for record in records
            # The second of a pair has the even attempt. A lost one has compared nothing.
            if record.origin == NOISE and record.environment_id == environment_id and record.attempt % 2 == 0
            if record.outcome is not Outcome.LOST
        ),
        default=-math.inf,
    )
    # A run dated days ahead was made by a wrong clock.
    return abs(now_secs - last) >= NOISE_EVERY_SECS


def _batches(
    device_id: DeviceId,
    candidates: Sequence[Candidate],
    attempts: Mapping[CandidateId, int],
    batch_size: int,
) -> list[DeviceBatch]:
    """Cut candidates into batches, in order; a batch has one attempt, 0 for candidates not in `attempts`."""
    by_attempt: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        by_attempt.setdefault(attempts.get(candidate.candidate_id, 0), []).append(candidate)
    return [
        DeviceBatch(device_id=device_id, candidates=tuple(group[start : start + batch_size]), attempt=attempt)
        for attempt, group in by_attempt.items()
        for start in range(0, len(group), batch_size)
    ]


def _as_candidates(records: Iterable[Record], origin: str) -> list[Candidate]:
    return [
        Candidate(workload_id=r.workload_id, trace=r.trace, dialect=r.dialect, origin=origin) for r in records
    ]


def _next_attempts(records: Iterable[Record]) -> dict[CandidateId, int]:
    attempts: dict[CandidateId, int] = {}
    for record in records:
        attempts[record.candidate_id] = max(attempts.get(record.candidate_id, 0), record.attempt + 1)
    return attempts


def _sample(records: Iterable[Record], size: int, seed: int) -> dict[CandidateId, list[Record]]:
    """All records of `size` random candidates, in random order, from a stream that is read once.

    The candidates with the lowest hashes are kept (bottom-k sampling): whoever was dropped stays out, so no
    record of a kept candidate is missed.
    """
    kept: dict[CandidateId, list[Record]] = {}
    highest: list[tuple[int, CandidateId]] = []
    bound = math.inf
    for record in records:
        if record.candidate_id in kept:
            kept[record.candidate_id].append(record)
            continue
        place = -int(content_hash(str(seed), record.candidate_id), 16)
        if -place >= bound:
            continue
        kept[record.candidate_id] = [record]
        heapq.heappush(highest, (place, record.candidate_id))
        if len(kept) > size:
            place, dropped = heapq.heappop(highest)
            del kept[dropped]
            bound = -place
    return {candidate_id: kept[candidate_id] for _, candidate_id in sorted(highest, reverse=True)}
