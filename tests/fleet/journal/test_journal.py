from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from agents.row_file import RowFile
from fleet.errors import FleetError, StoreError, StoreFull
from fleet.journal.journal import Journal
from tests.disk_fixtures import failing
from tests.record_fixtures import frame

GROUPS = [[{"n": 1}], [{"n": 2}, {"n": 3}], [{"n": 4, "text": "ü" * 50}]]


def filled(folder: Path) -> Journal:
    journal = Journal(folder)
    for group in GROUPS:
        journal.append(group)
    return journal


def look(folder: Path) -> tuple[dict[str, Any], list[int], list[str]]:
    """Snapshot, numbers of events and notes that an opening finds."""
    journal = Journal(folder)
    found = journal.snapshot, [event["n"] for event in journal.events()], journal.notes
    journal.close()
    return found


def test_events_come_back_in_order(tmp_path: Path) -> None:
    filled(tmp_path / "j").close()
    assert look(tmp_path / "j") == ({}, [1, 2, 3, 4], [])


def test_compaction_puts_a_snapshot_in_place_of_the_events(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    journal.compact({"state": [1, 2]})
    journal.append([{"n": 5}])
    size = journal.size_bytes
    journal.close()
    assert look(tmp_path) == ({"state": [1, 2]}, [5], [])
    assert Journal(tmp_path).size_bytes == size == len('{"state":[1,2]}' + '[{"n":5}]')


@pytest.mark.parametrize("row", range(4))
def test_what_comes_after_damage_does_not_count(tmp_path: Path, row: int) -> None:
    filled(tmp_path).close()
    rows = RowFile(tmp_path / "journal.sqlite")
    rows._connection.execute("UPDATE rows SET sum = sum + 1 WHERE id = ?", (row + 1,))
    rows.close()
    expected = {0: [], 1: [], 2: [1], 3: [1, 2, 3]}[row]
    snapshot, found, notes = look(tmp_path)
    assert (snapshot, found) == ({}, expected)
    assert "journal.sqlite is damaged: kept as journal.sqlite.corrupt" in notes[0]
    assert len(notes) == (1 if row == 3 else 2)
    journal = Journal(tmp_path)
    journal.append([{"n": 7}])
    journal.close()
    assert look(tmp_path) == ({}, [*expected, 7], [])


@pytest.mark.parametrize("call", ["append", "compact"])
@pytest.mark.parametrize(
    ("number", "error", "words"),
    [(errno.ENOSPC, StoreFull, "no room while"), (errno.EIO, StoreError, "Input/output error")],
)
def test_a_disk_that_fails_keeps_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, error: type, words: str
) -> None:
    journal = filled(tmp_path)
    size = journal.size_bytes
    with monkeypatch.context() as patch:
        patch.setattr(RowFile, "change", failing(number))
        with pytest.raises(error, match=words):
            journal.append([{"n": 5}]) if call == "append" else journal.compact({"all": 4})
    assert journal.size_bytes == size
    journal.append([{"n": 5}])
    journal.close()
    assert look(tmp_path) == ({}, [1, 2, 3, 4, 5], [])


def test_it_says_when_it_is_long(tmp_path: Path) -> None:
    journal = Journal(tmp_path, compact_bytes=300)
    journal.append([{"n": 1}])
    assert not journal.is_long
    journal.append([{"text": "x" * 300}])
    assert journal.is_long
    journal.compact({"state": "y" * 1000})
    journal.append([{"text": "x" * 400}])
    assert not journal.is_long, "less than the snapshot itself is not worth a new one"
    journal.close()


def test_a_newer_layout_is_refused(tmp_path: Path) -> None:
    RowFile(tmp_path / "journal.sqlite", layout=2).close()
    with pytest.raises(FleetError, match="layout 2"):
        Journal(tmp_path)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "0000000003.journal").write_bytes(frame({"schema": 2, "snapshot": {}}))
    with pytest.raises(FleetError, match="layout 2"):
        Journal(tmp_path / "old")
    assert (tmp_path / "old" / "0000000003.journal").exists()


def old_file(folder: Path, number: int, *values: object) -> Path:
    """A journal as an earlier version wrote it."""
    path = folder / f"{number:010d}.journal"
    path.write_bytes(b"".join(frame(value) for value in values))  # type: ignore[arg-type]
    return path


def test_a_journal_of_an_earlier_version_is_moved_over_up_to_its_damage(tmp_path: Path) -> None:
    groups = [{"events": group} for group in GROUPS]
    old_file(tmp_path, 0, {"schema": 1, "snapshot": {}}, {"events": [{"n": 9}]})
    newest = old_file(tmp_path, 1, {"schema": 1, "snapshot": {"a": 1}}, *groups)
    (tmp_path / "0000000002.journal").write_bytes(bytes(100))
    data = bytearray(newest.read_bytes())
    data[data.index(b'"n":2')] ^= 0xFF
    newest.write_bytes(data)
    snapshot, found, notes = look(tmp_path)
    assert (snapshot, found) == ({"a": 1}, [1])
    assert [note.partition(": kept as ")[2] for note in notes] == [
        f"000000000{number}.journal.corrupt, what stands before goes on" for number in (2, 1)
    ]
    assert look(tmp_path) == ({"a": 1}, [1], [])
    assert not list(tmp_path.glob("*.journal"))
    assert (tmp_path / "0000000001.journal.corrupt").read_bytes() == data
