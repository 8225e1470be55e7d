"""What a collection measures: which workloads, how many candidates of each, in which batches, what again."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agents.records import Candidate, DeviceId, Outcome, Record, Workload, WorkloadId
from agents.sandbox.canary_watch import MOST_AHEAD
from fleet.planner.batch_plan import (
    WORKLOADS_PER_BATCH,
    DeviceProgress,
    cut_batches,
    plan_jobs,
    plan_noise,
    remeasure_sample,
)
from fleet.planner.selection import allocate, best_traces, choose_workloads
from fleet.store.noise import noise_floor
from tests.record_fixtures import make_record, make_workload, record_for
from tests.table_fixtures import cells

ONE, TWO = DeviceId("one"), DeviceId("two")
BOTH = (ONE, TWO)
NOW = 1_800_000_000.0


def workload(
    name: str, operator: str = "GMM", flops: float = 1e6, networks: tuple[tuple[str, int], ...] = ()
) -> Workload:
    changes = {"workload_id": WorkloadId(name), "name": name, "operator": operator, "flops": flops}
    return replace(make_workload(0, networks), **changes)


def candidates(workload_id: str, count: int) -> list[Candidate]:
    return [Candidate(workload_id=WorkloadId(workload_id), trace=f"[{i}]") for i in range(count)]


def known(names: str) -> dict[WorkloadId, Workload]:
    return {WorkloadId(name): workload(name) for name in names}


def record(candidate: Candidate, **changes: Any) -> Record:
    run_secs = () if "outcome" in changes else (1e-3,)
    values = {"device_id": ONE, "run_secs": run_secs, "environment_id": "e"}
    return record_for(candidate, **values | changes)


_DONE = st.lists(st.tuples(st.sampled_from([ONE, TWO]), st.sampled_from("abcdef"), st.integers(0, 11)))


@given(
    sizes=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 12)),
    done=_DONE,
    batch_size=st.integers(1, 30),
    seed=st.integers(0, 3),
)
def test_batches_cover_what_is_missing_and_nothing_else(
    sizes: dict[str, int], done: list[tuple[DeviceId, str, int]], batch_size: int, seed: int
) -> None:
    pools = {WorkloadId(name): candidates(name, size) for name, size in sizes.items()}
    progress = {device_id: DeviceProgress() for device_id in BOTH}
    for device_id, name, place in done:
        measured = Candidate(workload_id=WorkloadId(name), trace=f"[{place}]")
        progress[device_id].add(measured.candidate_id, 0, False)
    with mock.patch("fleet.planner.batch_plan.BATCH_SIZE", batch_size):
        batches = plan_jobs(BOTH, pools, progress, seed=seed)
        assert batches == plan_jobs(BOTH, pools, progress, seed=seed)
    expected = {
        (device_id, candidate.candidate_id)
        for device_id in BOTH
        for pool in pools.values()
        for candidate in pool
        if candidate.candidate_id not in progress[device_id].measured
    }
    planned = [(batch.device_id, one.candidate_id) for batch in batches for one in batch.candidates]
    assert sorted(planned) == sorted(expected)
    for batch in batches:
        assert 0 < len(batch.candidates) <= batch_size
        assert len({candidate.workload_id for candidate in batch.candidates}) <= WORKLOADS_PER_BATCH
        assert batch.attempt == 0


def test_workloads_are_mixed_and_devices_keep_the_same_order() -> None:
    batches = plan_jobs(BOTH, {WorkloadId(name): candidates(name, 12) for name in "abcdefgh"}, {}, seed=0)
    first, other = ([batch.candidates for batch in batches if batch.device_id == name] for name in BOTH)
    assert first == other
    order = [candidate.workload_id for candidate in first[0]]
    assert sum(one != other for one, other in pairwise(order)) > len(set(order)) > 1


def test_what_is_lost_is_tried_again_and_what_drifted_is_measured_again() -> None:
    [lost, drifted, fine] = pool = candidates("a", 3)
    progress = DeviceProgress()
    for attempt, is_lost in ((2, True), (0, True)):
        progress.add(lost.candidate_id, attempt, is_lost)
        progress.add(fine.candidate_id, attempt, is_lost)
    progress.add(fine.candidate_id, 1, False)
    progress.add_outdated(drifted.candidate_id, 1)
    batches = plan_jobs([ONE], {WorkloadId("a"): pool}, {ONE: progress}, seed=0)
    again = {batch.attempt: [(one.trace, one.origin) for one in batch.candidates] for batch in batches}
    assert again == {3: [("[0]", "random")], 2 + MOST_AHEAD: [("[1]", "remeasure")]}


#: Records of a candidate, one an attempt; the attempt of its second measurement, and those of an A/A run.
AGAIN = """
ok          | 1 | 3 4
lost, ok    | 2 | 5 6
run_failed  |   |
run_timeout |   |
rejected    |   |
ok early    |   |
"""


@pytest.mark.parametrize(("measured", "second", "noise"), cells(AGAIN))
def test_only_what_was_measured_in_full_is_measured_again(measured: str, second: str, noise: str) -> None:
    [candidate], records = candidates("a", 1), []
    for attempt, text in enumerate(measured.split(", ")):
        outcome, *early = text.split()
        changes: dict[str, Any] = {"quality": '{"stopped_early":true}'} if early else {}
        changes |= {} if outcome == "ok" else {"outcome": Outcome(outcome)}
        records.append(record(candidate, attempt=attempt, **changes))
    assert [*map(str, remeasure_sample(records, count=9, seed=0).values())] == second.split()
    jobs = plan_noise(records, known("a"), count=9, seed=0)
    assert [str(job.attempt) for job in jobs] == noise.split()


def test_remeasuring_goes_on_where_it_stopped() -> None:
    pool = candidates("a", 20)
    first = [record(candidate) for candidate in pool]
    sample = remeasure_sample(first, count=6, seed=1)
    assert len(sample) == 6
    again = [replace(one, origin="remeasure") for one in pool if one.candidate_id in sample]
    [job] = cut_batches(ONE, again, sample)
    assert job.attempt == 1
    every = [record(candidate, attempt=1) for candidate in job.candidates]
    half = [one for one in every if one.candidate_id in list(sample)[:4]]
    assert list(remeasure_sample([*first, *half], count=6, seed=1)) == list(sample)[4:]
    assert remeasure_sample([*first, *every], count=6, seed=1) == {}
    assert cut_batches(ONE, [], {}) == []


@given(
    attempts=st.lists(st.integers(0, 5), min_size=1, max_size=30),
    count=st.integers(1, 12),
    seed=st.integers(0, 5),
)
def test_an_aa_run_measures_the_same_candidates_twice(attempts: list[int], count: int, seed: int) -> None:
    pool = candidates("a", len(attempts))
    records = [
        record(one, attempt=attempt)
        for one, highest in zip(pool, attempts, strict=True)
        for attempt in range(highest + 1)
    ]
    records.append(record(Candidate(workload_id=WorkloadId("gone"), trace="[]")))
    jobs = plan_noise(records, known("a"), count=count, seed=seed)
    earlier, later = jobs
    chosen = {one.candidate_id for one in earlier.candidates}
    assert chosen == {one.candidate_id for one in later.candidates}
    assert len(earlier.candidates) == len(chosen) == min(count, len(pool))
    assert {one.origin for job in jobs for one in job.candidates} == {"noise"}
    assert earlier.attempt % 2 == 1
    assert later.attempt == earlier.attempt + 1
    # Room is left for what the agent itself measures again.
    assert earlier.attempt > max(r.attempt for r in records if r.candidate_id in chosen) + MOST_AHEAD
    assert jobs == plan_noise(reversed(records), known("a"), count=count, seed=seed)
    measured = [record(one, attempt=job.attempt, measured_at=NOW) for job in jobs for one in job.candidates]
    floor = noise_floor([*records, *measured])
    assert floor.pairs == len(chosen)


# ---- workloads and their shares ----


@given(count=st.integers(1, 40), sizes=st.lists(st.integers(0, 12), min_size=1, max_size=5))
def test_choosing_gives_distinct_workloads_and_exactly_what_there_is(count: int, sizes: list[int]) -> None:
    listed = [workload(f"{op}-{i}", f"op{op}", 1.0 + i) for op, size in enumerate(sizes) for i in range(size)]
    chosen = choose_workloads(listed, count=count)
    assert len({one.workload_id for one in chosen}) == len(chosen) == min(count, len(listed))
    assert chosen == choose_workloads(list(reversed(listed)), count=count)
    shares = Counter(one.operator for one in chosen)
    short = [shares[f"op{op}"] for op, size in enumerate(sizes) if shares[f"op{op}"] < size]
    assert all(max(shares.values()) - share <= 1 for share in short), "operators take turns"


def test_chosen_workloads_spread_over_sizes_within_bounds() -> None:
    listed = [workload(f"g{i}", "GMM", 1e6 * (i + 1)) for i in range(9)]
    assert [one.flops for one in choose_workloads(listed, count=3)] == [2e6, 5e6, 8e6]
    bounded = choose_workloads(listed, count=99, min_flops=2e6, max_flops=3e6)
    assert [one.flops for one in bounded] == [2e6, 3e6]


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


def test_the_best_traces_are_steady_fast_and_distinct() -> None:
    records = [make_record(n, workload="w", outcome=Outcome.OK, run_secs=(n * 1e-3,)) for n in range(1, 8)]
    again = make_record(5, workload="w", outcome=Outcome.OK, run_secs=(1e-4,), attempt=1)
    suspect = make_record(20, workload="w", outcome=Outcome.OK, run_secs=(1e-9,), quality='{"suspect":true}')
    failed = make_record(21, workload="w", outcome=Outcome.RUN_TIMEOUT, run_secs=())
    other = make_record(22, workload="v", outcome=Outcome.OK, run_secs=(1e-9,))
    found = best_traces([*records, again, suspect, failed, other], [WorkloadId("w")], 3)
    assert found == {WorkloadId("w"): [records[4].trace, records[0].trace, records[1].trace]}
