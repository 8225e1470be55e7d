from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from agents.records import Candidate, WorkloadId
from fleet.durable import write_all_durably
from fleet.errors import FleetError, StoreError, StoreFull
from fleet.planner.candidate_pools import CandidatePools

W1, W2 = WorkloadId("w1"), WorkloadId("w2")


def made(workload: WorkloadId, *names: str, origin: str = "random") -> list[Candidate]:
    return [Candidate(workload_id=workload, trace=f"[{name}]", origin=origin) for name in names]


def ids(candidates: list[Candidate]) -> list[str]:
    return [one.candidate_id for one in candidates]


def keep(folder: Path, candidates: list[Candidate]) -> None:
    pools = CandidatePools(folder)
    pools.add("cpu", W1, candidates)
    pools.flush()


def test_candidates_come_back_after_a_restart_with_their_traces_and_origins(tmp_path: Path) -> None:
    first, second = made(W1, "a", "b"), made(W1, "c", origin="evolved")
    pools = CandidatePools(tmp_path / "p")
    pools.add("cpu", W1, first)
    pools.add("cpu", W1, second)
    pools.flush()
    again = CandidatePools(tmp_path / "p")
    assert again.waiting() == {("cpu", W1): ids(first + second)}
    found = again.get("cpu", W1, ids(first + second))
    assert list(found.values()) == first + second
    assert again.get("gpu", W1, ids(first)) == {}


def test_what_the_store_has_leaves_the_file_and_stays_at_hand(tmp_path: Path) -> None:
    candidates = made(W1, "a", "b", "c")
    keep(tmp_path, candidates)
    pools = CandidatePools(tmp_path)
    pools.measured("cpu", W1, [candidates[0].candidate_id, "unknown"])
    assert pools.waiting() == {("cpu", W1): ids(candidates[1:])}
    measured = replace(candidates[0], origin="paired")  # for whoever measures it next
    found = pools.get("cpu", W1, ids(candidates))
    assert found == {one.candidate_id: one for one in (measured, *candidates[1:])}
    pools.add("cpu", W1, made(W1, "d"))
    pools.flush()
    assert CandidatePools(tmp_path).waiting() == {("cpu", W1): ids(candidates[1:] + made(W1, "d"))}
    pools.measured("cpu", W1, ids(candidates + made(W1, "d")))
    assert pools.waiting() == {}
    assert not list(tmp_path.glob("*/*.json"))


def test_a_file_that_cannot_be_deleted_is_an_error_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates = made(W1, "a")
    keep(tmp_path, candidates)
    pools = CandidatePools(tmp_path)

    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StoreError, match=r"deleting a pool of candidates in .*: Read-only file system"):
        pools.measured("cpu", W1, ids(candidates))


def test_memory_is_bounded_and_the_file_stands_in(tmp_path: Path) -> None:
    pools = CandidatePools(tmp_path, cache_bytes=2000)
    candidates = made(W1, *("x" * 300 + str(number) for number in range(20)))
    pools.add("cpu", W1, candidates)
    pools.flush()
    pools.remember("cpu", made(W2, *("y" * 300 + str(number) for number in range(20))))
    assert sum(len(one.trace) for one in pools._cache.values()) <= 2000
    assert list(pools.get("cpu", W1, ids(candidates)).values()) == candidates


def test_a_deleted_file_is_no_fault(tmp_path: Path) -> None:
    candidates = made(W1, "a", "b")
    keep(tmp_path, candidates)
    pools = CandidatePools(tmp_path)
    (tmp_path / "cpu" / "w1.json").unlink()
    assert pools.get("cpu", W1, ids(candidates)) == {}
    assert pools.waiting() == {}
    pools.add("cpu", W1, made(W1, "c"))
    pools.flush()
    assert CandidatePools(tmp_path).waiting() == {("cpu", W1): ids(made(W1, "c"))}


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"schema":1}', b'{"schema":1,"workload_id":"w1","candidates":[1]}']
)
def test_a_damaged_file_is_set_aside(tmp_path: Path, damage: bytes) -> None:
    keep(tmp_path, made(W1, "a"))
    (tmp_path / "cpu" / "w1.json").write_bytes(damage)
    pools = CandidatePools(tmp_path)
    assert pools.waiting() == {}
    assert "kept as w1.corrupt" in pools.notes[0]
    assert (tmp_path / "cpu" / "w1.corrupt").read_bytes() == damage


def test_a_newer_layout_is_refused(tmp_path: Path) -> None:
    keep(tmp_path, made(W1, "a"))
    path = tmp_path / "cpu" / "w1.json"
    path.write_text(path.read_text().replace('"schema":1', '"schema":2'))
    with pytest.raises(FleetError, match="layout 2"):
        CandidatePools(tmp_path)


def test_no_room_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pools = CandidatePools(tmp_path)
    pools.add("cpu", W1, made(W1, "a"))
    pools.flush()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fleet.planner.candidate_pools.write_all_durably", full)
        pools.add("cpu", W1, made(W1, "b"))
        with pytest.raises(StoreFull, match="keeping candidates"):
            pools.flush()
    assert pools.is_behind
    assert CandidatePools(tmp_path).waiting() == {("cpu", W1): ids(made(W1, "a"))}
    pools.flush()
    assert not pools.is_behind
    assert CandidatePools(tmp_path).waiting() == pools.waiting() == {("cpu", W1): ids(made(W1, "a", "b"))}


def test_all_that_is_new_is_written_at_once_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[list[str]] = []

    def note(files: dict[Path, bytes]) -> None:
        written.append(sorted(path.name for path in files))
        write_all_durably(files)

    monkeypatch.setattr("fleet.planner.candidate_pools.write_all_durably", note)
    pools = CandidatePools(tmp_path, cache_bytes=1)  # what is not on the disk must not depend on the cache
    for name in "abc":
        pools.add("cpu", W1, made(W1, name))
        pools.add("cpu", W2, made(W2, name))
    assert not list(tmp_path.glob("*/*.json"))
    assert list(pools.get("cpu", W1, ids(made(W1, "a")))) == ids(made(W1, "a"))
    pools.flush()
    pools.flush()
    assert written == [["w1.json", "w2.json"]]
    assert CandidatePools(tmp_path).waiting() == {
        ("cpu", one): ids(made(one, "a", "b", "c")) for one in (W1, W2)
    }
    # Measured before it was ever written: nothing is left to write.
    pools.add("cpu", W1, made(W1, "d"))
    pools.measured("cpu", W1, ids(made(W1, "a", "b", "c", "d")))
    pools.flush()
    assert list(CandidatePools(tmp_path).waiting()) == [("cpu", W2)]
