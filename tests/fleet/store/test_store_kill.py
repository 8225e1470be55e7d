"""Real processes, really killed: what was acknowledged is there, once, and the next writer goes on."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import pytest

from agents.records import Record
from fleet.store import writer as writer_module
from fleet.store.lanes import LaneSettings
from fleet.store.store import Store
from tests.disk_fixtures import Copies
from tests.record_fixtures import make_batch

# Many processes are started one after the other.
pytestmark = pytest.mark.timeout(600)

#: Forked from one process that has imported what they need: starting each takes milliseconds, not seconds.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["pytest", "fleet.store.store", "tests.record_fixtures"])
Body = Callable[[Path, int, int, Callable[[str], None]], None]


def write_store(path: Path, first: int, size: int, say: Callable[[str], None]) -> None:
    """Append batch after batch and say which are acknowledged.

    Moves into the table, joins and checkpoints are frequent, so that kills fall into them too.
    """
    writer_module.CHECKPOINT_EVERY = 5
    store = Store.open(path, settings=LaneSettings(rows_per_device=2 * size))
    say("ready")
    for batch in range(first, first + 10_000):
        store.append(of_devices("ab", batch, size))
        say(str(batch))
        if batch % 7 == 6:
            store.upkeep(retention_hours=0)


def write_turns(path: Path, first: int, size: int, say: Callable[[str], None]) -> None:
    """As `write_store`, as a part of turns; the rows of five devices go on in three lanes."""
    writer_module.CHECKPOINT_EVERY = 5
    store = Store.open(path, settings=LaneSettings(devices=2, wait_secs=0.01))
    say("ready")
    for batch in range(first, first + 10_000):
        store.take(of_devices("abcde", batch, size))
        store.settle()
        say(str(batch))
        store.move_on()


def of_devices(names: str, batch: int, size: int) -> list[Record]:
    return [one for name in names for one in make_batch(batch * size, size, device=f"dev-{name}")]


def _live(body: Body, path: Path, first: int, size: int, pipe: Connection) -> None:
    body(path, first, size, lambda line: _write_whole(pipe.fileno(), f"{line}\n".encode()))


def _write_whole(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


SIZE = 6


@contextlib.contextmanager
def begun(body: Body, path: Path, first: int, size: int) -> Iterator[tuple[Any, IO[str]]]:
    """A process that is ready, and what it says; it is killed in the end."""
    ours, theirs = FORKS.Pipe(duplex=False)
    child = FORKS.Process(target=_live, args=(body, path, first, size, theirs), daemon=True)
    child.start()
    theirs.close()
    with os.fdopen(os.dup(ours.fileno())) as said:
        ours.close()
        try:
            assert said.readline() == "ready\n"
            yield child, said
        finally:
            child.kill()
            child.join()


def run_and_kill(body: Body, path: Path, first: int, after_secs: float) -> list[int]:
    """Start a writer, kill it some time after it is ready, and return the batches that it acknowledged."""
    with begun(body, path, first, SIZE) as (child, said):
        # Read meanwhile: a full pipe would hold it up.
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(said))
        reader.start()
        time.sleep(after_secs)
        child.kill()
        child.join()
        reader.join()
        assert child.exitcode == -signal.SIGKILL
    # A line cut by the kill says nothing: its batch counts as not acknowledged.
    return [int(line) for line in lines if line.endswith("\n")]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("body", "names"), [(write_store, "ab"), (write_turns, "abcde")])
def test_acknowledged_records_survive_kills_exactly_once(
    tmp_path: Path, body: Body, names: str, seed: int
) -> None:
    rng = random.Random(seed)
    acknowledged: list[int] = []
    first = 0
    for _ in range(4):
        acknowledged += run_and_kill(body, tmp_path / "s", first, rng.uniform(0.0, 0.4))
        seen = Counter(Store.read(tmp_path / "s").records())
        assert set(seen.values()) <= {1}
        assert {one for batch in acknowledged for one in of_devices(names, batch, SIZE)} <= seen.keys()
        # One batch may be there without an acknowledgement; it is there as a whole or not at all.
        size = SIZE * len(names)
        unacknowledged = len(seen) - size * len(acknowledged)
        assert unacknowledged in (0, size)
        first = max(acknowledged, default=-1) + 1
        with Store.open(tmp_path / "s") as store:
            assert store.repairs == ()
            result = store.append(of_devices(names, first, SIZE))
            assert (result.appended, result.duplicates) == (size - unacknowledged, unacknowledged)
        acknowledged.append(first)
        first += 1
    assert acknowledged


def test_a_kill_before_any_step_on_the_disk_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the store before each step is what a kill at that moment leaves behind."""
    path = tmp_path / "s"
    acknowledged: list[Record] = []
    path.mkdir()
    copies = Copies(path, tmp_path, lambda: len(acknowledged))
    with monkeypatch.context() as patch:
        copies.watch(patch)
        with Store.open(path) as store:
            for start in (0, 5):
                batch = [*make_batch(start, 5), *make_batch(start, 2, device="dev-b")]
                store.append(batch)
                acknowledged += batch
                store.flush()
            store.upkeep(retention_hours=0)
            batch = make_batch(10, 5)
            store.append(batch)
            acknowledged += batch
    assert len(copies.left_behind) > 25
    copies.check(acknowledged)
