"""Rows on the disk: all or nothing, damage named and kept, room; for all that is kept in such a file."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agents import row_file
from agents.row_file import RowFile, read_rows

BODY = b"x" * 1500


def fill(rows: RowFile, count: int) -> None:
    """A row of a transaction each."""
    for number in range(count):
        rows.change([(f"k{number}", b"%d" % number + BODY)])


def made(path: Path, count: int = 60) -> Path:
    """A file that was closed in order."""
    rows = RowFile(path)
    fill(rows, count)
    rows.close()
    return path


def killed(path: Path, count: int = 20) -> Path:
    """The same as a kill leaves it: all is in the log, which is returned."""
    rows = RowFile(path.parent / "living")
    fill(rows, count)
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{rows.path}{suffix}", f"{path}{suffix}")
    rows.close()
    return Path(f"{path}-wal")


def keys(path: Path) -> tuple[list[str], list[str]]:
    """What an opening finds, and what it notes; a second one must find the same and note nothing."""
    rows = RowFile(path)
    found, notes = [row.key for row in rows.rows()], rows.notes
    rows.close()
    again = RowFile(path)
    assert ([row.key for row in again.rows()], again.notes) == (found, [])
    again.close()
    return found, notes


def flip(path: Path, offset: int, bits: int = 0x40) -> bytes:
    data = bytearray(path.read_bytes())
    data[offset] ^= bits
    path.write_bytes(data)
    return bytes(data)


def test_the_number_of_a_row_is_never_that_of_another(tmp_path: Path) -> None:
    """`test_spool.py` has the order of rows, who else has the file open, and files of another layout."""
    rows = RowFile(tmp_path / "f")
    first = rows.change([("a", b"1"), ("b", b"2")])
    # The last one goes as a new one comes.
    [number] = rows.change([("c", b"3")], [first[1], 99])
    assert number > first[1]
    assert [row.body for row in rows.get([number, first[0]])] == [b"3", b"1"]
    with pytest.raises(OSError, match="row 99 is damaged"):
        list(rows.get([99]))
    rows.close()


#: Bytes that are missing at the end of the log; a power cut may also leave zeros there.
@pytest.mark.parametrize(("cut", "kept"), [(1, 19), (100, 19), (4096 + 24, 19), (-8192, 20)])
def test_a_torn_transaction_is_dropped_and_no_damage(tmp_path: Path, cut: int, kept: int) -> None:
    log = killed(tmp_path / "f")
    os.truncate(log, log.stat().st_size - cut)
    assert keys(tmp_path / "f") == ([f"k{number}" for number in range(kept)], [])


def test_damage_in_the_log_is_named_and_the_log_kept(tmp_path: Path) -> None:
    log = killed(tmp_path / "f")
    data = flip(log, log.stat().st_size // 2)
    found, [note] = keys(tmp_path / "f")
    assert found == [f"k{number}" for number in range(len(found))]
    assert 5 < len(found) < 15
    assert "damaged in its log: kept as f.corrupt" in note
    assert (tmp_path / "f.corrupt-wal").read_bytes() == data
    killed(tmp_path / "f")
    again = flip(log, log.stat().st_size // 2)
    keys(tmp_path / "f")
    assert (tmp_path / "f.corrupt-wal").read_bytes() == data, "the one before is never overwritten"
    assert (tmp_path / "f.1.corrupt-wal").read_bytes() == again


def zero_page(path: Path, page: int) -> bytes:
    data = path.read_bytes()
    path.write_bytes(data[: page * 4096] + bytes(4096) + data[(page + 1) * 4096 :])
    return path.read_bytes()


#: A byte in the middle of a page, a whole page, or bits of the key of row 30.
DAMAGES = ("byte 2", "byte 10", "byte -1", "page 2", "page 10", "page -1", "key 128", "key 1")


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_costs_only_its_rows_and_the_file_is_kept(tmp_path: Path, damage: str) -> None:
    path = made(tmp_path / "f")
    raw, (kind, number) = path.read_bytes(), damage.split()
    page = int(number) % (len(raw) // 4096)
    if kind == "key":
        data = flip(path, raw.index(b"k3030" + BODY[:8]), int(number))
    else:
        data = zero_page(path, page) if kind == "page" else flip(path, page * 4096 + 2000)
    found, [note] = keys(path)
    assert (59 if kind == "key" else 56) <= len(found) < 60
    assert "f is damaged: kept as f.corrupt" in note
    assert (tmp_path / "f.corrupt").read_bytes() == data
    assert [row.key for row in read_rows(tmp_path / "f.corrupt")] == found


@pytest.mark.parametrize("page", [0, 1])
def test_a_file_of_which_nothing_can_be_read_is_kept_and_begun_anew(tmp_path: Path, page: int) -> None:
    path = made(tmp_path / "f")
    zero_page(path, page)
    found, [note] = keys(path)
    assert (found, "kept as f.corrupt" in note) == ([], True)
    assert made(path, 3).exists()
    assert keys(path)[0] == ["k0", "k1", "k2"]


def test_rows_of_a_damaged_file_that_another_has_are_not_taken_for_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(tmp_path / "f", 9)
    flip(path, path.read_bytes().index(b"5" + BODY) + 9)
    others = []
    copy_aside = RowFile._copy_aside

    def taken(self: RowFile, *args: Any) -> Any:
        made = copy_aside(self, *args)
        others.append(sqlite3.connect(path, isolation_level=None))
        for one in ("PRAGMA locking_mode=EXCLUSIVE", "BEGIN EXCLUSIVE"):
            others[-1].execute(one)
        return made

    with monkeypatch.context() as patched:
        patched.setattr(RowFile, "_copy_aside", taken)
        for _ in range(3):
            with pytest.raises(BlockingIOError):
                RowFile(path)
            others[-1].close()
    assert not list(tmp_path.glob("*.corrupt*")), "each refused opening would leave one more"
    assert keys(path)[0] == [f"k{number}" for number in range(9) if number != 5]
    assert [one.name for one in tmp_path.glob("*.corrupt*")] == ["f.corrupt"]


@pytest.mark.parametrize("step", ["copyfile", "_readable"])
def test_a_rescue_without_room_leaves_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = made(tmp_path / "f", 9)
    data = flip(path, path.read_bytes().index(b"5" + BODY) + 9)

    def full(_: Path, target: Path | None = None) -> None:
        if target is not None:
            target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(shutil if step == "copyfile" else row_file, step, full)
        with pytest.raises(OSError, match="No space left"):
            RowFile(path)
    assert [one.name for one in tmp_path.iterdir()] == ["f"]
    assert path.read_bytes() == data
    assert keys(path)[0] == [f"k{number}" for number in range(9) if number != 5]


@pytest.mark.parametrize("step", ["_copy_aside", "finish_rebuild", "unlink"])
def test_a_kill_inside_a_rescue_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    class Killed(BaseException):
        pass

    path = made(tmp_path / "f")
    flip(path, 20 * 4096 + 2000)
    calls = []
    owner = {"unlink": Path, "finish_rebuild": row_file}.get(step, RowFile)
    real = getattr(owner, step)

    def kill(*arguments: object, **options: object) -> object:
        calls.append(arguments)
        if len(calls) == (1 if step == "_copy_aside" else 2):
            raise Killed
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, kill)
        with pytest.raises(Killed):
            RowFile(path)
    assert len(keys(path)[0]) == 59
    assert step == "_copy_aside" or (tmp_path / "f.corrupt").exists()


def test_an_empty_file_gives_its_room_back(tmp_path: Path) -> None:
    rows = RowFile(tmp_path / "f")
    numbers = rows.change([(str(number), bytes(1 << 20)) for number in range(6)])
    rows.change([], numbers)
    rows.shrink()
    assert (tmp_path / "f").stat().st_size < 1 << 16
    rows.close()
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_others_read_a_file_that_is_open(tmp_path: Path) -> None:
    rows = RowFile(made(tmp_path / "f", 3))
    rows.change([("late", b"")])
    assert [row.key for row in read_rows(tmp_path / "f")] == ["k0", "k1", "k2", "late"]
    assert read_rows(tmp_path / "none") == []
    rows.close()
