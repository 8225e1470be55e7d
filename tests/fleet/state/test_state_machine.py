"""A state file against a model of it: whatever is done in whatever order, it holds what was kept."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agents.records import Candidate, CandidateId, DeviceId, Outcome, WorkloadId
from fleet.state.rows import FASTEST, Result, TableFile
from fleet.state.state_file import StateFile
from fleet.state.turn import Turn
from tests.conftest import TEMPORARY

FAMILY = "cpu"
WORKLOADS = [WorkloadId(f"{number:016x}") for number in range(2)]
DEVICES = [DeviceId(name) for name in ("left", "right")]
ENVIRONMENTS = ["before", "after"]
CANDIDATES = {
    workload: [Candidate(workload_id=workload, trace=f"trace {number} " * 30) for number in range(4)]
    for workload in WORKLOADS
}
Key = tuple[WorkloadId, DeviceId, str, CandidateId, int]


@st.composite
def results(draw: st.DrawFn) -> Result:
    workload = draw(st.sampled_from(WORKLOADS))
    outcome = draw(st.sampled_from([Outcome.OK, Outcome.OK, Outcome.LOST, Outcome.RUN_FAILED]))
    return Result(
        workload,
        draw(st.sampled_from(DEVICES)),
        draw(st.sampled_from(ENVIRONMENTS)),
        draw(st.sampled_from(CANDIDATES[workload])).candidate_id,
        draw(st.integers(0, 2)),
        outcome,
        draw(st.sampled_from([1e-3, 2e-3, 3e-3])) if outcome is Outcome.OK else None,
        float(draw(st.integers(1, 100))),
        draw(st.booleans()),
    )


@dataclass
class Model:
    """What a state file holds."""

    results: dict[Key, Result] = field(default_factory=dict)
    events: list[bytes] = field(default_factory=list)
    snapshot: bytes | None = None
    waiting: dict[int, tuple[DeviceId, bytes]] = field(default_factory=dict)
    files: dict[str, TableFile] = field(default_factory=dict)
    letters: dict[str, bytes] = field(default_factory=dict)
    #: Whether each is blocked, and whether it waits; in the order in which they became known.
    candidates: dict[CandidateId, bool] = field(default_factory=dict)
    waiting_candidates: set[CandidateId] = field(default_factory=set)


class KillError(Exception):
    """Ends a turn as a kill does: nothing of it may be there afterwards."""


class StateMachine(RuleBasedStateMachine):
    """Every rule changes the file and the model alike; the invariant compares them."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=TEMPORARY))
        self.lives = 0
        self.state = StateFile(self.folder / "0" / "state.sqlite")
        self.model = Model()

    def teardown(self) -> None:
        if hasattr(self, "state"):
            self.state.close()
            shutil.rmtree(self.folder)

    def put(self, turn: Turn, batch: list[Result]) -> Model:
        """Take a batch in as a coordinator does; the model as it is once the turn has ended."""
        model = Model(
            **{
                name: value.copy() if hasattr(value, "copy") else value
                for name, value in vars(self.model).items()
            }
        )
        rows: defaultdict[DeviceId, list[Result]] = defaultdict(list)
        for result, is_new in zip(batch, turn.add_results(batch), strict=True):
            assert is_new == (result[:5] not in model.results)
            if is_new:
                model.results[result[:5]] = result
                rows[result.device_id].append(result)
        for device_id, some in rows.items():
            body = repr(some).encode()
            lane = DEVICES.index(device_id)
            number = turn.add_waiting(lane, [device_id], len(some), body, 1.0)
            model.waiting[number] = device_id, body
        event = f"{len(batch)} results".encode()
        turn.add_events(event)
        model.events.append(event)
        return model

    @rule(batch=st.lists(results(), max_size=6))
    def take_in(self, batch: list[Result]) -> None:
        with self.state.turn() as turn:
            model = self.put(turn, batch)
        self.model = model

    @rule(batch=st.lists(results(), max_size=6))
    def fail_in_a_turn(self, batch: list[Result]) -> None:
        try:
            with self.state.turn() as turn:
                self.put(turn, batch)
                raise KillError
        except KillError:
            pass

    @rule(batch=st.lists(results(), min_size=1, max_size=6), is_in_turn=st.booleans())
    def kill(self, batch: list[Result], is_in_turn: bool) -> None:
        """What a kill leaves is what the files hold at that moment."""
        self.lives += 1
        folder = self.folder / str(self.lives)
        try:
            if is_in_turn:
                with self.state.turn() as turn:
                    self.put(turn, batch)
                    self.copy(folder)
                    raise KillError
        except KillError:
            pass
        else:
            self.copy(folder)
        self.state.close()
        self.state = StateFile(folder / "state.sqlite")
        assert self.state.notes == []

    def copy(self, folder: Path) -> None:
        folder.mkdir()
        for path in self.state.path.parent.glob("state.sqlite*"):
            shutil.copyfile(path, folder / path.name)

    @rule()
    def reopen(self) -> None:
        self.state.close()
        self.state = StateFile(self.state.path)

    @rule(device_id=st.sampled_from(DEVICES))
    def flush(self, device_id: DeviceId) -> None:
        numbers = [rows.number for rows in self.state.waiting(DEVICES.index(device_id))]
        file = TableFile(path=f"{device_id}/{numbers[-1:]}", device_id=device_id, rows=1, sha256="0" * 64)
        with self.state.turn() as turn:
            turn.drop_waiting(numbers, [file])
        self.model.files[file.path] = file
        for number in numbers:
            del self.model.waiting[number]

    @precondition(lambda self: self.model.files)
    @rule()
    def drop_files(self) -> None:
        with self.state.turn() as turn:
            turn.drop_files(list(self.model.files))
        self.model.files.clear()

    @rule(workload=st.sampled_from(WORKLOADS), count=st.integers(1, 4))
    def propose(self, workload: WorkloadId, count: int) -> None:
        with self.state.turn() as turn:
            turn.add_candidates(FAMILY, workload, CANDIDATES[workload][:count])
        for candidate in CANDIDATES[workload][:count]:
            self.model.candidates.setdefault(candidate.candidate_id, False)
            self.model.waiting_candidates.add(candidate.candidate_id)

    @rule(workload=st.sampled_from(WORKLOADS), first=st.integers(0, 3))
    def know(self, workload: WorkloadId, first: int) -> None:
        with self.state.turn() as turn:
            turn.add_candidates(FAMILY, workload, CANDIDATES[workload][first:], are_measured=True)
        for candidate in CANDIDATES[workload][first:]:
            self.model.candidates.setdefault(candidate.candidate_id, False)

    @rule()
    def settle(self) -> None:
        with self.state.turn() as turn:
            for family, workload, candidate_id, _ in self.state.waiting_candidates():
                turn.settle_candidates(family, workload, [candidate_id])
        self.model.waiting_candidates.clear()

    @rule(workload=st.sampled_from(WORKLOADS), place=st.integers(0, 3))
    def block(self, workload: WorkloadId, place: int) -> None:
        candidate_id = CANDIDATES[workload][place].candidate_id
        with self.state.turn() as turn:
            turn.block(FAMILY, workload, [candidate_id])
        if candidate_id in self.model.candidates:
            self.model.candidates[candidate_id] = True

    @rule()
    def compact(self) -> None:
        body = b"|".join([self.model.snapshot or b"", *self.model.events])
        with self.state.turn() as turn:
            turn.put_snapshot(body)
        self.model.snapshot, self.model.events = body, []

    @rule(name=st.sampled_from("abc"), body=st.binary(min_size=1, max_size=20))
    def set_aside(self, name: str, body: bytes) -> None:
        with self.state.turn() as turn:
            is_new, gone = turn.keep_letter("late", name, 1, body, most_rows=2, most_bytes=30)
        assert is_new == (name not in self.model.letters)
        if is_new:
            self.model.letters[name] = body
            for oldest in list(self.model.letters)[:gone]:
                del self.model.letters[oldest]
            assert len(self.model.letters) <= 2

    @invariant()
    def holds_what_was_kept(self) -> None:
        if not hasattr(self, "state"):
            return
        state, model = self.state, self.model
        assert state.snapshot() == model.snapshot
        assert list(state.events()) == model.events
        assert {one.number: (one.device_ids[0], one.body) for one in state.waiting()} == model.waiting
        assert {one.path: one for one in state.files()} == model.files
        assert {one.name: one.body for one in state.letters("late")} == model.letters
        for device_id in DEVICES:
            self.compare_device(device_id)
        for workload in WORKLOADS:
            self.compare_candidates(workload)

    def compare_candidates(self, workload: WorkloadId) -> None:
        state, model = self.state, self.model
        ids = [one.candidate_id for one in CANDIDATES[workload]]
        known = [one for one in model.candidates if one in ids]
        assert state.candidate_count([FAMILY, "gpu"], workload) == len(known)
        assert state.candidate_count([FAMILY, FAMILY], workload) == len(known), "none counts twice"
        assert state.latest(FAMILY, workload, 9) == known
        assert state.latest(FAMILY, workload, 2) == known[-2:]
        assert state.known_among(FAMILY, workload, ids) == set(known)
        settled = set(known) - model.waiting_candidates
        assert state.known_among(FAMILY, workload, ids, is_settled=True) == settled
        assert state.blocked(FAMILY, workload) == {one for one in known if model.candidates[one]}
        waiting = {row[2] for row in state.waiting_candidates() if row[1] == workload}
        assert waiting == set(known) & model.waiting_candidates
        gaps = state.gaps(FAMILY, workload, DeviceId("none"), "none", 9)
        assert (gaps[-1][0] if gaps else 0) <= state.last_number(FAMILY, workload)
        assert state.candidates([FAMILY], workload, [candidate_id for _, candidate_id in gaps]) == {
            one.candidate_id: one
            for one in CANDIDATES[workload]
            if one.candidate_id in known and not model.candidates[one.candidate_id]
        }

    def compare_device(self, device_id: DeviceId) -> None:
        ours = [one for one in self.model.results.values() if one.device_id == device_id]
        tallies = {(one.workload_id, one.environment_id): one for one in self.state.tallies(device_id)}
        assert sum(one.records for one in tallies.values()) == len(ours)
        for workload in WORKLOADS:
            known = [
                one.candidate_id
                for one in CANDIDATES[workload]
                if self.model.candidates.get(one.candidate_id) is False
            ]
            for environment_id in ENVIRONMENTS:
                group = [one for one in ours if (one[0], one[2]) == (workload, environment_id)]
                kept = [one for one in group if one.outcome is not Outcome.LOST]
                measured = {one.candidate_id for one in kept}
                if group:
                    tally = tallies[workload, environment_id]
                    assert tally.measured == len(measured)
                    assert tally.ok == sum(one.outcome is Outcome.OK for one in group)
                    assert tally.measured_at == max(one.measured_at for one in group)
                    assert tally.noise_at == max((one.measured_at for one in kept if one.is_noise), default=0)
                where = workload, device_id, environment_id
                gaps = self.state.gaps(FAMILY, *where, 10)
                assert {candidate_id for _, candidate_id in gaps} == set(known) - measured
                assert sorted(number for number, _ in gaps) == [number for number, _ in gaps]
                assert self.state.recorded(*where) == {one.candidate_id for one in group}
                best = {
                    one.candidate_id: min(
                        each.latency_secs
                        for each in kept
                        if each.candidate_id == one.candidate_id and each.latency_secs
                    )
                    for one in kept
                    if one.latency_secs
                }
                expected = sorted((secs, candidate_id) for candidate_id, secs in best.items())
                assert self.state.fastest(*where) == expected[:FASTEST]
                ids = [one.candidate_id for one in CANDIDATES[workload]]
                assert self.state.measured_among(*where, ids) == measured
                attempts = {(one.candidate_id, one.attempt, one.outcome is Outcome.LOST) for one in group}
                assert set(self.state.attempts(*where, ids)) == attempts
                lost = {one.candidate_id for one in group} - measured
                assert {
                    row[2:] for row in self.state.lost(device_id) if row[:2] == (workload, environment_id)
                } == {
                    (name, 1 + max(one.attempt for one in group if one.candidate_id == name)) for name in lost
                }


TestStateMachine = StateMachine.TestCase
TestStateMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
