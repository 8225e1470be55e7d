"""What upkeep deletes, and when, whatever is done to the clock of the host."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from fleet.store import store_time
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from tests.disk_fixtures import filled
from tests.record_fixtures import make_batch

HOUR, DAY = 3600.0, 86_400.0


class Host:
    """A host's clocks, and which start of it this is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.ran, self.boot = time.time(), 5000.0, "one"
        monkeypatch.setattr(time, "time", lambda: self.wall)
        monkeypatch.setattr(store_time, "running_secs", lambda: self.ran)
        monkeypatch.setattr(store_time, "boot_id", lambda: self.boot)

    def run(self, secs: float) -> None:
        self.wall += secs
        self.ran += secs

    def start_again(self, off_secs: float) -> None:
        self.wall += off_secs
        self.ran, self.boot = 10.0, self.boot + "+"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def merged(folder: Path) -> StoreReader:
    """A store in which upkeep has merged the files of a reader, which is returned."""
    reader = Store.read(filled(folder, make_batch(0, 5), make_batch(5, 5)))
    with Store.open(folder) as store:
        assert store.upkeep().merged_files == 2
    return reader


def upkeep(folder: Path) -> int:
    with Store.open(folder) as store:
        return store.upkeep().deleted_files


def is_whole(reader: StoreReader) -> bool:
    return Counter(reader.records()) == Counter(make_batch(0, 10))


def age_files(folder: Path, secs: float) -> None:
    """Give all files older dates."""
    for path in folder.rglob("*"):
        if path.is_file():
            at = path.stat().st_mtime - secs
            os.utime(path, (at, at))


#: A clock that is set three times (by 30 days it goes on by itself, as on a host that sleeps); and a note
#: that is damaged, or gone.
CHANCES = [
    *((step, 3, "as it was") for step in (8 * DAY, -8 * DAY, 30 * DAY, 1000 * DAY, -20_000 * DAY)),
    *((30 * DAY, 1, note) for note in ("", "{}", "[1]", '{"schema": 1, "noted": 7}', None)),
]


@pytest.mark.parametrize(("step", "times", "note"), CHANCES)
def test_nothing_that_a_reader_uses_goes_within_a_week_of_running(
    tmp_path: Path, host: Host, step: float, times: int, note: str | None
) -> None:
    reader, path = merged(tmp_path), tmp_path / store_time.UPKEEP
    if note is None:
        path.unlink()
    elif note != "as it was":
        path.write_text(note)
    for day in range(7):
        host.wall += step if day < times else 0.0
        assert upkeep(tmp_path) == 0
        assert is_whole(reader)
        assert is_whole(Store.read(tmp_path, version=reader.version))
        host.run(DAY)
    assert upkeep(tmp_path) == 2


def test_time_goes_on_between_processes_and_stands_while_the_host_is_off(tmp_path: Path, host: Host) -> None:
    merged(tmp_path)
    for _ in range(6):
        host.run(DAY)
        assert upkeep(tmp_path) == 0
    host.start_again(off_secs=100 * DAY)
    assert upkeep(tmp_path) == 0
    host.run(DAY - HOUR)
    assert upkeep(tmp_path) == 0
    host.run(HOUR)
    assert upkeep(tmp_path) == 2


def commits(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in (folder / "records" / "_delta_log").glob("*.json"))


def test_versions_can_be_read_for_a_week_whatever_the_dates_of_their_commits(
    tmp_path: Path, host: Host
) -> None:
    filled(tmp_path, *(make_batch(start, 1) for start in range(3)))
    middle = Store.read(tmp_path).version
    upkeep(tmp_path)
    filled(tmp_path, *(make_batch(start, 1) for start in range(3, 6)))
    for _ in range(6):
        # deltalake would go by these.
        age_files(tmp_path / "records" / "_delta_log", 100 * DAY)
        host.run(DAY)
        upkeep(tmp_path)
    assert commits(tmp_path)[0] == 0
    assert list(Store.read(tmp_path, version=middle).records()) == make_batch(0, 3)
    host.run(DAY)
    upkeep(tmp_path)
    newest = Store.read(tmp_path).version
    left = commits(tmp_path)
    assert left[0] > 0, "what a checkpoint of more than a week ago stands for is gone"
    assert left[-1] == newest
    for version in (left[0], newest):
        assert list(Store.read(tmp_path, version=version).records())
    with Store.open(tmp_path) as store:
        assert store.repairs == ()
        assert Counter(store.records()) == Counter(make_batch(0, 6))
