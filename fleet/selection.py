"""What to measure: which workloads, which candidates on which device, what a second time. Pure.

Given the same facts and seed it decides the same, so an interrupted collection goes on where it stopped.
Called by `collect.py`; knows no Ray, disk or clock.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from agents.records import Candidate, CandidateId, DeviceId, Outcome, Protocol, Record, Workload, WorkloadId
from agents.worker import Batch

#: Candidates of each workload that a new device is asked for: the choice of `transfer.adapt.select`, so that
#: held-out checks describe the real onboarding.
SUPPORT_PER_WORKLOAD = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One batch for one device."""

    device_id: DeviceId
    batch: Batch
    #: Times that the device's agent died of it.
    crashes: int = 0


def choose_workloads(
    workloads: Sequence[Workload], *, count: int, min_flops: float = 0.0, max_flops: float = float("inf")
) -> list[Workload]:
    """Choose up to `count` workloads that differ: operators in turn, inside each one small to large.

    Workloads outside [min_flops, max_flops] are left out. Inside an operator the chosen ones are spread
    evenly over its workloads in order of FLOPs, so that sizes differ too.
    """
    by_operator: dict[str, list[Workload]] = {}
    for workload in sorted(workloads, key=lambda w: (w.flops, w.workload_id)):
        if min_flops <= workload.flops <= max_flops:
            by_operator.setdefault(workload.operator, []).append(workload)
    shares = dict.fromkeys(sorted(by_operator), 0)
    while sum(shares.values()) < count:
        open_operators = [
            operator for operator, share in shares.items() if share < len(by_operator[operator])
        ]
        if not open_operators:
            break
        for operator in open_operators[: count - sum(shares.values())]:
            shares[operator] += 1
    chosen: list[Workload] = []
    for operator, share in shares.items():
        group = by_operator[operator]
        chosen += [group[(2 * place + 1) * len(group) // (2 * share)] for place in range(share)]
    return chosen


def plan_jobs(
    device_ids: Sequence[DeviceId],
    pools: Mapping[WorkloadId, Sequence[Candidate]],
    workloads: Mapping[WorkloadId, Workload],
    measured: Mapping[DeviceId, Collection[CandidateId]],
    *,
    protocol: Protocol,
    batch_size: int,
    seed: int,
) -> list[Job]:
    """Plan what is still to be measured: every candidate of every pool once on every device.

    The order of workloads is shuffled for each device, and candidates inside a workload are too: what
    drifts over time then falls on all of them alike (random interleaving).
    """
    jobs: list[Job] = []
    for device_id in device_ids:
        draws = random.Random(f"{seed}/{device_id}")
        done = measured.get(device_id, ())
        batches: list[Job] = []
        for workload_id, pool in pools.items():
            todo = [candidate for candidate in pool if candidate.candidate_id not in done]
            draws.shuffle(todo)
            for start in range(0, len(todo), batch_size):
                batch = Batch(
                    candidates=tuple(todo[start : start + batch_size]),
                    workloads={workload_id: workloads[workload_id]},
                    protocol=protocol,
                )
                batches.append(Job(device_id=device_id, batch=batch))
        draws.shuffle(batches)
        jobs += batches
    return jobs


def plan_remeasure(
    records: Sequence[Record],
    workloads: Mapping[WorkloadId, Workload],
    *,
    protocol: Protocol,
    count: int,
    seed: int,
) -> list[Job]:
    """Plan a second measurement of `count` random `ok` candidates of one device, as far as it is missing.

    Args:
        records: All records of one device; those measured twice already count towards `count`.
        workloads: Workloads of the records.
        protocol: The same protocol as the first time, so that the numbers may be compared.
        count: Candidates to have measured twice.
        seed: Draws the candidates.
    """
    first = {r.candidate_id: r for r in records if r.attempt == 0 and r.outcome is Outcome.OK}
    again = {r.candidate_id for r in records if r.attempt > 0}
    draws = random.Random(f"{seed}/again")
    chosen = draws.sample(sorted(first), min(count, len(first)))
    todo = [first[candidate_id] for candidate_id in chosen if candidate_id not in again]
    todo = todo[: max(0, count - len(again))]
    if not todo:
        return []
    batch = Batch(
        candidates=tuple(
            Candidate(workload_id=r.workload_id, trace=r.trace, dialect=r.dialect, origin="remeasure")
            for r in todo
        ),
        workloads={r.workload_id: workloads[r.workload_id] for r in todo},
        protocol=protocol,
        attempt=1,
    )
    return [Job(device_id=todo[0].device_id, batch=batch)]


def few_of_each(
    pools: Mapping[WorkloadId, Sequence[Candidate]],
    count: int,
    *,
    seed: int,
    per_workload: int = SUPPORT_PER_WORKLOAD,
) -> dict[WorkloadId, list[Candidate]]:
    """Choose `count` candidates that a new device is asked for: a few of each of many workloads.

    A candidate alone in its workload teaches nothing about ranking, so workloads are taken in random order
    with `per_workload` candidates each, and get more only when all of them have that many.

    Args:
        pools: Candidates that sibling devices have measured, by workload.
        count: How many to choose; all of them where there are fewer.
        seed: Of the choice.
        per_workload: Candidates that a chosen workload gets first.
    """
    draws = random.Random(f"{seed}/few")
    shuffled = {
        workload_id: draws.sample(list(pool), len(pool)) for workload_id, pool in sorted(pools.items())
    }
    order = draws.sample(list(shuffled), len(shuffled))
    chosen: dict[WorkloadId, list[Candidate]] = {}
    left = min(count, sum(len(pool) for pool in shuffled.values()))
    while left:
        for workload_id in order:
            taken = chosen.get(workload_id, [])
            more = shuffled[workload_id][len(taken) : len(taken) + min(per_workload, left)]
            if more:
                chosen[workload_id] = taken + more
                left -= len(more)
    return chosen
