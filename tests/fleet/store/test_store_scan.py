"""Reading columns of the store: the same rows as its records, in the same order."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agents.records import DeviceId
from fleet.errors import StoreError
from fleet.store.delta.schema import BATCH_ROWS, FILE_SCHEMA, STORE_SCHEMA
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from tests.record_fixtures import make_batch


@pytest.fixture
def reader(tmp_path: Path) -> StoreReader:
    with Store.open(tmp_path / "s") as store:
        store.append([*make_batch(0, 7), *make_batch(0, 3, device="dev-b")])
        store.append([*make_batch(7, BATCH_ROWS + 5), *make_batch(0, 2, device="dev-c")])
        return Store.read(tmp_path / "s")


def test_rows_come_in_the_order_of_the_records(reader: StoreReader) -> None:
    names = ("run_secs", "measured_at", "schema", "record_id", "quality")
    found = []
    for device_id, batch in reader.columns(names):
        assert tuple(batch.schema.names) == names
        assert [field.type for field in batch.schema] == [FILE_SCHEMA.field(name).type for name in names]
        assert 0 < batch.num_rows <= BATCH_ROWS
        found += [(device_id, *row.values()) for row in batch.to_pylist()]
    assert found == [
        (one.device_id, list(one.run_secs), one.measured_at, one.schema, one.record_id, one.quality)
        for one in reader.records()
    ]


@pytest.mark.parametrize("chosen", [["dev-b"], ["dev-c", "dev-a"], [], ["dev-x"]])
def test_only_the_devices_and_the_version_asked_for(reader: StoreReader, chosen: list[str]) -> None:
    found = {device_id for device_id, _ in reader.columns(["outcome"], device_ids=chosen)}
    assert found == {DeviceId(name) for name in chosen if name != "dev-x"}
    rows = [batch.num_rows for _, batch in reader.columns(["attempt"], version=1)]
    assert rows == [7, 3]
    with pytest.raises(StoreError):
        list(reader.columns(["attempt"], version=99))


def test_a_file_that_lacks_a_column_is_refused(reader: StoreReader) -> None:
    for path in reader.data_files():
        table = pq.read_table(path, partitioning=None)
        pq.write_table(table.drop_columns(["quality"]), path)
    with pytest.raises(StoreError, match="lacks the columns quality"):
        list(reader.columns(["quality", "candidate_id"]))


def test_a_column_that_is_none_is_named(reader: StoreReader) -> None:
    with pytest.raises(StoreError, match="no column 'latency'; known: record_id, "):
        list(reader.columns(["latency", "outcome"]))


def test_rows_of_another_version_are_refused(reader: StoreReader) -> None:
    path = reader.data_files()[-1]
    table = pq.read_table(path, partitioning=None)
    place = table.schema.get_field_index("schema")
    newer = pa.repeat(pa.scalar(STORE_SCHEMA + 1, pa.int32()), table.num_rows)
    pq.write_table(table.set_column(place, table.schema.field(place), newer), path)
    with pytest.raises(StoreError, match="has layout 3, this version reads 2 only"):
        list(reader.columns(["outcome"]))
