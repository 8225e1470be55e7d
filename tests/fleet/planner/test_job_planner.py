"""From room on a device to jobs: what the answers of agents become."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from agents.device.messages import Proposed, ProposeRequest
from agents.records import Candidate, DeviceId, Outcome, Record, WorkloadId
from fleet.core.events import Job
from fleet.coverage.coverage import Coverage
from fleet.planner.batch_plan import BATCH_SIZE
from fleet.planner.context import PlannerContext
from fleet.planner.job_planner import JobPlanner
from fleet.planner.job_queues import Queues
from fleet.planner.workload_discovery import WorkloadChoice, WorkloadDiscovery
from fleet.state.state_file import StateFile
from fleet.store.store import Store
from tests.record_fixtures import make_record, make_spec, make_workload
from tests.state_fixtures import forget_candidates, take_in

DEVICE = DeviceId("dev-a")
WORKLOAD = make_workload(0xA1B2)


class Outlet:
    """Notes what it is asked; nothing of a turn is durable yet."""

    def __init__(self) -> None:
        self.asked: list[ProposeRequest] = []
        self.jobs: list[Job] = []

    def propose(self, device_id: DeviceId, request: ProposeRequest) -> None:
        self.asked.append(request)


def planner_of(
    file: StateFile, records: Sequence[Record] = (), known: Sequence[Candidate] = ()
) -> tuple[JobPlanner, Outlet]:
    """A planner of a device that has measured some candidates, and whose siblings know others."""
    context, outlet = context_of(file, [WORKLOAD.workload_id])
    take_in(file, context.coverage, records)
    context.coverage.candidates.add(("cpu", WORKLOAD.workload_id), known)
    planner = JobPlanner(context)
    planner.set_workloads([DEVICE], [WORKLOAD])
    return planner, outlet


def context_of(
    file: StateFile, workload_ids: Sequence[WorkloadId], **options: Any
) -> tuple[PlannerContext, Outlet]:
    coverage, outlet = Coverage(file, {DEVICE: "cpu"}, workload_ids, **options), Outlet()
    coverage.set_environment(DEVICE, "e" * 32)
    context = PlannerContext(
        coverage=coverage,
        specs={DEVICE: make_spec(DEVICE)},
        families={DEVICE: "cpu"},
        spaces={DEVICE: "x"},
        propose=outlet.propose,
        submit=outlet.jobs.append,
        log=mock.Mock(),
        thread=mock.Mock(),
        seed=1,
        token="t",
    )
    return context, outlet


def drawn(count: int) -> tuple[Candidate, ...]:
    names = (f"[[{number}]]" for number in range(count))
    return tuple(Candidate(workload_id=WORKLOAD.workload_id, trace=name) for name in names)


def answered(planner: JobPlanner, request: ProposeRequest, count: int) -> None:
    """Let the agent answer with so many candidates, the same ones each time."""
    planner.proposed(Proposed(device_id=DEVICE, incarnation=1, request=request, candidates=drawn(count)))


def test_two_answers_of_one_turn_do_not_make_two_jobs_of_one_candidate(state: StateFile) -> None:
    records = [make_record(number, workload=WORKLOAD.workload_id) for number in range(1, 40)]
    planner, outlet = planner_of(state, records)
    planner.want({DEVICE: 4 * BATCH_SIZE})
    random, evolved = sorted(outlet.asked, key=lambda one: bool(one.parents))
    assert evolved.parents
    assert not random.parents, "both of one workload"

    for request, count in ((random, BATCH_SIZE + 8), (evolved, BATCH_SIZE)):
        answered(planner, request, count)
    taken = [one for job in outlet.jobs for one in job.candidate_ids]
    assert len(taken) == BATCH_SIZE + 8
    assert len(taken) == len(set(taken))
    for job in outlet.jobs:
        planner.queues.opened(job)  # it is durable now
        planner.queues.closed(job.job_id)
    assert not planner.queues.candidate_ids(DEVICE)
    assert planner.queues.waiting(DEVICE, WORKLOAD.workload_id) == 0


def test_what_a_candidate_takes_is_learnt_from_parts_as_from_the_whole() -> None:
    whole, parts = Queues(), Queues()
    assert whole.candidate_secs(DEVICE) == 0.0
    whole.took(DEVICE, BATCH_SIZE, 2.0 * BATCH_SIZE)
    parts.took(DEVICE, 0, 0.5 * BATCH_SIZE)  # a part may end before its first candidate does
    assert parts.candidate_secs(DEVICE) == 0.0
    for _ in range(4):
        parts.took(DEVICE, BATCH_SIZE // 4, 0.375 * BATCH_SIZE)
    assert whole.candidate_secs(DEVICE) == 2.0
    assert parts.candidate_secs(DEVICE) == pytest.approx(2.0, rel=0.1)
    for _ in range(50):
        whole.took(DEVICE, BATCH_SIZE, 1.0 * BATCH_SIZE)
    assert whole.candidate_secs(DEVICE) == pytest.approx(1.0, rel=0.01), "the old is forgotten"


@pytest.mark.parametrize("leaves", [False, True])
def test_what_was_chosen_for_a_device_that_left_becomes_no_job(state: StateFile, leaves: bool) -> None:
    planner, outlet = planner_of(state, known=drawn(BATCH_SIZE // 2))
    planner.want({DEVICE: 4 * BATCH_SIZE})
    assert outlet.asked, "gaps are chosen, and the agent is asked for more"
    assert not outlet.jobs
    if leaves:
        planner.forget(DEVICE)
    planner.agent_gone(DEVICE)
    assert planner.is_idle
    assert bool(outlet.jobs) is not leaves
    planner.want({DEVICE: 4 * BATCH_SIZE})
    assert planner.is_idle is leaves, "nobody knows what it would measure"


def test_a_job_has_the_origin_of_its_own_candidates(state: StateFile) -> None:
    lost = [make_record(n, workload=WORKLOAD.workload_id, outcome=Outcome.LOST, run_secs=()) for n in (1, 2)]
    planner, outlet = planner_of(state, lost)
    planner.want({DEVICE: BATCH_SIZE})
    [asked] = outlet.asked
    answered(planner, asked, 8)
    origins = {job.attempt: (job.origin, len(job.candidate_ids)) for job in outlet.jobs}
    assert origins == {0: ("random", 8), 1: ("paired", 2)}


@contextmanager
def life(folder: Path, **options: Any) -> Iterator[tuple[JobPlanner, Outlet]]:
    """One life of a planner over files that stay; its device has asked for jobs."""
    store_folder = folder / "store"
    with Store.open(store_folder) as store:
        context, outlet = context_of(store.state, (), **options)
        planner = JobPlanner(context)
        choice, specs = WorkloadChoice(networks=("bert-tiny",), count=1), {DEVICE: make_spec(DEVICE)}
        discovery = WorkloadDiscovery(*(choice, store, context, planner, mock.Mock(), specs))
        discovery.listed(specs[DEVICE], [WORKLOAD])
        planner.want({DEVICE: BATCH_SIZE})
        yield planner, outlet
        store.settle()


def use_up(folder: Path, **options: object) -> None:
    """A life in which an agent draws a few candidates, and then finds no other."""
    with life(folder, **options) as (planner, outlet):
        for _ in range(2):
            answered(planner, outlet.asked[-1], 8)
            planner.want({DEVICE: BATCH_SIZE})
        assert len(outlet.asked) == 2


def test_a_space_that_was_used_up_is_not_drawn_from_after_a_restart(tmp_path: Path) -> None:
    use_up(tmp_path)
    for _ in range(2):
        with life(tmp_path) as (_, outlet):
            assert outlet.asked == []
            assert [len(job.candidate_ids) for job in outlet.jobs] == [8], "nothing holds up what is ready"
    forget_candidates(tmp_path / "store")
    with life(tmp_path) as (_, outlet):
        assert len(outlet.asked) == 1, "candidates are lost"


def test_a_space_that_other_versions_or_replay_devices_used_up_is_drawn_from_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_up(tmp_path / "replayed", live=set())
    with life(tmp_path / "replayed", live=set()) as (_, outlet):
        assert len(outlet.asked) == 1
    use_up(tmp_path)
    monkeypatch.setattr("fleet.coverage.candidates.own_versions", lambda: {"apache-tvm": "99"})
    with life(tmp_path) as (_, outlet):
        assert len(outlet.asked) == 1
