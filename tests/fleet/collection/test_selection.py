from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agents.records import Outcome, Workload, WorkloadId
from fleet.collection.selection import (
    allocate,
    best_traces,
    choose_workloads,
    random_share,
)
from tests.record_fixtures import make_record, make_workload


def workload(
    name: str, operator: str = "GMM", flops: float = 1e6, networks: tuple[tuple[str, int], ...] = ()
) -> Workload:
    changes = {"workload_id": WorkloadId(name), "name": name, "operator": operator, "flops": flops}
    return replace(make_workload(0, networks), **changes)


def test_chosen_workloads_take_operators_in_turn_and_spread_over_sizes_within_bounds() -> None:
    listed = [workload(f"g{i}", "GMM", 1e6 * (i + 1)) for i in range(9)]
    listed += [workload(f"c{i}", "C2D", 1e6 * (i + 1)) for i in range(9)] + [workload("s0", "SFM", 1e6)]
    chosen = choose_workloads(listed, count=7)
    operators = [one.operator for one in chosen]
    assert sorted(operators) == ["C2D"] * 3 + ["GMM"] * 3 + ["SFM"]
    sizes = sorted(one.flops for one in chosen if one.operator == "GMM")
    assert sizes == [2e6, 5e6, 8e6]
    bounded = choose_workloads(listed, count=99, min_flops=2e6, max_flops=3e6)
    assert sorted(one.flops for one in bounded) == [2e6, 2e6, 3e6, 3e6]


@given(count=st.integers(1, 40), sizes=st.lists(st.integers(0, 12), min_size=1, max_size=5))
def test_choosing_gives_distinct_workloads_and_exactly_what_there_is(count: int, sizes: list[int]) -> None:
    listed = [workload(f"{op}-{i}", f"op{op}", 1.0 + i) for op, size in enumerate(sizes) for i in range(size)]
    chosen = choose_workloads(listed, count=count)
    assert len({one.workload_id for one in chosen}) == len(chosen) == min(count, len(listed))
    assert chosen == choose_workloads(list(reversed(listed)), count=count)


_WORTH = st.tuples(st.floats(0, 1e12), st.integers(0, 200))


@given(worth=st.lists(_WORTH, min_size=1, max_size=30), minimum=st.integers(0, 40), rest=st.integers(0, 5000))
def test_shares_add_up_keep_the_minimum_and_follow_the_worth(
    worth: list[tuple[float, int]], minimum: int, rest: int
) -> None:
    listed = [
        workload(f"w{i:02}", flops=flops, networks=(("net", count),))
        for i, (flops, count) in enumerate(worth)
    ]
    total = minimum * len(listed) + rest
    shares = allocate(listed, total, minimum)
    assert list(shares) == [one.workload_id for one in listed]
    assert sum(shares.values()) == total
    assert min(shares.values()) >= minimum
    whole = sum(math.sqrt(one.weight * max(one.flops, 1.0)) for one in listed)
    for one in listed:
        exact = minimum + rest * math.sqrt(one.weight * max(one.flops, 1.0)) / whole
        assert abs(shares[one.workload_id] - exact) < 1.001
    assert allocate(list(reversed(listed)), total, minimum) == shares


def test_too_few_candidates_for_the_minimum_are_refused() -> None:
    with pytest.raises(ValueError, match="7 candidates cannot give 2 workloads 4 each"):
        allocate([workload("a"), workload("b")], 7, 4)
    assert allocate([], 0, 8) == {}


@given(target=st.integers(0, 500), minimum=st.integers(0, 100), exploration=st.floats(0, 1))
def test_the_random_share_holds_the_minimum_and_never_exceeds_the_target(
    target: int, minimum: int, exploration: float
) -> None:
    share = random_share(target, minimum, exploration)
    assert min(minimum, target) <= share <= target
    assert random_share(target, minimum, 1.0) == target
    assert random_share(target, minimum, 0.0) == min(minimum, target)


def test_the_best_traces_are_steady_fast_and_distinct() -> None:
    records = [make_record(n, workload="w", outcome=Outcome.OK, run_secs=(n * 1e-3,)) for n in range(1, 8)]
    again = make_record(5, workload="w", outcome=Outcome.OK, run_secs=(1e-4,), attempt=1)
    suspect = make_record(20, workload="w", outcome=Outcome.OK, run_secs=(1e-9,), quality='{"suspect":true}')
    failed = make_record(21, workload="w", outcome=Outcome.RUN_TIMEOUT, run_secs=())
    other = make_record(22, workload="v", outcome=Outcome.OK, run_secs=(1e-9,))
    found = best_traces([*records, again, suspect, failed, other], [WorkloadId("w")], 3)
    assert found == {WorkloadId("w"): [records[4].trace, records[0].trace, records[1].trace]}
