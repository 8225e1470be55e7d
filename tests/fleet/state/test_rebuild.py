"""A damaged state file is made again from what can be read, and the damaged one is kept."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from agents.records import Candidate, CandidateId, DeviceId, Outcome, Record, WorkloadId, record_id_of
from fleet.archive.verify import rebuild_state, verify
from fleet.cli.app import run
from fleet.errors import StateDamaged, StoreLocked
from fleet.state.contents import LATE
from fleet.state.questions import StateReader
from fleet.state.rebuild import rebuild
from fleet.state.rows import TableFile
from fleet.state.schema import STATE
from fleet.state.state_file import StateFile
from fleet.store.catalog import put_device, put_workloads
from fleet.store.lock import acquire, release
from tests.archive_fixtures import OURS, batch, ids_of, opened, record_ids
from tests.archive_fixtures import fill as fill_store
from tests.record_fixtures import make_descriptor, make_spec
from tests.state_fixtures import forget_candidates, state_of

W, DEVICE = WorkloadId("0" * 16), DeviceId("board")
PAGE_BYTES = 4096


def candidates() -> list[Candidate]:
    words = random.Random(0)
    return [
        Candidate(workload_id=W, trace=f"{number} " + "".join(words.choices("abcdef", k=300)))
        for number in range(120)
    ]


def fill(folder: Path) -> None:
    with state_of(folder) as state:
        with state.turn() as turn:
            turn.add_candidates("cpu", W, candidates())
            turn.put_snapshot(b"snapshot")
            turn.put_note("name", b"note")
        for number in range(60):
            with state.turn() as turn:
                turn.add_events(b"%d" % number * 400)
                turn.add_waiting(0, [DEVICE], 1, b"%d" % number * 400, 1.0)
                turn.keep_letter(LATE, str(number), 1, b"l" * 400, most_rows=100, most_bytes=1 << 20)


def test_damage_in_any_page_costs_little_and_what_stands_before_is_kept(tmp_path: Path) -> None:
    fill(tmp_path / "whole")
    data = (tmp_path / "whole" / STATE).read_bytes()
    rebuilt = 0
    for page in range(0, len(data) // PAGE_BYTES, 3):
        folder = tmp_path / str(page)
        folder.mkdir()
        path = folder / STATE
        path.write_bytes(data[: page * PAGE_BYTES] + bytes(PAGE_BYTES) + data[(page + 1) * PAGE_BYTES :])
        damaged = path.read_bytes()
        try:
            StateFile(path).close()
        except StateDamaged:
            rebuilt += 1
        else:
            continue
        notes = rebuild(path)
        assert (folder / f"{STATE}.corrupt").read_bytes() == damaged
        assert "kept as state.sqlite.corrupt" in notes[0]
        with state_of(folder) as state:
            events = list(state.events())
            assert events == [b"%d" % number * 400 for number in range(len(events))]
            waiting = [rows.body for rows in state.waiting()]
            letters = [letter.name for letter in state.letters(LATE)]
            known = {one.candidate_id: one for one in candidates()}
            kept = state.candidates(["cpu"], W, [one.candidate_id for one in candidates()])
            assert kept.items() <= known.items()
            assert set(waiting) <= {b"%d" % number * 400 for number in range(60)}
            # The first page has the names of all tables; any other costs its own rows.
            if page and state.snapshot() is not None:
                assert len(waiting) + len(letters) + len(events) + len(kept) >= 0.5 * 300
            # Numbers of lost rows do not come again, and it goes on.
            with state.turn() as turn:
                turn.add_events(b"next")
            assert list(state.events())[-1] == b"next"
    assert rebuilt > 10


def test_a_kill_in_the_middle_leaves_one_of_both_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    path = tmp_path / STATE
    data = path.read_bytes()
    path.write_bytes(data[: 5 * PAGE_BYTES] + bytes(PAGE_BYTES) + data[6 * PAGE_BYTES :])

    with monkeypatch.context() as patch:
        patch.setattr("fleet.state.rebuild.finish_rebuild", lambda _: None)
        rebuild(path)
    assert path.read_bytes() != data, "the damaged one still has its name"
    with state_of(tmp_path) as state:
        assert state.note("name") == b"note"
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


def with_page(data: bytes, page: int, content: bytes) -> bytes:
    return data[: page * PAGE_BYTES] + content + data[(page + 1) * PAGE_BYTES :]


def with_bit(page: bytes, draws: random.Random) -> bytes:
    """Flip a bit of what is no empty room."""
    changed = bytearray(page)
    changed[draws.choice([place for place, byte in enumerate(page) if byte])] ^= 1 << draws.randrange(8)
    return bytes(changed)


def content(path: Path) -> dict[str, object]:
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
            "letters": list(state.letters(LATE)),
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


@pytest.mark.parametrize("how", ["lost", *"abc"])
def test_damage_of_any_page_is_nothing_or_is_named_and_mended(small: Path, tmp_path: Path, how: str) -> None:
    draws = random.Random(how)
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
        after = bytes(PAGE_BYTES) if how == "lost" else with_bit(before, draws)
        path.write_bytes(with_page(data, page, after))
        damage = verify(folder).damage
        if not damage:
            assert content(path) == whole, page
            StateFile(path).close()
            continue
        named += 1
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
            wanted = {candidate_id for _, _, candidate_id in gaps_of(store.state)}
            assert not wanted, "all candidates of the table are there, and none waits"
            store.table.flush(store.lanes())
        assert verify(folder).damage == [], page
    assert named > 5


def gaps_of(state: StateFile) -> list[tuple[str, WorkloadId, str]]:
    return [(family, workload, one) for family, workload, one, _ in state.waiting_candidates()]


def test_candidates_come_back_from_the_records_of_live_devices(tmp_path: Path) -> None:
    store = tmp_path / "store"
    lost = replace(batch(7, 1)[0], outcome=Outcome.LOST, run_secs=())
    killer = replace(batch(9, 1)[0], quality='{"quarantined":true}')
    with opened(store) as writer:
        for device in ("dev-a", "dev-b"):
            writer.append(batch(0, 3, device))
        writer.append([*batch(3, 2), lost])
        writer.append(batch(5, 1, "dev-b"))
        writer.take_in([killer])
    before = {one.candidate_id: one for one in batch(0, 10)}
    for families, expected in (
        ({"dev-a": "cpu", "dev-b": "cpu"}, [0, 1, 2, 3, 4, 5, 7, 9]),
        ({"dev-a": "cpu"}, [0, 1, 2, 3, 4, 7, 9]),
        ({}, []),
    ):
        forget_candidates(store)
        rebuild(store / STATE, families)
        with state_of(store) as state:
            known = state.candidates(["cpu"], OURS[0].workload_id, list(before))
            assert known.keys() == {ids_in_order(before)[number] for number in expected}
            for candidate_id, candidate in known.items():
                record = before[candidate_id]
                assert (candidate.trace, candidate.origin) == (record.trace, record.origin)
            waiting = [candidate_id for _, _, candidate_id in gaps_of(state)]
            assert waiting == ([lost.candidate_id] if expected else []), "nobody has measured it"
            blocked = state.blocked("cpu", OURS[0].workload_id)
            assert blocked == ({killer.candidate_id} if expected else set())


def ids_in_order(records: dict[CandidateId, Record]) -> list[CandidateId]:
    return list(records)


def test_a_name_that_is_lost_takes_its_rows_along_and_new_names_get_new_numbers(tmp_path: Path) -> None:
    with state_of(tmp_path) as state, state.turn() as turn:
        for name in ("first", "second", "third"):
            turn.drop_waiting([], [TableFile(path=name, device_id=DeviceId(name), rows=1, sha256="0" * 64)])
    with closing(sqlite3.connect(tmp_path / STATE)) as connection:
        connection.execute("DELETE FROM label WHERE text = 'second'")
        connection.commit()
    rebuild(tmp_path / STATE)
    with state_of(tmp_path) as state:
        with state.turn() as turn:
            turn.drop_waiting(
                [], [TableFile(path="new", device_id=DeviceId("fourth"), rows=1, sha256="0" * 64)]
            )
        assert [file.path for file in state.files()] == ["first", "new", "third"]
