"""Real processes, really killed: what was acknowledged is there, once, and the next writer goes on."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agents.records import Record
from agents.spool import Spool
from fleet.errors import StoreLocked
from fleet.store.store import Store
from tests.record_fixtures import make_batch

# Many processes are started one after the other, and each waits for the disk.
pytestmark = pytest.mark.timeout(600)

#: Appends batch after batch and says which are acknowledged. Frequent merges and checkpoints, so that kills
#: fall into them too.
WRITER = """
import sys
import fleet.store.store as module
from tests.record_fixtures import make_batch
module.MERGE_FILES, module.CHECKPOINT_EVERY = 4, 5
store = module.Store.open(sys.argv[1])
first, size = int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
for batch in range(first, first + 10_000):
    store.append(make_batch(batch * size, size) + make_batch(batch * size, 1, device="dev-b"))
    print(batch, flush=True)
    if batch % 7 == 6:
        store.upkeep(retention_hours=0)
"""

SPOOLER = """
import sys
from pathlib import Path
from agents.spool import Spool
from tests.record_fixtures import make_batch
spool = Spool(Path(sys.argv[1]), segment_bytes=4000)
first, size = int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
for batch in range(first, first + 100_000):
    records = make_batch(batch * size, size)
    spool.put(records)
    print(batch, flush=True)
    if batch % 3 == 2:
        print(-batch, flush=True)
        spool.acknowledge(record.record_id for record in records)
"""

SIZE = 6


def run_and_kill(program: str, folder: Path, first: int, after_secs: float) -> list[int]:
    """Start a writer, kill it some time after it is ready, and return the batches that it acknowledged."""
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(folder), str(first), str(SIZE)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    time.sleep(after_secs)
    child.send_signal(signal.SIGKILL)
    lines = child.stdout.read().splitlines(keepends=True)
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    # A line cut by the kill says nothing: its batch counts as not acknowledged.
    return [int(line) for line in lines if line.endswith("\n")]


@pytest.mark.parametrize("seed", range(3))
def test_acknowledged_records_survive_kills_exactly_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    acknowledged: list[int] = []
    first = 0
    for _ in range(4):
        acknowledged += run_and_kill(WRITER, tmp_path / "s", first, rng.uniform(0.0, 0.4))
        seen = Counter(record.record_id for record in Store.read(tmp_path / "s").records())
        assert set(seen.values()) <= {1}
        for batch in acknowledged:
            expected = [*make_batch(batch * SIZE, SIZE), *make_batch(batch * SIZE, 1, device="dev-b")]
            assert all(record.record_id in seen for record in expected), f"batch {batch} was lost"
        first = max(acknowledged, default=-1) + 1
        # One batch may be there without an acknowledgement; it is there as a whole or not at all.
        unacknowledged = len(seen) - (SIZE + 1) * len(acknowledged)
        assert unacknowledged in (0, SIZE + 1)
        with Store.open(tmp_path / "s") as store:
            assert store.repairs == ()
            again = [*make_batch(first * SIZE, SIZE), *make_batch(first * SIZE, 1, device="dev-b")]
            result = store.append(again)
            assert (result.appended, result.duplicates) == (SIZE + 1 - unacknowledged, unacknowledged)
        acknowledged.append(first)
        first += 1
    assert acknowledged


@pytest.mark.parametrize("seed", range(3))
def test_spooled_records_survive_kills(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    put: set[int] = set()
    forgotten: set[int] = set()
    for _ in range(4):
        lines = run_and_kill(SPOOLER, tmp_path / "s", max(put, default=-1) + 2, rng.uniform(0.0, 0.2))
        put |= {batch for batch in lines if batch >= 0}
        forgotten |= {-batch for batch in lines if batch < 0}
        with Spool(tmp_path / "s", segment_bytes=4000) as spool:
            pending = Counter(record.record_id for record in spool.pending())
        assert set(pending.values()) <= {1}
        for batch in put - forgotten:
            assert all(record.record_id in pending for record in make_batch(batch * SIZE, SIZE))
    assert put


def test_a_kill_before_any_step_on_the_disk_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the folder before each step is what a kill at that moment leaves behind."""
    folder = tmp_path / "s"
    acknowledged: list[Record] = []
    left_behind: list[tuple[Path, int]] = []
    copying = False

    def watched(call: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal copying
            # Copying sets times itself, which is no step of the store.
            if not copying:
                copying = True
                copy = tmp_path / f"copy-{len(left_behind)}"
                shutil.copytree(folder, copy)
                left_behind.append((copy, len(acknowledged)))
                copying = False
            return call(*args, **kwargs)

        return step

    with Store.open(folder) as store, monkeypatch.context() as patch:
        for name in ("fsync", "link", "unlink", "replace", "utime"):
            patch.setattr(os, name, watched(getattr(os, name)))
        for start in range(0, 15, 5):
            batch = [*make_batch(start, 5), *make_batch(start, 2, device="dev-b")]
            store.append(batch)
            acknowledged += batch
        store.upkeep(retention_hours=0)
        batch = make_batch(15, 5)
        store.append(batch)
        acknowledged += batch
    assert len(left_behind) > 40
    for copy, count in left_behind:
        with Store.open(copy) as store:
            assert store.repairs == ()
            found = Counter(store.records())
            assert set(found.values()) <= {1}
            assert set(acknowledged[:count]) <= set(found) <= set(acknowledged)
            store.append(acknowledged)
            assert Counter(store.records()) == Counter(acknowledged)
        shutil.rmtree(copy)


def test_the_lock_ends_with_its_process_and_names_it_before(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "s"), "0", "1"], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        with pytest.raises(StoreLocked, match=f"is being written by process {child.pid};"):
            Store.open(tmp_path / "s")
        assert list(Store.read(tmp_path / "s").records()) is not None
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    Store.open(tmp_path / "s").close()
