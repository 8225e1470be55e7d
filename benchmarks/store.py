"""How fast the store keeps records: `python -m benchmarks.store --json`.

An append is one transaction of the state file; its rows go on to the table in large pieces, and the last ones
as the store is flushed: `records_per_s` and the total ratio count that too. The baseline is deltalake's own
`write_deltalake(mode="append")` of the same rows, with no fsync and no look at which records are known. Both
take turns batch by batch, so a busy disk disturbs both alike.
"""

from __future__ import annotations

import resource
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import write_deltalake

from agents.records import Record
from benchmarks.harness import (
    Figures,
    benchmark,
    by_turns,
    in_child,
    ms_of,
    option,
    stopwatch,
    working_folder,
)
from benchmarks.made_up import make_records
from fleet.store.delta.schema import TABLE_SCHEMA, records_to_table
from fleet.store.store import Store

OPEN_RECORDS = 100_000


def _baseline_append(folder: Path, records: list[Record]) -> None:
    table = records_to_table(records)
    devices = [record.device_id for record in records]
    table = table.add_column(0, TABLE_SCHEMA.field("device_id"), [devices])
    write_deltalake(folder, table, mode="append", partition_by=["device_id"])


def appends(folder: Path, batch: int, batches: int) -> Figures:
    """Append batches to a new store and to a plain table by turns."""
    batches_of_records = [make_records(number * batch, batch) for number in range(1, batches + 1)]
    mine, theirs = iter(batches_of_records), iter(batches_of_records)
    with Store.open(folder / "store") as store:
        # The first commit makes folders and loads code paths on both sides.
        store.append(make_records(0, batch))
        store.flush()
        _baseline_append(folder / "plain", make_records(0, batch))
        secs = by_turns(
            {
                "ours": lambda: store.append(next(mine)),
                "plain": lambda: _baseline_append(folder / "plain", next(theirs)),
            },
            batches,
        )
        elapsed = stopwatch()
        store.flush()
        flush_secs = elapsed()
    ours, plain = secs.values()
    return {
        "records_per_commit": batch,
        "commits": batches,
        "records_per_s": batch * batches / (sum(ours) + flush_secs),
        **ms_of("ms_per_commit", ours, 95),
        "flush_secs": flush_secs,
        "baseline_ms_per_commit_median": 1e3 * statistics.median(plain),
        # Above 1: the store takes longer than the baseline.
        "time_ratio_to_baseline_median": statistics.median(ours) / statistics.median(plain),
        "time_ratio_to_baseline_total": (sum(ours) + flush_secs) / sum(plain),
    }


def _fill(folder: Path, count: int, batch: int) -> None:
    with Store.open(folder) as store:
        for start in range(0, count, batch):
            store.append(make_records(start, min(batch, count - start)))


#: What is done with the store in a process of its own.
_WORK = {
    "open_for_writing": "store = Store.open(sys.argv[1]); count = store.version; store.close()",
    "open_for_reading": "count = Store.read(sys.argv[1]).version",
    "read_all": "count = sum(1 for _ in Store.read(sys.argv[1]).records())",
    "count_all": "count = sum(one.records for one in Store.read(sys.argv[1]).counts().values())",
}


def _opened(work: str, folder: Path) -> dict[str, float]:
    done = in_child(f"{_WORK[work]}; found = {{'count': count}}", str(folder))
    return {"secs": done["secs"], "count": done["count"], "extra_peak_mb": done["peak_mb"]}


def large_store(folder: Path, count: int) -> Iterator[tuple[str, Any]]:
    """Yield what opening and reading a store of many records costs, before and after upkeep."""
    elapsed = stopwatch()
    _fill(folder, count, 64)
    yield "fill_in_batches_of_64_records_per_s", count / (elapsed())
    yield "data_files_before_upkeep", len(Store.read(folder).data_files())
    for work in _WORK:
        yield work, _opened(work, folder)
    with Store.open(folder) as store:
        elapsed = stopwatch()
        store.upkeep(retention_hours=0)
        yield "upkeep_secs", elapsed()
    yield "open_for_writing_after_upkeep", _opened("open_for_writing", folder)
    files = Store.read(folder).data_files()
    yield "bytes_per_record_after_upkeep", sum(path.stat().st_size for path in files) / count


@dataclass(frozen=True)
class Options:
    """What is measured."""

    small_batches: int = option(200, "appends of 64 records", least=1)
    large_batches: int = option(20, "appends of 1,000 records", least=1)
    records: int = option(OPEN_RECORDS, "records in the store that is opened and read", least=1)


def measure(options: Options) -> Figures:
    """Run all parts."""
    with working_folder() as root:
        for name in ("small", "large"):
            (root / name).mkdir()
        result: Figures = {
            "baseline": "deltalake write_deltalake append of the same rows, no fsync, no duplicate check",
            "append_64": appends(root / "small", 64, options.small_batches),
            "append_1000": appends(root / "large", 1000, options.large_batches),
            "store_records": options.records,
            "store": dict(large_store(root / "open", options.records)),
        }
    result["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return result


main = benchmark("store", __doc__, Options, measure)

if __name__ == "__main__":
    main()
