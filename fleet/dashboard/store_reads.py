"""Reads of the rows of a few devices, all files at once, and a cache of what was made of them.

`StoreReader.columns` reads file by file, which suits a scan of everything. A view wants some hundred small
files in a moment: one call of Arrow reads them without asking for Python's lock in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs

from agents.records import DeviceId
from fleet.durable import disk_errors
from fleet.state.packed_rows import rows_of
from fleet.store.delta.log import RECORDS, DataFile, delta_errors
from fleet.store.delta.schema import TABLE_SCHEMA
from fleet.store.reader import StoreReader

#: The column with the path of each row's file, or the number of the piece that waits; the name is Arrow's.
PATH, _WAITING = "__filename", "waiting/"
#: Results that are kept.
MOST_READS = 64
_Read = TypeVar("_Read")


def device_rows(
    reader: StoreReader,
    names: Sequence[str],
    device_ids: Collection[str],
    *,
    workload_id: str = "",
    paths: Collection[str] | None = None,
) -> Iterator[tuple[DeviceId, pa.RecordBatch]]:
    """Rows of some devices with some columns, as `StoreReader.columns` gives them.

    Args:
        reader: The store.
        names: Columns; `PATH` is that of the row's file.
        device_ids: The devices; a few, for all of it is in memory at once.
        workload_id: Only of this workload; of all if empty.
        paths: Only of these files, as `PATH` names them; of all if None.

    Raises:
        StoreError: A file is damaged or gone.
    """
    device_set, table = set(device_ids), reader.path / RECORDS
    every = {str(table / file.path): file for file in reader.snapshot.files if file.device_id in device_set}
    files = {path: file for path, file in every.items() if paths is None or path in paths}
    if files:
        yield from _table_rows(reader, names, files, workload_id)
    for piece in reader.waiting():
        label = f"{_WAITING}{piece.number}"
        for device_id in (
            sorted(device_set.intersection(piece.device_ids)) if not paths or label in paths else ()
        ):
            columns = [name for name in names if name != PATH]
            mine = rows_of(piece.body, device_id, list(dict.fromkeys([*columns, "workload_id"])))
            if workload_id:
                mine = mine.filter(pc.equal(mine.column("workload_id"), workload_id))
            if PATH in names:
                mine = mine.append_column(PATH, pa.repeat(pa.scalar(label), mine.num_rows))
            for batch in mine.select(list(names)).combine_chunks().to_batches():
                yield DeviceId(device_id), batch


def _table_rows(
    reader: StoreReader, names: Sequence[str], files: Mapping[str, DataFile], workload_id: str
) -> Iterator[tuple[DeviceId, pa.RecordBatch]]:
    table = reader.path / RECORDS
    dataset = ds.FileSystemDataset.from_paths(
        list(files),
        schema=TABLE_SCHEMA,
        format=ds.ParquetFileFormat(),
        filesystem=pyarrow.fs.LocalFileSystem(),
        partitions=[ds.field("device_id") == file.device_id for file in files.values()],
    )
    where = ds.field("workload_id") == workload_id if workload_id else None
    doing = f"reading version {reader.version}"
    with delta_errors(doing, table), disk_errors(doing, table):
        rows = dataset.to_table(columns=["device_id", *names], filter=where)
    for device_id in sorted({file.device_id for file in files.values()}):
        mine = rows.filter(pc.equal(rows.column("device_id"), device_id)).select(list(names))
        for batch in mine.combine_chunks().to_batches():
            yield DeviceId(device_id), batch


class ReadCache:
    """Results of reads, for threads to share; a key names the version that was read, so none is ever old."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reads: dict[tuple[object, ...], object] = {}

    def get(self, key: tuple[object, ...], make: Callable[[], _Read]) -> _Read:
        """What was made for a key before; made now where nothing was, or too many others came since.

        Nobody may change it.
        """
        with self._lock:
            if key in self._reads:
                return self._reads[key]  # type: ignore[return-value]
        result = make()
        with self._lock:
            self._reads[key] = result
            while len(self._reads) > MOST_READS:
                del self._reads[next(iter(self._reads))]
        return result
