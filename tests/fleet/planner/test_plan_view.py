"""What the plan is shown: devices that ask, new ones that share cores with them, and how unsure heads are."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from agents.records import DeviceId, DeviceKind, Workload, WorkloadId
from fleet.core.scheduling import NEW_RECORDS, plan
from fleet.coverage.coverage import Coverage
from fleet.planner.plan_view import PlanViews, turn_of
from fleet.planner.queues import Queues
from fleet.state.state_file import StateFile
from tests.record_fixtures import make_batch, make_spec, make_workload

OLD, NEW, FAR = DeviceId("old"), DeviceId("new"), DeviceId("far")
WORKLOADS = {one.workload_id: one for one in (make_workload(1, (("net", 3),)), make_workload(2))}
WORKLOADS_OF = dict.fromkeys((OLD, NEW, FAR), WORKLOADS)
FAMILIES = dict.fromkeys((OLD, NEW, FAR), "cpu")


def views(state: StateFile, **options: object) -> PlanViews:
    coverage = Coverage(state, FAMILIES, WORKLOADS)
    for device in (OLD, FAR):
        coverage.set_environment(device, "e" * 32)
        first = next(iter(WORKLOADS))
        coverage.add(make_batch(0, NEW_RECORDS + 1, workload=first, device=device))
    turns = dict.fromkeys((OLD, NEW, FAR), "cores")
    made = PlanViews(coverage, Queues(), **{"turns": turns, **options})  # type: ignore[arg-type]
    made.hosts |= {OLD: "here", NEW: "here", FAR: "there"}
    return made


def planned(made: PlanViews, *asking: DeviceId) -> set[DeviceId]:
    view = made.view(asking, WORKLOADS_OF)
    return {ask.device_id for ask in plan(view, dict.fromkeys(asking, 16), seed=0)}


def test_a_neighbour_waits_for_a_new_device_though_that_one_does_not_ask_now(state: StateFile) -> None:
    made = views(state)
    view = made.view([OLD], WORKLOADS_OF)
    assert set(view.devices) == {OLD, NEW}
    assert [worth / 4194304.0 for worth in view.workloads.values()] == [3, 1], "weight x FLOPs"
    assert planned(made, OLD) == set()
    assert planned(made, OLD, NEW) == {NEW}
    assert planned(made, FAR) == {FAR}, "on another host nobody waits"


@pytest.mark.parametrize("why", ["no agent", "closed", "other cores", "another group", "has enough"])
def test_nobody_waits_for_a_neighbour_that(state: StateFile, why: str) -> None:
    made = views(state, is_open=lambda one: one != NEW) if why == "closed" else views(state)
    of: dict[DeviceId, Mapping[WorkloadId, Workload]] = dict(WORKLOADS_OF)
    if why == "no agent":
        del made.hosts[NEW]
    elif why == "other cores":
        made._turns[NEW] = "cuda-0"
    elif why == "another group":
        of[NEW] = dict(WORKLOADS)
    elif why == "has enough":
        made._coverage.set_environment(NEW, "e" * 32)
        made._coverage.add(make_batch(0, NEW_RECORDS + 1, workload=next(iter(WORKLOADS)), device=NEW))
    view = made.view([OLD], of)
    assert plan(view, {OLD: 16}, seed=0)


def test_what_devices_take_turns_for() -> None:
    assert turn_of(make_spec()) == "cores"
    assert turn_of(make_spec(kind=DeviceKind.CUDA, index=1)) == "cuda-1"
    assert {turn_of(make_spec(kind=one)) for one in (DeviceKind.REPLAY, DeviceKind.RPC)} == {""}


def test_uncertainties_of_heads_are_shown_and_only_of_heads(state: StateFile) -> None:
    first, second = WORKLOADS
    made = views(state, uncertainty=lambda device, workloads: {first: 0.4})
    made.heads.add(OLD)
    cells = made.view([OLD, FAR], WORKLOADS_OF).devices
    assert [cells[OLD].cells[one].interval for one in (first, second)] == [0.4, None]
    assert {cells[FAR].cells[one].interval for one in (first, second)} == {None}


def test_an_unsure_head_gets_more_of_what_it_is_unsure_of(state: StateFile) -> None:
    alike = {key: replace(one, flops=1e6, networks=()) for key, one in WORKLOADS.items()}
    first, second = alike
    of = {OLD: alike}
    made = views(state, uncertainty=lambda device, workloads: {first: 0.05, second: 0.4}, turns={})
    made.heads.add(OLD)
    made._coverage.add(make_batch(0, NEW_RECORDS + 1, workload=second, device=OLD))
    counts = dict.fromkeys(alike, 0)
    for seed in range(20):
        for ask in plan(made.view([OLD], of), {OLD: 32}, seed):
            counts[ask.workload_id] += ask.count
    assert counts[second] > 2 * counts[first]
