"""Folders of strangers: datasets, models and backups, honest ones with faults, and traces that attack.

Called by `benchmarks.hostile_child` and the tests. Nothing here opens what it makes.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from agents.device.replay_file import HEAD_KEY, WORKLOADS_KEY
from agents.records import Candidate, DeviceId, Record
from benchmarks.hostile_corpus import Made, attack_steps
from benchmarks.hostile_values import (
    damaged,
    deep_text,
    seed_json,
    spoil,
    text,
    value,
    with_fault,
    with_faults,
)
from benchmarks.made_up import put_measured, record_of, workload_of
from fleet.archive.backup import back_up
from fleet.archive.backup_folder import MANIFEST, OBJECTS, _sum_of
from fleet.datasets.data_card import DatasetAbout, publish
from fleet.datasets.dataset_files import CARD, README, RECORDS, SUMS, write_sums
from fleet.models.registry import Registry
from fleet.models.registry_file import REGISTRY
from fleet.store.store import Store
from transfer.checked_folder import MANIFEST_NAME, TENSORS_NAME, sha256

#: The workload of every dataset, which a device of ours lists too.
WORKLOAD = workload_of("0123456789abcdef")
BOARD = DeviceId("board")
#: Columns whose text is JSON.
_JSON = ("protocol", "environment", "quality")
_BEGIN = ["GetSBlock", [], ["C", "main"], ["b0"]]


def record(number: int, steps: list[Any] | None = None) -> Record:
    """A record of one candidate of `WORKLOAD`, by the device `board`."""
    sampled = ["SampleCategorical", [], [[number], [1.0]], ["v0"]]
    trace = json.dumps([steps or [_BEGIN, sampled], []])
    return record_of(
        Candidate(workload_id=WORKLOAD.workload_id, trace=trace),
        device_id=BOARD,
        run_secs=(1e-3 + number * 1e-9,),
        measured_at=1_700_000_000.0 + number,
        quality="{}",
    )


def write_dataset(folder: Path, records: list[Record]) -> None:
    """Publish records of one device."""
    with tempfile.TemporaryDirectory() as made, Store.open(Path(made) / "store") as store:
        put_measured(store, BOARD, [WORKLOAD], records)
        publish(store, folder, DatasetAbout(name="lab"))


@cache
def honest_dataset(rows: int = 23) -> Path:
    """A dataset of some records, made once a process."""
    folder = Path(tempfile.mkdtemp(prefix="hostile-dataset-")) / "lab"
    write_dataset(folder, [record(number) for number in range(rows)])
    return folder


def _rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change the rows of a file; its schema then says nothing of dictionaries."""
    footer = pq.read_metadata(path).metadata
    table = change(pq.read_table(path))
    with pq.ParquetWriter(path, table.schema, compression="zstd", store_schema=False) as writer:
        writer.write_table(table)
        kept = {key: footer[key] for key in footer if key.startswith(b"tensor_fleet")}
        writer.add_key_value_metadata(kept)


def _with_text(table: pa.Table, name: str, length: int) -> pa.Table:
    """One text in a column of all rows, kept once."""
    content = "a" * length if name == "candidate_id" else json.dumps({"a": "a" * length})
    shared = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(table), np.int32)), pa.array([content]))
    return table.set_column(table.schema.get_field_index(name), name, shared)


def _with_repeats(table: pa.Table, count: int) -> pa.Table:
    """A first row of so many repeats, all the same, and others without any."""
    ends = np.full(len(table) + 1, count, np.int32)
    ends[0] = 0
    place = table.schema.get_field_index("run_secs")
    field = table.schema.field(place)
    lists = pa.ListArray.from_arrays(pa.array(ends), pa.array(np.zeros(count)), type=field.type)
    return table.set_column(place, field, lists)


def _equal_rows(table: pa.Table) -> pa.Table:
    """The first row over and over, a few bits each."""
    zeros = pa.array(np.zeros(2_000_000, np.int32))
    columns = {}
    for name in table.column_names:
        first = table.column(name).combine_chunks().slice(0, 1)
        is_text = pa.types.is_string(first.type)
        columns[name] = pa.DictionaryArray.from_arrays(zeros, first) if is_text else first.take(zeros)
    return pa.table(columns)


#: By name: records that a bomb has at first, and what becomes of them. Each takes some kilobytes.
PARQUET_BOMBS: dict[str, tuple[int, Callable[[pa.Table], pa.Table]]] = {
    "a text that all rows share": (4096, partial(_with_text, name="environment", length=250_000)),
    "an id that all rows share": (4096, partial(_with_text, name="candidate_id", length=250_000)),
    "one long text": (23, partial(_with_text, name="environment", length=100 << 20)),
    "rows that are equal": (23, _equal_rows),
    "many repeats": (23, partial(_with_repeats, count=40_000_000)),
    "repeats within the bound of a row group": (23, partial(_with_repeats, count=16_000_000)),
}


def write_bomb(name: str, folder: Path) -> None:
    """Write a dataset whose small file of records stands for gigabytes, with right sums and counts."""
    rows, change = PARQUET_BOMBS[name]
    shutil.copytree(honest_dataset(rows), folder)
    _rewrite(folder / RECORDS, change)
    card = json.loads((folder / CARD).read_text())
    card["records"] = pq.read_metadata(folder / RECORDS).num_rows
    (folder / CARD).write_text(json.dumps(card))
    write_sums(folder)


#: What may stand in the place of a file.
_NO_FILES: tuple[Callable[[Path], object], ...] = (
    os.mkfifo,
    Path.mkdir,
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to("/dev/tty"),
    lambda path: path.symlink_to("/proc/kmsg"),
    lambda path: path.symlink_to("/proc/self/mem"),
    lambda path: path.symlink_to(path),
)


def not_regular(rng: Random, folder: Path) -> None:
    """Put something that is no regular file in the place of a file of a folder."""
    path = rng.choice(sorted(one for one in folder.rglob("*") if one.is_file()))
    path.unlink()
    rng.choice(_NO_FILES)(path)


def make_dataset(rng: Random, folder: Path, marker: str) -> Made:
    """Write a hostile dataset into a new folder.

    Args:
        rng: Decides which.
        folder: To make.
        marker: Beginning of the names of folders that a trace in it would make where it is replayed.
    """
    if rng.random() < 0.3:
        steps = [attack_steps(kind, f"{marker}{kind}") for kind in (0, 4)]
        write_dataset(folder, [record(0), *(record(1 + kind, one) for kind, one in enumerate(steps))])
        return Made("dataset", attacks=2)
    kind = rng.randrange(6)
    if kind == 0:
        write_bomb(rng.choice(list(PARQUET_BOMBS)), folder)
        return Made("dataset")
    shutil.copytree(honest_dataset(), folder)
    if kind < 3:
        spoil_records(rng, folder / RECORDS)
    elif kind == 3:
        not_regular(rng, folder)
    else:
        spoil(rng, folder / rng.choice((CARD, CARD, README, SUMS)))
    # The kernel says of its own files, which `not_regular` links to, that they are regular.
    paths = [folder / name for name in (RECORDS, CARD, README, SUMS)]
    if rng.random() < 0.95 and all(path.is_file() and not path.is_symlink() for path in paths):
        write_sums(folder)
    return Made("dataset")


def spoil_records(rng: Random, path: Path) -> None:
    """Put faults into the bytes, the columns or the footer of a file of records."""
    kind = rng.randrange(3)
    if kind == 0:
        path.write_bytes(damaged(rng, path.read_bytes()))
        return
    table = pq.read_table(path, use_threads=False)
    entries = dict(pq.read_metadata(path).metadata)
    footer = {key: entries[key] for key in (HEAD_KEY, WORKLOADS_KEY)}
    if kind == 1:
        for name in rng.sample(table.schema.names, 4):
            table = _with_wrong_values(rng, table, name)
    elif rng.random() < 0.5:
        footer[HEAD_KEY] = deep_text(with_faults(rng, json.loads(footer[HEAD_KEY])))
    else:
        workloads = json.loads(zlib.decompress(base64.b64decode(footer[WORKLOADS_KEY])))
        packed = zlib.compress(deep_text(with_faults(rng, workloads)))
        footer[WORKLOADS_KEY] = base64.b64encode(packed[: rng.choice((len(packed), len(packed) // 2))])
    pq.write_table(table.replace_schema_metadata(footer), path)


def _with_wrong_values(rng: Random, table: pa.Table, name: str) -> pa.Table:
    """Hostile values in half of the rows of a column, where its type can hold them."""
    field = table.schema.field(name)
    cells = table.column(name).to_pylist()
    for row in range(len(cells)):
        if rng.random() < 0.5:
            cells[row] = _wrong_value(rng, name, field.type)
    with suppress(pa.ArrowException, OverflowError, UnicodeError):
        return table.set_column(table.schema.get_field_index(name), field, pa.array(cells, field.type))
    return table


def _wrong_value(rng: Random, name: str, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return json.dumps(value(rng, 2)) if name in _JSON and rng.random() < 0.5 else text(rng)
    if pa.types.is_integer(kind):
        return rng.choice((-1, 0, 99, 2**31 - 1))
    number = rng.choice((float("nan"), float("inf"), -1.0, 0.0, 1e308))
    if pa.types.is_floating(kind):
        return number
    return [number] * rng.choice((0, 1, 3)) if pa.types.is_list(kind) else None


VERSION = "v000001"


@cache
def _honest_models() -> Path:
    """A registry with one version that serves a device, made once a process."""
    from transfer.features.extractor import DEFAULT_SPEC
    from transfer.model.encoder import ModelSizes
    from transfer.model.fleet_tlp import FleetTLP, model_config

    folder = Path(tempfile.mkdtemp(prefix="hostile-models-")) / "models"
    sizes = ModelSizes(step_width=8, attention_heads=2, trunk_width=16, head_width=4)
    registry = Registry(folder)
    about = {"table_version": 1, "samples": 8, "onboarded": "board", "trained_workloads": ["0" * 16]}
    verdicts = {"board": {"reason": "better", "judged": {"top1": [0.8, 0.7, 0.9], "workloads": 3}}}
    model = FleetTLP(model_config(DEFAULT_SPEC, sizes), ("board",)).eval()
    version = registry.add(model, {**about, "verdicts": verdicts, "data_until": {"board": 1.7e9}})
    registry.publish(version, {"board": {"reason": "first"}})
    return folder


def make_models(rng: Random, folder: Path, _: str) -> Made:
    """Write a hostile folder of models; `test_registry_faults` has a table of wrong values of a registry."""
    shutil.copytree(_honest_models(), folder)
    tensors, path = folder / VERSION / TENSORS_NAME, folder / VERSION / MANIFEST_NAME
    manifest = json.loads(path.read_text())
    kind = rng.randrange(6)
    if kind == 0:
        not_regular(rng, folder)
    elif kind < 4:
        spoil(rng, rng.choice((path, path, folder / REGISTRY)))
    elif kind == 4:
        tensors.write_bytes(damaged(rng, tensors.read_bytes()))
        manifest["tensors_sha256"] = sha256(tensors.read_bytes())
        path.write_text(json.dumps(manifest))
    else:
        manifest["model"]["sizes"] |= rng.choice(seed_json()["model_sizes"])
        manifest["model"] |= rng.choice(({}, *seed_json()["model_configs"]))
        manifest["heads"] *= rng.choice((1, 1, 1, 100_000))
        path.write_text(json.dumps(manifest))
    return Made("models")


@cache
def _honest_backup() -> Path:
    """A backup of a store of some records, made once a process."""
    folder = Path(tempfile.mkdtemp(prefix="hostile-backup-"))
    with Store.open(folder / "store") as store:
        put_measured(store, BOARD, [WORKLOAD], [record(number) for number in range(8)])
    back_up(folder / "store", folder / "backup")
    return folder / "backup"


def make_backup(rng: Random, folder: Path, _: str) -> Made:
    """Write a hostile backup."""
    shutil.copytree(_honest_backup(), folder)
    kind, path = rng.randrange(5), folder / MANIFEST
    if kind == 0:
        not_regular(rng, folder)
    elif kind == 1:
        path = rng.choice(sorted((folder / OBJECTS).glob("*/*")))
        path.write_bytes(damaged(rng, path.read_bytes()))
    elif kind == 2:
        spoil(rng, path)
    else:
        whole = json.loads(path.read_text())
        del whole["sum"]
        if kind == 3:
            name = rng.choice(("a\0b", "a" * 5000, "\x1b[2J", "\ud800"))
            whole["files"][f"records/{name}"] = next(iter(whole["files"].values()))
        else:
            whole = with_fault(rng, whole)
        if isinstance(whole, dict):
            with suppress(ValueError, TypeError, RecursionError):
                whole |= {"sum": _sum_of(whole)}
        path.write_bytes(deep_text(whole))
    return Made("backup")
