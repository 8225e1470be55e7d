"""A damaged state file is made again from what can be read, and the damaged one is kept."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agents.records import CandidateId, DeviceId, Outcome, WorkloadId, record_id_of
from fleet.archive.verify import rebuild_state, verify
from fleet.cli.app import run
from fleet.errors import StoreError, StoreLocked
from fleet.state.contents import LATE
from fleet.state.questions import StateReader
from fleet.state.rebuild import rebuild
from fleet.state.schema import STATE
from fleet.state.state_file import StateFile
from fleet.store.catalog import put_device, put_workloads
from fleet.store.reader import acquire, release
from tests.archive_fixtures import OURS, batch, ids_of, opened, record_ids
from tests.archive_fixtures import fill as fill_store
from tests.record_fixtures import make_descriptor, make_spec
from tests.state_fixtures import forget_candidates, state_of

W, DEVICE = WorkloadId("0" * 16), DeviceId("board")
PAGE_BYTES = 4096
CANDIDATE_IDS = [one.candidate_id for one in batch(0, 40)]
ONLY_THERE = ("waiting", "events", "snapshot", "letters")


def test_a_kill_in_the_middle_leaves_one_of_both_files(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / STATE
    shutil.copy(small / STATE, path)
    path.write_bytes(with_page(path.read_bytes(), 5, bytes(PAGE_BYTES)))
    data = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("fleet.state.rebuild.finish_rebuild", lambda _: None)
        rebuild(path)
    assert path.read_bytes() == data, "the damaged one still has its name"
    with state_of(tmp_path) as state:
        assert state.snapshot() == b"snapshot"
        assert list(state.events()) == [b"taken in"] * 3
        # Numbers of what is lost do not come again.
        with state.turn() as turn:
            turn.add_events(b"next")
        assert list(state.events())[-1] == b"next"
    assert (tmp_path / f"{STATE}.corrupt").read_bytes() == data
    assert not list(tmp_path.glob("*.rebuilt*"))


def test_the_command_mends_a_store_that_nobody_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = fill_store(tmp_path / "store")
    lock = acquire(store)
    with pytest.raises(StoreLocked):
        rebuild_state(store)
    release(store, lock)
    assert rebuild_state(store) == []
    path = store / STATE
    before = record_ids(store)
    path.write_bytes(with_page(path.read_bytes(), 5, bytes(PAGE_BYTES)))
    assert run(["store", "verify", "--store", str(store)]) == 1
    assert "damaged: state.sqlite: " in (told := capsys.readouterr().out)
    assert "`fleet store verify --rebuild`" in " ".join(told.split())
    assert run(["store", "verify", "--store", str(store), "--rebuild"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "kept as state.sqlite.corrupt" in told
    assert "results of 425 records came from 4 files and rows that wait" in told
    assert run(["store", "verify", "--store", str(store)]) == 0
    assert record_ids(store) == before


def test_a_changed_bit_of_any_trace_is_named_and_mended(small: Path, tmp_path: Path) -> None:
    whole, draws = content(small / STATE), random.Random("trace")
    for number in (1, 7, 30):  # the first unpacks all others
        folder = tmp_path / str(number)
        shutil.copytree(small, folder)
        path = folder / STATE
        with closing(sqlite3.connect(path)) as connection:
            [[trace]] = connection.execute("SELECT trace FROM candidate WHERE number = ?", (number,))
            row = with_bit(trace, draws), number
            connection.execute("UPDATE candidate SET trace = ? WHERE number = ?", row)
            connection.commit()
        [damage] = verify(folder).damage
        assert "of its candidates are not what was written" in damage.what
        assert any("candidates came back from the records" in line for line in rebuild_state(folder))
        assert verify(folder).damage == []
        assert content(path) == whole


def with_page(data: bytes, page: int, content: bytes) -> bytes:
    return data[: page * PAGE_BYTES] + content + data[(page + 1) * PAGE_BYTES :]


def with_bit(page: bytes, draws: random.Random) -> bytes:
    """Flip a bit of what is no empty room."""
    changed = bytearray(page)
    changed[draws.choice([place for place, byte in enumerate(page) if byte])] ^= 1 << draws.randrange(8)
    return bytes(changed)


def content(path: Path) -> dict[str, Any]:
    """What a coordinator would miss."""
    with StateReader(path) as state:
        return {
            "results": sorted(map(repr, state.results())),
            "tallies": [state.tallies(DeviceId(name)) for name in ("dev-a", "dev-b")],
            "waiting": [(rows.device_ids, rows.rows, rows.body) for rows in state.waiting()],
            "files": state.files(),
            "version": state.table_version(),
            "events": list(state.events()),
            "snapshot": state.snapshot(),
            "letters": list(state.letters()),
            "candidates": state.candidates(["cpu"], OURS[0].workload_id, CANDIDATE_IDS),
        }


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose state file has few pages."""
    folder = tmp_path_factory.mktemp("small") / "store"
    with opened(folder) as store:
        put_workloads(folder / "workloads", OURS, own=True)
        for name in ("dev-a", "dev-b"):
            put_device(folder / "devices", make_spec(name), make_descriptor())
        with store.state.turn() as turn:
            turn.put_snapshot(b"snapshot")
            turn.keep_letter(LATE, "letter", 1, b"{}", most_rows=9, most_bytes=99)
        store.append(batch(0, 40))
        store.append(batch(0, 10, device="dev-b", workload=OURS[1]))
        store.take_in(batch(60, 5))
    return folder


def test_damage_of_any_page_is_nothing_or_is_named_and_mended(small: Path, tmp_path: Path) -> None:
    """Every other page is lost; one bit of each of the others changes."""
    draws = random.Random("a")
    data = (small / STATE).read_bytes()
    whole = content(small / STATE)
    table = set(record_ids(small)) - set(ids_of(batch(60, 5)))
    folder = tmp_path / "store"
    named = 0
    for page in range(len(data) // PAGE_BYTES):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(small, folder)
        path = folder / STATE
        before = data[page * PAGE_BYTES :][:PAGE_BYTES]
        after = with_bit(before, draws) if page % 2 else bytes(PAGE_BYTES)
        path.write_bytes(with_page(data, page, after))
        damage = verify(folder).damage
        if not damage:
            assert content(path) == whole, page
            StateFile(path).close()
            continue
        named += 1
        # What is read nevertheless is right, where nothing else has it.
        with suppress(StoreError):
            read = content(path)
            assert [read[name] for name in ONLY_THERE] == [whole[name] for name in ONLY_THERE], page
            assert read["candidates"].items() <= whole["candidates"].items(), page
        for one in damage:
            assert one.what.isprintable(), page
            assert "--rebuild" in one.next_step, (page, one)
        assert rebuild_state(folder), page
        assert verify(folder).damage == [], page
        assert table <= set(record_ids(folder)) <= {*table, *ids_of(batch(60, 5))}, page
        with opened(folder) as store:
            ids = [
                record_id_of(candidate_id, device_id, environment_id, attempt)
                for _, device_id, environment_id, candidate_id, attempt, *_ in store.state.results()
            ]
            assert sorted(ids) == record_ids(folder), page
            tallies = [one for name in store.devices() for one in store.state.tallies(name)]
            assert sum(one.records for one in tallies) == len(ids)
            assert not gaps_of(store.state), "all candidates of the table are there, and none waits"
            store.table.flush(store.lanes())
        assert verify(folder).damage == [], page
    assert named > 5


def gaps_of(state: StateFile) -> list[CandidateId]:
    return state._ids("SELECT id FROM candidate WHERE is_waiting")


def test_candidates_come_back_from_the_records_of_live_devices(tmp_path: Path) -> None:
    store = tmp_path / "store"
    records = batch(0, 10)
    lost = replace(records[7], outcome=Outcome.LOST, run_secs=())
    killer = replace(records[9], quality='{"quarantined":true}')
    with opened(store) as writer:
        for device in ("dev-a", "dev-b"):
            writer.append(batch(0, 3, device))
        writer.append([*batch(3, 2), lost])
        writer.append(batch(5, 1, "dev-b"))
        writer.take_in([killer])
    workload = OURS[0].workload_id
    for devices, expected in (("ab", [0, 1, 2, 3, 4, 5, 7, 9]), ("a", [0, 1, 2, 3, 4, 7, 9]), ("", [])):
        forget_candidates(store)
        rebuild(store / STATE, {f"dev-{name}": "cpu" for name in devices})
        with state_of(store) as state:
            found = state.candidates(["cpu"], workload, [one.candidate_id for one in records])
            assert {(one.trace, one.origin) for one in found.values()} == {
                (records[number].trace, records[number].origin) for number in expected
            }
            # Nobody has measured the one that was lost.
            assert gaps_of(state) == ([lost.candidate_id] if devices else [])
            assert state.blocked("cpu", workload) == ({killer.candidate_id} if devices else set())
