"""From room on devices to jobs: whom the planner asks for candidates, and what the answers become."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from msgspec.structs import replace

from agents.device.messages import Proposed, ProposeRequest
from agents.records import Candidate, DeviceId, DeviceKind, Outcome, Record, Workload
from fleet.config.sections import WorkloadsSection
from fleet.core.events import Job
from fleet.core.scheduling import NEW_RECORDS
from fleet.coverage.coverage import Coverage
from fleet.planner.batch_plan import BATCH_SIZE
from fleet.planner.candidate_requests import space_of
from fleet.planner.job_planner import JobPlanner
from fleet.planner.job_queues import Queues, turn_of
from fleet.planner.noise_runs import NoiseRuns
from fleet.planner.planner_context import PlannerContext
from fleet.planner.workload_discovery import WorkloadDiscovery
from fleet.state.state_file import StateFile
from fleet.store.store import Store
from tests.record_fixtures import make_batch, make_record, make_spec, make_workload
from tests.scenario_fixtures import fields_of, play, read_scenarios
from tests.state_fixtures import forget_candidates, take_in
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


def neighbours(state: StateFile, **options: Any) -> Lab:
    """Two devices of one host, of which one is new, and one elsewhere."""
    turns = dict.fromkeys((A, B, C), "cores")
    lab = Lab(state, (A, B, C), WORKLOAD, OTHER, turns=turns, spaces={}, **options)
    lab.planner.hosts[C] = "there"
    for device in (A, C):
        lab.take_in(make_batch(0, NEW_RECORDS + 1, workload=WORKLOAD.workload_id, device=device))
    return lab


class Scenario:
    """A planner with its devices, and for which of them the last wish did anything."""

    def __init__(self, state: StateFile) -> None:
        self.state, self.served, self.closed = state, list[str](), set[DeviceId]()

    def act(self, line: str) -> None:
        words, _, fields = line.partition(" | ")
        word, *names = words.split()
        devices = list(map(DeviceId, names))
        match word, names:
            case "lab", _:
                self.lab = Lab(self.state, devices, WORKLOAD)
            case "neighbours", _:
                self.lab = neighbours(self.state, is_open=lambda device: device not in self.closed)
            case "want", _:
                self.served = sorted(self.lab.want(*devices, **fields_of(fields)))
            case "answer", [number, count]:
                self.lab.answer(int(number), drawn(int(count)))
            case "known", [count]:
                self.lab.coverage.candidates.add(("cpu", WORKLOAD.workload_id), drawn(int(count)))
            case "records" | "lost", [device, start, count]:
                lost = {"outcome": Outcome.LOST, "run_secs": ()} if word == "lost" else {}
                place = {"workload": WORKLOAD.workload_id, "device": device}
                self.lab.take_in(make_batch(int(start), int(count), **place, **lost))
            case "others", _:
                self.lab.planner.set_workloads(devices, [OTHER])
            case "close", _:
                self.closed |= set(devices)
            case "gone", [device]:
                self.lab.planner.agent_gone(DeviceId(device))
            case "forget", [device]:
                self.lab.planner.forget(DeviceId(device))
            case "end", _:
                for job in self.lab.jobs:
                    self.lab.planner.queues.opened(job)  # it is durable now
                    self.lab.planner.queues.closed(job.job_id)

    def value(self, path: str) -> Any:
        word, *names = path.split()
        planner, asked = self.lab.planner, self.lab.asked
        match word, names:
            case "served", _:
                return self.served
            case "asked", _:
                return [device for device, _ in asked]
            case "parents", _:
                return sorted(bool(request.parents) for _, request in asked)
            case "taken", [device]:
                return sorted(self.lab.taken(DeviceId(device)))
            case "count", [device]:
                taken = self.lab.taken(DeviceId(device))
                assert len(set(taken)) == len(taken)
                return len(taken)
            case "jobs", _:
                return {job.attempt: [job.origin, len(job.candidate_ids)] for job in self.lab.jobs}
            case "idle", _:
                return planner.is_idle
        return len(planner.queues.candidate_ids(A)) + planner.queues.waiting(A)[WORKLOAD.workload_id]


SCENARIOS = read_scenarios(Path(__file__).with_name("planner_scenarios.txt"))


@pytest.mark.parametrize("title", SCENARIOS)
def test_a_scenario(title: str, state: StateFile) -> None:
    scenario = Scenario(state)
    play(SCENARIOS[title], scenario.act, scenario.value)


# ---- who is asked ----


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
