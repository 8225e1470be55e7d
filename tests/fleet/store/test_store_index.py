"""The index of record ids: believed only where it fits the table, so a wrong one costs time and no record."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import fleet.store.delta.ids as ids_module
import fleet.store.delta.index as index_module
import fleet.store.store as store_module
from fleet.errors import StoreError
from fleet.store.delta.ids import IdRun, RecordIds, keys_of, keys_of_column
from fleet.store.delta.index import IDS, INDEX
from fleet.store.delta.log import commit_path
from fleet.store.store import Store
from tests.disk_fixtures import failing, filled, killed
from tests.record_fixtures import make_batch, record_ids

BATCHES = [make_batch(start, 5) for start in range(0, 20, 5)]


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a few records were many."""
    monkeypatch.setattr(index_module, "LEAST_IDS", 1)
    monkeypatch.setattr(index_module, "SAVE_IDS", 12)
    monkeypatch.setattr(ids_module, "MERGE_AT", 4)


@pytest.fixture
def read_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The data files that ids are read from."""
    read: list[str] = []
    real = Store._read_ids

    def watched(self: Store, paths: Iterable[str]) -> Iterator[pa.Array]:
        chosen = list(paths)
        read.extend(chosen)
        return real(self, chosen)

    monkeypatch.setattr(Store, "_read_ids", watched)
    return read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A closed store of four commits."""
    return filled(tmp_path / "s", *BATCHES)


def check_ids(store: Store) -> None:
    ids = record_ids(store)
    assert len(store._index.ids) == len(ids)
    assert all(store._index.ids.known(ids))


def test_a_store_that_was_closed_opens_without_reading_its_records(
    folder: Path, read_files: list[str]
) -> None:
    with Store.open(folder) as store:
        assert read_files == []
        assert store.append(make_batch(0, 21)).duplicates == 20
        check_ids(store)
    with Store.open(folder) as store:
        assert store.append(make_batch(0, 21)).appended == 0


def test_after_a_kill_only_what_came_since_is_read(tmp_path: Path, read_files: list[str]) -> None:
    with Store.open(tmp_path / "s") as store:
        for batch in BATCHES:
            store.append(batch)
        saved = store._index.saved_version
        copy = killed(store.path, tmp_path / "copy")
    assert 0 < saved < 4
    with Store.open(copy) as store:
        assert [int(path.split("-")[2]) for path in read_files] == list(range(saved + 1, 5))
        assert store.append(make_batch(0, 21)).appended == 1


def test_merges_and_deleted_files_since_then_do_no_harm(folder: Path, tmp_path: Path) -> None:
    with Store.open(folder) as store:
        for start in range(20, 30, 5):
            store.append(make_batch(start, 5))
        saved = {path.name: path.read_bytes() for path in (folder / IDS).iterdir()}
        store.upkeep(retention_hours=0)
        copy = killed(store.path, tmp_path / "copy")
    # The index as it was before the merge: killed in between.
    for name, data in saved.items():
        (copy / IDS / name).write_bytes(data)
    with Store.open(copy) as store:
        assert store._index.saved_version > 0
        assert len(store._index.ids) == 30
        assert store.append(make_batch(0, 31)).appended == 1


def test_merges_of_what_the_index_holds_are_not_read(
    folder: Path, tmp_path: Path, read_files: list[str]
) -> None:
    with Store.open(folder) as store:
        assert store._merge_groups([store.snapshot.files]) == 4
        copy = killed(store.path, tmp_path / "copy")
    with Store.open(copy) as store:
        assert read_files == []
        assert store.append(make_batch(0, 21)).appended == 1


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 8)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def run_of(folder: Path) -> Path:
    return max((folder / IDS).glob("*.run"), key=lambda path: path.stat().st_size)


def changed(folder: Path, **values: Any) -> None:
    path = folder / IDS / INDEX
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def forget_a_run(folder: Path) -> None:
    # As if its ids had never been there, but the counts say otherwise.
    path = folder / IDS / INDEX
    value = json.loads(path.read_text())
    value["rows"] -= value["runs"][-1]["ids"]
    path.write_text(json.dumps({**value, "runs": value["runs"][:-1]}))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "deleted": lambda folder: shutil.rmtree(folder / IDS),
    "index deleted": lambda folder: (folder / IDS / INDEX).unlink(),
    "index torn": lambda folder: cut(folder / IDS / INDEX),
    "index no object": lambda folder: (folder / IDS / INDEX).write_text("[]"),
    "run deleted": lambda folder: run_of(folder).unlink(),
    "run torn": lambda folder: cut(run_of(folder)),
    "run flipped": lambda folder: flip(run_of(folder)),
    "run elsewhere": lambda folder: changed(folder, runs=[{"file": "../x.run", "ids": 0, "crc32": 0}]),
    "run forgotten": forget_a_run,
    "of a newer layout": lambda folder: changed(folder, schema=2),
    "of a version to come": lambda folder: changed(folder, version=99),
    "of another commit": lambda folder: changed(folder, commit="0" * 64),
    "of no commit": lambda folder: changed(folder, version=3, commit=""),
    "of more records": lambda folder: changed(folder, rows=21),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_index_that_does_not_fit_is_made_again(folder: Path, damage: str, read_files: list[str]) -> None:
    DAMAGES[damage](folder)
    with Store.open(folder) as store:
        assert len(read_files) == 4
        check_ids(store)
        assert store.append(make_batch(0, 25)).appended == 5
    read_files.clear()
    with Store.open(folder) as store:
        assert read_files == []
        assert store.append(make_batch(0, 25)).appended == 0


def test_an_index_of_a_table_that_was_put_back_is_not_believed(tmp_path: Path, read_files: list[str]) -> None:
    folder = filled(tmp_path / "s", *BATCHES[:2])
    backup = shutil.copytree(folder / "records", tmp_path / "backup")
    filled(folder, *BATCHES)
    shutil.rmtree(folder / "records")
    shutil.copytree(backup, folder / "records")
    with Store.open(folder) as store:
        assert len(read_files) == 2
        # Else these records would be taken for known, and lost.
        assert store.append(make_batch(0, 20)).appended == 10


def test_a_torn_commit_takes_its_ids_out_again(folder: Path, read_files: list[str]) -> None:
    cut(commit_path(folder / "records", 4))
    (lost,) = (folder / "records").glob("*/part-*4-*.parquet")
    lost.unlink()
    with Store.open(folder) as store:
        assert len(read_files) == 3
        assert store.append(make_batch(0, 20)).appended == 5


def test_a_full_disk_only_costs_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(index_module, "write_durably", failing())
        filled(tmp_path / "s", *BATCHES)
    assert "the records are kept, but" in caplog.text
    assert list((tmp_path / "s" / IDS).iterdir()) == []
    with Store.open(tmp_path / "s") as store:
        assert store.append(make_batch(0, 21)).appended == 1


def test_small_stores_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "LEAST_IDS", 4096)
    monkeypatch.setattr(index_module, "SAVE_IDS", 65_536)
    assert not (filled(tmp_path / "s", *BATCHES) / IDS).exists()


class AnyOrder(RuleBasedStateMachine):
    """Appends, merges, kills, damaged indexes in any order: the ids are those of the table, always."""

    folders: Iterator[Path]

    @initialize()
    def begin(self) -> None:
        self.folder = next(type(self).folders)
        self.store = Store.open(self.folder)
        self.kept: set[str] = set()

    @rule(start=st.integers(0, 40), count=st.integers(1, 7), device=st.sampled_from(["dev-a", "dev-b"]))
    def append(self, start: int, count: int, device: str) -> None:
        batch = make_batch(start, count, device=device)
        result = self.store.append(batch)
        new = {record.record_id for record in batch} - self.kept
        assert (result.appended, result.duplicates) == (len(new), count - len(new))
        self.kept |= new

    @rule()
    def upkeep(self) -> None:
        self.store.upkeep(retention_hours=0)

    @rule()
    def close(self) -> None:
        self.store.close()
        self.store = Store.open(self.folder)

    @rule(damage=st.sampled_from(["none", *DAMAGES]))
    def kill(self, damage: str) -> None:
        self.folder = killed(self.folder, next(type(self).folders))
        self.store.close()
        if list((self.folder / IDS).glob("*.run")) and (self.folder / IDS / INDEX).exists():
            DAMAGES.get(damage, lambda folder: None)(self.folder)
        self.store = Store.open(self.folder)

    @invariant()
    def the_ids_are_those_of_the_table(self) -> None:
        assert len(self.store._index.ids) == len(self.kept)
        assert all(self.store._index.ids.known(sorted(self.kept)))

    def teardown(self) -> None:
        if hasattr(self, "store"):
            assert set(record_ids(self.store)) == self.kept
            self.store.close()


def test_the_ids_are_right_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MERGE_FILES", 3)
    monkeypatch.setattr(store_module, "CHECKPOINT_EVERY", 5)
    AnyOrder.folders = (tmp_path / str(number) for number in range(10**9))
    run_state_machine_as_test(
        AnyOrder, settings=settings(max_examples=10, stateful_step_count=12, deadline=None)
    )


def test_ids_with_the_same_first_half_are_told_apart() -> None:
    same, other = "ab" * 8, "cd" * 8
    ids = [same + f"{number:016x}" for number in range(5)] + [other + f"{3:016x}"]
    run = IdRun.of(keys_of(ids))
    halves = np.frombuffer(keys_of([*ids, same + "f" * 16, "0" * 32, "f" * 32]), dtype=">u8").reshape(-1, 2)
    assert run.holds(halves[:, 0].astype(np.uint64), halves[:, 1].astype(np.uint64)).tolist() == (
        [True] * 6 + [False] * 3
    )
    known = RecordIds([run])
    assert known.known([*ids, same + "f" * 16]) == [True] * 6 + [False]


def test_ids_that_are_no_hashes_are_known_too() -> None:
    odd = ["short", "x" * 32, "é" * 16, "0" * 31 + " ", ""]
    good = [f"{number:032x}" for number in range(3)]
    assert len({keys_of([one]) for one in odd}) == 5
    assert keys_of([*good, *odd]) == b"".join(keys_of([one]) for one in [*good, *odd])
    assert keys_of_column(pa.array([*good, *odd])) == keys_of([*good, *odd])
    assert keys_of_column(pa.array(["x" * 32, *good]).slice(1)) == keys_of(good)


def test_a_damaged_data_file_is_one_clear_error_when_its_ids_are_needed(folder: Path) -> None:
    shutil.rmtree(folder / IDS)
    (first, *_) = sorted((folder / "records").glob("*/*.parquet"))
    os.truncate(first, 100)
    with pytest.raises(StoreError, match="reading the ids"):
        Store.open(folder)
