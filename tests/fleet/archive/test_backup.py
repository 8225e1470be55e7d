"""`fleet store backup` and `restore`: whole or not there, with every record that was acknowledged before."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from agents.files import fsync
from fleet.archive import backup_folder
from fleet.archive.backup import back_up, restore, verify_backup
from fleet.archive.backup_folder import MANIFEST, OBJECTS, is_backup
from fleet.archive.verify import verify
from fleet.errors import StoreError, StoreFull
from fleet.state.schema import STATE
from fleet.store.catalog import read_devices, read_workloads
from fleet.store.delta.log import TableSnapshot, load_snapshot
from tests.archive_fixtures import batch, data_file, data_files, fill, flip, ids_of, opened, record_ids
from tests.disk_fixtures import contents, failing


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return fill(tmp_path / "store")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup; to be copied before it is changed."""
    folder = tmp_path_factory.mktemp("whole")
    back_up(fill(folder / "store"), folder / "backup")
    return folder / "backup"


def ids(folder: Path) -> set[str]:
    return set(record_ids(folder))


def refused(words: str, call: Callable[..., object], *folders: Path) -> None:
    with pytest.raises(StoreError, match=words):
        call(*folders)


def append(folder: Path, start: int, count: int) -> None:
    with opened(folder) as store:
        store.append(batch(start, count))


def test_a_restored_store_is_whole_and_goes_on(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store / "imports").mkdir()
    (store / "imports" / "dev-a.jsonl").write_text('{"file":"a.json"}\n')
    made = back_up(store, tmp_path / "backup")
    assert (made.records, made.waiting, made.version) == (420, 5, 4)
    assert verify_backup(tmp_path / "backup").damage == []
    durable: set[Path] = set()
    for module in ("agents.files", "fleet.archive.backup"):
        monkeypatch.setattr(f"{module}.fsync", lambda path: durable.add(path) or fsync(path))
    again = tmp_path / "new" / "deep" / "again"
    assert restore(tmp_path / "backup", again).files == made.files
    # Else a power cut takes the names of the new folders, and all that a daemon has stored below them since.
    assert {tmp_path, tmp_path / "new", tmp_path / "new" / "deep"} <= durable
    found = verify(again)
    assert (found.damage, found.records, found.waiting) == ([], 420, 5)
    assert contents(again / "imports") == contents(store / "imports")
    for read, name in ((read_workloads, "workloads"), (read_devices, "devices")):
        assert read(again / name) == read(store / name) != {}
    with opened(again) as writer:
        assert list(writer.state.events()) == [b"taken in"] * 5
        writer.append(batch(700, 10))
    assert record_ids(again) == sorted([*record_ids(store), *ids_of(batch(700, 10))])
    assert verify(again).damage == []


def test_when_files_go_meanwhile_all_begins_anew(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = load_snapshot
    starts = iter([4000])

    def snapshot(table: Path, version: int) -> TableSnapshot:
        result = real(table, version)
        for start in islice(starts, 1):
            with opened(store) as writer:
                writer.append(batch(start, 1))
                writer.table.compact(writer.devices())
                writer.table.checkpoint()
                writer.table.delete_unused(writer.table.version)
        return result

    monkeypatch.setattr("fleet.archive.backup.load_snapshot", snapshot)
    back_up(store, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "again")
    assert verify(tmp_path / "again").damage == []
    assert record_ids(tmp_path / "again") == record_ids(store)


def test_only_what_is_new_is_copied_again(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    first = back_up(store, folder)
    assert 0 < first.copied_bytes <= first.bytes
    assert back_up(store, folder).copied_bytes == 0
    append(store, 2000, 8)
    assert 0 < back_up(store, folder).copied_bytes < first.copied_bytes
    with opened(store) as writer:
        writer.append(batch(3000, 8))
        writer.table.checkpoint()
        writer.table.compact(writer.devices())
        writer.table.delete_unused(writer.table.version)
    assert back_up(store, folder).copied_bytes > 0
    named = {sha256 for sha256, _ in json.loads((folder / MANIFEST).read_text())["files"].values()}
    assert {path.name for path in (folder / OBJECTS).glob("*/*")} == named, "what only the first had is gone"
    restore(folder, tmp_path / "again")
    assert ids(tmp_path / "again") == ids(store)


def test_a_folder_that_is_something_else_is_refused(store: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("precious")
    for folder, words in (
        (tmp_path / "home", "holds thesis.tex, which is no backup"),
        (store, "inside the store"),
        (store / "backup", "inside the store"),
        (tmp_path, "which is no backup"),
        (tmp_path / "home" / "thesis.tex", "is a file"),
    ):
        refused(words, back_up, store, folder)
    refused("there is no store", back_up, tmp_path / "home", tmp_path / "backup")
    back_up(store, tmp_path / "backup")
    other = fill(tmp_path / "other")
    refused("backup of another store", back_up, other, tmp_path / "backup")
    assert verify_backup(tmp_path / "backup").damage == []
    assert (tmp_path / "home" / "thesis.tex").read_text() == "precious"


def test_nothing_is_overwritten_by_a_restore(store: Path, tmp_path: Path) -> None:
    back_up(store, tmp_path / "backup")
    before = contents(store)
    refused("nothing is overwritten", restore, tmp_path / "backup", store)
    assert contents(store) == before
    (tmp_path / "empty").mkdir()
    restore(tmp_path / "backup", tmp_path / "empty")
    assert verify(tmp_path / "empty").damage == []
    refused("there is no whole backup", restore, tmp_path / "nowhere", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_damaged_backup_is_found_and_not_restored(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    back_up(store, folder)
    broken = max((folder / OBJECTS).glob("*/*"), key=lambda path: path.stat().st_size)
    flip(broken, 77)
    found = verify_backup(folder)
    assert [one.what.split(";")[0] for one in found.damage] == ["bits have changed"]
    refused("holds other bits", restore, folder, tmp_path / "again")
    broken.unlink()
    assert "No such file" in verify_backup(folder).damage[0].what
    refused("lacks", restore, folder, tmp_path / "again")
    assert not list(tmp_path.glob("*again*")), "nothing is left of it"
    back_up(store, folder)
    assert verify_backup(folder).damage == []
    flip(folder / MANIFEST, 40)
    refused("is damaged", restore, folder, tmp_path / "again")


#: A place in the manifest, the value that somebody puts there, and words of the refusal.
MANIFESTS = r"""
files ../outside/file       -> ["0000", 1]  -> is no file of a store
files /etc/motd             -> ["0000", 1]  -> is no file of a store
files records/../../outside -> ["0000", 1]  -> is no file of a store
files somewhere/else        -> ["0000", 1]  -> is no file of a store
files records/a             -> ["../../etc/passwd", 1] -> matching regex
files records/a             -> null         -> Expected `array`, got `null`
files                       -> null         -> got `null` - at `\$\.files`
about                       -> []           -> got `array` - at `\$\.about`
about records               -> "many"       -> got `str` - at `\$\.about\.records`
schema                      -> null         -> has layout None, this version reads 2
"""


@pytest.mark.parametrize(
    "line", [*MANIFESTS.strip().splitlines(), 'files records/a\0b -> ["0000", 1] -> matching']
)
def test_a_list_that_leads_elsewhere_or_is_of_wrong_types_is_one_line(
    line: str, whole: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "backup"))
    value = json.loads((folder / MANIFEST).read_text())
    del value["sum"]
    path, changed, message = (cell.strip() for cell in line.split("->"))
    *parents, last = path.split(" ")
    place = value[parents[0]] if parents else value
    place[last] = json.loads(changed.replace("0000", "0" * 64))
    (folder / MANIFEST).write_text(json.dumps({**value, "sum": backup_folder._sum_of(value)}))
    for look in (verify_backup, lambda backup: restore(backup, tmp_path / "again")):
        with pytest.raises(StoreError, match=message) as refused:
            look(folder)
        assert str(refused.value).isprintable()


def test_what_is_no_regular_file_is_not_restored(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "backup"))
    kept = max((folder / OBJECTS).glob("*/*"), key=lambda path: path.stat().st_size)
    content = kept.read_bytes()
    for make in (
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_bytes(content * 2),
    ):
        kept.unlink()
        make(kept)
        [damage] = verify_backup(folder).damage
        assert damage.what.startswith(("is no regular file", "bits have changed"))
        with pytest.raises(StoreError, match=r"is no regular file|has [\d,]+ bytes, at most"):
            restore(folder, tmp_path / "again")
    for text in ("[" * 100_000, "null", "\xff"):
        (folder / MANIFEST).write_text(text, encoding="latin-1")
        refused("is damaged", restore, folder, tmp_path / "again")


def test_what_is_damaged_is_not_backed_up_as_if_it_were_whole(store: Path, tmp_path: Path) -> None:
    earlier, new = tmp_path / "backup", tmp_path / "new"
    back_up(store, earlier)
    before = contents(earlier)
    older = data_files(store)
    append(store, 2000, 8)
    [newest] = set(data_files(store)) - set(older)
    flip(newest, 50)
    refused(r"is damaged: its SHA-256", back_up, store, earlier)
    assert before.items() <= contents(earlier).items(), "the earlier one is as it was"
    restore(earlier, tmp_path / "again")
    flip(newest, 50)
    largest = data_file(store)
    largest.rename(tmp_path / "moved")
    refused("is missing in the store", back_up, store, new)
    (tmp_path / "moved").rename(largest)
    with opened(store) as writer:
        writer.take_in(batch(3000, 5))
    with closing(sqlite3.connect(store / STATE)) as connection:
        connection.execute("UPDATE waiting SET body = x'00'")
        connection.commit()
    refused(r"state.sqlite is damaged; `fleet store verify` says more", back_up, store, new)
    (store / STATE).unlink()
    refused(r"there is no .*state.sqlite", back_up, store, new)
    assert not is_backup(new)


def test_a_full_disk_leaves_the_earlier_backup(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "backup"
    back_up(store, folder)
    append(store, 2000, 8)
    with monkeypatch.context() as patch:
        patch.setattr("fleet.archive.backup_folder.os.fsync", failing())
        with pytest.raises(StoreFull, match="no room while backing up"):
            back_up(store, folder)
    assert not list((folder / OBJECTS).glob(".*"))
    restore(folder, tmp_path / "again")
    assert len(ids(tmp_path / "again")) == 425


_WRITER = """
import sys
from pathlib import Path
from tests.archive_fixtures import LANE, batch, opened
with opened(Path(sys.argv[1])) as store:
    for number in range(100_000):
        records = batch(10_000 + 6 * number, 6)
        store.take_in(records)
        for one in records:
            print(one.record_id)
        sys.stdout.flush()
        if number % 4 == 3:
            store.table.flush([LANE])
        if number % 40 == 39:
            store.table.compact(["dev-a"])
            store.table.checkpoint()
            store.table.delete_unused(max(0, store.table.version - 100))
"""


class Writer:
    """A process that takes in records like a daemon, and says which are acknowledged."""

    def __init__(self, store: Path, told: Path) -> None:
        self._told = told
        with told.open("w") as stream:
            self._process = subprocess.Popen([sys.executable, "-c", _WRITER, str(store)], stdout=stream)
        self.wait_for(60)

    def acknowledged(self) -> set[str]:
        return set(self._told.read_text().rpartition("\n")[0].split())

    def wait_for(self, more: int) -> None:
        """Wait until so many more records are acknowledged."""
        aim, until = len(self.acknowledged()) + more, time.monotonic() + 120
        while len(self.acknowledged()) < aim:
            assert self._process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def writer(store: Path, tmp_path: Path) -> Iterator[Writer]:
    made = Writer(store, tmp_path / "told")
    yield made
    made.kill()


def test_beside_a_writer_every_acknowledged_record_is_in_it_and_nothing_is_taken_for_damage(
    store: Path, tmp_path: Path, writer: Writer
) -> None:
    folder = tmp_path / "backup"
    versions: list[int] = []
    for number in range(3):
        writer.wait_for(50)
        found = verify(store)
        assert found.damage == []
        versions.append(found.version)
        before = writer.acknowledged()
        back_up(store, folder)
        again = tmp_path / f"again-{number}"
        restore(folder, again)
        assert verify(again).damage == []
        assert before <= ids(again)
    assert versions == sorted(set(versions)), "the writer goes on meanwhile"
    writer.kill()
    assert verify(store).damage == []


#: A verb that is killed when it waits for the disk, after so many times.
_KILLED = """
import os, sys
from pathlib import Path
from fleet.archive import backup
steps, fsync = iter(range(int(sys.argv[1]))), os.fsync
def killed(number):
    if next(steps, None) is None:
        os.kill(os.getpid(), 9)
    fsync(number)
os.fsync = killed
getattr(backup, sys.argv[2])(Path(sys.argv[3]), Path(sys.argv[4]))
"""


def kill(steps: int, verb: str, *folders: Path) -> None:
    command = [sys.executable, "-c", _KILLED, str(steps), verb, *map(str, folders)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


@pytest.mark.parametrize("steps", [0, 5])
def test_a_kill_leaves_the_earlier_backup_or_none_and_no_half_of_a_store(
    store: Path, tmp_path: Path, steps: int
) -> None:
    folder, again = tmp_path / "backup", tmp_path / "again"
    kill(steps, "back_up", store, folder)
    assert not is_backup(folder)
    back_up(store, folder)
    before = ids(store)
    append(store, 2000, 8)
    kill(steps, "back_up", store, folder)
    kill(steps, "restore", folder, again)
    assert not again.exists()
    restore(folder, again)
    assert (verify(again).damage, ids(again)) == ([], before)
    assert not (tmp_path / ".again.restoring").exists()
    assert back_up(store, folder).records == 433
