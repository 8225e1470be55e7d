from __future__ import annotations

from agents.records import Candidate, CandidateId, DeviceId, WorkloadId
from fleet.coverage.coverage import Coverage
from fleet.planner.dedup_filter import DedupFilter
from fleet.state.state_file import StateFile
from tests.record_fixtures import make_record, make_workload

WORKLOAD = make_workload(1)
W = WORKLOAD.workload_id
ONE = make_record(0).device_id


def drawn(excluding: DedupFilter, names: list[str]) -> tuple[list[str], bool]:
    """What is new of an answer, and whether it says that there is no other."""
    told = excluding.tell("cpu", W)
    candidates = [Candidate(workload_id=W, trace=name) for name in names]
    fresh = excluding.fresh(told, ONE, W, told.without(candidates), 9)
    return [one.trace for one in fresh.values()], told.is_end(candidates)


def ids(names: list[str]) -> list[CandidateId]:
    return [Candidate(workload_id=W, trace=name).candidate_id for name in names]


def test_an_agent_is_told_the_latest_and_is_not_believed_when_it_draws_an_older_one(state: StateFile) -> None:
    coverage = Coverage(state, {DeviceId(ONE): "cpu"}, [WorkloadId(W)])
    excluding = DedupFilter(coverage, most=2)
    old = make_record(7, workload=W)
    coverage.set_environment(ONE, old.environment_id)
    coverage.add([old])
    coverage.propose("cpu", W, ids(["a", "b"]))
    told = excluding.tell("cpu", W)
    assert excluding.tell("cpu", W) is told, "many devices share it"
    assert (set(told.ids), told.known) == (set(ids(["a", "b"])), 3)
    measured = Candidate(workload_id=W, trace=old.trace, dialect=old.dialect)
    assert measured.candidate_id == old.candidate_id
    assert drawn(excluding, [old.trace, "c"]) == (["c"], False)
    assert drawn(excluding, [old.trace]) == ([], False), "others may be left: it was not told all"
    assert drawn(excluding, []) == ([], True)
