"""A damaged state file is made again from what can be read, and the damaged one is kept."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agents.records import Candidate, DeviceId, WorkloadId
from fleet.archive.verify import rebuild_state, verify
from fleet.cli.app import run
from fleet.errors import StateDamaged, StoreLocked
from fleet.state.contents import LATE
from fleet.state.rebuild import rebuild
from fleet.state.rows import TableFile
from fleet.state.schema import STATE
from fleet.state.state_file import StateFile
from fleet.store.store import Store
from tests.state_fixtures import state_of

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
                turn.add_waiting(DEVICE, 1, b"%d" % number * 400, 1.0)
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
            kept = state.candidates(W, range(1, 121))
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
    store = tmp_path / "store"
    with Store.open(store):
        fill(store)
        with pytest.raises(StoreLocked):
            rebuild_state(store)
    assert rebuild_state(store) == []
    path = store / STATE
    data = path.read_bytes()
    path.write_bytes(data[: 5 * PAGE_BYTES] + bytes(PAGE_BYTES) + data[6 * PAGE_BYTES :])
    [*_, damage] = verify(store).damage
    assert (damage.where, "--rebuild" in damage.next_step) == (STATE, True)
    assert run(["store", "verify", "--store", str(store)]) == 1
    assert run(["store", "verify", "--store", str(store), "--rebuild"]) == 0
    assert "kept as state.sqlite.corrupt" in capsys.readouterr().out
    assert run(["store", "verify", "--store", str(store)]) == 0


def test_a_name_that_is_lost_takes_its_rows_along_and_new_names_get_new_numbers(tmp_path: Path) -> None:
    with state_of(tmp_path) as state, state.turn() as turn:
        for name in ("first", "second", "third"):
            turn.add_waiting(DeviceId(name), 1, name.encode(), 1.0)
            turn.drop_waiting([], [TableFile(path=name, device_id=DeviceId(name), rows=1, sha256="0" * 64)])
    with closing(sqlite3.connect(tmp_path / STATE)) as connection:
        connection.execute("DELETE FROM label WHERE text = 'second'")
        connection.commit()
    rebuild(tmp_path / STATE)
    with state_of(tmp_path) as state:
        with state.turn() as turn:
            turn.add_waiting(DeviceId("fourth"), 1, b"fourth", 1.0)
        assert [rows.device_id for rows in state.waiting()] == ["first", "third", "fourth"]
        assert [file.path for file in state.files()] == ["first", "third"]
