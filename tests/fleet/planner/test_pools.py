"""Candidates that wait, over a state file: after restarts, beside live and replay devices, without room."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.records import Candidate, CandidateId, WorkloadId
from fleet.planner.candidate_pools import CandidatePools
from fleet.state.state_file import StateFile
from tests.state_fixtures import keep, opened_pools

W1, W2 = WorkloadId("w1"), WorkloadId("w2")


def made(workload: WorkloadId, *names: str, origin: str = "random") -> list[Candidate]:
    return [Candidate(workload_id=workload, trace=f"[{name}]", origin=origin) for name in names]


def ids(candidates: list[Candidate]) -> list[CandidateId]:
    return [one.candidate_id for one in candidates]


def add(folder: Path, candidates: list[Candidate]) -> None:
    with opened_pools(folder) as (pools, file):
        pools.add("cpu", W1, candidates)
        keep(file, pools)


def on_disk(file: StateFile) -> dict[tuple[str, WorkloadId], list[CandidateId]]:
    """What a start would find."""
    return CandidatePools(file).waiting()


def test_what_replay_devices_drew_waits_for_no_live_device(tmp_path: Path) -> None:
    # The candidates may be of anybody: a trusted one was drawn by an agent of a live device.
    live: set[str] = set()
    with opened_pools(tmp_path, live=live) as (pools, file):
        pools.add("cpu", W1, made(W1, "a"))
        keep(file, pools)
    with opened_pools(tmp_path, live=live) as (pools, file):
        assert pools.waiting() == {("cpu", W1): ids(made(W1, "a"))}
        pools.add("cpu", W2, made(W2, "b"))
        live.add("cpu")  # the replay devices left, and a live one comes
        pools.part("cpu")
        replayed = {("cpu-replay", W1): ids(made(W1, "a")), ("cpu-replay", W2): ids(made(W2, "b"))}
        assert pools.waiting() == replayed
        pools.add("cpu", W1, made(W1, "c"))
        keep(file, pools)
    with opened_pools(tmp_path, live={"cpu"}) as (pools, _):
        assert pools.waiting() == {**replayed, ("cpu", W1): ids(made(W1, "c"))}
        assert pools.get("cpu-replay", W2, ids(made(W2, "b"))).keys() == set(ids(made(W2, "b")))
    with opened_pools(tmp_path, live=set()) as (pools, _):
        assert set(pools.waiting()["cpu", W1]) == set(ids(made(W1, "a", "c")))
        assert len(pools.get("cpu", W1, ids(made(W1, "a", "c")))) == 2


def test_memory_is_bounded_and_the_file_stands_in(tmp_path: Path) -> None:
    with opened_pools(tmp_path, cache_bytes=2000) as (pools, file):
        candidates = made(W1, *("x" * 300 + str(number) for number in range(20)))
        pools.add("cpu", W1, candidates)
        # What is not on the disk must not depend on the cache.
        assert set(pools.get("cpu", W1, ids(candidates))) == set(ids(candidates))
        keep(file, pools)
        assert list(pools.get("cpu", W1, ids(candidates)).values()) == candidates


class NoRoomError(Exception):
    """Ends a turn, as a full disk does."""


def test_a_turn_that_is_taken_back_keeps_what_was_there_and_the_next_one_writes_it(tmp_path: Path) -> None:
    with opened_pools(tmp_path) as (pools, file):
        pools.add("cpu", W1, made(W1, "a"))
        keep(file, pools)
        pools.add("cpu", W1, made(W1, "b"))
        pools.measured("cpu", W1, ids(made(W1, "a")))

        def fail() -> None:
            with file.turn() as turn:
                pools.write(turn)
                raise NoRoomError

        with pytest.raises(NoRoomError):
            fail()
        assert on_disk(file) == {("cpu", W1): ids(made(W1, "a"))}
        keep(file, pools)
        assert on_disk(file) == pools.waiting() == {("cpu", W1): ids(made(W1, "b"))}
