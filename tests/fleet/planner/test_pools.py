from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.records import Candidate, CandidateId, WorkloadId, canonical_json
from agents.row_file import RowFile
from fleet.errors import FleetError, StoreFull
from fleet.planner.candidate_pools import CandidatePools
from tests.disk_fixtures import failing

W1, W2 = WorkloadId("w1"), WorkloadId("w2")


def made(workload: WorkloadId, *names: str, origin: str = "random") -> list[Candidate]:
    return [Candidate(workload_id=workload, trace=f"[{name}]", origin=origin) for name in names]


def ids(candidates: list[Candidate]) -> list[str]:
    return [one.candidate_id for one in candidates]


@contextmanager
def opened(folder: Path, **options: Any) -> Iterator[CandidatePools]:
    with closing(CandidatePools(folder, **options)) as pools:
        yield pools


def keep(folder: Path, candidates: list[Candidate]) -> None:
    with opened(folder) as pools:
        pools.add("cpu", W1, candidates)
        pools.flush()


def waiting(folder: Path) -> dict[tuple[str, WorkloadId], list[CandidateId]]:
    """What a start finds on the disk, where a coordinator may have it open."""
    shutil.rmtree(folder / "copy", ignore_errors=True)
    shutil.copytree(folder, folder / "copy")
    with opened(folder / "copy") as pools:
        return pools.waiting()


def test_candidates_come_back_after_a_restart_with_their_traces_and_origins(tmp_path: Path) -> None:
    first, second = made(W1, "a", "b"), made(W1, "c", origin="evolved")
    keep(tmp_path, first)
    keep(tmp_path, first[:1] + second)
    with opened(tmp_path) as again:
        assert again.waiting() == {("cpu", W1): ids(first + second)}
        found = again.get("cpu", W1, ids(first + second))
        assert list(found.values()) == first + second
        assert again.get("gpu", W1, ids(first)) == {}


def test_what_the_store_has_leaves_the_file_and_stays_at_hand(tmp_path: Path) -> None:
    candidates = made(W1, "a", "b", "c")
    keep(tmp_path, candidates)
    with opened(tmp_path) as pools:
        pools.measured("cpu", W1, [candidates[0].candidate_id, "unknown"])
        assert pools.waiting() == {("cpu", W1): ids(candidates[1:])}
        measured = replace(candidates[0], origin="paired")  # for whoever measures it next
        found = pools.get("cpu", W1, ids(candidates))
        assert found == {one.candidate_id: one for one in (measured, *candidates[1:])}
        pools.add("cpu", W1, made(W1, "d"))
        pools.flush()
        assert waiting(tmp_path) == {("cpu", W1): ids(candidates[1:] + made(W1, "d"))}
        pools.measured("cpu", W1, ids(candidates + made(W1, "d")))
        assert pools.waiting() == {}
    assert waiting(tmp_path) == {}


def test_what_replay_devices_drew_waits_for_no_live_device(tmp_path: Path) -> None:
    # The candidates may be of anybody: a trusted one was drawn by an agent of a live device.
    live: set[str] = set()
    with opened(tmp_path, live=live) as pools:
        pools.add("cpu", W1, made(W1, "a"))
        pools.flush()
    with opened(tmp_path, live=live) as pools:
        assert pools.waiting() == {("cpu", W1): ids(made(W1, "a"))}
        pools.add("cpu", W2, made(W2, "b"))
        live.add("cpu")  # the replay devices left, and a live one comes
        pools.part("cpu")
        replayed = {("cpu-replay", W1): ids(made(W1, "a")), ("cpu-replay", W2): ids(made(W2, "b"))}
        assert pools.waiting() == replayed
        pools.add("cpu", W1, made(W1, "c"))
        pools.flush()
    with opened(tmp_path, live={"cpu"}) as pools:
        assert pools.waiting() == {**replayed, ("cpu", W1): ids(made(W1, "c"))}
        assert pools.get("cpu-replay", W2, ids(made(W2, "b"))).keys() == set(ids(made(W2, "b")))
    with opened(tmp_path, live=set()) as pools:
        assert pools.waiting()["cpu", W1] == ids(made(W1, "a", "c"))


def test_memory_is_bounded_and_the_file_stands_in(tmp_path: Path) -> None:
    with opened(tmp_path, cache_bytes=2000) as pools:
        candidates = made(W1, *("x" * 300 + str(number) for number in range(20)))
        pools.add("cpu", W1, candidates)
        # What is not on the disk must not depend on the cache.
        assert set(pools.get("cpu", W1, ids(candidates))) == set(ids(candidates))
        pools.flush()
        pools.remember("cpu", made(W2, *("y" * 300 + str(number) for number in range(20))))
        assert sum(len(one.trace) for one in pools._cache.values()) <= 2000
        assert list(pools.get("cpu", W1, ids(candidates)).values()) == candidates


def test_a_deleted_or_damaged_file_is_no_fault(tmp_path: Path) -> None:
    keep(tmp_path, made(W1, "a", "b"))
    file = tmp_path / "pools.sqlite"
    file.write_bytes(b"?" * 5000)
    with opened(tmp_path) as pools:
        assert "kept as pools.sqlite.corrupt" in pools.notes[0]
        assert pools.get("cpu", W1, ids(made(W1, "a"))) == pools.waiting() == {}
    assert (tmp_path / "pools.sqlite.corrupt").read_bytes() == b"?" * 5000
    file.unlink()
    keep(tmp_path, made(W1, "c"))
    assert waiting(tmp_path) == {("cpu", W1): ids(made(W1, "c"))}


def test_a_newer_layout_is_refused(tmp_path: Path) -> None:
    RowFile(tmp_path / "pools.sqlite", layout=2).close()
    with pytest.raises(FleetError, match="layout 2"):
        CandidatePools(tmp_path)
    old_file(tmp_path / "old", made(W1, "a"), schema=2)
    with pytest.raises(FleetError, match="layout 2"):
        CandidatePools(tmp_path / "old")
    assert (tmp_path / "old" / "cpu" / "w1.json").exists()


def old_file(folder: Path, candidates: list[Candidate], schema: int = 1) -> Path:
    """A pool as an earlier version wrote it."""
    listed = [[one.dialect, one.origin, one.trace] for one in candidates]
    path = folder / "cpu" / f"{candidates[0].workload_id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        canonical_json({"schema": schema, "workload_id": candidates[0].workload_id, "candidates": listed})
    )
    return path


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"schema":1}', b'{"schema":1,"workload_id":"w1","candidates":[1]}']
)
def test_files_of_an_earlier_version_are_moved_over_and_damaged_ones_set_aside(
    tmp_path: Path, damage: bytes
) -> None:
    keep(tmp_path, made(W1, "a"))  # as if a kill had come before the old file was deleted
    old_file(tmp_path, made(W1, "a", "b"))
    old_file(tmp_path, made(W2, "a")).write_bytes(damage)
    with opened(tmp_path) as pools:
        assert pools.waiting() == {("cpu", W1): ids(made(W1, "a", "b"))}
        assert "kept as w2.json.corrupt" in pools.notes[0]
    assert (tmp_path / "cpu" / "w2.json.corrupt").read_bytes() == damage
    assert not list(tmp_path.glob("*/*.json"))
    assert waiting(tmp_path) == {("cpu", W1): ids(made(W1, "a", "b"))}


def test_no_room_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as pools:
        pools.add("cpu", W1, made(W1, "a"))
        pools.flush()
        with monkeypatch.context() as patch:
            patch.setattr(RowFile, "change", failing())
            pools.add("cpu", W1, made(W1, "b"))
            with pytest.raises(StoreFull, match="keeping candidates"):
                pools.flush()
        assert pools.is_behind
        assert waiting(tmp_path) == {("cpu", W1): ids(made(W1, "a"))}
        pools.flush()
        assert not pools.is_behind
        assert waiting(tmp_path) == pools.waiting() == {("cpu", W1): ids(made(W1, "a", "b"))}


def test_all_that_is_new_is_written_at_once_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    change = RowFile.change

    def note(rows: RowFile, added: Any, removed: Any = ()) -> list[int]:
        written.append(len(added))
        return change(rows, added, removed)

    monkeypatch.setattr(RowFile, "change", note)
    with opened(tmp_path) as pools:
        for name in "abc":
            pools.add("cpu", W1, made(W1, name))
            pools.add("cpu", W2, made(W2, name))
        assert written == []
        pools.flush()
        pools.flush()
        assert written == [6]
        assert waiting(tmp_path) == {("cpu", one): ids(made(one, "a", "b", "c")) for one in (W1, W2)}
        # Measured before it was ever written: nothing is left to write.
        pools.add("cpu", W1, made(W1, "d"))
        pools.measured("cpu", W1, ids(made(W1, "a", "b", "c", "d")))
        pools.flush()
        assert written == [6]
    assert list(waiting(tmp_path)) == [("cpu", W2)]
