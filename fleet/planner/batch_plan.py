"""Batches for devices: what each has still to measure, and what it measures again. Pure.

Given the same facts and seed it plans the same. `collect.py` calls it with what `selection.py` chose, the
background's `job_queues.py` with what it chose; it knows no Ray, disk or clock.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

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
from fleet.store.noise import Reading, settled

#: Candidates in one batch: enough that a device's processes never wait for the coordinator between two.
BATCH_SIZE = 64
#: Workloads whose candidates are mixed in one batch. More would drive their modules and arguments out of the
#: worker processes' memory; one alone would let a moment's disturbance fall on one workload.
WORKLOADS_PER_BATCH = 8
#: Candidates that an A/A run looks at, over those that it needs: only steady ones will do.
NOISE_SAMPLED = 8
#: An A/A run holds for a day.
NOISE_EVERY_SECS = 24 * 3600.0

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBatch:
    """Candidates to measure on one device, at the same attempt."""

    device_id: DeviceId
    candidates: tuple[Candidate, ...]
    attempt: int


@dataclass(slots=True)
class DeviceProgress:
    """What one device has of some candidates in its present environment."""

    #: Candidates that need no measurement.
    measured: set[CandidateId] = field(default_factory=set)
    #: Candidates that were measured before the device drifted.
    outdated: set[CandidateId] = field(default_factory=set)
    #: The attempt that comes next of candidates that were lost or are outdated.
    attempts: dict[CandidateId, int] = field(default_factory=dict)

    def add(self, candidate_id: CandidateId, attempt: int, is_lost: bool) -> None:
        """Take in one result, in any order."""
        if not is_lost:
            self.measured.add(candidate_id)
        self._follow(candidate_id, attempt + 1)

    def add_outdated(self, candidate_id: CandidateId, attempt: int) -> None:
        """Take in one result from before the device drifted."""
        self.outdated.add(candidate_id)
        # Its agent may have a second measurement in mind, which must not be this one.
        self._follow(candidate_id, attempt + 1 + MOST_AHEAD)

    def _follow(self, candidate_id: CandidateId, attempt: int) -> None:
        self.attempts[candidate_id] = max(self.attempts.get(candidate_id, 0), attempt)


def plan_jobs(
    device_ids: Iterable[DeviceId],
    pools: Mapping[WorkloadId, Sequence[Candidate]],
    progress: Mapping[DeviceId, DeviceProgress],
    *,
    seed: int,
) -> list[DeviceBatch]:
    """Plan what is still to be measured: every candidate of every pool once on every device.

    Batches come in random order: what drifts over time then falls on all workloads alike. The candidates are
    mixed in the same order for every device, so that an interrupted collection leaves the same ones measured
    everywhere.
    """
    mixes = mixed(pools, random.Random(f"{seed}/order"))
    jobs: list[DeviceBatch] = []
    for device_id in device_ids:
        history = progress.get(device_id, DeviceProgress())
        planned: list[DeviceBatch] = []
        for mix in mixes:
            missing = [
                replace(candidate, origin=REMEASURE)
                if candidate.candidate_id in history.outdated
                else candidate
                for candidate in mix
                if candidate.candidate_id not in history.measured
            ]
            planned += cut_batches(device_id, missing, history.attempts)
        random.Random(f"{seed}/batches").shuffle(planned)
        jobs += planned
    return jobs


def mixed(pools: Mapping[WorkloadId, Sequence[_Item]], draws: random.Random) -> list[list[_Item]]:
    """Mix what is measured of a few workloads each, in random order; each mix is cut into batches.

    What disturbs a device for a moment then falls on no workload alone.
    """
    order = draws.sample(sorted(pools), len(pools))
    mixes: list[list[_Item]] = []
    for group in cut(order, WORKLOADS_PER_BATCH):
        mix = [item for workload_id in group for item in pools[workload_id]]
        mix.sort(key=lambda _: draws.random())  # a shuffle takes five times as long
        mixes.append(mix)
    return mixes


def cut(items: Sequence[_Item], size: int = BATCH_SIZE) -> list[Sequence[_Item]]:
    """Cut a sequence into parts of at most `size`, in order."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def remeasure_sample(
    readings: Iterable[Record | Reading], *, count: int, seed: int
) -> dict[CandidateId, int]:
    """Draw `count` candidates of one device for a second measurement, as far as it is missing.

    They are chosen among those that are `ok` and were measured in full.

    Args:
        readings: All of one device in one environment, read once; those measured twice already count towards
            `count`.
        count: Candidates to have measured twice.
        seed: Draws the candidates.

    Returns:
        The attempt that comes next of each.
    """
    first: set[CandidateId] = set()
    steady: set[CandidateId] = set()
    again: set[CandidateId] = set()
    attempts: dict[CandidateId, int] = {}
    for reading in readings:
        candidate_id = reading.candidate_id
        attempts[candidate_id] = max(attempts.get(candidate_id, 0), reading.attempt + 1)
        if reading.origin in REPEATS:
            if reading.origin != CONFIRM:
                again.add(candidate_id)
        elif is_full(reading):
            first.add(candidate_id)
            # A suspect one is measured again because it may be wrong: no sign of how numbers repeat.
            if reading.is_suspect:
                steady.discard(candidate_id)
            else:
                steady.add(candidate_id)
    eligible = steady if len(steady) >= min(count, len(first)) else first
    draws = random.Random(f"{seed}/again")
    chosen = draws.sample(sorted(eligible), min(count, len(eligible)))
    missing = [candidate_id for candidate_id in chosen if candidate_id not in again]
    missing = missing[: max(0, count - len(again & eligible))]
    return {candidate_id: attempts[candidate_id] for candidate_id in missing}


def plan_noise(
    records: Iterable[Record],
    workload_ids: Container[WorkloadId],
    *,
    count: int,
    seed: int,
) -> list[DeviceBatch]:
    """Plan an A/A run of one device: the same candidates twice, in two random orders, nothing changed.

    The halves have attempts n+1 and n+2, where n is even; so a pair is always (odd, even), and half a run
    that was killed pairs with nothing. No attempt of the chosen candidates is higher than n, nor can be that
    of a second measurement which their agent has in mind.

    Args:
        records: All of one device in one environment, or those of its `noise_sample`; in any order.
        workload_ids: Candidates of others are not chosen.
        count: Candidates to choose among the settled `ok` ones that were measured in full. Those with a
            suspect record will do: what drifted then need not drift now.
        seed: Draws the candidates and the orders.

    Returns:
        Jobs of the first half, then of the second; none where there is no such candidate.
    """
    by_candidate: dict[CandidateId, list[Record]] = {}
    for record in records:
        by_candidate.setdefault(record.candidate_id, []).append(record)
    sample = noise_sample(by_candidate, count=count, seed=seed)
    eligible = {
        r.candidate_id: r
        for r in settled(record for candidate_id in sample for record in by_candidate[candidate_id])
        if is_full(r) and r.workload_id in workload_ids
    }
    chosen = [eligible[candidate_id] for candidate_id in sample if candidate_id in eligible][:count]
    if not chosen:
        return []
    highest = max(r.attempt for record in chosen for r in by_candidate[record.candidate_id]) + MOST_AHEAD
    highest += highest % 2
    jobs: list[DeviceBatch] = []
    for attempt in (highest + 1, highest + 2):
        order = random.Random(f"{seed}/noise/{attempt}").sample(chosen, len(chosen))
        candidates = _as_candidates(order, NOISE)
        attempts = {candidate.candidate_id: attempt for candidate in candidates}
        jobs += cut_batches(chosen[0].device_id, candidates, attempts)
    return jobs


def noise_sample(candidate_ids: Iterable[CandidateId], *, count: int, seed: int) -> list[CandidateId]:
    """Candidates among which `plan_noise` chooses, in a random order that does not depend on the others."""
    return heapq.nsmallest(
        NOISE_SAMPLED * count, set(candidate_ids), lambda candidate_id: content_hash(str(seed), candidate_id)
    )


def is_full(record: Record | Reading) -> bool:
    """Whether a record has a latency from all its repeats; an early stop leaves one, which repeats badly."""
    return record.outcome is Outcome.OK and not record.is_stopped_early


def cut_batches(
    device_id: DeviceId,
    candidates: Sequence[Candidate],
    attempts: Mapping[CandidateId, int],
) -> list[DeviceBatch]:
    """Cut candidates into batches, in order; a batch has one attempt, 0 for candidates not in `attempts`."""
    by_attempt: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        by_attempt.setdefault(attempts.get(candidate.candidate_id, 0), []).append(candidate)
    return [
        DeviceBatch(device_id=device_id, candidates=tuple(part), attempt=attempt)
        for attempt, group in by_attempt.items()
        for part in cut(group, BATCH_SIZE)
    ]


def _as_candidates(records: Iterable[Record], origin: str) -> list[Candidate]:
    return [
        Candidate(workload_id=r.workload_id, trace=r.trace, dialect=r.dialect, origin=origin) for r in records
    ]
