from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agents.records import DeviceKind, Outcome, Record
from fleet.errors import StoreError, StoreFull, StoreLocked
from fleet.state import table as table_module
from fleet.store.catalog import read_device
from fleet.store.delta.schema import SCHEMA_KEY, TABLE_SCHEMA
from fleet.store.reader import DeviceCounts
from fleet.store.store import AppendResult, Store
from tests.dataset_fixtures import changed
from tests.disk_fixtures import filled, killed
from tests.record_fixtures import (
    make_batch,
    make_descriptor,
    make_record,
    make_spec,
    make_workload,
    storable_records,
)
from tests.table_fixtures import rows


def data_files(folder: Path) -> set[Path]:
    return set((folder / "records").glob("device_id=*/*.parquet"))


@settings(max_examples=20, deadline=None)
@given(records=st.lists(storable_records(), max_size=5, unique_by=lambda record: record.record_id))
def test_any_record_survives_the_table(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record]
) -> None:
    with Store.open(tmp_path_factory.mktemp("s")) as store:
        store.append(records)
        assert set(store.records()) == set(records)
        store.flush()
        assert set(store.records()) == set(records)
        assert store.append(records).duplicates == len(records)


def test_a_known_record_is_left_as_it_is(store: Store) -> None:
    first, changed = make_batch(0, 10), make_batch(5, 5, build_secs=9.0)
    store.append(first)
    # Of two deliveries in one batch the first counts.
    result = store.append([*changed, *make_batch(10, 3), *make_batch(11, 2, build_secs=9.0)])
    assert result == AppendResult(appended=3, duplicates=7, table_version=0)
    # Another attempt, environment or device is another record.
    one = first[1]
    others = [replace(one, attempt=1), replace(one, environment_id="o"), replace(one, device_id="dev-b")]
    assert store.append([one, *others]).appended == 3
    assert set(store.records()) == {*make_batch(0, 13), *others}


def test_counts_add_up(store: Store) -> None:
    store.append([*make_batch(0, 10), *make_batch(4, 4, device="dev-b")])
    store.append([make_record(99, device="dev-b", outcome=Outcome.LOST, run_secs=())])
    counts = store.counts()
    assert list(counts) == ["dev-a", "dev-b"]
    assert counts["dev-a"] == DeviceCounts(
        records=10, ok=7, failed={Outcome.RUN_TIMEOUT: 3}, first_at=1.7e9, last_at=1.7e9 + 9
    )
    assert counts["dev-b"].failed == {Outcome.RUN_TIMEOUT: 1, Outcome.LOST: 1}


def test_people_can_query_plain_columns(store: Store) -> None:
    records = [*make_batch(0, 7), make_record(7, error="half \udce2 a character")]
    store.append(records)
    assert store.data_files() == []
    store.flush()
    table = ds.dataset([str(path) for path in store.data_files()]).to_table().to_pydict()
    assert table["record_id"] == [record.record_id for record in records]
    assert table["error"][7] == "half \\udce2 a character"
    fastest = [min(record.run_secs, default=None) for record in records]
    assert (table["latency_secs"], fastest.count(None)) == (fastest, 2)
    assert json.loads(table["protocol"][0])["repeat"] == 3
    assert json.loads(table["quality"][1]) == {"interval": 0.01 + 1e-6}
    delta = DeltaTable(store.path / "records")
    assert delta.to_pyarrow_dataset().to_table().num_rows == delta.count() == 8
    assert pa.schema(delta.schema()).names == TABLE_SCHEMA.names
    assert delta.history()[0]["operation"] == "WRITE"


#: The coordinator sets others aside before: `test_dead_letters.py`.
UNSTORABLE = r"""
schema: 3            -> record layout 3, this version writes 2 only
device_id: ../x      -> device '\.\./x' cannot be stored
candidate_id: C0FFEE -> 'C0FFEE' cannot be stored: its id is no hexadecimal number
candidate_id: c0f    -> 'c0f' cannot be stored
"""


@pytest.mark.parametrize(("changes", "words"), rows(UNSTORABLE))
def test_a_record_that_cannot_be_held_refuses_the_batch(store: Store, changes: str, words: str) -> None:
    with pytest.raises(StoreError, match=words):
        store.append([make_record(1), changed(make_record(2), changes)])
    assert (list(store.records()), store.rows, store.waiting()) == ([], 0, [])
    assert store.append([make_record(1)]).appended == 1


def test_a_second_writer_is_told_who_writes_and_readers_are_not_held_up(store: Store) -> None:
    store.append(make_batch(0, 2))
    with pytest.raises(StoreLocked, match=f"is being written by process {os.getpid()}"):
        Store.open(store.path)
    assert len(list(Store.read(store.path).records())) == 2
    store.close()
    store.close()
    Store.open(store.path).close()
    with pytest.raises(StoreError, match="was closed"):
        store.append(make_batch(0, 1))


def test_a_store_is_made_only_where_asked_and_nothing_else_is_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store at"):
        Store.open(tmp_path / "new", create=False)
    assert not (tmp_path / "new").exists()
    Store.open(tmp_path / "new").close()
    assert list(Store.read(tmp_path / "new").records()) == []
    file = tmp_path / "other" / "thesis.tex"
    file.parent.mkdir()
    file.write_text("x")
    for path, words in (
        (file, "is a file, expected the folder of a store"),
        (file / "below", "thesis"),
        (file.parent, r"is no store but holds thesis\.tex"),
    ):
        with pytest.raises(StoreError, match=words):
            Store.open(path)
    assert list(file.parent.iterdir()) == [file]


#: The layout of a table, as it says itself, and words of the refusal.
LAYOUTS = """
none -> tensor-fleet did not write it
3    -> has store layout 3, this version reads 2; open it with the
one  -> has store layout one
"""


@pytest.mark.parametrize(("layout", "message"), rows(LAYOUTS))
def test_other_tables_and_layouts_are_refused(tmp_path: Path, layout: str, message: str) -> None:
    DeltaTable.create(
        tmp_path / "records",
        schema=TABLE_SCHEMA,
        partition_by=["device_id"],
        configuration={} if layout == "none" else {SCHEMA_KEY: layout},
        raise_if_key_not_exists=False,
    )
    for call in (Store.open, Store.read):
        with pytest.raises(StoreError, match=message):
            call(tmp_path)


@pytest.mark.parametrize("is_deleted", [False, True], ids=["torn", "deleted"])
def test_a_checkpoint_that_is_torn_or_deleted_costs_nothing(store: Store, is_deleted: bool) -> None:
    store.append(make_batch(0, 5))
    store.upkeep()
    store.append(make_batch(5, 5))
    store.close()
    log = store.path / "records" / "_delta_log"
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    if is_deleted:
        checkpoint.unlink()
        (log / "_last_checkpoint").unlink()
        assert list(Store.read(store.path).records()) == make_batch(0, 10)
    else:
        os.truncate(checkpoint, checkpoint.stat().st_size // 2)
    with Store.open(store.path) as again:
        notes = ["checkpoint.parquet was torn" in repair for repair in again.repairs]
        assert notes == ([] if is_deleted else [True])
        assert not (log / "_last_checkpoint").exists(), "nothing leads to a checkpoint that is gone"
        assert list(again.records()) == list(Store.read(store.path).records()) == make_batch(0, 10)


def test_a_damaged_data_file_is_one_clear_error_and_spares_other_devices(tmp_path: Path) -> None:
    filled(tmp_path, [*make_batch(0, 5), *make_batch(0, 5, device="dev-b")])
    reader = Store.read(tmp_path)
    (file,) = reader.data_files("dev-a")
    os.truncate(file, 200)
    with pytest.raises(StoreError, match="reading version 1"):
        list(reader.records())
    assert list(reader.records("dev-b")) == make_batch(0, 5, device="dev-b")


def test_a_full_disk_that_the_library_tells_of_in_words_is_no_failed_disk(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Any) -> None:
        raise DeltaError(
            "Kernel error: Arrow error: External: Generic LocalFileSystem error: "
            "Unable to copy data to file: No space left on device (os error 28)"
        )

    store.append(make_batch(0, 4))
    with monkeypatch.context() as patched:
        patched.setattr(table_module.DeltaTable, "create_checkpoint", full)
        words = r"no room while writing a checkpoint.*: No space left on device;"
        with pytest.raises(StoreFull, match=words):
            store.upkeep()
    store.upkeep()
    assert Store.read(store.path).rows == 4


def test_a_full_file_system_refuses_the_batch_and_goes_on_once_there_is_room(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        with Store.open(folder / "s") as store:
            store.append(make_batch(0, 5))
            with (folder / "ballast").open("wb", buffering=0) as stream:
                free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
                stream.write(bytes(free - 8192))
            with pytest.raises(StoreFull, match="No space left"):
                store.append(make_batch(5, 5, environment=os.urandom(20_000).hex()))
            assert list(store.records()) == list(Store.read(folder / "s").records()) == make_batch(0, 5)
            with pytest.raises(StoreFull):
                store.put_workloads([make_workload(number) for number in range(100)])
            (folder / "ballast").unlink()
            assert store.append(make_batch(200, 5)).appended == 5
        with Store.open(folder / "s") as store:
            assert list(store.records()) == [*make_batch(0, 5), *make_batch(200, 5)]
            assert data_files(folder / "s") == set(store.data_files())
    finally:
        subprocess.run(["umount", str(folder)], check=True)


READ_ONLY = """
import os, sys
from fleet.errors import StoreError
from fleet.store.store import Store
if os.getuid() == 0:
    os.setuid(65534)
try:
    Store.open(sys.argv[1])
except StoreError as error:
    print("refused", error)
print(len(list(Store.read(sys.argv[1]).records())))
"""


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users reach: pytest's own are closed to them, and shared with other tests."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    yield made
    for path in [made, *made.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(made)


#: What is there, and the last line of what a user prints who may not write.
READ_ONLY_FOLDERS = {
    "closed": "5",
    "of a killed writer": "5",
    "of a killed writer without its shared memory": "fleet.errors.StoreError: error while",
}


@pytest.mark.parametrize("kind", READ_ONLY_FOLDERS)
def test_a_read_only_folder_can_be_read_and_not_written_or_is_one_clear_line(
    public_folder: Path, kind: str
) -> None:
    folder = public_folder / "s"
    with Store.open(public_folder / "alive") as store:
        store.append(make_batch(0, 5))
        if kind != "closed":
            killed(store.path, folder)
    if kind == "closed":
        killed(store.path, folder)
    elif "without" in kind:
        (folder / "state.sqlite-shm").unlink()
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    done = subprocess.run([sys.executable, "-c", READ_ONLY, str(folder)], capture_output=True, text=True)
    assert "check the folder and its permissions" in done.stdout
    assert (done.stdout + done.stderr).splitlines()[-1].startswith(READ_ONLY_FOLDERS[kind])


def test_each_workload_is_kept_once_and_its_networks_are_joined(store: Store) -> None:
    assert store.put_workloads([make_workload(1, (("bert", 3),)), make_workload(2)]) == 2
    assert store.put_workloads([make_workload(1, (("resnet", 5),)), make_workload(3)]) == 1
    assert store.put_workloads([make_workload(1, (("bert", 3),))]) == 0
    found = store.workloads()
    assert [int(key, 16) for key in found] == [1, 2, 3]
    assert found[make_workload(1).workload_id] == make_workload(1, (("bert", 3), ("resnet", 5)))
    assert Store.read(store.path).workloads() == found


def test_a_workload_file_that_is_damaged_or_of_another_version_is_refused(store: Store) -> None:
    store.put_workloads([make_workload(1)])
    (path,) = (store.path / "workloads").iterdir()
    text = path.read_text()
    for bad, message in [
        (text.replace('"schema":1', '"schema":2'), "has layout 2, this version reads 1; open the store with"),
        (text[:-20], "is damaged"),
        ("[]", "no schema number"),
        (text.replace('"flops":4194304.0', '"flops":"many"'), "flops"),
    ]:
        path.write_text(bad)
        with pytest.raises(StoreError, match=message):
            Store.read(store.path).workloads()


def test_the_last_of_a_device_wins_and_the_history_is_kept(store: Store) -> None:
    moved = make_spec(
        kind=DeviceKind.RPC,
        tracker="127.0.0.1:9190",
        key="board",
        protocol_changes=(("cache_flush", 1.0), ("cooldown_ms", 500.0), ("repeat", 3)),
    )
    assert store.put_device(make_spec(), make_descriptor())
    assert not store.put_device(make_spec(), make_descriptor(clock_now_mhz=999.0))
    assert store.put_device(moved, make_descriptor())
    assert not store.put_device(moved, make_descriptor())
    assert store.put_device(make_spec("dev-b"))
    for spec, descriptor, words in (
        (make_spec(protocol_changes=(("cache_flush", True),)), None, r".*protocol_changes\[0\]"),
        (make_spec(), make_descriptor(cpu_model="half \ud800"), ""),
    ):
        with pytest.raises(StoreError, match=f"device dev-a cannot be stored: {words}"):
            store.put_device(spec, descriptor)
    found = {name: (one.spec, one.descriptor) for name, one in store.devices().items()}
    assert found == {"dev-a": (moved, make_descriptor()), "dev-b": (make_spec("dev-b"), None)}
    history = read_device(store.path / "devices" / "dev-a.jsonl")
    assert [entry.spec for entry in history] == [make_spec(), moved]


def test_a_torn_line_of_a_device_is_dropped(store: Store) -> None:
    store.put_device(make_spec(), make_descriptor())
    path = store.path / "devices" / "dev-a.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:50])
    assert store.devices()["dev-a"].spec == make_spec()
    assert store.put_device(make_spec(note="new"), make_descriptor())
    assert [entry.spec.note for entry in read_device(path)] == ["", "new"]


@pytest.mark.parametrize("name", [".state.sqlite.probe", ".writer.pid.1a2b3c4d.tmp"])
def test_a_file_that_a_failed_disk_left_half_way_keeps_no_store_from_being_made(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / name).touch()
    Store.open(tmp_path).close()
    assert Store.read(tmp_path).rows == 0
