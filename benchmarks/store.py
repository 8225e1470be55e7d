"""How fast the store keeps records: `python -m benchmarks.store --json`.

An append is one transaction of the state file; its rows go on to the table in large pieces, and the last ones
as the store is flushed: `records_per_s` and the total ratio count that too. The baseline is deltalake's own
`write_deltalake(mode="append")` of the same rows, with no fsync and no look at which records are known. Both
take turns batch by batch, so a busy disk disturbs both alike.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

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
        "commits": batches,
        "records_per_s": batch * batches / (sum(ours) + flush_secs),
        **ms_of("ms_per_commit", ours, 95),
        "flush_secs": flush_secs,
        "baseline_ms_per_commit_median": 1e3 * statistics.median(plain),
        # Above 1: the store takes longer than the baseline.
        "time_ratio_to_baseline_median": statistics.median(ours) / statistics.median(plain),
        "time_ratio_to_baseline_total": (sum(ours) + flush_secs) / sum(plain),
    }


#: What is done with the store in a process of its own.
_WORK = {
    "open_for_writing": "store = Store.open(sys.argv[1]); count = store.version; store.close()",
    "open_for_reading": "count = Store.read(sys.argv[1]).version",
    "read_all": "count = sum(1 for _ in Store.read(sys.argv[1]).records())",
}


def large_store(folder: Path, count: int) -> Figures:
    """What opening, reading and upkeep of a store of many records cost."""
    with Store.open(folder) as store:
        for start in range(0, count, 64):
            store.append(make_records(start, min(64, count - start)))
    figures: Figures = {
        name: in_child(f"{work}; found = {{'count': count}}", str(folder)) for name, work in _WORK.items()
    }
    with Store.open(folder) as store:
        elapsed = stopwatch()
        store.upkeep(retention_hours=0)
        figures["upkeep_secs"] = elapsed()
    sizes = (path.stat().st_size for path in Store.read(folder).data_files())
    return {**figures, "bytes_per_record_after_upkeep": sum(sizes) / count}


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
        return {
            "baseline": "deltalake write_deltalake append of the same rows, no fsync, no duplicate check",
            "append_64": appends(root / "small", 64, options.small_batches),
            "append_1000": appends(root / "large", 1000, options.large_batches),
            "store": large_store(root / "open", options.records),
        }


main = benchmark("store", __doc__, Options, measure)

if __name__ == "__main__":
    main()
