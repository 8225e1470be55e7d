from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.spool.frames import frame
from fleet.errors import FleetError, StoreError, StoreFull
from fleet.journal.journal import Journal

GROUPS = [[{"n": 1}], [{"n": 2}, {"n": 3}], [{"n": 4, "text": "ü" * 50}]]


def filled(folder: Path) -> Journal:
    journal = Journal(folder)
    for group in GROUPS:
        journal.append(group)
    return journal


def numbers(journal: Journal) -> list[int]:
    return [event["n"] for event in journal.events()]


def test_events_come_back_in_order(tmp_path: Path) -> None:
    filled(tmp_path / "j")
    again = Journal(tmp_path / "j")
    assert again.snapshot == {}
    assert numbers(again) == [1, 2, 3, 4]
    assert again.notes == []
    again.append([{"n": 5}])
    assert numbers(Journal(tmp_path / "j")) == [1, 2, 3, 4, 5]


@given(cut=st.integers(0, 400))
@settings(max_examples=60, deadline=None)
def test_whatever_a_kill_cuts_off_whole_groups_are_left(cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = filled(Path(folder))
        data = journal.path.read_bytes()
        head = len(frame({"schema": 1, "snapshot": {}}))
        left = max(head, len(data) - cut)
        journal.path.write_bytes(data[:left])
        again = Journal(Path(folder))
        whole = [group for number, group in enumerate(GROUPS) if left >= _end_of_group(head, number)]
        assert list(again.events()) == [event for group in whole for event in group]
        again.append([{"n": 9}])
        assert numbers(Journal(Path(folder)))[-1] == 9


def _end_of_group(head: int, number: int) -> int:
    return head + sum(len(frame({"events": group})) for group in GROUPS[: number + 1])


def test_what_comes_after_damage_does_not_count(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    data = bytearray(journal.path.read_bytes())
    data[data.index(b'"n":2')] ^= 0xFF
    journal.path.write_bytes(data)
    again = Journal(tmp_path)
    assert numbers(again) == [1]
    assert "damaged" in again.notes[0]
    assert list(tmp_path.glob("*.corrupt"))
    again.append([{"n": 7}])
    assert numbers(Journal(tmp_path)) == [1, 7]


def test_a_file_without_a_snapshot_gives_way_to_the_one_before(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "0000000001.journal").write_bytes(b"\0" * 100)
    again = Journal(tmp_path)
    assert numbers(again) == [1, 2, 3, 4]
    assert "does not count" in again.notes[-1]


def test_compaction_puts_a_snapshot_in_place_of_the_events(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    journal.compact({"state": [1, 2]})
    journal.append([{"n": 5}])
    again = Journal(tmp_path)
    assert again.snapshot == {"state": [1, 2]}
    assert numbers(again) == [5]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("step", ["fsync", "replace", "unlink"])
def test_a_kill_inside_a_compaction_leaves_one_whole_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    journal = filled(tmp_path)

    class Killed(BaseException):
        pass

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    if step == "fsync":
        monkeypatch.setattr(os, "fsync", killed)
    else:
        monkeypatch.setattr(Path, step, killed)
    with pytest.raises(Killed):
        journal.compact({"all": 4})
    monkeypatch.undo()
    again = Journal(tmp_path)
    expected = ({"all": 4}, []) if step == "unlink" else ({}, [1, 2, 3, 4])
    assert (again.snapshot, numbers(again)) == expected
    assert [path.suffix for path in tmp_path.iterdir()] == [".journal"]


def test_no_room_keeps_nothing_of_the_group_and_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = filled(tmp_path)
    before = journal.path.read_bytes()
    write = os.pwrite

    def full(descriptor: int, data: bytes, offset: int) -> int:
        if len(data) > 10:
            return write(descriptor, data[:10], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreFull, match="no room while writing the journal"):
        journal.append([{"n": 5}])
    assert journal.path.read_bytes() == before
    monkeypatch.undo()
    journal.append([{"n": 5}])
    assert numbers(Journal(tmp_path)) == [1, 2, 3, 4, 5]


def test_after_a_failed_fsync_only_a_new_file_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = filled(tmp_path)

    def broken(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StoreError, match="Input/output error"):
        journal.append([{"n": 5}])
    monkeypatch.undo()
    with pytest.raises(StoreError, match="start again"):
        journal.append([{"n": 6}])
    journal.compact({"upto": 5})
    journal.append([{"n": 6}])
    assert numbers(Journal(tmp_path)) == [6]


def test_a_full_disk_that_shows_at_the_fsync_is_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = filled(tmp_path)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for _ in range(2):
        with pytest.raises(StoreFull, match="no room while writing the journal"):
            journal.append([{"n": 5}])
    monkeypatch.undo()
    journal.append([{"n": 5}])
    assert numbers(Journal(tmp_path)) == [1, 2, 3, 4, 5]


def test_a_new_file_whose_name_is_not_durable_counts_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = filled(tmp_path)
    fsync = os.fsync
    calls = []

    def full_at_the_folder(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full_at_the_folder)
    with pytest.raises(StoreFull):
        journal.compact({"upto": 4})
    # The next start takes the new file, so what comes now must go there.
    journal.append([{"n": 5}])
    again = Journal(tmp_path)
    assert again.snapshot == {"upto": 4}
    assert numbers(again) == [5]


def test_it_says_when_it_is_long(tmp_path: Path) -> None:
    journal = Journal(tmp_path, compact_bytes=300)
    journal.append([{"n": 1}])
    assert not journal.is_long
    journal.append([{"text": "x" * 300}])
    assert journal.is_long
    journal.compact({"state": "y" * 1000})
    journal.append([{"text": "x" * 400}])
    assert not journal.is_long, "less than the snapshot itself is not worth a new one"


def test_a_newer_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0000000003.journal").write_bytes(frame({"schema": 2, "snapshot": {}}))
    with pytest.raises(FleetError, match="layout 2"):
        Journal(tmp_path)
    assert (tmp_path / "0000000003.journal").exists()
