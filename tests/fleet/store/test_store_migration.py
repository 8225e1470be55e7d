"""Stores of the version before column `quality`: read as they are, migrated by the first writer."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from agents.records import Record
from fleet.errors import StoreError, StoreFull
from fleet.store.delta.log import TABLE_OPTIONS, commit_path
from fleet.store.delta.schema import SCHEMA_KEY, TABLE_SCHEMA
from fleet.store.store import Store
from tests.conftest import run_code
from tests.disk_fixtures import Copies, content, failing_fsync
from tests.record_fixtures import PROTOCOL_KEYS_OF_LAYOUT_1, make_batch, make_batch_of_layout_1, make_record

#: The store as the older version knows it: the constants that this version has changed, before anybody has
#: read them. So its folders come from real commits and real data files without the column.
OLDER_VERSION = """
import sys
import pyarrow as pa
import fleet.store.delta.schema as schema
schema.STORE_SCHEMA = 1
for name in ("FILE_SCHEMA", "TABLE_SCHEMA"):
    setattr(schema, name, pa.schema([field for field in getattr(schema, name) if field.name != "quality"]))
schema.RECORD_COLUMNS = tuple(name for name in schema.RECORD_COLUMNS if name != "quality")
from fleet.errors import StoreError
from fleet.store.store import Store
from tests.record_fixtures import make_batch_of_layout_1
"""

WRITE = """
for checkpointed in (False, True):
    with Store.open(f"{sys.argv[1]}/{'checkpointed' if checkpointed else 'plain'}") as store:
        store.append(make_batch_of_layout_1(0, 5) + make_batch_of_layout_1(0, 3, device="dev-b"))
        store.append(make_batch_of_layout_1(5, 5))
        if checkpointed:
            store._checkpoint()
        store.append(make_batch_of_layout_1(10, 2))
"""

OPEN = """
for call in (Store.open, Store.read):
    try:
        call(sys.argv[1])
    except StoreError as error:
        print("refused", error)
"""

OLD_RECORDS = [*make_batch_of_layout_1(0, 12), *make_batch_of_layout_1(0, 3, device="dev-b")]
#: Version of the table that the older version leaves.
OLD_VERSION = 3


@pytest.fixture(scope="module")
def old_stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    run_code(OLDER_VERSION + WRITE, folder)
    return folder


@pytest.fixture(params=["plain", "checkpointed"])
def old_store(request: pytest.FixtureRequest, old_stores: Path, tmp_path: Path) -> Path:
    """A fresh copy of a store of the older version."""
    return Path(shutil.copytree(old_stores / request.param, tmp_path / "s"))


@pytest.fixture
def plain_store(old_stores: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(old_stores / "plain", tmp_path / "s"))


def rows(folder: Path) -> list[dict[str, Any]]:
    """What deltalake itself reads."""
    found: list[dict[str, Any]] = DeltaTable(folder / "records").to_pyarrow_table().to_pylist()
    return found


def test_reading_needs_no_migration_and_writes_nothing(old_store: Path) -> None:
    table = DeltaTable(old_store / "records")
    assert (table.metadata().configuration[SCHEMA_KEY], table.version()) == ("1", OLD_VERSION)
    assert "quality" not in pa.schema(table.schema()).names
    assert all("quality" not in row for row in rows(old_store))
    assert set(json.loads(rows(old_store)[0]["protocol"])) == set(PROTOCOL_KEYS_OF_LAYOUT_1)
    before = content(old_store)
    reader = Store.read(old_store)
    assert (reader.version, list(reader.records())) == (OLD_VERSION, OLD_RECORDS)
    assert {(record.schema, record.quality) for record in reader.records()} == {(1, "{}")}
    assert (reader.counts()["dev-a"].records, reader.rows) == (12, 15)
    assert content(old_store) == before


def test_the_first_writer_migrates_in_one_commit_that_leaves_all_else_as_it_was(old_store: Path) -> None:
    before = content(old_store)
    metadata = DeltaTable(old_store / "records").metadata()
    with Store.open(old_store) as store:
        assert (store.version, store.repairs) == (OLD_VERSION + 1, ())
        assert list(store.records()) == OLD_RECORDS
        assert list(Store.read(old_store, OLD_VERSION).records()) == OLD_RECORDS
    added = commit_path(old_store / "records", OLD_VERSION + 1)
    now = {name: data for name, data in content(old_store).items() if not name.endswith("writer.lock")}
    assert now.keys() - before.keys() == {str(added)}
    assert {name: data for name, data in now.items() if name in before} == {
        name: data for name, data in before.items() if not name.endswith("writer.lock")
    }
    table = DeltaTable(old_store / "records")
    assert pa.schema(table.schema()).names == TABLE_SCHEMA.names
    assert table.history()[0]["operation"] == "ADD COLUMNS"
    after = table.metadata()
    assert after.configuration == {**metadata.configuration, **TABLE_OPTIONS, SCHEMA_KEY: "2"}
    for name in ("id", "name", "description", "partition_columns", "created_time"):
        assert getattr(after, name) == getattr(metadata, name)
    with Store.open(old_store) as store:
        assert store.version == OLD_VERSION + 1


def test_a_migrated_table_is_like_a_new_one(plain_store: Path, tmp_path: Path) -> None:
    for folder in (plain_store, tmp_path / "new"):
        Store.open(folder).close()
    migrated, new = DeltaTable(plain_store / "records"), DeltaTable(tmp_path / "new/records")
    assert migrated.schema() == new.schema()
    assert migrated.metadata().configuration == new.metadata().configuration
    assert str(migrated.protocol()) == str(new.protocol())


def test_records_of_both_layouts_live_side_by_side_and_deltalake_reads_them(old_store: Path) -> None:
    old, new = make_batch_of_layout_1(20, 2), make_batch(22, 3)
    with Store.open(old_store) as store:
        result = store.append([*OLD_RECORDS, *old, *new])
        assert (result.appended, result.duplicates) == (5, 15)
    with Store.open(old_store) as store:
        assert list(store.records("dev-a")) == [*OLD_RECORDS[:12], *old, *new]
    assert list(Store.read(old_store, version=OLD_VERSION).records()) == OLD_RECORDS
    found = {row["record_id"]: row for row in rows(old_store)}
    assert len(found) == 20
    assert {found[record.record_id]["quality"] for record in OLD_RECORDS} == {None}
    for record in [*old, *new]:
        row = found[record.record_id]
        assert (row["quality"], row["schema"]) == (record.quality, record.schema)
    dataset = DeltaTable(old_store / "records").to_pyarrow_dataset()
    assert dataset.to_table(columns=["quality"]).column("quality").null_count == 15


def test_upkeep_merges_files_of_both_layouts_and_changes_no_record(old_store: Path) -> None:
    new = make_batch(20, 3)
    with Store.open(old_store) as store:
        # Old files alone first, then old and new ones together.
        assert store.upkeep().merged_files == 3
        assert list(store.records()) == OLD_RECORDS
        for record in new:
            store.append([record])
        assert store._merge_groups([[file for file in store.snapshot.files if file.device_id == "dev-a"]])
        assert len(store.data_files()) == 2
        assert store.upkeep(retention_hours=0).deleted_files == 7
    with Store.open(old_store) as store:
        assert list(store.records("dev-a")) == [*OLD_RECORDS[:12], *new]
        assert list(store.records("dev-b")) == OLD_RECORDS[12:]
    assert Counter(row["quality"] for row in rows(old_store)) == {
        None: 15,
        **Counter(record.quality for record in new),
    }


def test_the_older_version_refuses_a_migrated_store_with_one_clear_error(plain_store: Path) -> None:
    Store.open(plain_store).close()
    before = content(plain_store)
    lines = run_code(OLDER_VERSION + OPEN, plain_store).splitlines()
    words = "has store layout 2, this version knows up to 1; upgrade tensor-fleet"
    assert [words in line for line in lines] == [True, True]
    assert [name for name in content(plain_store).keys() ^ before.keys() if "writer" not in name] == []


@pytest.mark.parametrize("failing", range(1, 9))
def test_an_error_of_the_disk_while_migrating_leaves_a_whole_store(
    plain_store: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    # Opening syncs: the store's name, log folder, four names of the table, new commit, log folder.
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing_fsync((failing,)))
        with pytest.raises(StoreFull, match="opening the store for writing"):
            Store.open(plain_store)
    reader = Store.read(plain_store)
    assert (reader.version, list(reader.records())) == (OLD_VERSION + (failing == 8), OLD_RECORDS)
    with Store.open(plain_store) as store:
        assert (store.version, store.repairs) == (OLD_VERSION + 1, ())
        assert store.append(make_batch(20, 1)).appended == 1


def test_a_kill_before_any_step_of_the_migration_loses_nothing(
    plain_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the folder before each step on the disk is what a kill at that moment leaves behind."""
    watched = Copies(plain_store, tmp_path, lambda: 0)
    with monkeypatch.context() as patch:
        watched.watch(patch)
        Store.open(plain_store).close()
    copies = [copy for copy, _ in watched.left_behind]
    assert {Store.read(copy).version for copy in copies} == {OLD_VERSION, OLD_VERSION + 1}
    for copy in copies:
        assert list(Store.read(copy).records()) == OLD_RECORDS
        with Store.open(copy) as store:
            assert (store.version, store.repairs) == (OLD_VERSION + 1, ())
            assert store.append([*OLD_RECORDS, make_record(20)]).appended == 1
        assert not list((copy / "records/_delta_log").glob(".*.tmp"))


def test_a_torn_migration_is_named_by_readers_and_done_again_by_the_next_writer(plain_store: Path) -> None:
    Store.open(plain_store).close()
    os.truncate(commit_path(plain_store / "records", OLD_VERSION + 1), 200)
    with pytest.raises(StoreError, match=f"or read version {OLD_VERSION}$"):
        Store.read(plain_store)
    with Store.open(plain_store) as store:
        assert "was damaged" in store.repairs[0]
        assert (store.version, list(store.records())) == (OLD_VERSION + 1, OLD_RECORDS)


def test_rows_whose_commit_of_the_older_version_is_torn_are_taken_up_again(old_store: Path) -> None:
    os.truncate(commit_path(old_store / "records", OLD_VERSION), 50)
    with Store.open(old_store) as store:
        assert store.repairs[-1].startswith("2 records were taken up again")
        assert list(store.records()) == OLD_RECORDS
        assert store.append([*OLD_RECORDS, *make_batch(20, 1)]).appended == 1


def test_a_reader_opened_before_the_migration_goes_on(plain_store: Path) -> None:
    reader = Store.read(plain_store)
    found: Iterator[Record] = reader.records()
    first = next(found)
    with Store.open(plain_store) as store:
        store.append(make_batch(20, 3))
        store.upkeep()
        assert [first, *found] == list(reader.records()) == OLD_RECORDS
