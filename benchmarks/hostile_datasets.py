"""Datasets of strangers: faults in card, sums, rows and footer, bombs, and traces that attack.

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
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from agents.device.replay_file import HEAD_KEY, WORKLOADS_KEY
from agents.records import (
    Candidate,
    DeviceId,
    Record,
)
from benchmarks.hostile_corpus import attack_steps
from benchmarks.hostile_values import damaged, deep_text, spoil, text, value, with_faults
from benchmarks.made_up import put_measured, record_of, workload_of
from fleet.datasets.data_card import DatasetAbout, publish
from fleet.datasets.dataset_files import CARD, README, RECORDS, SUMS, write_sums
from fleet.store.store import Store

#: The workload of every dataset, which a device of ours lists too.
WORKLOAD = workload_of("0123456789abcdef")
#: Columns whose text is JSON.
_JSON = ("protocol", "environment", "quality")
_BEGIN = ["GetSBlock", [], ["C", "main"], ["b0"]]


def record(number: int, steps: list[Any] | None = None, **changes: Any) -> Record:
    """A record of one candidate of `WORKLOAD`."""
    sampled = ["SampleCategorical", [], [[number], [1.0]], ["v0"]]
    candidate = Candidate(
        workload_id=WORKLOAD.workload_id, trace=json.dumps([steps or [_BEGIN, sampled], []])
    )
    values: dict[str, Any] = {
        "device_id": DeviceId("board"),
        "run_secs": (1e-3 + number * 1e-9,),
        "measured_at": 1_700_000_000.0 + number,
        "quality": "{}",
    }
    return record_of(candidate, **values | changes)


def write_dataset(folder: Path, records: list[Record]) -> None:
    """Publish records of one device."""
    with tempfile.TemporaryDirectory() as made, Store.open(Path(made) / "store") as store:
        put_measured(store, "board", [WORKLOAD], records)
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


def _with_text(name: str, content: str) -> Callable[[pa.Table], pa.Table]:
    """One text in a column of all rows, kept once."""

    def change(table: pa.Table) -> pa.Table:
        shared = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(table), np.int32)), pa.array([content]))
        return table.set_column(table.schema.get_field_index(name), name, shared)

    return change


def _with_repeats(count: int) -> Callable[[pa.Table], pa.Table]:
    """A first row of so many repeats, all the same, and others without any."""

    def change(table: pa.Table) -> pa.Table:
        ends = np.full(len(table) + 1, count, np.int32)
        ends[0] = 0
        place = table.schema.get_field_index("run_secs")
        field = table.schema.field(place)
        lists = pa.ListArray.from_arrays(pa.array(ends), pa.array(np.zeros(count)), type=field.type)
        return table.set_column(place, field, lists)

    return change


def _equal_rows(table: pa.Table) -> pa.Table:
    """The first row over and over, a few bits each."""
    zeros = pa.array(np.zeros(2_000_000, np.int32))
    columns = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks().slice(0, 1)
        if pa.types.is_string(column.type):
            columns[name] = pa.DictionaryArray.from_arrays(zeros, column)
        else:
            columns[name] = column.take(zeros)
    return pa.table(columns)


#: By name: records that a bomb has at first, and what becomes of them. Each takes some kilobytes.
PARQUET_BOMBS: dict[str, tuple[int, Callable[[pa.Table], pa.Table]]] = {
    "a text that all rows share": (4096, _with_text("environment", '{"a":"' + "a" * 250_000 + '"}')),
    "an id that all rows share": (4096, _with_text("candidate_id", "a" * 250_000)),
    "one long text": (23, _with_text("environment", '{"a":"' + "a" * (100 << 20) + '"}')),
    "rows that are equal": (23, _equal_rows),
    "many repeats": (23, _with_repeats(40_000_000)),
    "repeats within the bound of a row group": (23, _with_repeats(16_000_000)),
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


def make_dataset(rng: Random, folder: Path, marker: str) -> None:
    """Write a hostile dataset into a new folder.

    Args:
        rng: Decides which.
        folder: To make.
        marker: Folder that a trace in it would make where it is replayed.
    """
    if rng.random() < 0.3:
        steps = [attack_steps(kind, f"{marker}-{kind}") for kind in (0, 4)]
        write_dataset(folder, [record(0), *(record(1 + kind, one) for kind, one in enumerate(steps))])
        return
    kind = rng.randrange(6)
    if kind == 0:
        write_bomb(rng.choice(list(PARQUET_BOMBS)), folder)
        return
    shutil.copytree(honest_dataset(), folder)
    path = folder / RECORDS
    if kind == 1:
        rng.choice((faulty_values, faulty_footer))(honest_dataset() / RECORDS, path, rng)
    elif kind == 2:
        path.write_bytes(damaged(rng, path.read_bytes()))
    elif kind == 5:
        not_regular(rng, folder)
    else:
        spoil(rng, folder / rng.choice((CARD, CARD, README, SUMS)))
    # The kernel says of its own files, which `not_regular` links to, that they are regular.
    paths = [folder / name for name in (RECORDS, CARD, README, SUMS)]
    is_readable = all(path.is_file() and not path.is_symlink() for path in paths)
    if rng.random() < 0.95 and is_readable:
        write_sums(folder)


def faulty_values(source: Path, target: Path, rng: Random) -> None:
    """Copy a file with hostile values in some columns."""
    table = pq.read_table(source, use_threads=False)
    for name in rng.sample(table.schema.names, min(4, len(table.schema.names))):
        place, kind = table.schema.get_field_index(name), table.schema.field(name).type
        found = table.column(name).to_pylist()
        for row in range(len(found)):
            if rng.random() < 0.5:
                found[row] = _changed(rng, name, kind, found[row])
        try:
            column = pa.array(found, kind)
        except (pa.ArrowException, OverflowError, UnicodeError):
            continue
        table = table.set_column(place, table.schema.field(name), column)
    pq.write_table(table.replace_schema_metadata(_footer(source)), target)


def _footer(source: Path) -> dict[bytes, bytes]:
    entries = dict(pq.read_metadata(source).metadata)
    return {key: entries[key] for key in (HEAD_KEY, WORKLOADS_KEY)}


def _changed(rng: Random, name: str, kind: pa.DataType, found: Any) -> Any:
    if name in _JSON:
        return json.dumps(value(rng, 2)) if rng.random() < 0.5 else text(rng)
    if pa.types.is_string(kind):
        return text(rng)
    if pa.types.is_floating(kind):
        return rng.choice((float("nan"), float("inf"), -1.0, 0.0, 1e308))
    if pa.types.is_integer(kind):
        return rng.choice((-1, 0, 99, 2**31 - 1))
    if pa.types.is_list(kind):
        return rng.choice(([], [float("nan")], [-1.0], [0.0], [1e308] * 3))
    return found if rng.random() < 0.5 else None


def faulty_footer(source: Path, target: Path, rng: Random) -> None:
    """Copy a file with a fault in what its footer says of devices or workloads."""
    table = pq.read_table(source, use_threads=False)
    entries = _footer(source)
    if rng.random() < 0.5:
        entries[HEAD_KEY] = deep_text(with_faults(rng, json.loads(entries[HEAD_KEY])))
    else:
        workloads = json.loads(zlib.decompress(base64.b64decode(entries[WORKLOADS_KEY])))
        packed = zlib.compress(deep_text(with_faults(rng, workloads)))
        entries[WORKLOADS_KEY] = base64.b64encode(packed[: rng.choice((len(packed), len(packed) // 2))])
    pq.write_table(table.replace_schema_metadata(entries), target)
