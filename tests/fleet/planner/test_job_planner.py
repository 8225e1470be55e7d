"""From room on devices to jobs: whom the planner asks for candidates, and what the answers become."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agents.device.messages import Proposed, ProposeRequest
from agents.records import Candidate, DeviceId, DeviceKind, Outcome, Record, Workload
from fleet.config.sections import WorkloadsSection
from fleet.core.events import Job
from fleet.core.scheduling import NEW_RECORDS
from fleet.coverage.coverage import Coverage
from fleet.planner.batch_plan import BATCH_SIZE
from fleet.planner.candidate_requests import CandidateRequest, space_of
from fleet.planner.job_planner import JobPlanner, PlannerContext
from fleet.planner.job_queues import Queues, turn_of
from fleet.planner.noise_runs import NoiseRuns
from fleet.planner.workload_discovery import WorkloadDiscovery
from fleet.state.state_file import StateFile
from fleet.store.store import Store
from tests.record_fixtures import make_batch, make_record, make_spec, make_workload
from tests.state_fixtures import forget_candidates, state_of, take_in
from tests.transport_fixtures import replay_spec

WORKLOAD, OTHER = make_workload(1), make_workload(2)
A, B, C, D = map(DeviceId, "abcd")
#: What `a`, `b` and `c` draw from is the same; of `d` nobody knows.
SPACES = {A: "x", B: "x", C: "x"}


def drawn(count: int) -> list[Candidate]:
    return [Candidate(workload_id=WORKLOAD.workload_id, trace=f"[[{number}]]") for number in range(count)]


class Lab:
    """A planner of some devices, and their agents, which answer when a test says so."""

    def __init__(
        self, state: StateFile, devices: Sequence[DeviceId] = (A,), *workloads: Workload, **options: Any
    ) -> None:
        self._state = state
        families, live = dict.fromkeys(devices, "cpu"), options.pop("live", None)
        spaces = options.pop("spaces", SPACES)
        self.coverage = Coverage(state, families, [one.workload_id for one in workloads], live=live)
        self.asked: list[tuple[DeviceId, ProposeRequest]] = []
        self.jobs: list[Job] = []
        self.context = PlannerContext(
            coverage=self.coverage,
            specs={name: make_spec(name) for name in devices},
            spaces=spaces,
            propose=lambda *question: self.asked.append(question),
            submit=self.jobs.append,
            log=mock.Mock(),
            thread=mock.Mock(),
            seed=7,
            token="t",
            **options,
        )
        self.planner = JobPlanner(self.context)
        for name in devices:
            self.coverage.set_environment(name, "e" * 32)
            self.planner.hosts[name] = "here"
        if workloads:
            self.planner.set_workloads(devices, workloads)

    def take_in(self, records: Sequence[Record]) -> None:
        take_in(self._state, self.coverage, records)

    def want(self, *devices: DeviceId, room: int = 4 * BATCH_SIZE) -> set[DeviceId]:
        """Give devices room; returns those for which anything is done."""
        before = len(self.asked), len(self.jobs)
        self.planner.want(dict.fromkeys(devices, room))
        asked = {device for device, _ in self.asked[before[0] :]}
        return asked | {job.device_id for job in self.jobs[before[1] :]}

    def answer(self, number: int, candidates: Sequence[Candidate]) -> None:
        """Let the agent answer that was asked so; -1 for the last one."""
        device_id, request = self.asked[number]
        self.planner.proposed(
            Proposed(device_id=device_id, incarnation=1, request=request, candidates=tuple(candidates))
        )

    def taken(self, device: DeviceId) -> list[str]:
        return [one for job in self.jobs if job.device_id == device for one in job.candidate_ids]


# ---- who is asked ----


def test_one_agent_is_asked_for_all_that_draw_alike_and_all_get_what_it_draws(state: StateFile) -> None:
    lab = Lab(state, (A, B, C, D), WORKLOAD)
    lab.want(A, B)
    lab.want(C, D)
    assert [device for device, _ in lab.asked] == [A, D], "an answer that is on its way is waited for"
    lab.answer(0, drawn(4 * BATCH_SIZE))
    assert sorted(lab.taken(A)) == sorted(lab.taken(B)) == sorted(lab.taken(C))
    assert len(set(lab.taken(A))) == 4 * BATCH_SIZE
    assert lab.taken(D) == []
    lab.answer(0, drawn(5 * BATCH_SIZE))
    assert len(lab.taken(A)) == 4 * BATCH_SIZE, "an answer that comes twice is for nobody"


@given(
    st.lists(
        st.tuples(st.sampled_from([A, B, C, D]), st.integers(1, 9), st.booleans(), st.sampled_from("asl")),
        max_size=30,
    )
)
@settings(max_examples=50, deadline=None)
def test_every_request_is_answered_once_with_enough(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[DeviceId, int, bool, str]]
) -> None:
    with state_of(tmp_path_factory.mktemp("planner")) as state:
        lab = Lab(state, (A, B, C, D), WORKLOAD)
        requests, unanswered, in_flight = (
            lab.planner.requests,
            dict[str, CandidateRequest](),
            dict[str, int](),
        )

        def send() -> None:
            requests.send()
            in_flight.update({message.request_id: message.count for _, message in lab.asked})
            lab.asked.clear()

        def end(name: str, *, is_lost: bool) -> None:
            count = in_flight.pop(name)
            if is_lost:
                unanswered.pop(name)
                requests.unanswered([name], lambda request: request.request_id in unanswered)
                return
            question = requests.answered(name)
            for request in question.requests:
                assert unanswered.pop(request.request_id).count <= count

        for number, (device, count, is_idle, what) in enumerate(steps):
            request = CandidateRequest(
                device_id=device, request_id=f"r{number}", workload=WORKLOAD, count=count, is_idle=is_idle
            )
            unanswered[request.request_id] = request
            requests.add(request)
            if what != "a":
                send()
            if what == "l" and in_flight:
                end(min(in_flight), is_lost=True)
        send()
        while in_flight:
            end(min(in_flight), is_lost=False)
        assert unanswered == {}


def test_an_agent_is_told_the_latest_and_is_not_believed_when_it_draws_an_older_one(
    state: StateFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, old = Lab(state, (A,), WORKLOAD), make_record(7, workload=WORKLOAD.workload_id, device=A)
    monkeypatch.setattr("fleet.planner.candidate_requests.MOST_EXCLUDED", 2)
    older = Candidate(workload_id=WORKLOAD.workload_id, trace=old.trace)
    lab.take_in([old])
    latest = drawn(2)
    lab.coverage.candidates.add(("cpu", WORKLOAD.workload_id), latest)
    lab.want(A, room=8)
    [(_, request)] = lab.asked
    assert request.exclude == {one.candidate_id for one in latest}
    assert request.seed == 7 + 3, "draws of a seed are the same each time"
    fresh = drawn(3)[2:]
    lab.answer(0, [older, *fresh])
    assert older.candidate_id not in lab.taken(A)
    assert fresh[0].candidate_id in lab.taken(A)
    lab.want(A)
    lab.answer(-1, [older])
    lab.want(A)
    assert len(lab.asked) == 3, "others may be left: it was not told all"
    lab.answer(-1, [])
    lab.want(A)
    assert len(lab.asked) == 3, "there is no other"


def test_devices_draw_alike_if_their_programs_are_made_alike(tmp_path: Path) -> None:
    one, other = (replay_spec(tmp_path / "x.parquet", name) for name in ("one", "two"))
    assert space_of(one) == space_of(other)
    assert space_of(one) != space_of(replay_spec(tmp_path / "y.parquet", "one"))
    spec = make_spec()
    changed = msgspec.structs.replace(spec, target_json='{"kind":"llvm","num-cores":2}')
    assert space_of(spec) != space_of(changed)


# ---- who waits for whom ----


def neighbours(state: StateFile, **options: Any) -> Lab:
    """Two devices of one host, of which one is new, and one elsewhere."""
    turns = dict.fromkeys((A, B, C), "cores")
    lab = Lab(state, (A, B, C), WORKLOAD, OTHER, turns=turns, spaces={}, **options)
    lab.planner.hosts[C] = "there"
    for device in (A, C):
        lab.take_in(make_batch(0, NEW_RECORDS + 1, workload=WORKLOAD.workload_id, device=device))
    return lab


def test_neighbours_wait_for_a_new_device_as_long_as_it_needs_their_cores(state: StateFile) -> None:
    lab = neighbours(state)
    assert lab.want(A) == set(), "though the new one does not ask now"
    assert lab.want(A, B, C) == {B, C}, "on another host nobody waits"
    del lab.planner.hosts[B]
    assert lab.want(A) == {A}, "it has no agent"


@pytest.mark.parametrize("why", ["it measures others", "it has enough", "its policy is closed"])
def test_nobody_waits_for_a_neighbour_that_needs_no_cores(state: StateFile, why: str) -> None:
    lab = neighbours(state, is_open=lambda device: device != B or "closed" not in why)
    if "others" in why:
        lab.planner.set_workloads([B], [OTHER])
    elif "enough" in why:
        lab.take_in(make_batch(0, NEW_RECORDS, workload=WORKLOAD.workload_id, device=B))
    assert lab.want(A) == {A}


def test_what_devices_take_turns_for() -> None:
    assert turn_of(make_spec()) == "cores"
    assert turn_of(make_spec(kind=DeviceKind.CUDA, index=1)) == "cuda-1"
    assert {turn_of(make_spec(kind=one)) for one in (DeviceKind.REPLAY, DeviceKind.RPC)} == {""}


def test_an_unsure_head_gets_more_of_what_it_is_unsure_of(state: StateFile) -> None:
    alike = [replace(one, flops=1e6) for one in (WORKLOAD, OTHER)]
    unsure = {WORKLOAD.workload_id: 0.05, OTHER.workload_id: 0.4}
    lab = Lab(state, (A,), *alike, uncertainty=lambda *_: unsure)
    lab.planner.heads.add(A)
    for workload in alike:
        lab.take_in(make_batch(0, NEW_RECORDS + 1, workload=workload.workload_id, device=A))
    lab.want(A, room=16 * BATCH_SIZE)
    counts = {
        one.workload_id: sum(asked.count for _, asked in lab.asked if asked.workload == one) for one in alike
    }
    assert counts[OTHER.workload_id] > 2 * counts[WORKLOAD.workload_id]


# ---- what becomes a job ----


def test_two_answers_of_one_turn_do_not_make_two_jobs_of_one_candidate(state: StateFile) -> None:
    lab = Lab(state, (A,), WORKLOAD)
    lab.take_in([make_record(number, workload=WORKLOAD.workload_id, device=A) for number in range(1, 40)])
    lab.want(A)
    assert sorted(bool(request.parents) for _, request in lab.asked) == [False, True], "both of one workload"
    for number, count in ((0, BATCH_SIZE + 8), (1, BATCH_SIZE)):
        lab.answer(number, drawn(count))
    assert len(lab.taken(A)) == len(set(lab.taken(A))) == BATCH_SIZE + 8
    for job in lab.jobs:
        lab.planner.queues.opened(job)  # it is durable now
        lab.planner.queues.closed(job.job_id)
    assert not lab.planner.queues.candidate_ids(A)
    assert lab.planner.queues.waiting(A, WORKLOAD.workload_id) == 0


def test_what_a_candidate_takes_is_learnt_from_parts_as_from_the_whole() -> None:
    whole, parts = Queues(), Queues()
    assert whole.candidate_secs(A) == 0.0
    whole.took(A, BATCH_SIZE, 2.0 * BATCH_SIZE)
    parts.took(A, 0, 0.5 * BATCH_SIZE)  # a part may end before its first candidate does
    assert parts.candidate_secs(A) == 0.0
    for _ in range(4):
        parts.took(A, BATCH_SIZE // 4, 0.375 * BATCH_SIZE)
    assert whole.candidate_secs(A) == 2.0
    assert parts.candidate_secs(A) == pytest.approx(2.0, rel=0.1)
    for _ in range(50):
        whole.took(A, BATCH_SIZE, 1.0 * BATCH_SIZE)
    assert whole.candidate_secs(A) == pytest.approx(1.0, rel=0.01), "the old is forgotten"


@pytest.mark.parametrize("leaves", [False, True])
def test_what_was_chosen_for_a_device_that_left_becomes_no_job(state: StateFile, leaves: bool) -> None:
    lab = Lab(state, (A,), WORKLOAD)
    lab.coverage.candidates.add(("cpu", WORKLOAD.workload_id), drawn(BATCH_SIZE // 2))
    lab.want(A)
    assert lab.asked, "gaps are chosen, and the agent is asked for more"
    assert not lab.jobs
    if leaves:
        lab.planner.forget(A)
    lab.planner.agent_gone(A)
    assert lab.planner.is_idle
    assert bool(lab.jobs) is not leaves
    lab.want(A)
    assert lab.planner.is_idle is leaves, "nobody knows what it would measure"


def test_a_job_has_the_origin_of_its_own_candidates(state: StateFile) -> None:
    lab, lost = Lab(state, (A,), WORKLOAD), {"outcome": Outcome.LOST, "run_secs": ()}
    lab.take_in([make_record(n, workload=WORKLOAD.workload_id, device=A, **lost) for n in (1, 2)])
    lab.want(A, room=BATCH_SIZE)
    lab.answer(0, drawn(8))
    origins = {job.attempt: (job.origin, len(job.candidate_ids)) for job in lab.jobs}
    assert origins == {0: ("random", 8), 1: ("paired", 2)}


# ---- after a restart ----


@contextmanager
def life(folder: Path, live: Collection[str] | None = None) -> Iterator[Lab]:
    """One life of a planner over files that stay; its device has asked for jobs."""
    with Store.open(folder / "store") as store:
        lab = Lab(store.state, live=live)
        specs = lab.context.specs
        choice = WorkloadsSection(networks=("bert-tiny",), count=1, min_flops=0, max_flops=1e30)
        discovery = WorkloadDiscovery(choice, store, lab.context, lab.planner, mock.Mock(), specs)
        discovery.listed(specs[A], [WORKLOAD])
        lab.want(A, room=BATCH_SIZE)
        yield lab
        store.settle()


def use_up(folder: Path, live: Collection[str] | None = None) -> None:
    """A life in which an agent draws a few candidates, and then finds no other."""
    with life(folder, live) as lab:
        for _ in range(2):
            lab.answer(-1, drawn(8))
            lab.want(A, room=BATCH_SIZE)
        assert len(lab.asked) == 2


def test_a_space_that_was_used_up_is_not_drawn_from_after_a_restart(tmp_path: Path) -> None:
    use_up(tmp_path)
    for _ in range(2):
        with life(tmp_path) as lab:
            assert lab.asked == []
            assert [len(job.candidate_ids) for job in lab.jobs] == [8], "nothing holds up what is ready"
    forget_candidates(tmp_path / "store")
    with life(tmp_path) as lab:
        assert len(lab.asked) == 1, "candidates are lost"


def test_a_space_that_other_versions_or_replay_devices_used_up_is_drawn_from_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_up(tmp_path / "replayed", live=set())
    with life(tmp_path / "replayed", live=set()) as lab:
        assert len(lab.asked) == 1
    use_up(tmp_path)
    monkeypatch.setattr("fleet.coverage.candidates.own_versions", lambda: {"apache-tvm": "99"})
    with life(tmp_path) as lab:
        assert len(lab.asked) == 1


# ---- the daily A/A run ----


def runs_of(lab: Lab, store: Any, devices: Mapping[DeviceId, Any]) -> NoiseRuns:
    thread = lab.context.thread
    return NoiseRuns(lab.coverage, thread, lab.planner, store, devices, count=4, seed=0)


@pytest.mark.parametrize("last", [0.0, 1_800_000_000.0, 1_831_536_000.0], ids=["never", "today", "ahead"])
def test_a_run_is_due_once_a_day_a_few_at_a_time_whatever_its_clock_says(
    state: StateFile, last: float
) -> None:
    now, day = 1_800_000_000.0, 86_400.0
    devices = [DeviceId(name) for name in "abcdef"]
    lab, store = Lab(state, devices, WORKLOAD), mock.Mock()
    for device in devices:
        count = 31 if device == B else 40  # too few to choose steady ones from
        half = {"origin": "noise", "attempt": 2, "measured_at": last} if last else {}
        lab.take_in(make_batch(0, count, workload=WORKLOAD.workload_id, device=device, **half))
    runs = runs_of(lab, store, dict.fromkeys(devices, make_spec()))

    def begun(at: float) -> str:
        due = [one for one in devices if runs.is_due(one, at, at) and not runs.begin(one, "e", at, at)]
        return "".join(due)

    begins = now + (day if last else 0.0)
    if last:
        assert begun(now) == begun(begins - 1) == ""
    assert begun(begins) == "acde"
    assert store.settle.call_count == 4, "the thread reads what is durable"
    assert begun(begins + 5) == ""
    ask: mock.Mock = lab.context.thread.ask  # type: ignore[assignment]
    for call in ask.call_args_list:
        call.args[1]([])
    assert begun(begins + 10) == "f", "one that found nothing is not tried again at once"
    ask.call_args.args[1]([])
    assert begun(begins + 1801) == "acde"
