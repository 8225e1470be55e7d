"""What the plan is shown: devices that ask, new ones that share cores with them, and how unsure heads are."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agents.records import DeviceId, DeviceKind, WorkloadId
from fleet.core.scheduling import NEW_RECORDS, plan
from fleet.coverage.coverage import Coverage
from fleet.planner.job_queues import Queues
from fleet.planner.plan_view import PlanViews, turn_of
from fleet.state.state_file import StateFile
from tests.record_fixtures import make_batch, make_spec, make_workload
from tests.state_fixtures import take_in

OLD, NEW, FAR = DeviceId("old"), DeviceId("new"), DeviceId("far")
WORKLOADS = {one.workload_id: one for one in (make_workload(1, (("net", 3),)), make_workload(2))}
FIRST, SECOND = WORKLOADS
WORKLOADS_OF = dict.fromkeys((OLD, NEW, FAR), WORKLOADS)


class Lab:
    """Two devices of one host and one elsewhere; all but the new one have enough records."""

    def __init__(self, state: StateFile) -> None:
        self._state, self.coverage = state, Coverage(state, dict.fromkeys((OLD, NEW, FAR), "cpu"), WORKLOADS)
        for device in (OLD, FAR):
            self.measure(device)

    def measure(self, device: DeviceId, workload: WorkloadId = FIRST) -> None:
        self.coverage.set_environment(device, "e" * 32)
        records = make_batch(0, NEW_RECORDS + 1, workload=workload, device=device)
        take_in(self._state, self.coverage, records)

    def views(self, **options: Any) -> PlanViews:
        turns = dict.fromkeys((OLD, NEW, FAR), "cores")
        made = PlanViews(self.coverage, Queues(), **{"turns": turns, **options})
        made.hosts |= {OLD: "here", NEW: "here", FAR: "there"}
        return made


@pytest.fixture
def lab(state: StateFile) -> Lab:
    return Lab(state)


def planned(made: PlanViews, *asking: DeviceId) -> set[DeviceId]:
    view = made.view(asking, WORKLOADS_OF)
    return {ask.device_id for ask in plan(view, dict.fromkeys(asking, 16), seed=0)}


def test_a_neighbour_waits_for_a_new_device_though_that_one_does_not_ask_now(lab: Lab) -> None:
    made = lab.views()
    view = made.view([OLD], WORKLOADS_OF)
    assert set(view.devices) == {OLD, NEW}
    assert [worth / 4194304.0 for worth in view.workloads.values()] == [3, 1], "weight x FLOPs"
    assert planned(made, OLD) == set()
    assert planned(made, OLD, NEW) == {NEW}
    assert planned(made, FAR) == {FAR}, "on another host nobody waits"
    del made.hosts[NEW]
    assert planned(made, OLD), "it has no agent"


@pytest.mark.parametrize(
    "options",
    [
        {"is_open": lambda device: device != NEW},
        {"turns": {OLD: "cores", NEW: "cuda-0", FAR: "cores"}},
    ],
    ids=["closed", "other cores"],
)
def test_nobody_waits_for_a_neighbour_that_does_not_need_the_cores(lab: Lab, options: dict[str, Any]) -> None:
    assert planned(lab.views(**options), OLD)


def test_nobody_waits_for_a_neighbour_of_another_group_or_with_enough(lab: Lab) -> None:
    made = lab.views()
    assert plan(made.view([OLD], {**WORKLOADS_OF, NEW: dict(WORKLOADS)}), {OLD: 16}, seed=0)
    lab.measure(NEW)
    assert planned(made, OLD)


def test_what_devices_take_turns_for() -> None:
    assert turn_of(make_spec()) == "cores"
    assert turn_of(make_spec(kind=DeviceKind.CUDA, index=1)) == "cuda-1"
    assert {turn_of(make_spec(kind=one)) for one in (DeviceKind.REPLAY, DeviceKind.RPC)} == {""}


def test_an_unsure_head_gets_more_of_what_it_is_unsure_of(lab: Lab) -> None:
    alike = {key: replace(one, flops=1e6, networks=()) for key, one in WORKLOADS.items()}
    made = lab.views(uncertainty=lambda device, workloads: {FIRST: 0.05, SECOND: 0.4}, turns={})
    made.heads.add(OLD)
    lab.measure(OLD, SECOND)
    counts = dict.fromkeys(alike, 0)
    for seed in range(20):
        for ask in plan(made.view([OLD], {OLD: alike}), {OLD: 32}, seed):
            counts[ask.workload_id] += ask.count
    assert counts[SECOND] > 2 * counts[FIRST]
    cells = made.view([FAR], WORKLOADS_OF).devices[FAR].cells
    assert {cells[one].interval for one in alike} == {None}, "only heads are unsure"
