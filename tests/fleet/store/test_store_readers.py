"""Readers beside a writer that merges, makes checkpoints and deletes: each sees one whole version."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from fleet.store.store import Store
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


@pytest.fixture(scope="module")
def writing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    folder = tmp_path_factory.mktemp("s")
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), "2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout.readline().endswith(" 0\n")
        yield folder, child
        child.kill()


def test_no_reader_sees_half_of_anything(writing: tuple[Path, subprocess.Popen[str]]) -> None:
    folder, child = writing
    seen: list[tuple[int, int, int]] = []
    while child.poll() is None:
        reader = Store.read(folder)
        counted = sum(one.records for one in reader.counts().values())
        ids = Counter(record.record_id for record in reader.records())
        assert set(ids.values()) <= {1}
        assert len(ids) == counted
        # A batch is ten records of five devices, whether they wait or not.
        assert counted % 10 == 0
        # The same moment again, through columns and through deltalake itself.
        again = {
            one for _, batch in reader.columns(["record_id"]) for one in batch.column("record_id").to_pylist()
        }
        assert again == set(ids)
        table = DeltaTable(folder / "records", version=reader.version)
        in_table = table.to_pyarrow_table(columns=["record_id"]).num_rows
        assert in_table + sum(piece.rows for piece in reader.waiting()) == counted == reader.rows
        seen.append((reader.version, counted, in_table))
        if len({version for version, *_ in seen}) > 3 and any(rows < count for _, count, rows in seen):
            child.stdin.close()  # enough was read for what follows, however slow it was
    told = [tuple(map(int, line.split())) for line in child.stdout.read().splitlines()]
    assert child.returncode == 0
    assert len(seen) > 3
    assert len({version for version, *_ in seen}) > 3
    assert any(rows < count for _, count, rows in seen), "some were seen while they waited"
    # Later versions have no fewer records, and all that the writer said it had put in by then.
    assert seen == sorted(seen)
    for version, _, in_table in seen:
        assert in_table >= max((records for at, records in told if at <= version), default=0)
    operations = Counter(entry["operation"] for entry in DeltaTable(folder / "records").history())
    assert operations["OPTIMIZE"] > 3
    assert len(list((folder / "records" / "_delta_log").glob("*.checkpoint.parquet"))) > 3
    assert sum(one.records for one in Store.read(folder).counts().values()) == told[-1][1]


def test_a_reader_keeps_its_version_through_upkeep(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path), "3"],
        stdin=subprocess.PIPE,  # not closed: it goes on until it is killed
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        records = 0
        for line in child.stdout:
            records = int(line.split()[1])
            if records >= 40:
                break
        assert records >= 40
        reader = Store.read(tmp_path)
        first = Counter(record.record_id for record in reader.records())
        until = time.monotonic() + 1
        while time.monotonic() < until:
            assert Counter(record.record_id for record in reader.records()) == first
        child.kill()
    assert len(first) >= records
    # What the writer left when it was killed is whole, too.
    with Store.open(tmp_path) as store:
        assert store.repairs == ()
        assert set(first) <= set(record_ids(store))
