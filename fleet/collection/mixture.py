"""Candidates mixed into jobs: what drifts over time then falls on all workloads alike. Pure.

Called by `fleet.planner.job_planner`; `fleet.collection.batch_plan` does the same for a collection.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from agents.records import CandidateId, WorkloadId
from fleet.collection.batch_plan import BATCH_SIZE, WORKLOADS_PER_BATCH


def mixed(
    chosen: Sequence[tuple[WorkloadId, CandidateId]], draws: random.Random
) -> list[list[tuple[WorkloadId, CandidateId]]]:
    """Cut candidates into jobs of a few workloads each, in random order.

    Args:
        chosen: Candidates with their workloads.
        draws: Of the order.
    """
    by_workload: dict[WorkloadId, list[tuple[WorkloadId, CandidateId]]] = {}
    for pair in chosen:
        by_workload.setdefault(pair[0], []).append(pair)
    order = draws.sample(sorted(by_workload), len(by_workload))
    parts: list[list[tuple[WorkloadId, CandidateId]]] = []
    for start in range(0, len(order), WORKLOADS_PER_BATCH):
        mix = [pair for one in order[start : start + WORKLOADS_PER_BATCH] for pair in by_workload[one]]
        mix.sort(key=lambda _: draws.random())  # a shuffle takes five times as long
        parts += [mix[first : first + BATCH_SIZE] for first in range(0, len(mix), BATCH_SIZE)]
    return parts
