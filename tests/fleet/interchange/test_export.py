"""Exported Parquet, and what holds for every export: whole or not there, never empty, repeatable."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import pyarrow.parquet as pq
import pytest
import yaml

from agents.device.replay_file import open_file, read_devices, read_workloads
from agents.records import NOISE, Outcome
from fleet.cli.interchange import ExportFormat
from fleet.errors import FleetError, StoreError, StoreFull
from fleet.interchange import export_parquet, export_source
from fleet.interchange.export_store import FORMATS, ExportResult, export
from fleet.store.noise import settled
from fleet.store.store import Store
from tests.disk_fixtures import contents, failing
from tests.record_fixtures import (
    make_batch,
    make_descriptor,
    make_record,
    make_spec,
    make_workload,
)
from tests.table_fixtures import cells

WORKLOAD = make_workload(1, (("resnet-50", 2),))


@contextmanager
def made_store(folder: Path) -> Iterator[Store]:
    """Two devices, 20 records each of one workload and one of an unknown one."""
    with Store.open(folder / "store") as made:
        made.put_device(make_spec("dev-a"), make_descriptor())
        made.put_device(make_spec("dev-b", target_json='{"kind":"llvm","num-cores":2}'), None)
        made.put_workloads([WORKLOAD, make_workload(2)])
        for device in ("dev-b", "dev-a"):
            made.append(make_batch(1, 20, device=device, workload=WORKLOAD.workload_id))
            made.append([make_record(30, device=device, workload="ffff")])
        yield made


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Store]:
    """A store of a test's own."""
    with made_store(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store that stays as it is."""
    with made_store(tmp_path_factory.mktemp("export")) as made:
        made.flush()
        yield made


def test_every_column_of_every_record_is_there_and_each_row_says_what_was_measured(
    growing: Store, tmp_path: Path
) -> None:
    again = make_record(5, device="dev-a", workload=WORKLOAD.workload_id, attempt=1, origin=NOISE)
    other = make_record(50, device="dev-a", workload=WORKLOAD.workload_id)
    growing.append([again, other])
    path = tmp_path / "all.parquet"
    result, table = export(growing, path, "parquet"), pq.read_table(path)
    assert (result.records, table.num_rows, result.files) == (44, 44, (path,))
    assert table.schema.equals(export_parquet.SCHEMA)
    rows = {row["record_id"]: row for row in table.to_pylist()}
    records = list(growing.records())
    counting = {record.record_id for record in settled(records)}
    assert again.record_id not in counting
    measured = (WORKLOAD.name, WORKLOAD.flops, "[[128,128],[128,128],[128,128]]")
    for record in records:
        row = rows[record.record_id]
        for name in ("device_id", "workload_id", "candidate_id", "trace", "attempt", "quality", "schema"):
            assert row[name] == getattr(record, name)
        assert json.loads(row["protocol"])["repeat"] == record.protocol.repeat
        assert (row["outcome"], tuple(row["run_secs"])) == (record.outcome, record.run_secs)
        assert row["latency_secs"] == (record.latency_secs if record.outcome is Outcome.OK else None)
        assert (row["counts"], row["family"]) == (record.record_id in counting, "cpu")
        is_known = record.workload_id == WORKLOAD.workload_id
        assert (row["workload"], row["flops"], row["arg_shapes"]) == (measured if is_known else (None,) * 3)
    targets = {row["target"] for row in rows.values() if row["device_id"] == "dev-b"}
    assert targets == {'{"kind":"llvm","num-cores":2}'}
    # The footer brings devices, and the workloads that occur.
    with open_file(path) as file:
        devices, workloads = read_devices(file, path), read_workloads(file, path)
    assert workloads == [WORKLOAD]
    for name, entry in growing.devices().items():
        assert (devices[name].spec, devices[name].descriptor) == (entry.spec, entry.descriptor)


def test_a_folder_has_a_file_a_device_and_the_same_bytes_for_the_same_version(
    growing: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "deep" / "out"
    growing.flush()
    result = export(growing, folder, "parquet", ["dev-b", "dev-a", "dev-a"])
    files = (folder / "dev-a.parquet", folder / "dev-b.parquet")
    version = growing.version
    assert result == ExportResult(
        format="parquet", files=files, records=42, skipped={}, table_version=version
    )
    manifest = yaml.safe_load((folder / "export.yaml").read_text())
    assert manifest["records"] == {"dev-a": 21, "dev-b": 21}
    assert set(pq.read_table(folder / "dev-b.parquet").column("device_id").to_pylist()) == {"dev-b"}
    growing.append(make_batch(500, 5))
    second = export(Store.read(growing.path, version), tmp_path / "b", "parquet")
    assert [path.read_bytes() for path in files] == [path.read_bytes() for path in second.files]


def test_the_formats_of_the_help_are_those_of_the_export() -> None:
    assert list(get_args(ExportFormat)) == list(FORMATS)


def test_rows_are_streamed_in_groups_of_bounded_size(
    growing: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_parquet, "_GROUP_BYTES", 1)
    growing.append(make_batch(100, 3000, device="dev-b"))
    path = tmp_path / "all.parquet"
    export(growing, path, "parquet", ["dev-b"])
    with pq.ParquetFile(path) as file:
        groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    assert max(groups) <= 1024
    assert sum(groups) == 3021


@pytest.mark.parametrize("fmt", FORMATS)
def test_nothing_to_export_is_one_clear_error_and_leaves_nothing(fmt: str, tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as empty:
        with pytest.raises(FleetError, match=r"holds no records at version .*fleet collect"):
            export(empty, tmp_path / "out", fmt)
        empty.append([make_record(1)])
        empty.put_device(make_spec("dev-b"))
        refusals = [
            ("out", ["dev-b"], "device dev-b has no records"),
            ("out", ["dev-c"], r"no device 'dev-c'.*did you mean 'dev-"),
        ]
        if fmt == "autotvm":
            words = "nothing to export as autotvm from dev-a: 1 left out: its workload"
            refusals += [("out", [], words), ("out.jsonl", [], words)]
        for name, devices, words in refusals:
            with pytest.raises(FleetError, match=words):
                export(empty, tmp_path / name, fmt, devices)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


REFUSALS = """
x                  | parqet        | unknown format 'parqet'.*parquet.*autotvm
x.jsonl.gz         | ansor         | one file holds one device, got dev-a, dev-b
folder.parquet     | parquet       | is a folder
thesis             | parquet       | not replaced
thesis/chapter.txt | meta_schedule | is a file
"""


@pytest.mark.parametrize(("name", "fmt", "words"), cells(REFUSALS))
def test_what_cannot_be_exported_there_is_refused_and_nothing_changes(
    store: Store, tmp_path: Path, name: str, fmt: str, words: str
) -> None:
    for folder in ("thesis", "folder.parquet"):
        (tmp_path / folder).mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years")
    with pytest.raises(FleetError, match=words):
        export(store, tmp_path / name, fmt, replace=True)
    assert contents(tmp_path) == {"thesis/chapter.txt": b"years"}


@pytest.mark.parametrize("name", ["all.parquet", "all"])
def test_what_is_there_is_replaced_only_when_asked_and_put_back_where_the_new_one_has_no_place(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tmp_path / name
    export(store, path, "parquet", ["dev-a"])
    before, move = contents(tmp_path), getattr(Path, "replace" if path.suffix else "rename")
    with pytest.raises(FleetError, match=r"is there already; .*--replace"):
        export(store, path, "parquet")

    def fail(self: Path, target: Path) -> Path:
        if not self.name.endswith(".old") and target == path:
            raise OSError(errno.EIO, "Input/output error")
        return move(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, move.__name__, fail)
        with pytest.raises(StoreError, match="Input/output"):
            export(store, path, "parquet", replace=True)
    assert contents(tmp_path) == before
    result = export(store, path, "parquet", replace=True)
    assert result.records == 42
    assert all(file.exists() for file in result.files)
    assert not [one for one in tmp_path.iterdir() if one.name.startswith(".")]


@pytest.mark.parametrize("kills_at", [1, 2, 3])
@pytest.mark.parametrize("replaces", [False, True], ids=["looks", "replaces"])
def test_an_export_that_a_kill_left_under_another_name_comes_back(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills_at: int, replaces: bool
) -> None:
    class Killed(BaseException):
        pass

    path = tmp_path / "all"
    export(store, path, "parquet", ["dev-a"])
    rename, calls = Path.rename, 0

    def kill(self: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == kills_at:
            raise Killed
        # After a kill nothing runs that would put things back.
        return self if calls > kills_at else rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", kill)
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(Killed):
            export(store, path, "parquet", replace=True)
    assert path.exists() == (kills_at != 2)
    if replaces:
        export(store, path, "parquet", ["dev-b"], replace=True)
    else:
        with pytest.raises(FleetError, match="is there already"):
            export(store, path, "parquet", ["dev-b"])
    kept = {"dev-a", "dev-b"} if kills_at == 3 else {"dev-a"}
    assert {one.stem for one in path.glob("*.parquet")} == ({"dev-b"} if replaces else kept)
    assert not list(tmp_path.glob(".*.old"))


def test_what_a_person_put_in_the_place_of_an_export_costs_neither(store: Store, tmp_path: Path) -> None:
    old, path = tmp_path / ".all.0123abcd.old", tmp_path / "all"
    export(store, old, "parquet", ["dev-a"])
    path.mkdir()
    (path / "chapter.txt").write_text("years")
    before = contents(tmp_path)
    with pytest.raises(FleetError, match="is there already"):
        export(store, path, "parquet", ["dev-b"])
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["all.parquet", "all"])
@pytest.mark.parametrize("is_there", [False, True], ids=["new", "over an old one"])
def test_a_disk_that_fills_up_leaves_the_old_export_or_none(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_there: bool
) -> None:
    path = tmp_path / name
    if is_there:
        export(store, path, "parquet", ["dev-a"])
    before = contents(tmp_path)
    monkeypatch.setattr(export_source, "fsync", failing())
    with pytest.raises(StoreFull, match="no room while exporting"):
        export(store, path, "parquet", replace=True)
    assert contents(tmp_path) == before


def test_a_device_without_an_entry_is_exported_as_far_as_it_is_known(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        trace = '[[["SampleCategorical",[],[[1],[1.0]],["v0"]]],[]]'
        store.append([make_record(1, device="ghost", workload=WORKLOAD.workload_id, trace=trace)])
        store.put_workloads([WORKLOAD])
        path = tmp_path / "ghost.parquet"
        export(store, path, "parquet")
        [row] = pq.read_table(path).to_pylist()
        assert (row["device_id"], row["family"], row["target"]) == ("ghost", None, None)
        with pytest.raises(FleetError, match="does not say what its target is"):
            export(store, tmp_path / "out", "meta_schedule")
