"""`fleet store verify` finds whatever is not as it was written, and nothing where all is."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agents.records import Candidate, Record, Workload
from fleet.archive.verify import Verified, catalog_faults, verify
from fleet.cli.app import run
from fleet.coverage.coverage import Coverage
from fleet.coverage.table_summary import FILE, SUMMARY, TableSummary
from fleet.store import intake_log
from fleet.store.delta import files
from fleet.store.delta.ids import IdRun, keys_of
from fleet.store.delta.log import commit_path
from fleet.store.delta.schema import FILE_SCHEMA
from fleet.store.intake import Intake, IntakeSettings
from fleet.store.store import Store
from tests.log_fixtures import ansor, autotvm, run_lines
from tests.record_fixtures import make_batch, make_descriptor, make_spec, make_workload, record_ids

WORKLOADS = [make_workload(number) for number in (1, 2)]


def named(record: Record) -> Record:
    """A record whose candidate has the id that it must have."""
    candidate = Candidate(workload_id=record.workload_id, trace=record.trace, dialect=record.dialect)
    return replace(record, candidate_id=candidate.candidate_id)


def batch(start: int, count: int, device: str = "dev-a", workload: Workload = WORKLOADS[0]) -> list[Record]:
    return [named(one) for one in make_batch(start, count, device=device, workload=workload.workload_id)]


def fill(folder: Path, *, waiting: int = 5) -> Path:
    """Several devices, files, versions, a checkpoint, caches, and records on their way into the table."""
    with Store.open(folder) as store:
        store.put_workloads(WORKLOADS)
        for name in ("dev-a", "dev-b"):
            store.put_device(make_spec(name), make_descriptor())
        store.append(batch(0, 300))
        store.append(batch(300, 40, workload=WORKLOADS[1]))
        store._checkpoint()
        store.append(batch(0, 60, device="dev-b"))
        store._save_ids(due=True)
        store.append(batch(400, 20))
        summary = TableSummary(folder / SUMMARY)
        coverage = Coverage({}, ())
        summary.write(summary.packed(store, coverage.matrix, {}, coverage.families, coverage.wanted, []))
        intake = Intake(store, IntakeSettings(wait_secs=1e9))
        intake.append(batch(500, waiting))
        intake.log.close()
    return folder


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("good") / "store")


@pytest.fixture
def store(good: Path, tmp_path: Path) -> Path:
    shutil.copytree(good, tmp_path / "store")
    return tmp_path / "store"


def data_file(folder: Path) -> Path:
    return max(Store.read(folder).data_files(), key=lambda path: path.stat().st_size)


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def where(found: Verified) -> set[str]:
    return {one.where.split("/")[0] for one in found.damage}


def test_a_whole_store_is_whole(good: Path) -> None:
    found = verify(good)
    assert (found.damage, found.notes) == ([], [])
    assert (found.records, found.files, found.waiting) == (420, 4, 5)
    assert (found.devices, found.workloads, found.version) == (2, 2, 4)


def test_what_was_imported_is_whole(tmp_path: Path) -> None:
    failed = [autotvm(n, result=[[1e9], 4, 10, 5]) for n in range(3)]
    assert run_lines(tmp_path, *map(autotvm, range(20)), *failed, *map(ansor, range(20))).imported == 43
    found = verify(tmp_path / "store")
    assert (found.records, found.damage) == (43, [])


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_any_flipped_bit_is_found(good: Path, tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    draws = random.Random(seed)
    folder = tmp_path_factory.mktemp("flip") / "store"
    shutil.copytree(good, folder)
    reader = Store.read(folder)
    paths = [*reader.data_files(), *folder.glob("workloads/*.json"), *folder.glob("devices/*.jsonl")]
    paths += [*folder.glob("ids/*.run"), folder / SUMMARY / FILE]
    path = draws.choice(paths)
    flip(path, draws.randrange(path.stat().st_size), draws.randrange(8))
    found = verify(folder)
    assert found.damages, path
    assert str(path.relative_to(folder)).split("/")[0] in where(found)
    assert all(one.what and one.next_step for one in found.damage)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Stores with records in the intake's file, and in the log of pages that are not in it yet."""
    folder = tmp_path_factory.mktemp("logs")
    with Store.open(folder / "store") as store:
        store.put_workloads(WORKLOADS)
        store.put_device(make_spec("dev-a"), make_descriptor())
        intake = Intake(store, IntakeSettings(wait_secs=1e9))
        for start in (0, 20, 40):
            intake.append(batch(start, 20))
        shutil.copytree(folder / "store", folder / intake_log.PAGES)
        intake.log.close()
        shutil.copytree(folder / "store", folder / intake_log.FILE)
    return {name: folder / name for name in (intake_log.FILE, intake_log.PAGES)}


@pytest.mark.parametrize("name", [intake_log.FILE, intake_log.PAGES])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_a_flipped_bit_of_the_intake_is_found_or_changes_no_record(
    logs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, name: str, seed: int
) -> None:
    draws = random.Random(seed)
    folder = tmp_path_factory.mktemp("flip") / "store"
    shutil.copytree(logs[name], folder)
    path = folder / intake_log.INTAKE / name
    flip(path, draws.randrange(path.stat().st_size), draws.randrange(8))
    found = verify(folder)
    if not found.damage:
        with Store.open(folder) as opened:
            assert opened.repairs == ()
            kept = sorted(opened.records(), key=lambda one: one.measured_at)
        # The last transaction of the log of pages looks as if a power cut had come before its end.
        assert kept == batch(0, 60) or (name == intake_log.PAGES and kept == batch(0, 40))
    shutil.rmtree(folder)


@pytest.mark.parametrize("which", ["workloads/*.json", "devices/*.jsonl"])
def test_every_bit_of_a_catalog_file_counts(good: Path, tmp_path: Path, which: str) -> None:
    path = next(good.glob(which))
    data = path.read_bytes()
    # A module has thousands of bytes: all are tried at both ends, some in the middle, another bit of each.
    for at in (one for one in range(len(data)) if one < 60 or one > len(data) - 120 or one % 97 == 0):
        copy = tmp_path / path.name
        copy.write_bytes(data)
        flip(copy, at, at % 8)
        assert list(catalog_faults(copy, path.parent.name)), at


Damage = Callable[[Path], Any]


def _cut_file(folder: Path) -> None:
    path = data_file(folder)
    os.truncate(path, path.stat().st_size - 1)


def _reworded(change: Callable[[str], str]) -> Damage:
    """Another commit 3."""

    def damage(folder: Path) -> None:
        path = commit_path(folder / "records", 3)
        path.write_text(change(path.read_text()))

    return damage


def _commit_action(folder: Path, **changes: Any) -> None:
    """Say something else of the file that commit 4 adds."""
    path = commit_path(folder / "records", 4)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line.get("add", {}).update(changes, tags={})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _rewritten(change: Callable[[Path, pa.Table], pa.Table]) -> Damage:
    """Rewrite a file and make the log believe it: only what the rows say can tell."""

    def damage(folder: Path) -> None:
        [file] = [one for one in Store.read(folder).snapshot.files if "00000000000000000004-" in one.path]
        path = folder / "records" / file.path
        table = change(folder, pq.read_table(path, partitioning=None))
        pq.write_table(table, path)
        _commit_action(folder, size=path.stat().st_size, stats=json.dumps({"numRecords": table.num_rows}))

    return damage


def _set(table: pa.Table, name: str, row: int, value: Any) -> pa.Table:
    field = FILE_SCHEMA.field(name)
    values = table.column(name).to_pylist()
    values[row] = value
    return table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))


def _row_of_another_file(folder: Path, table: pa.Table) -> pa.Table:
    other = pq.read_table(data_file(folder), partitioning=None)
    return pa.concat_tables([table, other.slice(7, 1).cast(table.schema)])


def _cache_of_another(folder: Path) -> None:
    """A cache whose sums are right, with one id that the table lacks in the place of one that it has."""
    with Store.open(folder) as store:
        ids = store._index.ids
        ids._new.clear()
        ids.runs = [IdRun.of(keys_of(record_ids(store))[:-16] + b"\x01" * 16)]
        store._index.save(store.snapshot)


#: What becomes of a store, the folder where it is found, and words that say so.
DAMAGE: dict[str, tuple[Damage, str, str]] = {
    "a missing file": (lambda folder: data_file(folder).unlink(), "records", "it is missing"),
    "a file cut off": (_cut_file, "records", "bytes, the log says"),
    "a doubled row": (
        _rewritten(lambda _, table: pa.concat_tables([table, table.slice(0, 1)])),
        *("records", "more than once"),
    ),
    "a row of another file": (_rewritten(_row_of_another_file), "records", "more than once"),
    "an extra row": (
        lambda folder: _commit_action(folder, stats='{"numRecords": 19}'),
        *("records", "it has 20 rows, the log says 19"),
    ),
    "a trace of another candidate": (
        _rewritten(lambda _, table: _set(table, "trace", 3, "[[],[]]")),
        *("records", "1 of 20 rows have another id"),
    ),
    "another attempt": (
        _rewritten(lambda _, table: _set(table, "attempt", 0, 7)),
        *("records", "another id"),
    ),
    "another latency": (
        _rewritten(lambda _, table: _set(table, "latency_secs", 0, 1e-9)),
        *("records", "rows cannot be stored"),
    ),
    "a commit without a line": (
        _reworded(lambda text: text.splitlines()[0] + "\n"),
        *("records", "this commit is damaged"),
    ),
    "a commit with an unknown word": (
        _reworded(lambda text: text.replace('{"add"', '{"adf"')),
        *("records", "this commit is damaged"),
    ),
    "commits that are gone": (
        lambda folder: [commit_path(folder / "records", number).unlink() for number in (3, 4)],
        *("records", "commits are missing"),
    ),
    "a damaged checkpoint": (
        lambda folder: flip(next(folder.glob("records/_delta_log/*.checkpoint.parquet")), 40, 3),
        *("records", ""),
    ),
    "a missing workload": (
        lambda folder: (folder / "workloads" / f"{WORKLOADS[1].workload_id}.json").unlink(),
        *("workloads", "40 records name it"),
    ),
    "a missing device": (
        lambda folder: (folder / "devices/dev-b.jsonl").unlink(),
        *("devices", "60 records name it"),
    ),
    "an id too many in the cache": (_cache_of_another, "ids", "not in the table"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_where_it_is(store: Path, name: str) -> None:
    damage, place, words = DAMAGE[name]
    damage(store)
    found = verify(store)
    assert any(one.where.split("/")[0] == place and words in one.what for one in found.damage), found.damage


def test_what_a_killed_writer_leaves_is_no_damage(store: Path) -> None:
    partition = store / "records" / "device_id=dev-a"
    (partition / f"part-{99:020d}-0.parquet").write_bytes(b"PAR1 half a file")
    (store / "records/_delta_log/.00000000000000000009.json.abc.tmp").write_text("{")
    shutil.rmtree(store / "ids")
    shutil.rmtree(store / "summary")
    found = verify(store)
    assert (found.damage, found.waiting) == ([], 5)


def test_a_stale_cache_is_a_note(store: Path) -> None:
    commit = commit_path(store / "records", json.loads((store / "ids/index.json").read_text())["version"])
    commit.write_text(commit.read_text().replace('"timestamp"', '"timestamp" '))
    found = verify(store)
    assert found.damage == []
    assert "will be made again" in found.notes[0]


def test_many_damages_are_counted_and_some_told(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.archive.verify.MOST_TOLD", 2)
    for path in Store.read(store).data_files():
        path.unlink()
    found = verify(store)
    assert len(found.damage) == 2
    assert found.damages >= 4
    assert found.to_json()["ok"] is False


def test_merged_files_keep_sums_and_readers_of_plain_delta_their_table(store: Path) -> None:
    with Store.open(store) as opened:
        opened.upkeep(retention_hours=0)
        before = sorted(record_ids(opened))
    found = verify(store)
    assert (found.damage, found.records) == ([], 425)
    from deltalake import DeltaTable

    table = DeltaTable(store / "records").to_pyarrow_table(columns=["record_id"])
    assert sorted(table.column("record_id").to_pylist()) == before


_WRITER = """
import sys
from pathlib import Path
from fleet.store.store import Store
from tests.fleet.archive.test_verify import batch
with Store.open(sys.argv[1]) as store:
    print("ready", flush=True)
    for number in range(10_000):
        store.append(batch(1000 + 8 * number, 8))
        if number % 50 == 49:
            store.upkeep(retention_hours=1)
"""


def test_beside_a_writer_nothing_is_taken_for_damage(store: Path) -> None:
    command = [sys.executable, "-c", _WRITER, str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            versions = []
            for _ in range(4):
                found = verify(store)
                assert found.damage == []
                versions.append(found.version)
        finally:
            writer.kill()
    assert versions == sorted(versions)
    assert versions[-1] > versions[0], "the writer goes on meanwhile"
    # And after its kill.
    assert verify(store).damage == []


def test_the_verb_says_what_to_do_and_fails(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "verify", "--store", str(store)]) == 0
    assert "all is as it was written" in capsys.readouterr().out
    path = data_file(store)
    flip(path, 100)
    assert run(["store", "verify", "--store", str(store)]) == 1
    out, err = capsys.readouterr()
    assert f"damaged: {path.relative_to(store)}: its SHA-256" in out.replace("\n", "")
    assert "take it from a backup" in out
    assert "are not as written" in err
    assert run(["store", "verify", "--store", str(store), "--json"]) == 1
    value = json.loads(capsys.readouterr().out)
    assert (value["ok"], value["damages"] >= 1) == (False, True)
    assert run(["store", "verify", "--store", str(store.parent / "nowhere")]) == 1
    assert "there is no store" in capsys.readouterr().err


def test_a_data_file_without_a_sum_is_damage(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(files, "file_sum", lambda _: "")
        with Store.open(store) as opened:
            opened.append(batch(901, 2))
    assert {one.what.partition(":")[2][:9] for one in verify(store).damage} == {" bits hav"}
