from __future__ import annotations

import math
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


def test_columns_are_kept_as_records_are_each_id_once(tmp_path: Path) -> None:
    records = make_batch(0, 20)
    device = records[0].device_id
    table = records_to_table(records)
    with Store.open(tmp_path) as store:
        store.append(records[:5])
        done = store.append_table(device, pa.concat_tables([table, table.slice(10)]))
        assert (done.appended, done.duplicates, done.table_version) == (15, 15, 0)
        assert done.rows[device].column("record_id").to_pylist() == [one.record_id for one in records[5:]]
        assert store.append_table(device, table).appended == 0
        assert store.waiting_count == 20
    with Store.open(tmp_path) as store:
        assert store.append_table(device, table).duplicates == 20
        assert list(store.records()) == records


@pytest.mark.parametrize(
    ("table", "match"),
    [
        (lambda: records_to_table(make_batch(0, 2)).drop_columns(["trace"]), "expected"),
        (lambda: changed("trace", ["[]", None]), "column trace holds nulls"),
        (lambda: changed("record_id", ["0" * 32, "0" * 31]), "32 digits"),
        (lambda: changed("outcome", ["ok", "splendid"]), "unknown outcomes splendid"),
        (lambda: changed("schema", [2, 99]), "record layout 99"),
        (lambda: changed("protocol", ["{}", "{}"]), "protocol"),
        (lambda: changed("protocol", ["junk", "junk"]), "cannot be stored"),
        (lambda: changed("run_secs", [[1.0], [1.0], [1.0]]), "not the fastest"),
        (lambda: changed("latency_secs", [None, None]), "none where it is"),
        (lambda: changed("outcome", ["run_failed", "run_failed"]), "not ok"),
        (lambda: changed("run_secs", [[1.0, None], [1.0]]), "hold nulls"),
        (lambda: changed("run_secs", [[1.0], [1.0, math.nan]]), "holds nan, expected seconds"),
        (lambda: changed("run_secs", [[1.0], [math.nan, 1.0]]), "column run_secs holds nan"),
        (lambda: changed("run_secs", [[math.inf], [1.0]]), "column run_secs holds inf"),
        (lambda: changed("run_secs", [[1.0, -0.5], [1.0]]), "column run_secs holds -0.5"),
        (lambda: changed("warmup_secs", [[], [math.nan]]), "column warmup_secs holds nan"),
        (lambda: changed("build_secs", [0.0, -1.0]), "column build_secs holds -1.0"),
        (lambda: changed("wait_secs", [math.inf, 0.0]), "column wait_secs holds inf"),
        (lambda: changed("timing_secs", [-math.inf, 0.0]), "column timing_secs holds -inf"),
        (lambda: changed("measured_at", [math.nan, 0.0]), "column measured_at holds nan"),
    ],
)
def test_rows_that_are_no_records_are_refused_whole(tmp_path: Path, table: Any, match: str) -> None:
    with Store.open(tmp_path) as store:
        with pytest.raises(StoreError, match=match):
            store.append_table("dev-a", table())
        assert (store.version, list(store.records())) == (0, [])
