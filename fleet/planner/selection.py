"""Which workloads to measure, how many candidates of each, and which of them are known already. Pure.

Given the same facts and seed it decides the same, so an interrupted collection goes on where it stopped.
Called by `collect.py`; `batch_plan.py` makes batches of what is chosen. Knows no Ray, disk or clock.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest

from agents.records import Candidate, CandidateId, Outcome, Record, Workload, WorkloadId
from fleet.config.sections import WorkloadsSection
from fleet.errors import FleetError


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


def none_fits(listed: int, networks: Sequence[str], min_flops: float, max_flops: float) -> FleetError:
    """The error of whoever finds none of the `listed` workloads of the networks within the bounds."""
    return FleetError(
        f"none of the {listed} workloads of {', '.join(networks)} has between {min_flops:g} and "
        f"{max_flops:g} FLOPs; widen workloads.min_flops and workloads.max_flops"
    )


def choose_configured(listed: Sequence[Workload], section: WorkloadsSection) -> list[Workload]:
    """Choose among the workloads that an agent has listed, as the settings say.

    Raises:
        FleetError: None of them fits.
    """
    bounds = section.min_flops, section.max_flops
    chosen = choose_workloads(listed, count=section.count, min_flops=bounds[0], max_flops=bounds[1])
    if not chosen:
        raise none_fits(len(listed), section.networks, *bounds)
    return chosen


def allocate(workloads: Sequence[Workload], total: int, minimum: int) -> dict[WorkloadId, int]:
    """Share out `total` candidates: `minimum` for each workload, the rest where network time can be won.

    The rest goes in proportion to sqrt(weight * flops). Of n random candidates the best is expected to lie
    about 1/n of the spread above the fastest (the least of n uniform draws is 1/(n+1)), so the network time
    still to be won is about the sum of time_i / n_i, where time_i is weight * flops at like efficiency. With
    the sum of n_i given, that is least where n_i is proportional to sqrt(time_i). Shares of the time itself
    (Ansor's task scheduler aims at it too, but with feedback) would leave the light workloads of a network
    almost nothing, and a cost model learns from all of them.

    Returns:
        Candidates by workload, in the order given; they add up to `total` (largest remainders are rounded
        up, equal ones by workload id).

    Raises:
        ValueError: `total` is too small for the minimum.
    """
    rest = total - minimum * len(workloads)
    if rest < 0:
        raise ValueError(f"{total} candidates cannot give {len(workloads)} workloads {minimum} each")
    worth = {
        workload.workload_id: math.sqrt(workload.weight * max(workload.flops, 1.0)) for workload in workloads
    }
    whole = sum(worth.values())
    exact = {workload_id: rest * value / whole for workload_id, value in worth.items()}
    shares = {workload_id: math.floor(value) for workload_id, value in exact.items()}
    by_remainder = sorted(
        exact, key=lambda workload_id: (shares[workload_id] - exact[workload_id], workload_id)
    )
    for workload_id in by_remainder[: rest - sum(shares.values())]:
        shares[workload_id] += 1
    return {workload_id: minimum + share for workload_id, share in shares.items()}


def random_share(target: int, minimum: int, exploration: float) -> int:
    """How many of a workload's `target` candidates are random; the others evolve from measured ones.

    The first `minimum` are random, and of the rest the share `exploration` (0 to 1).
    """
    least = min(minimum, target)
    return least + round((target - least) * exploration)


def choose_parents(best: Iterable[Sequence[str]]) -> list[str]:
    """Merge the best traces of several devices, each list best first, into one list without repeats."""
    in_turn = chain.from_iterable(zip_longest(*best))
    return list(dict.fromkeys(trace for trace in in_turn if trace is not None))


@dataclass(slots=True)
class KnownCandidates:
    """What the devices of a family have recorded of one workload."""

    #: Candidates that the other devices may measure too, up to a limit.
    candidates: dict[CandidateId, Candidate] = field(default_factory=dict)
    #: The candidates among them that evolved from others.
    evolved: set[CandidateId] = field(default_factory=set)
    #: Every candidate with a record, quarantined ones too: none of them is new.
    ids: set[CandidateId] = field(default_factory=set)
    #: Candidates that kill worker processes; the other devices are spared them.
    quarantined: set[CandidateId] = field(default_factory=set)


def best_traces(
    records: Iterable[Record], workload_ids: Collection[WorkloadId], few: int
) -> dict[WorkloadId, list[str]]:
    """Traces of the `few` fastest candidates of each workload, fastest first; reads the records once.

    Args:
        records: Records of one device in one environment.
        workload_ids: Workloads to look at; those without an ok record are left out of the result.
        few: Candidates of each workload.
    """
    best: dict[WorkloadId, dict[CandidateId, tuple[float, str]]] = {}
    for record in records:
        if record.workload_id not in workload_ids or record.outcome is not Outcome.OK or record.is_suspect:
            continue
        group = best.setdefault(record.workload_id, {})
        fastest = group.get(record.candidate_id, (math.inf, ""))
        group[record.candidate_id] = min(fastest, (record.latency_secs, record.trace))
        if len(group) > few:
            del group[max(group, key=group.__getitem__)]
    return {
        workload_id: [trace for _, trace in sorted(group.values())] for workload_id, group in best.items()
    }
