from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.records import (
    Candidate,
    CandidateId,
    DeviceId,
    Outcome,
    Protocol,
    Record,
    Workload,
    WorkloadId,
)
from fleet.selection import choose_workloads, few_of_each, plan_jobs, plan_remeasure

PROTOCOL = Protocol()
ONE, TWO = DeviceId("one"), DeviceId("two")


def workload(name: str, operator: str = "GMM", flops: float = 1e6) -> Workload:
    return Workload(
        workload_id=WorkloadId(name),
        name=name,
        operator=operator,
        arg_shapes=((1,),),
        arg_dtypes=("float32",),
        flops=flops,
        networks=(),
        module_json="{}",
    )


def candidates(workload_id: str, count: int) -> list[Candidate]:
    return [Candidate(workload_id=WorkloadId(workload_id), trace=f"[{i}]") for i in range(count)]


def record(candidate: Candidate, *, attempt: int = 0, outcome: Outcome = Outcome.OK) -> Record:
    return Record(
        device_id=ONE,
        workload_id=candidate.workload_id,
        candidate_id=candidate.candidate_id,
        dialect=candidate.dialect,
        trace=candidate.trace,
        origin=candidate.origin,
        outcome=outcome,
        run_secs=(1e-3,) if outcome is Outcome.OK else (),
        warmup_secs=(),
        number=1,
        build_secs=0.1,
        wait_secs=0.0,
        timing_secs=0.1,
        error="",
        protocol=PROTOCOL,
        environment="{}",
        environment_id="e",
        attempt=attempt,
        measured_at=0.0,
    )


def test_chosen_workloads_take_operators_in_turn_and_spread_over_sizes() -> None:
    listed = [workload(f"g{i}", "GMM", 1e6 * (i + 1)) for i in range(9)]
    listed += [workload(f"c{i}", "C2D", 1e6 * (i + 1)) for i in range(9)] + [workload("s0", "SFM", 1e6)]
    chosen = choose_workloads(listed, count=7)
    operators = [one.operator for one in chosen]
    assert sorted(operators) == ["C2D"] * 3 + ["GMM"] * 3 + ["SFM"]
    sizes = sorted(one.flops for one in chosen if one.operator == "GMM")
    assert sizes == [2e6, 5e6, 8e6]


def test_chosen_workloads_respect_bounds_and_supply() -> None:
    listed = [workload(f"g{i}", "GMM", 10.0**i) for i in range(10)]
    assert {one.flops for one in choose_workloads(listed, count=99, min_flops=10, max_flops=1000)} == {
        10,
        100,
        1000,
    }
    assert choose_workloads([], count=3) == []


@given(count=st.integers(1, 40), sizes=st.lists(st.integers(0, 12), min_size=1, max_size=5))
def test_choosing_gives_distinct_workloads_and_exactly_what_there_is(count: int, sizes: list[int]) -> None:
    listed = [workload(f"{op}-{i}", f"op{op}", 1.0 + i) for op, size in enumerate(sizes) for i in range(size)]
    chosen = choose_workloads(listed, count=count)
    assert len({one.workload_id for one in chosen}) == len(chosen) == min(count, len(listed))
    assert chosen == choose_workloads(list(reversed(listed)), count=count)


def test_jobs_cover_what_is_missing_and_nothing_else() -> None:
    pools = {WorkloadId("a"): candidates("a", 5), WorkloadId("b"): candidates("b", 3)}
    known = {WorkloadId(name): workload(name) for name in "ab"}
    done = {ONE: {pools[WorkloadId("a")][0].candidate_id}}
    jobs = plan_jobs([ONE, TWO], pools, known, done, protocol=PROTOCOL, batch_size=2, seed=0)
    planned = [(job.device_id, one.candidate_id) for job in jobs for one in job.batch.candidates]
    wanted = {(d, c.candidate_id) for d in (ONE, TWO) for pool in pools.values() for c in pool}
    assert set(planned) == wanted - {(ONE, pools[WorkloadId("a")][0].candidate_id)}
    assert len(planned) == len(set(planned))
    assert all(len(job.batch.candidates) <= 2 for job in jobs)
    assert jobs == plan_jobs([ONE, TWO], pools, known, done, protocol=PROTOCOL, batch_size=2, seed=0)


def test_workloads_are_interleaved() -> None:
    pools = {WorkloadId(name): candidates(name, 8) for name in "abcdef"}
    known = {WorkloadId(name): workload(name) for name in "abcdef"}
    jobs = plan_jobs([ONE], pools, known, {}, protocol=PROTOCOL, batch_size=2, seed=0)
    order = [job.batch.candidates[0].workload_id for job in jobs]
    assert order != sorted(order)


def test_remeasuring_takes_ok_first_measurements_and_goes_on_where_it_stopped() -> None:
    pool = candidates("a", 20)
    known = {WorkloadId("a"): workload("a")}
    bad = record(pool[0], outcome=Outcome.RUN_FAILED)
    first = [bad, *(record(candidate) for candidate in pool[1:])]
    [job] = plan_remeasure(first, known, protocol=PROTOCOL, count=6, seed=1)
    ids = [candidate.candidate_id for candidate in job.batch.candidates]
    assert len(set(ids)) == 6
    assert bad.candidate_id not in ids
    assert job.batch.attempt == 1
    by_id = {candidate.candidate_id: candidate for candidate in pool}
    half = [record(by_id[candidate_id], attempt=1) for candidate_id in ids[:4]]
    [rest] = plan_remeasure([*first, *half], known, protocol=PROTOCOL, count=6, seed=1)
    assert [candidate.candidate_id for candidate in rest.batch.candidates] == ids[4:]
    every = [record(by_id[candidate_id], attempt=1) for candidate_id in ids]
    assert plan_remeasure([*first, *every], known, protocol=PROTOCOL, count=6, seed=1) == []


def test_remeasuring_nothing_plans_nothing() -> None:
    assert plan_remeasure([], {}, protocol=PROTOCOL, count=30, seed=0) == []


@pytest.mark.parametrize(("count", "workloads", "each"), [(12, 3, 4), (8, 2, 4), (24, 5, 5), (99, 5, 6)])
def test_few_of_each_gives_companions_before_breadth(count: int, workloads: int, each: int) -> None:
    pools = {WorkloadId(name): candidates(name, 6) for name in "abcde"}
    chosen = few_of_each(pools, count, seed=3, per_workload=4)
    assert sum(len(group) for group in chosen.values()) == min(count, 30)
    assert len(chosen) == workloads
    assert max(len(group) for group in chosen.values()) >= each
    ids: list[CandidateId] = [one.candidate_id for group in chosen.values() for one in group]
    assert len(set(ids)) == len(ids)
    assert chosen == few_of_each(pools, count, seed=3, per_workload=4)
