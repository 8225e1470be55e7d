"""Rows of some devices at once: those of the table, and those that wait for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs

from agents.records import DeviceId
from fleet.errors import disk_errors
from fleet.state.rows import unpack
from fleet.store.delta.log import RECORDS, delta_errors
from fleet.store.delta.schema import TABLE_SCHEMA
from fleet.store.reader import StoreReader

#: The column with the path of each row's file, or the number of the piece that waits; the name is Arrow's.
PATH, _WAITING = "__filename", "waiting/"
#: Columns that a filter of `device_rows` may name.
_FILTERED = ("device_id", "workload_id", "measured_at", "origin")


def device_rows(
    reader: StoreReader,
    names: Sequence[str],
    device_ids: Collection[str],
    *,
    where: pc.Expression | None = None,
    paths: Collection[str] | None = None,
) -> dict[DeviceId, pa.RecordBatch]:
    """Rows of some devices with some columns: one call of Arrow reads all files, without Python's lock.

    Args:
        reader: The store.
        names: Columns; `PATH` is that of the row's file.
        device_ids: The devices; those without such rows are left out of the answer.
        where: Only rows that it lets through; it names columns of `_FILTERED`.
        paths: Only of these files, as `PATH` names them; of all if None.

    Raises:
        StoreError: A file is damaged or gone.
    """
    devices, folder = set(device_ids), reader.path / RECORDS
    every = {str(folder / file.path): file for file in reader.snapshot.files if file.device_id in devices}
    files = {path: file for path, file in every.items() if not paths or path in paths}
    columns = list(dict.fromkeys(("device_id", *names)))
    tables = []
    if files:
        dataset = ds.FileSystemDataset.from_paths(
            list(files),
            schema=TABLE_SCHEMA,
            format=ds.ParquetFileFormat(),
            filesystem=pyarrow.fs.LocalFileSystem(),
            partitions=[ds.field("device_id") == file.device_id for file in files.values()],
        )
        doing = f"reading version {reader.version}"
        with delta_errors(doing, folder), disk_errors(doing, folder):
            tables.append(dataset.to_table(columns=columns, filter=where))
    is_named = pc.field("device_id").isin(sorted(devices))
    for piece in reader.waiting():
        label = f"{_WAITING}{piece.number}"
        if devices.isdisjoint(piece.device_ids) or (paths and label not in paths):
            continue
        rows = unpack(piece.body, [*columns, *_FILTERED]).filter(
            is_named if where is None else is_named & where
        )
        rows = rows.append_column(PATH, pa.repeat(pa.scalar(label), rows.num_rows))
        tables.append(rows.select(columns))
    return _by_device(pa.concat_tables(tables)) if tables else {}


def _by_device(rows: pa.Table) -> dict[DeviceId, pa.RecordBatch]:
    # The order of equal ones stays.
    rows = rows.take(pc.sort_indices(rows.column("device_id"))).combine_chunks()
    batches, start = {}, 0
    for entry in pc.value_counts(rows.column("device_id")).to_pylist():
        [batch] = rows.slice(start, entry["counts"]).combine_chunks().to_batches()
        batches[DeviceId(entry["values"])] = batch
        start += entry["counts"]
    return batches
