"""Exported Parquet files with faults in their values or in their footer.

Called by `benchmarks.hostile_stages`: replay devices read such files, which may come from other people.
"""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from agents.device.replay_file import HEAD_KEY, WORKLOADS_KEY
from benchmarks.hostile_values import deep_text, text, value, with_fault

#: Columns whose text is JSON.
_JSON = ("protocol", "environment", "quality")


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
        head = json.loads(entries[HEAD_KEY])
        for _ in range(rng.choice((1, 3))):
            head = with_fault(rng, head)
        entries[HEAD_KEY] = deep_text(head)
    else:
        workloads = json.loads(zlib.decompress(base64.b64decode(entries[WORKLOADS_KEY])))
        for _ in range(rng.choice((1, 3))):
            workloads = with_fault(rng, workloads)
        packed = zlib.compress(deep_text(workloads))
        entries[WORKLOADS_KEY] = base64.b64encode(packed[: rng.choice((len(packed), len(packed) // 2))])
    pq.write_table(table.replace_schema_metadata(entries), target)
