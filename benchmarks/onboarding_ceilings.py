"""How far measuring twice agrees with itself: the ceiling of every onboarding curve.

Called by `benchmarks.onboarding_parts`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from agents.records import CONFIRM, DeviceId, Outcome
from fleet.store.reader import StoreReader
from transfer.data.dataset import Dataset
from transfer.data.ranking import kendall_tau, top_k

#: Candidates measured twice that a ceiling is made of at least.
_LEAST_TWICE = 8
#: Draws of what measuring once more would give, of each workload.
_AGAIN = 5


def ceilings(reader: StoreReader, dataset: Dataset) -> dict[str, dict[str, float]]:
    """How well one record of a candidate ranks another one, by device with enough candidates measured twice.

    `top1`, `top5` and `tau` are over those candidates alone: a few of each workload. `judged_top1` and
    `judged_tau` put their changes on as many candidates as a curve judges (half of each workload's): what
    measuring everything on the device once more would reach there.
    """
    group_of = {str(one): place for place, one in enumerate(dataset.workload_ids)}
    found = {}
    for column, device_id in enumerate(dataset.device_ids):
        twice = _measured_twice(reader, device_id, group_of)
        group = np.array([one[0] for one in twice], dtype=np.int64)
        sizes = np.bincount(group, minlength=1)
        if sizes[sizes >= 2].sum() < _LEAST_TWICE:
            continue
        first, last = (np.array([one[place] for one in twice]) for place in (1, 2))
        rows = [np.flatnonzero(group == one) for one in np.flatnonzero(sizes >= 2)]
        found[str(device_id)] = {
            "top1": float(np.mean([top_k(-first[mine], last[mine], 1) for mine in rows])),
            "top5": float(np.mean([top_k(-first[mine], last[mine], 5) for mine in rows])),
            "tau": float(np.mean([kendall_tau(-first[mine], last[mine]) for mine in rows])),
            "candidates": float(sum(map(len, rows))),
            "workloads": float(len(rows)),
            "median_change": float(np.median(np.abs(last / first - 1))),
            **_judged_again(dataset, column, np.log(last / first)),
        }
    return found


def _measured_twice(
    reader: StoreReader, device_id: DeviceId, group_of: Mapping[str, int]
) -> list[tuple[int, float, float]]:
    """Workload, first and last seconds of every candidate with several records."""
    names = ("candidate_id", "workload_id", "outcome", "run_secs", "measured_at", "origin")
    seen: dict[str, tuple[int, list[tuple[float, float]]]] = {}
    for _, batch in reader.columns(names, device_ids=[device_id], version=reader.version):
        values = (batch.column(name).to_pylist() for name in names)
        for candidate_id, workload_id, outcome, secs, at, origin in zip(*values, strict=True):
            # A leader's second look is chosen for being fast, and close in time.
            if outcome == Outcome.OK and secs and str(workload_id) in group_of and origin != CONFIRM:
                place = seen.setdefault(candidate_id, (group_of[str(workload_id)], []))
                place[1].append((at, min(secs)))
    return [(group, min(several)[1], max(several)[1]) for group, several in seen.values() if len(several) > 1]


def _judged_again(dataset: Dataset, column: int, changes: np.ndarray) -> dict[str, float]:
    """Top-1 and tau of latencies that changed as those of the candidates measured twice did."""
    random = np.random.default_rng(0)
    latency = dataset.latency_secs[:, column]
    top1, tau = [], []
    for group in np.unique(dataset.group):
        mine = latency[(dataset.group == group) & np.isfinite(latency)]
        for _ in range(_AGAIN):
            some = random.permutation(mine)[: -(-len(mine) // 2)]
            if len(some) > 1:
                signs = random.choice([-1.0, 1.0], len(some))
                before = some * np.exp(signs * random.choice(changes, len(some)))
                top1.append(top_k(-before, some, 1))
                tau.append(kendall_tau(-before, some))
    return {"judged_top1": float(np.mean(top1)), "judged_tau": float(np.mean(tau))} if top1 else {}
