"""The files of a published dataset, and whether they are what was published.

    records.parquet   all records; its footer holds workloads and devices (`agents.device.replay_file`)
    dataset.json      the data card for programs
    README.md         the same for people
    SHA256SUMS        sums of these three, as `sha256sum --check` reads them

A dataset may come from anybody: every file is bounded, and every row is checked before one is taken. Nothing
in it is executed or unpickled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from agents.codec import bounded_json
from agents.device.bounded_parquet import RowBudget
from agents.device.replay_file import MOST_FILE_BYTES, Recorded, open_file, read_devices, read_workloads
from agents.errors import AgentError
from agents.files import check_regular, read_regular
from agents.records import DeviceId, Workload, record_id_of
from fleet.archive.checks import Seen, row_faults
from fleet.datasets.claims import Card, check_head, check_rows
from fleet.errors import FleetError, StoreError
from fleet.store.catalog import check_name
from fleet.store.delta.log import file_sum
from fleet.store.delta.schema import FILE_SCHEMA, check_columns
from fleet.terminal_text import visible
from transfer.arrays import Ints
from transfer.model.manifest import first_fault

RECORDS: Final = "records.parquet"
CARD: Final = "dataset.json"
README: Final = "README.md"
SUMS: Final = "SHA256SUMS"
#: Layout of the folder and of its card.
FORMAT: Final = 1
#: Key of the card that says so.
FORMAT_KEY: Final = "tensor_fleet_dataset"

_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)

#: Columns that the id of a record is made of, beside its device.
ID_PARTS: Final = ("candidate_id", "environment_id", "attempt")
_SUMMED: Final = (RECORDS, CARD, README)
#: Bytes of each file at most.
_MOST_BYTES: Final = {RECORDS: MOST_FILE_BYTES, CARD: 4 << 20, README: 16 << 20, SUMS: 1 << 16}
#: Rows that are decoded at once, and bytes of their texts that are written out and checked at once; all of
#: 4,096 real rows have some 40 MiB.
_BATCH_ROWS: Final = 4096
_PIECE_BYTES: Final = 16 << 20


class DatasetRefusedError(FleetError):
    """A folder that holds no dataset, or one that is not as it was published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDataset:
    """A published dataset whose files have the sums that stand beside them."""

    folder: Path
    name: str
    #: The data card (`fleet.datasets.data_card`).
    card: Mapping[str, Any]
    #: SHA-256 of the file of sums: it stands for the whole dataset.
    sha256: str
    devices: Mapping[DeviceId, Recorded]
    workloads: tuple[Workload, ...]


def opened_id(name: str, device_id: str) -> DeviceId:
    """What a device of a dataset is called in a store."""
    return DeviceId(f"{name}.{device_id}")


def with_record_ids(device_id: str, rows: _Rows) -> _Rows:
    """The same records with the ids that follow from a device's name and from `ID_PARTS` of their columns."""
    parts = (rows.column(name).to_pylist() for name in ID_PARTS)
    ids = [
        record_id_of(candidate_id, device_id, where, attempt)
        for candidate_id, where, attempt in zip(*parts, strict=True)
    ]
    place = rows.schema.get_field_index("record_id")
    return rows.set_column(place, rows.schema.field(place), pa.array(ids, pa.string()))


def write_sums(folder: Path) -> str:
    """Write the file of sums, and give its own sum."""
    text = "".join(f"{file_sum(folder / name)}  {name}\n" for name in sorted(_SUMMED))
    (folder / SUMS).write_text(text)
    return hashlib.sha256(text.encode()).hexdigest()


def read_published(folder: Path, sha256: str = "") -> PublishedDataset:
    """Compare the sums of a dataset, and read what it says of itself.

    Args:
        folder: Of the dataset.
        sha256: Sum of its file of sums, from a source that is trusted; not compared when empty.

    Raises:
        DatasetRefusedError: A file is missing, damaged, too large, of another version, or another one.
    """
    text = _text(folder, SUMS)
    actual_sum = hashlib.sha256(text.encode()).hexdigest()
    if sha256 and sha256.lower() != actual_sum:
        raise DatasetRefusedError(
            f"{folder}: this dataset has SHA-256 {actual_sum}, expected {sha256}: it is another one; "
            "get it again"
        )
    sums = _sums(folder, text)
    wrong = [fault for name in _SUMMED if (fault := _sum_fault(folder / name, sums[name]))]
    if wrong:
        raise DatasetRefusedError(f"{folder}: {'; '.join(wrong)}: damaged or changed; get the dataset again")
    card = _card(folder)
    path = folder / RECORDS
    try:
        with open_file(path) as file:
            devices, workloads = read_devices(file, path), read_workloads(file, path)
        for kind, names in (
            ("device", devices),
            ("workload", [workload.workload_id for workload in workloads]),
        ):
            for name in names:
                check_name(kind, name)
        for name in devices:
            check_name("device", opened_id(card["name"], name))
        check_head(devices, workloads)
    except (AgentError, StoreError, pa.ArrowException, ValueError) as error:
        raise DatasetRefusedError(f"{folder}: {visible(str(error))}") from error
    return PublishedDataset(
        folder=folder,
        name=card["name"],
        card=card,
        sha256=actual_sum,
        devices=devices,
        workloads=tuple(workloads),
    )


def checked_rows(dataset: PublishedDataset) -> Iterator[tuple[DeviceId, pa.Table]]:
    """Yield all rows, some of one device at a time, as the store keeps them.

    Raises:
        DatasetRefusedError: A row is no record, has another id than it must have, or names what is not there.
    """
    path, tally = dataset.folder / RECORDS, Seen()
    workload_ids = pa.array([workload.workload_id for workload in dataset.workloads], pa.string())
    columns = ["device_id", *FILE_SCHEMA.names]
    try:
        budget = RowBudget(path, path.stat().st_size)
        with open_file(path) as file:
            _check_columns_of(file)
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=columns, use_threads=False):
                for rows in _pieces(batch, budget.spend(batch)):
                    yield from _by_device(dataset, rows, workload_ids, tally)
        # Equal rows cost a file nothing, and whoever reads them much.
        if repeated := len(tally.repeated()):
            raise StoreError(f"{repeated:,} records are there more than once")
    except AgentError as error:
        raise DatasetRefusedError(visible(str(error))) from error
    except (OSError, pa.ArrowException, StoreError, ValueError, TypeError, OverflowError) as error:
        if isinstance(error, DatasetRefusedError):
            raise
        raise DatasetRefusedError(
            f"{path}: cannot be decoded: {visible(' '.join(str(error).split()))}"
        ) from error
    if tally.rows != dataset.card["records"]:
        raise DatasetRefusedError(
            f"{path}: has {tally.rows:,} records, its card says {dataset.card['records']:,}"
        )


def _by_device(
    dataset: PublishedDataset, rows: pa.Table, workload_ids: pa.Array, tally: Seen
) -> Iterator[tuple[DeviceId, pa.Table]]:
    path = dataset.folder / RECORDS
    for name in rows.column("device_id").unique().to_pylist():
        if name not in dataset.devices:
            raise DatasetRefusedError(
                f"{path}: has records of device {visible(str(name))}, which it does not describe"
            )
        mine = rows.filter(pa.compute.equal(rows.column("device_id"), name)).select(FILE_SCHEMA.names)
        mine = mine.cast(FILE_SCHEMA)
        # Texts first: all else may stumble over one that is none.
        mine.validate(full=True)
        check_columns(mine)
        for fault in row_faults(name, mine, tally):
            raise DatasetRefusedError(f"{path}: device {name}: {visible(fault)}")
        check_rows(mine)
        strangers = pa.compute.filter(
            mine.column("workload_id"),
            pa.compute.invert(pa.compute.is_in(mine.column("workload_id"), value_set=workload_ids)),
        )
        if len(strangers):
            raise DatasetRefusedError(
                f"{path}: lacks workload {visible(str(strangers[0].as_py()))} of its records"
            )
        yield DeviceId(name), mine


def _check_columns_of(file: pq.ParquetFile) -> None:
    schema = file.schema_arrow
    for field in (pa.field("device_id", pa.string()), *FILE_SCHEMA):
        place = schema.get_field_index(field.name)
        kind = pa.dictionary(pa.int32(), field.type) if field.type == pa.string() else field.type
        if place < 0 or not schema.field(place).type.equals(kind):
            raise StoreError(f"column {field.name} is not there, or not of type {field.type}")


def _pieces(batch: pa.RecordBatch, lengths: Ints) -> Iterator[pa.Table]:
    """Rows with their texts written out, so many at a time that these take little room."""
    ends = np.cumsum(lengths)
    start = 0
    while start < batch.num_rows:
        before = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + _PIECE_BYTES, side="right")))
        columns = [
            column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
            for column in batch.slice(start, end - start).columns
        ]
        yield pa.table(columns, names=batch.schema.names)
        start = end


def _text(folder: Path, name: str) -> str:
    try:
        return read_regular(folder / name, _MOST_BYTES[name]).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise DatasetRefusedError(
            f"{folder} holds no published dataset ({name}: {why}); `fleet datasets publish` makes one"
        ) from None


def _sums(folder: Path, text: str) -> dict[str, str]:
    sums = {line[66:]: line[:64] for line in text.splitlines()}
    if sums.keys() != set(_SUMMED):
        raise DatasetRefusedError(
            f"{folder / SUMS}: expected one line `SHA-256  NAME` for each of {', '.join(_SUMMED)}; get the "
            "dataset again"
        )
    return sums


def _sum_fault(path: Path, expected: str) -> str:
    """What is wrong with a file; empty where it is as it was published."""
    try:
        check_regular(path, _MOST_BYTES[path.name])
        actual_sum = file_sum(path)
    except OSError as error:
        return f"{path.name}: {error.strerror}"
    return (
        ""
        if actual_sum == expected
        else f"{path.name} has SHA-256 {actual_sum}, {SUMS} says {visible(expected)}"
    )


def _card(folder: Path) -> dict[str, Any]:
    path = folder / CARD
    try:
        card = bounded_json(_text(folder, CARD))
    except (ValueError, RecursionError) as error:
        raise DatasetRefusedError(f"{path}: is no JSON: {visible(str(error))}") from None
    version = card.get(FORMAT_KEY) if isinstance(card, dict) else None
    if type(version) is not int:
        raise DatasetRefusedError(f"{path}: does not say its version ({FORMAT_KEY}); publish it again")
    if version != FORMAT:
        raise DatasetRefusedError(
            f"{folder} has version {version}, this version reads {FORMAT}; publish it again, or read it with "
            "the version that wrote it"
        )
    try:
        Card.model_validate(card)
    except ValidationError as error:
        raise DatasetRefusedError(f"{path}: {visible(first_fault(error))}; publish it again") from None
    assert isinstance(card, dict)
    return card
