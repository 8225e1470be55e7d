"""Readers beside a writer that merges, makes checkpoints and deletes: each sees one whole version."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from deltalake import DeltaTable

from fleet.store.store import Store
from tests.conftest import running
from tests.record_fixtures import record_ids

#: Writes batches of five devices as fast as it can, with all upkeep there is: for some seconds at least, so
#: many batches at least, and (a minute at most) until its input is closed. Rows wait for the table in three
#: lanes. Dead files stay for a few seconds only: longer than any of the readers below takes.
WRITER = """
import select, sys, time
import fleet.store.store as module
import fleet.store.writer as writer
from fleet.store.lanes import LaneSettings
from tests.record_fixtures import make_batch
writer.CHECKPOINT_EVERY = 4
store = module.Store.open(sys.argv[1], settings=LaneSettings(devices=2, wait_secs=0.05))
print(store.version, 0, flush=True)
until, batch = time.monotonic() + float(sys.argv[2]), 0
while (now := time.monotonic()) < until + 60:
    if now >= until and batch >= 40 and select.select([sys.stdin], [], [], 0)[0]:
        break
    rows = [one for name in "abcde" for one in make_batch(batch * 2, 2, device=name)]
    store.append(rows)
    if batch % 3 == 0:
        store.flush()
        # All that came so far is in the table from this version on.
        print(store.version, 10 * (batch + 1), flush=True)
    if batch % 5 == 4:
        store.upkeep(retention_hours=6 / 3600)
    batch += 1
store.flush()
store.upkeep(retention_hours=6 / 3600)
print(store.version, 10 * batch, flush=True)
store.close()
"""


def test_no_reader_sees_half_of_anything(tmp_path: Path) -> None:
    with running(WRITER, tmp_path, 2) as child:
        assert child.first_line.endswith(" 0\n")
        seen: list[tuple[int, int, int]] = []
        earlier = Store.read(tmp_path)
        while child.poll() is None:
            reader = Store.read(tmp_path)
            ids = record_ids(reader)
            assert len(set(ids)) == len(ids)
            counted = sum(one.records for one in reader.counts().values())
            # The same moment in four ways; a batch is ten records of five devices, whether they wait or not.
            assert {one.record_id for one in reader.records()} == set(ids)
            assert len(ids) == counted == reader.rows
            assert counted % 10 == 0
            table = DeltaTable(tmp_path / "records", version=reader.version)
            in_table = table.to_pyarrow_table(columns=["record_id"]).num_rows
            assert in_table + sum(piece.rows for piece in reader.waiting()) == counted
            # A reader keeps its version, whatever became of its files.
            assert len(record_ids(earlier)) == earlier.rows
            earlier = reader
            seen.append((reader.version, counted, in_table))
            if len({version for version, *_ in seen}) > 3 and any(rows < count for _, count, rows in seen):
                child.stdin.close()  # enough was read for what follows, however slow it was
        told = [tuple(map(int, line.split())) for line in child.stdout.read().splitlines()]
        assert child.wait() == 0
    assert len({version for version, *_ in seen}) > 3
    assert any(rows < count for _, count, rows in seen), "some were seen while they waited"
    # Later versions have no fewer records, and all that the writer said it had put in by then.
    assert seen == sorted(seen)
    for version, _, in_table in seen:
        assert in_table >= max((records for at, records in told if at <= version), default=0)
    operations = Counter(entry["operation"] for entry in DeltaTable(tmp_path / "records").history())
    assert operations["OPTIMIZE"] > 3
    assert len(list((tmp_path / "records" / "_delta_log").glob("*.checkpoint.parquet"))) > 3
    assert Store.read(tmp_path).rows == told[-1][1]
