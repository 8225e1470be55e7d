from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fleet.errors import StoreError
from fleet.store.delta.schema import FILE_SCHEMA, records_to_table
from fleet.store.store import Store
from tests.record_fixtures import make_batch


def changed(name: str, values: list[Any]) -> pa.Table:
    table = records_to_table(make_batch(0, len(values)))
    place = FILE_SCHEMA.get_field_index(name)
    return table.set_column(place, FILE_SCHEMA.field(name), pa.array(values, FILE_SCHEMA.field(name).type))


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
    for line in REFUSED.strip().splitlines():
        name, values, words = (cell.strip() for cell in line.split("|"))
        tables.append((changed(name, json.loads(values)), words))
    with Store.open(tmp_path) as store:
        for table, words in tables:
            with pytest.raises(StoreError, match=words):
                store.append_table("dev-a", table)
        assert (store.version, list(store.records())) == (0, [])
