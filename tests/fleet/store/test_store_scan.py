"""Reading columns of the store: the same rows as its records, in the same order."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agents.records import content_hash
from fleet.errors import StoreError
from fleet.store.delta.schema import BATCH_ROWS, FILE_SCHEMA, batch_to_records, records_to_table
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from fleet.store.trace_lookup import find_candidates, find_records
from tests.archive_fixtures import with_column
from tests.record_fixtures import make_batch, make_record
from tests.table_fixtures import cells

#: Of the first device; its larger file has two groups of rows.
ROWS = 2 * BATCH_ROWS + 12


@pytest.fixture(params=[0, 1, 2], ids=["all wait", "some wait", "none waits"])
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> StoreReader:
    return stored(tmp_path, request.param)


def stored(folder: Path, flushes: int) -> StoreReader:
    with Store.open(folder / "s") as store:
        for number, batch in enumerate(
            [
                [*make_batch(0, 7), *make_batch(0, 3, device="dev-b")],
                [*make_batch(7, ROWS - 7), *make_batch(0, 2, device="dev-c")],
            ]
        ):
            store.append(batch)
            if number < flushes:
                store.flush()
        return Store.read(folder / "s")


def test_order_and_content_are_those_of_the_arrival_with_and_without_a_flush(tmp_path: Path) -> None:
    waiting, mixed, table = (stored(tmp_path / str(number), number) for number in range(3))
    expected = [
        *make_batch(0, ROWS),
        *make_batch(0, 3, device="dev-b"),
        *make_batch(0, 2, device="dev-c"),
    ]
    for reader in (waiting, mixed, table):
        assert list(reader.records()) == expected
        assert (reader.rows, reader.counts()) == (ROWS + 5, table.counts())
        content = content_of(reader)
        assert [(name, row["record_id"], row["quality"]) for name, row in content] == [
            (one.device_id, one.record_id, one.quality) for one in expected
        ]
        assert content == content_of(table)
    assert [len(one.waiting()) for one in (waiting, mixed, table)] == [2, 1, 0]
    assert [one.moment for one in (waiting, mixed, table)] == [(0, 2), (1, 2), (2, 0)]


def content_of(reader: StoreReader) -> list[tuple[str, dict[str, object]]]:
    names = FILE_SCHEMA.names[::-1]
    found = []
    for device_id, batch in reader.columns(names):
        assert batch.schema.names == names
        assert [field.type for field in batch.schema] == [FILE_SCHEMA.field(name).type for name in names]
        assert 0 < batch.num_rows <= BATCH_ROWS
        found += [(device_id, row) for row in batch.to_pylist()]
    return found


@pytest.mark.parametrize("chosen", [["dev-b"], ["dev-c", "dev-a"], [], ["dev-x"]])
def test_only_the_devices_and_the_version_asked_for(reader: StoreReader, chosen: list[str]) -> None:
    found = {device_id for device_id, _ in reader.columns(["outcome"], device_ids=chosen)}
    assert found == {*chosen} - {"dev-x"}
    with pytest.raises(StoreError):
        list(reader.columns(["attempt"], version=99))
    with pytest.raises(StoreError, match="no column 'latency'; known: record_id, "):
        list(reader.columns(["latency", "outcome"]))


def test_a_version_is_that_of_the_table_alone(tmp_path: Path) -> None:
    reader = stored(tmp_path, 1)
    for version, expected in ((None, ROWS + 5), (1, 10), (0, 0)):
        rows = [batch.num_rows for _, batch in reader.columns(["attempt"], version=version)]
        assert sum(rows) == expected
    assert Store.read(reader.path, version=1).rows == 10
    assert Store.read(reader.path, version=0).waiting() == ()


def test_candidates_and_all_their_records_are_found(reader: StoreReader) -> None:
    records = [make_record(number) for number in (3, 9, ROWS - 1)]
    wanted = [one.candidate_id for one in records]
    found = find_candidates(reader, ["dev-a"], [*wanted, content_hash("nowhere")])
    traces = {(one.candidate_id, one.trace, one.origin) for one in found}
    assert traces == {(one.candidate_id, one.trace, "paired") for one in records}
    assert find_candidates(reader, ["dev-b"], wanted[1:]) == []
    assert Counter(find_records(reader, "dev-a", set(wanted))) == Counter(records)


def test_a_file_that_lacks_a_column_is_refused(tmp_path: Path) -> None:
    reader = stored(tmp_path, 2)
    for path in reader.data_files():
        table = pq.read_table(path, partitioning=None)
        pq.write_table(table.drop_columns(["quality"]), path)
    with pytest.raises(StoreError, match="lacks the columns quality"):
        list(reader.columns(["quality", "candidate_id"]))


def changed(name: str, values: str) -> pa.Table:
    """Rows with these values of a column, which are JSON."""
    several = json.loads(values)
    return with_column(records_to_table(make_batch(0, len(several))), name, several)


#: A column of rows that are in the table, its value, and why this version cannot read them.
UNREADABLE = """
schema   | [3]      | has layout 3, this version reads 2 only
protocol | ["{}"]   | cannot be read: record: protocol: lacks build_timeout_sec
outcome  | ["fine"] | cannot be read: 'fine'
"""


@pytest.mark.parametrize(("name", "values", "words"), cells(UNREADABLE))
def test_a_row_that_this_version_cannot_read_is_one_clear_error(name: str, values: str, words: str) -> None:
    [batch] = changed(name, values).to_batches()
    with pytest.raises(StoreError, match=f"a record of device dev-a {words}"):
        list(batch_to_records("dev-a", batch))


#: A column, its values as JSON, and words of the refusal.
REFUSED = """
trace        | ["[]", null]                      | column trace holds nulls
record_id    | ["00", "1"]                       | 32 digits
outcome      | ["ok", "splendid"]                | unknown outcomes splendid
outcome      | ["run_failed", "run_failed"]      | not ok
schema       | [2, 99]                           | record layout 99
protocol     | ["{}", "{}"]                      | protocol
protocol     | ["junk", "junk"]                  | cannot be stored
run_secs     | [[1.0], [1.0], [1.0]]             | not the fastest
run_secs     | [[1.0, null], [1.0]]              | hold nulls
run_secs     | [[1.0], [1.0, NaN]]               | holds nan, expected seconds
run_secs     | [[1.0], [NaN, 1.0]]               | column run_secs holds nan
run_secs     | [[Infinity], [1.0]]               | column run_secs holds inf
run_secs     | [[1.0, -0.5], [1.0]]              | column run_secs holds -0.5
warmup_secs  | [[], [NaN]]                       | column warmup_secs holds nan
latency_secs | [null, null]                      | none where it is
build_secs   | [0.0, -1.0]                       | column build_secs holds -1.0
wait_secs    | [Infinity, 0.0]                   | column wait_secs holds inf
timing_secs  | [-Infinity, 0.0]                  | column timing_secs holds -inf
measured_at  | [NaN, 0.0]                        | column measured_at holds nan
"""


def test_rows_that_are_no_records_are_refused_whole(tmp_path: Path) -> None:
    tables = [(records_to_table(make_batch(0, 2)).drop_columns(["trace"]), "expected")]
    tables += [(changed(name, values), words) for name, values, words in cells(REFUSED)]
    with Store.open(tmp_path) as store:
        for table, words in tables:
            with pytest.raises(StoreError, match=words):
                store.append_table("dev-a", table)
        assert (store.version, list(store.records())) == (0, [])
