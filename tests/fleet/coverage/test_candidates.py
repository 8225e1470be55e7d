"""Candidates of families, over a state file: after restarts, beside live and replay devices, without room."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from agents.records import Candidate, CandidateId, WorkloadId
from fleet.coverage.candidates import FamilyCandidates, Space
from tests.state_fixtures import opened_candidates

W1, W2 = WorkloadId("w1"), WorkloadId("w2")


def made(workload: WorkloadId, *names: str, origin: str = "random") -> list[Candidate]:
    return [Candidate(workload_id=workload, trace=f"[{name}]", origin=origin) for name in names]


def ids(candidates: list[Candidate]) -> list[CandidateId]:
    return [one.candidate_id for one in candidates]


def traces(candidates: FamilyCandidates, space: Space) -> list[str]:
    found = candidates.get(space, candidates.latest(space, 99))
    return [one.trace for one in found.values()]


def test_what_replay_devices_drew_is_given_to_no_live_device(tmp_path: Path) -> None:
    # The candidates may be of anybody: a trusted one was drawn by an agent of a live device.
    live: set[str] = set()
    with opened_candidates(tmp_path, live=live) as (candidates, file):
        candidates.add(("cpu", W1), made(W1, "a"))
        file.keep()
    with opened_candidates(tmp_path, live=live) as (candidates, file):
        assert traces(candidates, ("cpu", W1)) == ["[a]"]
        candidates.add(("cpu", W2), made(W2, "b"))
        live.add("cpu")  # the replay devices left, and a live one comes
        candidates.load()
        candidates.add(("cpu", W1), made(W1, "c"))
        file.keep()
    with opened_candidates(tmp_path, live={"cpu"}) as (candidates, _):
        assert traces(candidates, ("cpu", W1)) == ["[c]"]
        assert traces(candidates, ("cpu", W2)) == []
        assert [traces(candidates, ("cpu-replay", name)) for name in (W1, W2)] == [["[a]"], ["[b]"]]
    with opened_candidates(tmp_path, live=set()) as (candidates, _):
        assert set(traces(candidates, ("cpu", W1))) == {"[a]", "[c]"}


def test_memory_is_bounded_and_the_file_stands_in(tmp_path: Path) -> None:
    with opened_candidates(tmp_path, cache_bytes=2000) as (candidates, _):
        drawn = made(W1, *("x" * 300 + str(number) for number in range(20)))
        candidates.add(("cpu", W1), drawn)
        assert list(candidates.get(("cpu", W1), ids(drawn)).values()) == drawn


class NoRoomError(Exception):
    """Ends a turn, as a full disk does."""


def test_a_turn_that_is_taken_back_keeps_what_was_there_and_the_next_one_writes_it(tmp_path: Path) -> None:
    with opened_candidates(tmp_path) as (candidates, file):
        candidates.add(("cpu", W1), made(W1, "a"))
        with suppress(NoRoomError), file.turn():
            raise NoRoomError
        assert traces(candidates, ("cpu", W1)) == ["[a]"]
        file.keep()
        candidates.add(("cpu", W1), made(W1, "b"))
    with opened_candidates(tmp_path) as (candidates, _):
        assert traces(candidates, ("cpu", W1)) == ["[a]"], "the second never came to the disk"
