"""A state file on the disk: damage, strangers, full and read-only disks, two writers, readers beside it."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from fleet.errors import StoreError, StoreFull, StoreLocked, disk_errors
from fleet.state.questions import StateReader
from fleet.state.rows import result_of
from fleet.state.state_file import StateFile
from tests.record_fixtures import make_batch
from tests.table_fixtures import rows

FIRST, SECOND = map(result_of, make_batch(1, 2))


def test_a_torn_turn_is_dropped_and_damage_before_it_is_named(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "living" / "state.sqlite")
    for number in range(12):
        with state.turn() as turn:
            turn.add_events(b"%d" % number * 1000)
    for name in ("torn", "damaged"):
        shutil.copytree(tmp_path / "living", tmp_path / name)
    state.close()
    log = tmp_path / "torn" / "state.sqlite-wal"
    os.truncate(log, log.stat().st_size - 100)
    torn = StateFile(tmp_path / "torn" / "state.sqlite")
    assert (len(list(torn.events())), torn.notes) == (11, [])
    torn.close()
    log = tmp_path / "damaged" / "state.sqlite-wal"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0x40
    log.write_bytes(data)
    damaged = StateFile(tmp_path / "damaged" / "state.sqlite")
    [note] = damaged.notes
    assert "damaged in its log: kept as state.sqlite.corrupt-wal" in note
    assert (tmp_path / "damaged" / "state.sqlite.corrupt-wal").read_bytes() == data
    damaged.close()


STRANGERS = """
text  -> not a database
other -> application id is 0x7
newer -> layout 9, this version reads
"""


@pytest.mark.parametrize(("made", "words"), rows(STRANGERS))
def test_a_file_that_is_none_of_this_version_is_refused_in_one_line(
    tmp_path: Path, made: str, words: str
) -> None:
    path = tmp_path / "state.sqlite"
    if made == "text":
        path.write_text("not a database, but long enough for a header of one\n" * 10)
    else:
        StateFile(path).close()
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA application_id=7" if made == "other" else "PRAGMA user_version=9")
        connection.close()
    before = path.read_bytes()
    for opening in (StateFile, StateReader):
        with pytest.raises(StoreError, match=words) as caught:
            opening(path)
        assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


def test_two_writers_are_refused_and_readers_see_one_moment(state: StateFile) -> None:
    with state.turn() as turn:
        turn.add_results([FIRST])
    with StateReader(state.path) as reader:
        with state.turn() as turn:
            turn.add_results([SECOND])
            with pytest.raises(StoreLocked, match="is being written by another process"):
                StateFile(state.path)
        assert reader.are_stored([FIRST, SECOND]) == [True, False]
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader._connection.execute("DELETE FROM result")


def test_a_full_disk_refuses_a_turn_whole_and_the_next_one_goes_on(state: StateFile) -> None:
    with state.turn() as turn:
        turn.add_events(b"kept")
    [pages] = state._connection.execute("PRAGMA page_count").fetchone()
    state._connection.execute(f"PRAGMA max_page_count={pages + 2}")
    with pytest.raises(StoreFull, match="nothing of it was kept"), state.turn() as turn:  # noqa: PT012
        turn.add_results([FIRST])
        turn.add_waiting(0, ["new"], 1, bytes(400_000), 1.0)
    with state.turn() as turn:
        turn.add_results([SECOND])
        turn.add_waiting(0, ["other"], 1, b"w", 1.0)
    assert state.are_stored([FIRST, SECOND]) == [False, True]
    assert [piece.device_ids for piece in state.waiting()] == [("other",)]


def test_a_file_on_a_network_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = namedtuple("disk", "mountpoint fstype")
    monkeypatch.setattr(
        psutil, "disk_partitions", lambda all: [disk("/", "ext4"), disk(str(tmp_path), "nfs4")]
    )
    with pytest.raises(StoreError, match=r"file system of a network \(nfs4\)"):
        StateFile(tmp_path / "store" / "state.sqlite")
    assert not (tmp_path / "store" / "state.sqlite").exists()


DELTALAKE = "Generic LocalFileSystem error\n   \x1b[31m↳\x1b[0m No space left on device (os error 28)\n"


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (OSError(DELTALAKE), StoreFull, "No space left on device"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), StoreFull, "No space left on device"),
        (OSError("first line\nsecond"), StoreError, "first line;"),
        (PermissionError(errno.EACCES, "Permission denied"), StoreError, "denied"),
    ],
)
def test_an_error_of_the_disk_is_one_line_whoever_reports_it(
    error: OSError, kind: type[StoreError], words: str
) -> None:
    with pytest.raises(StoreError, match=words) as caught, disk_errors("testing", Path("x")):
        raise error
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
