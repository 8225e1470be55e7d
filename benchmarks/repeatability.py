"""How numbers repeat, from several passes over the same candidates. For `benchmarks.collection`."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from agents.records import Outcome, Record

#: A steady measurement that is off by more than this is wrong.
_WRONG = 0.1


def _is_steady(record: Record) -> bool:
    return record.outcome is Outcome.OK and not record.is_suspect


def latencies(records: Iterable[Record]) -> dict[str, float]:
    """Latency by candidate; one measured again because it was suspect counts with its better number."""
    found: dict[str, float] = {}
    for record in records:
        if record.outcome is Outcome.OK:
            key = record.candidate_id
            found[key] = min(found.get(key, float("inf")), record.latency_secs)
    return found


def compared(passes: Sequence[Sequence[Record]]) -> dict[str, Any]:
    """Compare every pair of passes, both ways.

    Args:
        passes: Records of the same candidates, two passes or more.

    Returns:
        How much latencies change, and how often, by more than the median change of the pair, another
        candidate of a workload is the fastest the next time; JSON-ready.
    """
    groups: dict[str, set[str]] = defaultdict(set)
    for record in itertools.chain.from_iterable(passes):
        groups[record.workload_id].add(record.candidate_id)
    found = [latencies(records) for records in passes]
    calm = [{r.candidate_id for r in records if _is_steady(r)} for records in passes]
    changes: list[float] = []
    steady: list[float] = []
    flips: list[bool] = []
    regrets: list[float] = []
    for one, other in itertools.permutations(range(len(passes)), 2):
        first, again = found[one], found[other]
        change = {key: abs(again[key] / first[key] - 1) for key in first.keys() & again.keys()}
        floor = statistics.median(change.values())
        changes += change.values()
        steady += [change[key] for key in change.keys() & calm[one] & calm[other]]
        for members in groups.values():
            group = members & change.keys()
            if len(group) < 2:
                continue
            chosen, best = min(group, key=first.__getitem__), min(group, key=again.__getitem__)
            regret = again[chosen] / again[best] - 1
            flips.append(regret > floor)
            regrets.append(regret)
    pairs = len(passes) * (len(passes) - 1)
    return {
        "workloads": len(regrets) // pairs,
        "remeasure_median_change": statistics.median(changes),
        "remeasure_p90_change": statistics.quantiles(changes, n=10)[-1],
        "steady_share": statistics.fmean(
            len(steady_ids & latency.keys()) / len(latency)
            for steady_ids, latency in zip(calm, found, strict=True)
        ),
        "remeasure_median_change_steady": statistics.median(steady) if steady else None,
        "remeasure_p90_change_steady": statistics.quantiles(steady, n=10)[-1] if len(steady) > 1 else None,
        # Pairs of steady measurements that differ by more than a tenth: one of them is wrongly steady.
        "wrongly_steady": statistics.fmean(change > _WRONG for change in steady) if steady else None,
        # Another candidate wins by more than numbers differ anyway.
        "winner_flip": statistics.fmean(flips),
        "winner_flip_regret_mean": statistics.fmean(regrets),
        "winner_flip_regret_max": max(regrets),
    }
