"""`fleet store verify` finds whatever is not as it was written, and nothing where all is."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.archive.verify import Verified, rebuild_state, verify
from fleet.errors import StoreError
from fleet.state.schema import STATE
from fleet.state.state_file import StateFile
from fleet.state.table import RecordsTable
from fleet.state.table_log import TableLog
from fleet.store.delta.log import file_sum, load_snapshot
from fleet.store.store import Store
from tests.archive_fixtures import (
    OURS,
    batch,
    data_file,
    data_files,
    fill,
    flip,
    ids_of,
    opened,
    record_ids,
    rows_of,
    with_column,
)
from tests.table_fixtures import cells, rows


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("good") / "store")


@pytest.fixture
def store(good: Path, tmp_path: Path) -> Path:
    shutil.copytree(good, tmp_path / "store")
    return tmp_path / "store"


def where(found: Verified) -> set[str]:
    return {one.where.split("/")[0] for one in found.damage}


def test_a_whole_store_is_whole_also_when_its_files_are_merged(good: Path, store: Path) -> None:
    found = verify(good)
    assert (found.damage, found.notes) == ([], [])
    assert (found.records, found.files, found.waiting) == (420, 4, 5)
    assert (found.devices, found.workloads, found.version) == (2, 2, 4)
    with opened(store) as writer:
        writer.table.flush(writer.lanes())
        writer.table.compact(writer.devices())
    found = verify(store)
    assert (found.damage, found.records, found.files) == ([], 425, 2)
    with opened(store) as writer:
        assert writer.table.delete_unused(writer.table.version) == 4
    assert verify(store).damage == []
    # Readers of plain Delta have their table.
    table = DeltaTable(store / "records").to_pyarrow_table(columns=["record_id"])
    assert sorted(table.column("record_id").to_pylist()) == record_ids(good)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_any_flipped_bit_is_found(good: Path, tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    draws = random.Random(seed)
    folder = tmp_path_factory.mktemp("flip") / "store"
    shutil.copytree(good, folder)
    paths = [*data_files(folder), *folder.glob("workloads/*.json"), *folder.glob("devices/*.jsonl")]
    path = draws.choice(paths)
    flip(path, draws.randrange(path.stat().st_size), draws.randrange(8))
    found = verify(folder)
    assert found.damages, path
    assert str(path.relative_to(folder)).split("/")[0] in where(found)
    assert all(one.what and one.next_step for one in found.damage)
    shutil.rmtree(folder)


Damage = Callable[[Path], Any]


def _cut_file(folder: Path) -> None:
    path = data_file(folder)
    os.truncate(path, path.stat().st_size - 1)


def _commit(folder: Path, version: int) -> Path:
    return TableLog(folder / "records").commit_path(version)


def _reworded(change: Callable[[str], str]) -> Damage:
    """Another commit 3."""

    def damage(folder: Path) -> None:
        path = _commit(folder, 3)
        path.write_text(change(path.read_text()))

    return damage


def _commit_action(folder: Path, **changes: Any) -> None:
    """Say something else of the file that commit 4 adds."""
    path = _commit(folder, 4)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line.get("add", {}).update(changes)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _in_state(query: str) -> Damage:
    def damage(folder: Path) -> None:
        with closing(sqlite3.connect(folder / STATE)) as connection:
            connection.execute(query)
            connection.commit()

    return damage


def _file_of_commit_4(folder: Path) -> Path:
    lines = map(json.loads, _commit(folder, 4).read_text().splitlines())
    [path] = [line["add"]["path"] for line in lines if "add" in line]
    return folder / "records" / path


def _rewritten(change: Callable[[Path, pa.Table], pa.Table]) -> Damage:
    """Rewrite a file and make log and state file believe it: only what the rows say can tell."""

    def damage(folder: Path) -> None:
        path = _file_of_commit_4(folder)
        table = change(folder, pq.read_table(path, partitioning=None))
        pq.write_table(table, path)
        _commit_action(folder, size=path.stat().st_size, stats=json.dumps({"numRecords": table.num_rows}))
        name = str(path.relative_to(folder / "records"))
        rows = load_snapshot(folder / "records", 4).rows
        with closing(StateFile(folder / STATE)) as state, state.turn() as turn:
            [file] = [one for one in state.files() if one.path == name]
            changed = replace(file, rows=table.num_rows, sha256=file_sum(path))
            turn.drop_waiting([], [changed], version=4, table_rows=rows)

    return damage


def _set(table: pa.Table, name: str, row: int, value: Any) -> pa.Table:
    values = table.column(name).to_pylist()
    values[row] = value
    return with_column(table, name, values)


def _foreign_version(folder: Path) -> None:
    rows = rows_of(batch(900, 2))
    write_deltalake(folder / "records", rows, mode="append", partition_by=["device_id"])


def _older_state(folder: Path) -> None:
    older = (folder / STATE).read_bytes()
    with opened(folder) as store:
        store.append(batch(600, 3))
    (folder / STATE).write_bytes(older)


#: What becomes of a store, how the place begins where it is found, and words that say so.
LOST = """
a missing file               | records   | it is missing
a file cut off               | records   | bytes, the log says
a doubled row                | records   | more than once
an extra row                 | records   | it has 20 rows, the log says 19
a trace of another candidate | records   | 1 of 20 rows have another id
another latency              | records   | rows cannot be stored
a damaged checkpoint         | records   |
a missing workload           | workloads | 40 records name it
a missing device             | devices   | 60 records name it
"""
#: Likewise, of what making the state file again mends: the last ones are changes of it that only a comparison
#: can tell.
MENDED = """
no state file                | state | it is missing
an older state file          | records | ends at version 5, the state file names 4
a version of somebody else   | records | version 5 was written by somebody else
a torn last commit           | records | this commit is damaged
commits that are gone        | records | commits are missing
a torn commit in the middle  | records | this commit is damaged
a commit without a line      | records | a commit lost a line
DELETE FROM result WHERE latency_secs IN (SELECT max(latency_secs) FROM result) | state | have no result
UPDATE result SET attempt = 7 WHERE latency_secs > 0.00100049 | state | of its results have no record
UPDATE result SET outcome = 7 WHERE outcome = 4               | state | or another one
UPDATE result SET outcome = 77 WHERE outcome = 4              | state | its results
UPDATE tally SET measured = measured + 1 WHERE records = 40   | state | sums over results are not
UPDATE tally SET noise_at = 5.0 WHERE records = 40            | state | not what the records say
UPDATE label SET text = 'dev-q' WHERE text = 'dev-b'          | state | or another one
DELETE FROM label WHERE text = 'dev-a'                        | state | no name has the number
UPDATE data_file SET rows = 9                                 | state | what it says of 'device_id
DELETE FROM data_file WHERE rows = 40                         | state | it does not say what
DELETE FROM table_version                                     | records | the state file names None
UPDATE table_version SET version = 9                          | records | names 9: commits are missing
UPDATE table_version SET version = 2                          | records | version 4, the state file names 2
INSERT INTO waiting SELECT number + 9, lane, devices, rows, since, body, sum FROM waiting | state | wait more
"""
CHANGES: dict[str, Damage] = {
    "a missing file": lambda folder: data_file(folder).unlink(),
    "a file cut off": _cut_file,
    "a doubled row": _rewritten(lambda _, table: pa.concat_tables([table, table.slice(0, 1)])),
    "an extra row": lambda folder: _commit_action(folder, stats='{"numRecords": 19}'),
    "a trace of another candidate": _rewritten(lambda _, table: _set(table, "trace", 3, "[[],[]]")),
    "another latency": _rewritten(lambda _, table: _set(table, "latency_secs", 0, 1e-9)),
    "a damaged checkpoint": lambda folder: flip(next(folder.rglob("*.checkpoint.parquet")), 40, 3),
    "a missing workload": lambda folder: (folder / "workloads" / f"{OURS[1].workload_id}.json").unlink(),
    "a missing device": lambda folder: (folder / "devices/dev-b.jsonl").unlink(),
    "no state file": lambda folder: (folder / STATE).unlink(),
    "an older state file": _older_state,
    "a version of somebody else": _foreign_version,
    "a torn last commit": lambda folder: os.truncate(_commit(folder, 4), 300),
    "commits that are gone": lambda folder: [_commit(folder, number).unlink() for number in (3, 4)],
    "a torn commit in the middle": _reworded(lambda text: text[:-5]),
    "a commit without a line": _reworded(lambda text: text.splitlines()[0] + "\n"),
}


def damaged(store: Path, name: str, place: str, words: str) -> Verified:
    """Damage a store, or change its state file by a query, and find that where it is."""
    CHANGES.get(name, _in_state(name))(store)
    found = verify(store)
    assert any(one.where.startswith(place) and words in one.what for one in found.damage), found.damage
    return found


@pytest.mark.parametrize(("name", "place", "words"), cells(LOST))
def test_damage_is_found_where_it_is(store: Path, name: str, place: str, words: str) -> None:
    damaged(store, name, place, words)


@pytest.mark.parametrize(("name", "place", "words"), cells(MENDED))
def test_what_the_table_tells_is_made_again(
    good: Path, store: Path, name: str, place: str, words: str
) -> None:
    found = damaged(store, name, place, words)
    assert any("--rebuild" in one.next_step for one in found.damage)
    before = record_ids(good)
    if name == "an older state file":
        before = sorted([*before, *ids_of(batch(600, 3))])
    elif name == "a version of somebody else":
        before = sorted([*before, *ids_of(batch(900, 2))])
    elif name == "no state file":
        before = sorted({*before} - {*ids_of(batch(500, 5))})
    assert rebuild_state(store) != []
    assert verify(store).damage == []
    assert record_ids(store) == before
    with opened(store) as again:
        assert len(list(again.state.results())) == len(before)
        again.table.flush(again.lanes())
    assert verify(store).damage == []
    assert record_ids(store) == before
    assert rebuild_state(store) == []


#: What of that keeps a store from being opened, and words of the refusal.
REFUSALS = """
no state file              -> ends with version 4, its state file names version none
an older state file        -> ends with version 5, its state file names version 4
a version of somebody else -> version 5 of .* was written by somebody else
UPDATE table_version SET version = 2 -> ends with version 4, its state file names version 2
"""


@pytest.mark.parametrize(("name", "words"), rows(REFUSALS))
def test_a_table_that_its_state_file_does_not_name_is_not_written(store: Path, name: str, words: str) -> None:
    CHANGES.get(name, _in_state(name))(store)
    before = data_files(store)
    with pytest.raises(StoreError, match=words):
        Store.open(store)
    assert data_files(store) == before


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_what_a_killed_writer_leaves_is_no_damage(
    store: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    partition = store / "records" / "device_id=dev-a"
    (partition / f"part-{99:020d}-0.parquet").write_bytes(b"PAR1 half a file")
    (store / "records/_delta_log/.00000000000000000009.json.abc.tmp").write_text("{")
    before = record_ids(store)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with opened(store) as writer, monkeypatch.context() as patch:
        patch.setattr(RecordsTable, "_confirm", killed)
        with pytest.raises(KeyboardInterrupt):
            writer.table.flush(writer.lanes())
    commit = _commit(store, 5)
    assert commit.exists()
    found = verify(store)
    assert (found.damage, found.waiting, found.version) == ([], 5, 4)
    os.truncate(commit, int(share * commit.stat().st_size))
    assert verify(store).damage == []
    assert rebuild_state(store) == []
    with opened(store) as writer:
        assert "was torn: kept as" in " ".join(writer.table.notes)
        writer.table.flush(writer.lanes())
    assert (verify(store).damage, record_ids(store)) == ([], before)
